"""Processes whose end the kernel reports, so that what is known of them need not be read again.

A descriptor of pidfd_open(2) stands for a process and never for another one with the same pid. It
becomes readable when the process ends.
"""

import contextlib
import os
import resource
import select
import weakref
from collections.abc import Collection, Iterable
from typing import Final

MAX_WATCHED: Final = 32_768
"""Maximum number of processes that are watched: each takes a descriptor."""

OTHER_DESCRIPTORS: Final = 2_048
"""Number of descriptors that are left for connections and files."""

SMALL_SHARE: Final = 4
"""The part of few descriptors that may be in use, as a divisor."""


def most_watched(descriptors: int) -> int:
    """Maximum number of processes to watch if the process may have so many descriptors."""
    if descriptors == resource.RLIM_INFINITY:
        return MAX_WATCHED
    rest = max(descriptors - OTHER_DESCRIPTORS, descriptors // SMALL_SHARE)
    return min(MAX_WATCHED, rest)


class PidWatch:
    """The processes that are watched. One thread uses it. Its descriptors end with it."""

    def __init__(self) -> None:
        self._fds: dict[int, int] = {}
        self._pids: dict[int, int] = {}
        self._poll = select.epoll()
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = most_watched(soft)
        weakref.finalize(self, _close, self._pids).atexit = False

    def __contains__(self, pid: int) -> bool:
        return pid in self._fds

    def add(self, pid: int) -> bool:
        """Watch the process; False if that is not possible. What is read after this is its own."""
        if pid in self._fds:
            return True
        if len(self._fds) >= self._most:
            return False
        try:
            fd = os.pidfd_open(pid)
        except (OSError, ValueError, OverflowError):  # gone, a thread, not allowed, an old kernel
            return False
        except AttributeError:  # a Python that was built on an old system
            return False
        try:
            self._poll.register(fd, select.EPOLLIN)
        except OSError:
            os.close(fd)
            return False
        self._fds[pid], self._pids[fd] = fd, pid
        return True

    def forget_ended(self) -> None:
        """Watch those no longer that have ended since the last call."""
        while events := self._poll.poll(0):
            for fd, _ in events:
                self._drop(self._pids[fd])

    def keep_only(self, pids: Collection[int]) -> None:
        """Forget all others."""
        for pid in self._fds.keys() - pids:
            self._drop(pid)

    def _drop(self, pid: int) -> None:
        fd = self._fds.pop(pid)
        del self._pids[fd]
        _close((fd,))  # which ends its registration


def _close(fds: Iterable[int]) -> None:
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)
