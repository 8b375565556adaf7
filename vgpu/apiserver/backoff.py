"""Back-off of items that failed: a delay for each item, longer after each failure; pure."""

from collections.abc import Callable, Collection, Hashable
from typing import Final

import msgspec

FIRST_SECONDS: Final = 1.0
"""Maximum wait after the first failure, in seconds; it doubles with each further one."""

LONGEST_SECONDS: Final = 60.0
"""Maximum wait after any failure, in seconds."""

_MOST_DOUBLINGS: Final = 16


def backoff_seconds(
    failures: int, jitter: float, first: float = FIRST_SECONDS, longest: float = LONGEST_SECONDS
) -> float:
    """The wait in seconds after ``failures`` in a row; ``jitter`` is uniform in 0..1.

    The jitter is full, so that the clients of a cluster do not all return at once.
    """
    doublings = min(failures - 1, _MOST_DOUBLINGS)
    return jitter * min(longest, first * (1 << doublings))


class _Failures(msgspec.Struct, frozen=True):
    """An item's failures in a row, the last failed version, and the time until it is skipped."""

    count: int
    version: str
    until: float
    moved_on: bool


class ItemBackoff:
    """The back-off of many items. Times are seconds that never go back."""

    def __init__(
        self,
        jitter: Callable[[], float],
        first: float = FIRST_SECONDS,
        longest: float = LONGEST_SECONDS,
    ) -> None:
        """``jitter`` returns numbers uniform in 0..1; ``first`` and ``longest`` are in seconds."""
        self._jitter = jitter
        self._first = first
        self._longest = longest
        self._failures: dict[Hashable, _Failures] = {}

    def __len__(self) -> int:
        """Number of items that have failed."""
        return len(self._failures)

    def failures(self, item: Hashable) -> int:
        """Number of the item's failures in a row."""
        failures = self._failures.get(item)
        return failures.count if failures else 0

    def until(self, item: Hashable, version: str = "") -> float:
        """The earliest time to try the item in this version; 0 if it has not failed.

        An item that was too old to be written is tried as soon as a newer version is there.
        """
        failures = self._failures.get(item)
        if failures is None or (failures.moved_on and failures.version != version):
            return 0.0
        return failures.until

    def add(
        self, item: Hashable, now: float, version: str = "", *, moved_on: bool = False
    ) -> float:
        """Note a failure; returns the earliest time of the next try.

        ``moved_on`` means that the item failed only because a newer version existed.
        """
        count = self.failures(item) + 1
        until = now + backoff_seconds(count, self._jitter(), self._first, self._longest)
        self._failures[item] = _Failures(count, version, until, moved_on)
        return until

    def forget(self, item: Hashable) -> None:
        """Forget the item's failures: it succeeded, or needed nothing."""
        self._failures.pop(item, None)

    def prune(self, items: Collection[Hashable]) -> None:
        """Forget all items but these."""
        for item in self._failures.keys() - items:
            del self._failures[item]
