"""A lock for each key that a thread works on: one works on a key at a time, others wait."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class KeyLocks:
    """The locks that the module describes. Any thread may call every method.

    Whoever waits for a key is woken only when that key is free.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[str, tuple[threading.Lock, int]] = {}

    @contextmanager
    def alone(self, key: str) -> Iterator[None]:
        """Work on a key alone."""
        with self._guard:
            lock, users = self._locks.get(key) or (threading.Lock(), 0)
            self._locks[key] = lock, users + 1
        try:
            with lock:
                yield
        finally:
            with self._guard:
                lock, users = self._locks[key]
                if users > 1:
                    self._locks[key] = lock, users - 1
                else:
                    del self._locks[key]
