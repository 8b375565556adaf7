"""One client's connection: bytes in, request heads out, responses as single writes.

Every wait has an end. A client gets ``Timeouts.head`` seconds to finish a request it has begun,
however slowly its bytes drip, ``Timeouts.idle`` between two requests, and ``Timeouts.write`` to
take a response.
"""

import contextlib
import socket
import time
from typing import TYPE_CHECKING

import msgspec

from vgpu.web.message import MAX_HEAD, check_partial

if TYPE_CHECKING:
    from vgpu.web.tls import ServerTls

_END_OF_HEAD = b"\r\n\r\n"
_LINGER_SECONDS = 1.0
_LINGER_BYTES = 256 * 1024


class Timeouts(msgspec.Struct, frozen=True):
    """Seconds. ``idle`` outlasts the usual scrape intervals, so that scrapes reuse connections."""

    head: float = 10.0
    idle: float = 120.0
    write: float = 10.0


class Connection:
    """One accepted socket.

    Attributes:
        peer: the client's address, for the log.
        secure: whether it speaks TLS.
        idle_since: when it began to wait for a request (monotonic seconds); None while one is
            served.
    """

    def __init__(self, sock: socket.socket, peer: str, timeouts: Timeouts) -> None:
        self.peer = peer
        self.secure = False
        self.idle_since: float | None = time.monotonic()
        self._sock = sock
        self._timeouts = timeouts
        self._patience = timeouts.head  # for the first byte; later it is ``idle``
        self._received = b""

    def open(self, tls: "ServerTls | None") -> None:
        """Prepare the socket, with a TLS handshake where ``tls`` is given.

        Raises:
            BadRequest: a plain HTTP client where TLS is spoken.
            OSError: the handshake failed or the client left.
        """
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            secured = tls.wrap(self._sock, self._timeouts.head)
            self._sock = secured
            tls.handshake(secured)
            self.secure = True

    def read_head(self) -> bytes | None:
        """The next request up to its empty line; None when the client has no more.

        Raises:
            BadRequest: what has come cannot become a request.
            OSError: time is up, or the connection broke.
        """
        deadline = None
        while (end := self._received.find(_END_OF_HEAD)) < 0:
            check_partial(self._received)
            if self._received and deadline is None:
                deadline = time.monotonic() + self._timeouts.head
            wait = self._patience if deadline is None else deadline - time.monotonic()
            if wait <= 0:
                raise TimeoutError("request not finished in time")
            self._sock.settimeout(wait)
            data = self._sock.recv(MAX_HEAD)
            if not data:
                return None
            self._received += data
        head = self._received[:end]
        self._received = self._received[end + len(_END_OF_HEAD) :]
        self._patience = self._timeouts.idle
        return head

    def send(self, payload: bytes) -> None:
        """Write a whole response at once: headers and body in two writes would meet Nagle.

        Raises:
            OSError: the client left or is too slow.
        """
        self._sock.settimeout(self._timeouts.write)
        self._sock.sendall(payload)

    def linger(self) -> None:
        """Say goodbye and wait, briefly, until the client has too.

        Closing with unread input makes the kernel send a reset, which can overtake the response.
        """
        left, deadline = _LINGER_BYTES, time.monotonic() + _LINGER_SECONDS
        with contextlib.suppress(OSError):
            self._shutdown(socket.SHUT_WR)
            while left > 0 and (wait := deadline - time.monotonic()) > 0:
                self._sock.settimeout(wait)
                data = socket.socket.recv(self._sock, MAX_HEAD)  # of TLS, the raw records
                if not data:
                    return
                left -= len(data)

    def finish(self) -> None:
        """Take no more requests; what is being served is still answered. From any thread."""
        self._shutdown(socket.SHUT_RD)

    def abort(self) -> None:
        """Break every wait on this connection. From any thread."""
        self._shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Release the socket. Only from the thread that serves it."""
        self._sock.close()

    def _shutdown(self, how: int) -> None:
        # SSLSocket's own shutdown would drop its TLS state, and later writes would be plain text.
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._sock, how)
