"""A disk that refuses or a process that dies at the n-th thing that is done to it.

Only calls that change something are counted. Whoever is killed does nothing more, not even what
stands in a ``finally``; if power is lost with it, files are empty whose content was not synced.
"""

import errno
import os
from contextlib import suppress

CALLS = ("open", "write", "fsync", "fchmod", "rename", "unlink", "link", "symlink", "mkdir")


class Killed(BaseException):
    """The process is no more."""


class BrokenDisk:
    """Use as a context manager around what is to be interrupted at call ``at``, from 0 on."""

    def __init__(self, monkeypatch, at=None, error=errno.ENOSPC, *, kill=False, power=False):
        self.done = []
        self._at = at
        self._error = error
        self._kill = kill or power
        self._power = power
        self._monkeypatch = monkeypatch
        self._real = {name: getattr(os, name) for name in CALLS}
        self._unsynced = {}
        self._opened = []

    def __enter__(self):
        self._context = self._monkeypatch.context()
        patch = self._context.__enter__()
        for name in CALLS:
            patch.setattr(os, name, lambda *a, _name=name, **k: self._call(_name, *a, **k))
        return self

    def __exit__(self, kind, *rest):
        self._context.__exit__(None, None, None)
        if kind is Killed:
            for fd in self._opened:
                with suppress(OSError):
                    os.close(fd)
            if self._power:
                for copy in self._unsynced.values():
                    os.ftruncate(copy, 0)
        for copy in self._unsynced.values():
            os.close(copy)
        return kind is Killed

    @property
    def interrupted(self):
        return self._at is not None and len(self.done) > self._at

    def _call(self, name, *args, **kwargs):
        if name == "open" and not args[1] & os.O_CREAT:
            fd = self._real["open"](*args, **kwargs)
            self._opened.append(fd)
            return fd
        if self._kill and self.interrupted:
            raise Killed
        self.done.append(name)
        if self.interrupted and len(self.done) == self._at + 1:
            if name == "write":
                self._real["write"](args[0], bytes(args[1])[: len(args[1]) // 2])
            if self._kill:
                raise Killed
            raise OSError(self._error, os.strerror(self._error))
        result = self._real[name](*args, **kwargs)
        if name == "open":
            self._opened.append(result)
            self._unsynced[result] = os.dup(result)
        elif name == "fsync" and args[0] in self._unsynced:
            os.close(self._unsynced.pop(args[0]))
        return result
