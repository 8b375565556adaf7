"""The bytes of request bodies in flight, of all connections together.

A body is in flight from before it is read until its answer is sent. Its whole length is reserved
at once: bodies that were reserved in parts could all wait for each other.

    sum of reserved bytes <= limit
    sum of reserved bytes after a large body was reserved <= 3/4 of the limit

The rest is for small bodies, so that no number of large ones keeps them waiting.
"""

import threading
from typing import Final

MAX_BODY_BYTES: Final = 64 * 1024 * 1024
"""Maximum size of all bodies in flight together, in bytes."""

SMALL_BODY: Final = 1024 * 1024
"""Maximum size of a body that counts as small, in bytes."""

BODY_WAIT_SECONDS: Final = 2.0
"""Maximum time to wait for other bodies, in seconds: below the 5 s after which a kube-scheduler
gives up a request, so that it gets an answer."""


class BodyBytes:
    """Reservations of bytes. Safe to use from any thread.

    Attributes:
        reserved: bytes that are reserved now.
    """

    def __init__(self, limit: int, largest: int) -> None:
        """``largest`` is the maximum size of one body; the limit is raised until this one fits."""
        self._limit = max(limit, largest if largest <= SMALL_BODY else -(-largest * 4 // 3))
        self._changed = threading.Condition()
        self.reserved = 0

    def reserve(self, size: int, seconds: float) -> bool:
        """Reserve this number of bytes; False if they do not become free within ``seconds``."""
        limit = self._limit if size <= SMALL_BODY else self._limit * 3 // 4
        with self._changed:
            if not self._changed.wait_for(lambda: self.reserved + size <= limit, seconds):
                return False
            self.reserved += size
            return True

    def release(self, size: int) -> None:
        """Free what was reserved for one body."""
        with self._changed:
            self.reserved -= size
            self._changed.notify_all()
