"""The memory that a pod has booked, by connection. Pure: no I/O.

A process reserves memory before it allocates it, and reports what it has freed. A process that ends
closes its connections, and what they have booked is released.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class MemoryBook(Generic[Key]):
    """Bytes by connection; their sum is never above the limit at the moment of a booking."""

    def __init__(self) -> None:
        self._shares: dict[Key, int] = {}
        self.booked = 0

    def book(self, connection: Key, size: int, limit: int) -> bool:
        """Whether ``size`` bytes more are within ``limit``; they are booked if so."""
        if self.booked + size > limit:
            return False
        if size:
            self._shares[connection] = self._shares.get(connection, 0) + size
            self.booked += size
        return True

    def free(self, connection: Key, size: int) -> None:
        """Release ``size`` bytes: those of the connection first, then those of the oldest ones.

        Gemini 1.1 opens a connection for each message, so that another one frees than has booked.
        What nobody has booked is not released.
        """
        for key in (connection, *self._shares):
            taken = min(size, self._shares.get(key, 0))
            if taken:
                self._take(key, taken)
                size -= taken
            if not size:
                return

    def close(self, connection: Key) -> None:
        """Release all that a connection has booked."""
        self.booked -= self._shares.pop(connection, 0)

    def record(self, numbers: Mapping[Key, int]) -> dict[int, int]:
        """The bytes by number of the connection, the oldest first."""
        return {numbers[key]: size for key, size in self._shares.items()}

    def restore(self, record: Mapping[int, int], keys: Sequence[Key]) -> None:
        """Take over what another daemon has booked."""
        self._shares = {keys[number]: size for number, size in record.items()}
        self.booked = sum(self._shares.values())

    def _take(self, key: Key, size: int) -> None:
        self._shares[key] -= size
        self.booked -= size
        if not self._shares[key]:
            del self._shares[key]
