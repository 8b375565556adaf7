"""A lock of whoever alone may write somewhere, by a file."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class WriterLockHeld(Exception):  # noqa: N818  # what has happened, not what is wrong
    """Another process has the lock."""


@contextmanager
def writer_lock(path: str) -> Iterator[None]:
    """Hold the lock. The kernel releases it with the process, however that ends.

    Raises:
        WriterLockHeld: another process holds it.
        OSError: the file cannot be made.
    """
    Path(path).parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    fd = os.open(path, _FLAGS, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise WriterLockHeld(path) from error
        yield
    finally:
        os.close(fd)
