"""One client's connection: bytes in, heads and bodies of requests out, responses as single writes.

Every wait has an end. A client gets ``Timeouts.head`` seconds to finish the head of a request that
it has begun, however slowly its bytes drip, ``Timeouts.body`` to send the body, ``Timeouts.idle``
between two requests, and ``Timeouts.write`` to take a response. A response is taken when all its
bytes are on their way: bytes that the client cannot take yet stay here, and its next request is not
answered before they are sent.
"""

import contextlib
import select
import socket
import struct
import time
from typing import TYPE_CHECKING

import msgspec

from vgpu.web.message import MAX_HEAD, BadRequest, check_partial

if TYPE_CHECKING:
    from vgpu.web.tls import ServerTls

_END_OF_HEAD = b"\r\n\r\n"
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_READ_BYTES = 64 * 1024
_LINGER_SECONDS = 1.0
_LINGER_BYTES = 256 * 1024
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER for a close that drops what is unsent; the kernel would keep it for minutes."""


class Timeouts(msgspec.Struct, frozen=True):
    """Limits in seconds. ``idle`` outlasts usual scrape intervals, which reuse connections."""

    head: float = 10.0
    body: float = 10.0
    idle: float = 120.0
    write: float = 10.0


class ClientLeft(OSError):  # noqa: N818 - what happened
    """The client broke the connection before all of its body was there."""


class ConnectionWait(msgspec.Struct, frozen=True):
    """What a connection waits for.

    Attributes:
        since: when its client last sent or took data, in monotonic seconds.
        for_request: whether the client is to send something (a request, or its goodbye), rather
            than to take a response.
        moves: whether the client has taken some of the response, besides what the kernels took, or
            has sent some of its body.
    """

    since: float
    for_request: bool
    moves: bool = False


class ClientConnection:
    """One accepted socket.

    Attributes:
        peer: the client's address.
        secure: whether it speaks TLS.
        client_sans: the names in the verified certificate of the client.
        waiting: what it waits for; None while a request is handled.
    """

    def __init__(self, sock: socket.socket, peer: str, timeouts: Timeouts) -> None:
        self.peer = peer
        self.secure = False
        self.client_sans: frozenset[str] = frozenset()
        self.waiting: ConnectionWait | None = ConnectionWait(time.monotonic(), for_request=True)
        self._sock = sock
        self._timeouts = timeouts
        self._patience = timeouts.head  # for the first byte; later it is ``idle``
        self._received = b""

    def open(self, tls: "ServerTls | None") -> None:
        """Prepare the socket, with a TLS handshake if ``tls`` is set.

        Raises:
            BadRequest: a plain HTTP client on a TLS port.
            OSError: the handshake failed or the client left.
        """
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Writable means from now on that nothing is unsent, however large the buffers are.
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, 1)
        if tls is not None:
            secured = tls.wrap(self._sock, self._timeouts.head)
            self._sock = secured
            self.client_sans = tls.handshake(secured)
            self.secure = True

    def read_head(self) -> bytes | None:
        """The next request up to its empty line; None when the client has no more.

        Raises:
            BadRequest: the received bytes cannot become a request.
            OSError: time is up, or the connection broke.
        """
        deadline = None
        self._wait(for_request=True)
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
        self.waiting = None
        return head

    def read_body(self, length: int, *, waits_to_send: bool) -> bytes:
        """The ``length`` bytes after the head that was read last.

        A client that ``waits_to_send`` them gets 100 Continue.

        Raises:
            BadRequest: time is up.
            ClientLeft: the client left before.
        """
        deadline = time.monotonic() + self._timeouts.body
        body, self._received = bytearray(self._received[:length]), self._received[length:]
        try:
            if waits_to_send and len(body) < length:
                self.send(_CONTINUE)
            while len(body) < length:
                self._wait(for_request=True, moves=bool(body))
                self._sock.settimeout(_until(deadline))
                data = self._sock.recv(min(length - len(body), _READ_BYTES))
                if not data:
                    raise ClientLeft(f"after {len(body)} of {length} bytes of its body")
                body += data
        except TimeoutError:
            raise BadRequest(408, "the body did not arrive in time") from None
        except OSError as error:
            raise ClientLeft(f"after {len(body)} of {length} bytes of its body") from error
        self.waiting = None
        return bytes(body)

    def send(self, payload: bytes) -> None:
        """Write a whole response, and return when the client has taken it.

        Head and body are one write: in two they would meet Nagle.

        Raises:
            OSError: the client left or is too slow.
        """
        deadline = time.monotonic() + self._timeouts.write
        left, writes = memoryview(payload), 0
        while left:
            self._wait(for_request=False, moves=writes > 1)
            self._sock.settimeout(_until(deadline))
            left = left[self._sock.send(left) :]
            writes += 1
        self._wait(for_request=False, moves=writes > 1)
        if not self._poll(select.POLLOUT, _until(deadline)):
            raise TimeoutError("response not taken in time")
        self.waiting = None

    def linger(self) -> None:
        """Shut the connection down and wait, briefly, until the client has too.

        Closing with unread input makes the kernel send a reset, which can overtake the response.
        """
        left, deadline = _LINGER_BYTES, time.monotonic() + _LINGER_SECONDS
        self._wait(for_request=True)
        with contextlib.suppress(OSError):
            self._shutdown(socket.SHUT_WR)
            while left > 0 and (wait := deadline - time.monotonic()) > 0:
                self._sock.settimeout(wait)
                data = socket.socket.recv(self._sock, MAX_HEAD)  # of TLS, the raw records
                if not data:
                    return
                left -= len(data)

    def client_acted(self) -> bool:
        """Whether the kernel has a request or room, for which it waits. From any thread."""
        try:
            return self._poll(select.POLLOUT if self._writes else select.POLLIN, 0)
        except (OSError, ValueError):  # closed meanwhile
            return True

    def client_left(self) -> bool:
        """Whether the client sends no more: it waits for no answer. From any thread."""
        try:
            return self._poll(select.POLLRDHUP, 0)
        except (OSError, ValueError):  # closed meanwhile
            return True

    def drop(self) -> None:
        """Give up waiting for the client. From any thread."""
        if self._writes:
            self.abort()
        else:
            self.finish()

    def finish(self) -> None:
        """Take no more requests; the present one is still answered. From any thread."""
        self._shutdown(socket.SHUT_RD)

    def abort(self) -> None:
        """Break every wait on this connection. From any thread."""
        self._shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Release the socket. Only from the thread that serves it."""
        if self._writes:  # it was not taken
            with contextlib.suppress(OSError):
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._sock.close()

    @property
    def _writes(self) -> bool:
        waiting = self.waiting
        return waiting is not None and not waiting.for_request

    def _poll(self, event: int, seconds: float) -> bool:
        poll = select.poll()
        poll.register(self._sock, event)
        return bool(poll.poll(seconds * 1000))

    def _wait(self, *, for_request: bool, moves: bool = False) -> None:
        self.waiting = ConnectionWait(time.monotonic(), for_request, moves)

    def _shutdown(self, how: int) -> None:
        # SSLSocket's own shutdown would drop its TLS state, and later writes would be plain text.
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._sock, how)


def _until(deadline: float) -> float:
    """The seconds until then. Raises TimeoutError where none is left."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("not finished in time")
    return left
