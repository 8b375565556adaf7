"""Results of a function for the objects of the last round: most are those of the round before."""

from collections.abc import Callable, Collection, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class KeptResults(Generic[K, T]):
    """Calls a pure function for new keys only. What left with the last round is not kept.

    ``results(keys)[key] == function(key)`` for each of ``keys``, and it holds nothing else: its
    size is that of what is there now, however much comes and goes.
    """

    def __init__(self, function: Callable[[K], T]) -> None:
        """``function`` depends on its argument alone."""
        self._function = function
        self._results: dict[K, T] = {}

    def __call__(self, keys: Collection[K]) -> dict[K, T]:
        """The results by key. Raises what the function raises, and then keeps what it had."""
        before, function = self._results, self._function
        results = {
            key: before[key] if key in before else function(key) for key in dict.fromkeys(keys)
        }
        self._results = results
        return results
