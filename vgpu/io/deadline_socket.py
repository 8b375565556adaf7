"""A socket whose operations together end at a deadline, however slowly the other side speaks.

Each byte restarts the timeout of a socket, so a server that sends one byte now and then would
hold a client for ever. For each operation that begins at a time t before the deadline:

    timeout(t) = min(own timeout, deadline - t)
"""

import io
import socket
import time
from typing import Any


class TooManyBytes(OSError):  # noqa: N818  # it is the other side's error
    """The other side has sent more than it may."""


class DeadlineSocket:
    """A connected socket; what is not defined here is the socket's own.

    Attributes:
        deadline: when all operations have to have ended, by ``time.monotonic``; None is never.
        allowance: how many bytes may still be received; None is any number.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._timeout = sock.gettimeout()
        self.deadline: float | None = None
        self.allowance: int | None = None

    def settimeout(self, seconds: float | None) -> None:
        """The maximum time of each operation by itself."""
        self._timeout = seconds
        self._sock.settimeout(seconds)

    def sendall(self, data: Any) -> None:
        """Send all. Raises OSError; TimeoutError at the deadline."""
        rest = memoryview(data).cast("B")
        while rest:
            self._limit_wait()
            rest = rest[self._sock.send(rest) :]

    def makefile(self, *_: Any, **__: Any) -> io.BufferedReader:
        """A file to read from, as ``http.client`` asks for it."""
        return io.BufferedReader(_Received(self, self._sock.makefile("rb", buffering=0)))

    def _limit_wait(self) -> None:
        left = self._timeout
        if self.deadline is not None:
            left = self.deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("the deadline has passed")
            left = left if self._timeout is None else min(left, self._timeout)
        if left != self._sock.gettimeout():
            self._sock.settimeout(left)

    def _count(self, number: int) -> None:
        if self.allowance is None:
            return
        self.allowance -= number
        if self.allowance < 0:
            raise TooManyBytes("more bytes than allowed")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


class _Received(io.RawIOBase):
    """What the socket receives; it keeps the socket open, as a file of a socket does."""

    def __init__(self, sock: DeadlineSocket, file: Any) -> None:
        self._socket, self._file = sock, file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._socket._limit_wait()  # noqa: SLF001  # a part of it
        number: int | None = self._file.readinto(buffer)
        self._socket._count(number or 0)  # noqa: SLF001
        return number

    def close(self) -> None:
        self._file.close()
        super().close()
