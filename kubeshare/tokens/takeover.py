"""How a daemon hands its sockets over to the next one, so that no connection closes.

The next process connects to a Unix socket of the running one:

    running -> next   the record in a memory file, with the number of sockets
    running -> next   the sockets, by parts (SCM_RIGHTS)
    next -> running   READY: it could serve from now on
    running -> next   GO

With GO the running process serves nothing any more, and the next one begins. Whatever fails before
leaves the running one as it was: it goes on. Both are of one user, which the kernel attests.
"""

import contextlib
import errno
import logging
import os
import socket
import struct
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

log = logging.getLogger(__name__)

TAKEOVER_SECONDS: Final = 5.0
"""Maximum time of a takeover, in seconds; nobody is served meanwhile. Gemini's hook waits 10 s for
an answer about memory."""

WAIT_SECONDS: Final = 30.0
"""Maximum time that the next process waits for all of it, in seconds. The running one may just be
handing over to another process."""

MOST_RECORD: Final = 64 * 1024 * 1024
"""Maximum size of a record, in bytes."""

_PART: Final = 128
"""Sockets in one message; Linux takes 253 at most (SCM_MAX_FD)."""

_READY: Final = b"ready"
_GO: Final = b"go"
_HEAD: Final = struct.Struct("<QI")  # size of the record, number of sockets
_CREDENTIALS: Final = struct.Struct("iII")  # pid, uid, gid (struct ucred)


class TakeoverError(Exception):
    """A takeover that failed; its message is the reason."""


class _Deadline:
    """Sets the rest of the time as a socket's timeout before each of its calls."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self._connection = connection
        self._end = time.monotonic() + seconds

    def __call__(self) -> socket.socket:
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError("it took too long")
        self._connection.settimeout(left)
        return self._connection


# ---------------------------------------------------------------- the running process


def listen(path: Path) -> socket.socket:
    """The socket on which a running process waits for the next one. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.unlink(missing_ok=True)  # nobody answers there
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listening.bind(str(path))
        path.chmod(0o600)
        listening.listen(8)
    except OSError:
        listening.close()
        raise
    listening.setblocking(False)
    return listening


def hand_over(listening: socket.socket, record: bytes, sockets: Sequence[socket.socket]) -> None:
    """Give all to the process that has connected. Raises TakeoverError: then this one goes on."""
    try:
        connection, _ = listening.accept()
    except OSError as error:
        raise TakeoverError(str(error)) from error
    with connection:
        try:
            _check_user(connection)
            limited = _Deadline(connection, TAKEOVER_SECONDS)
            _send(limited, record, [each.fileno() for each in sockets])
            if limited().recv(len(_READY)) != _READY:
                raise TakeoverError("the next process has left; its log has the reason")
            limited().send(_GO)
        except OSError as error:
            raise TakeoverError(str(error)) from error


def _check_user(connection: socket.socket) -> None:
    content = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(content)
    if uid != os.geteuid():
        raise TakeoverError(f"uid {uid} has connected, and not {os.geteuid()}")


def _send(limited: _Deadline, record: bytes, fds: Sequence[int]) -> None:
    with os.fdopen(os.memfd_create("record", os.MFD_CLOEXEC), "wb") as file:
        file.write(record)
        file.flush()
        head = _HEAD.pack(len(record), len(fds))
        socket.send_fds(limited(), [head], [file.fileno()])
    for begin in range(0, len(fds), _PART):
        socket.send_fds(limited(), [b"s"], list(fds[begin : begin + _PART]))


# ---------------------------------------------------------------- the next process


class Predecessor:
    """The process that is running, with what it hands over. A context manager: it closes all that
    is not taken.

    Attributes:
        record: the bytes of its record.
        fds: its sockets, in their order.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._limited = _Deadline(connection, WAIT_SECONDS)
        self._connection = connection
        self.record = b""
        self.fds: deque[int] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self._connection.close()
        for fd in self.fds:
            os.close(fd)

    def receive(self) -> None:
        """Take record and sockets. Raises TakeoverError."""
        try:
            with self._translated():
                head, fds = self._message(_HEAD.size)
                with contextlib.ExitStack() as stack:
                    files = [stack.enter_context(os.fdopen(fd, "rb")) for fd in fds]
                    if len(head) != _HEAD.size or len(files) != 1:
                        raise TakeoverError("its first message is not understood")
                    size, number = _HEAD.unpack(head)
                    if size > MOST_RECORD:
                        raise TakeoverError(f"its state has {size} bytes")
                    files[0].seek(0)
                    self.record = files[0].read(size)
                while len(self.fds) < number:
                    _, more = self._message(1)
                    self.fds += more
                    if not more:
                        raise TakeoverError("a message without sockets")
        except struct.error as error:
            raise TakeoverError(str(error)) from error

    def sockets(self, number: int) -> Iterator[socket.socket]:
        """Its sockets, which belong to the caller from now on. Raises TakeoverError."""
        if len(self.fds) != number:
            raise TakeoverError(f"it sent {len(self.fds)} sockets, and its state has {number}")
        while self.fds:
            taken = socket.socket(fileno=self.fds.popleft())
            taken.setblocking(False)
            yield taken

    def take(self) -> None:
        """Report that this process can serve; returns when it has to. Raises TakeoverError."""
        with self._translated():
            self._limited().send(_READY)
            if self._limited().recv(len(_GO)) != _GO:
                raise TakeoverError("it goes on by itself; its log has the reason")

    def _message(self, size: int) -> tuple[bytes, list[int]]:
        flags = socket.MSG_CMSG_CLOEXEC
        content, fds, seen, _ = socket.recv_fds(self._limited(), size, _PART, flags)
        if seen & socket.MSG_CTRUNC:
            for fd in fds:
                os.close(fd)
            raise TakeoverError("not all sockets came through: too many open files?")
        if not content:
            raise TakeoverError("it has closed the connection; its log has the reason")
        return content, fds

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise TakeoverError(str(error)) from error


def predecessor(path: Path) -> Predecessor | None:
    """The process that listens there, connected; None if there is none.

    Raises TakeoverError and OSError. A process that has just handed over to another one answers no
    more: its successor has its socket, and hands over in its turn.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(WAIT_SECONDS)
    try:
        connection.connect(str(path))
    except OSError as error:
        connection.close()
        if error.errno in {errno.ENOENT, errno.ECONNREFUSED}:
            return None
        if error.errno is None:  # Python's own: the path is too long
            raise
        raise TakeoverError(error.strerror or str(error)) from error
    return Predecessor(connection)
