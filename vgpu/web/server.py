"""The HTTP server: paths to handlers, one thread per connection, everything bounded.

It is built on sockets rather than ``http.server``, which has no time-outs that a slow client
cannot stretch, no limits and no orderly end, writes headers and body apart (40 ms over keep-alive,
through Nagle), and even with that repaired takes about twice the processor for a scrape over
keep-alive (``benchmarks/web.py`` measures both).

Order of the checks of a request: syntax (400), rate limit (429), password (401), name in the
client's certificate (403), path (404), method (405), length of the body (411, 413), concurrency
(503), handler (500). A client without a password does not learn which paths exist. A body is read
whole before its handler is called; where it was refused unread, the connection closes.
"""

import contextlib
import errno
import logging
import selectors
import socket
import threading
import time
from collections.abc import Sequence

import msgspec

from vgpu.web.body_bytes import BODY_WAIT_SECONDS, MAX_BODY_BYTES, BodyBytes
from vgpu.web.config import OPEN, WebConfigFile, WebPolicy
from vgpu.web.connection import ClientConnection, ClientLeft, Timeouts
from vgpu.web.connections import MAX_CONNECTIONS, MAX_PER_ADDRESS, Connections
from vgpu.web.listen import ListenError, bound_address, link_address, listen
from vgpu.web.message import (
    BadRequest,
    Handler,
    Head,
    HttpRequest,
    HttpResponse,
    accepts_gzip,
    parse_head,
    plain,
    render,
)
from vgpu.web.routes import Route, Routes, find_route, route_of

__all__ = [
    "Handler",
    "HttpRequest",
    "HttpResponse",
    "ListenError",
    "Route",
    "Routes",
    "Timeouts",
    "WebServer",
    "accepts_gzip",
    "plain",
]

log = logging.getLogger(__name__)

MAX_REQUESTS = 40
"""Maximum number of handlers at work at a time."""

MAX_BODIES = 16
"""Maximum number of request bodies that are read at a time."""

_BUSY = plain(503, "too many requests at once, try again", (("Retry-After", "1"),))
_FORBIDDEN = plain(403, "no name in the client's certificate may use this path")
_FAILED = plain(500, "Internal Server Error")
_FORBIDDEN_LOG_SECONDS = 60.0
"""Minimum time between two log lines about the certificates of one path's clients, in seconds."""
_LOGGED_NAMES = 256
"""Maximum length of a certificate's names in a log line."""
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_EXHAUSTED_PAUSE = 0.1


class WebServer:
    """Serves ``routes`` on every address until stopped.

    Handlers run on many threads at once. The body of a response to HEAD is dropped after its length
    was taken. A handler that raises an error answers 500, with one log line until it works again.

    Args:
        routes: by path; a bare handler gets GET and HEAD requests without a body.
        addresses: ``:9394``, ``0.0.0.0:9394``, ``[::1]:0``, ``localhost:9394`` …
        config: the web config file; None serves plain HTTP to everybody.
        max_requests: handlers at work at once; beyond that 503.
        max_connections: open connections; beyond that one makes room, by
            :func:`vgpu.web.connections.first_to_go`.
        max_per_address: the same for the connections of one client's address.
        max_bodies: request bodies that are read at a time; beyond that 503.
        max_body_bytes: size of all bodies whose requests are not answered yet, at least that of the
            largest body of a route; beyond that a body waits up to ``body_wait`` seconds, unread,
            and then gets 503.
        body_wait: see ``max_body_bytes``.
        timeouts: how long a client may take.
        shares_port: whether the next process of the same program may listen beside this one.

    Attributes:
        addresses: where it really listens, as ``host:port``; known after :meth:`start`.
    """

    def __init__(
        self,
        routes: Routes,
        addresses: Sequence[str],
        config: WebConfigFile | None = None,
        *,
        max_requests: int = MAX_REQUESTS,
        max_connections: int = MAX_CONNECTIONS,
        max_per_address: int = MAX_PER_ADDRESS,
        max_bodies: int = MAX_BODIES,
        max_body_bytes: int = MAX_BODY_BYTES,
        body_wait: float = BODY_WAIT_SECONDS,
        timeouts: Timeouts = Timeouts(),  # noqa: B008 - frozen
        shares_port: bool = False,
    ) -> None:
        self.addresses: tuple[str, ...] = ()
        self._routes = {path: route_of(entry) for path, entry in routes.items()}
        self._wanted = addresses
        self._policy = config.current if config is not None else lambda: OPEN
        self._slots = threading.BoundedSemaphore(max_requests)
        self._bodies = threading.BoundedSemaphore(max_bodies)
        largest = max((route.max_body for route in self._routes.values()), default=0)
        self._body_bytes = BodyBytes(max_body_bytes, largest)
        self._body_wait = body_wait
        self._connections = Connections(max_connections, max_per_address)
        self._timeouts = timeouts
        self._shares_port = shares_port
        self._listeners: list[socket.socket] = []
        self._stopping = threading.Event()
        self._acceptor = threading.Thread(target=self._accept_all, name="web-accept", daemon=True)
        self._failing: dict[str, str] = {}
        self._forbidden_log_at: dict[str, float] = {}

    @property
    def urls(self) -> tuple[str, ...]:
        """The addresses as links for people on this host."""
        scheme = "https" if self._policy().tls is not None else "http"
        return tuple(f"{scheme}://{link_address(address)}" for address in self.addresses)

    def start(self) -> None:
        """Bind every address, then serve in the background.

        Raises:
            ListenError: one of them cannot be bound; then none is.
        """
        if not self._wanted:
            raise ListenError("", "give at least one address, such as :9394")
        try:
            for address in self._wanted:
                self._listeners.append(listen(address, shares_port=self._shares_port))
        except ListenError:
            self._close_listeners()
            raise
        self.addresses = tuple(bound_address(listener) for listener in self._listeners)
        policy = self._policy()
        for address in self.addresses:
            tls, users = policy.tls is not None, policy.users is not None
            log.info("listening", extra={"address": address, "tls": tls, "basic_auth": users})
        self._acceptor.start()

    def stop(self, grace: float = 5.0) -> None:
        """Accept no connection, answer what has arrived, and close, within ``grace`` seconds.

        Idle connections close at once. A handler that is still at work after the grace stays in
        its daemon thread; its client sees the connection close.
        """
        deadline = time.monotonic() + grace
        self._stopping.set()
        for listener in self._listeners:
            listener.shutdown(socket.SHUT_RDWR)  # wakes the acceptor
        if self._acceptor.is_alive():
            self._acceptor.join()
        self._close_listeners()
        connections = self._connections.all()
        for connection, _ in connections:
            connection.finish()
        for connection, thread in connections:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                connection.abort()

    def _close_listeners(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()

    # ------------------------------------------------------------ accepting

    def _accept_all(self) -> None:
        with selectors.DefaultSelector() as selector:
            for listener in self._listeners:
                selector.register(listener, selectors.EVENT_READ, listener)
            while not self._stopping.is_set():
                for key, _ in selector.select():
                    self._accept(key.data)

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, (host, *_) = listener.accept()
        except OSError as error:
            if error.errno in _EXHAUSTED:  # the listener stays readable; do not spin on it
                log.debug("cannot accept", extra={"err": error})
                self._connections.make_room()
                self._stopping.wait(_EXHAUSTED_PAUSE)
            return
        try:
            self._open(sock, host)
        except Exception:  # no memory for this connection: the next one may have some
            log.exception("a connection could not be served")
            sock.close()
            self._stopping.wait(_EXHAUSTED_PAUSE)

    def _open(self, sock: socket.socket, host: str) -> None:
        """Serve an accepted connection on a thread of its own."""
        connection = ClientConnection(sock, host, self._timeouts)
        thread = threading.Thread(target=self._serve, args=(connection,), name="web", daemon=True)
        if not self._connections.add(connection, thread):
            sock.close()
            return
        try:
            thread.start()
        except RuntimeError:  # no more threads
            self._forget(connection)

    def _forget(self, connection: ClientConnection) -> None:
        self._connections.remove(connection)
        connection.close()

    # ------------------------------------------------------------ serving

    def _serve(self, connection: ClientConnection) -> None:
        try:
            try:
                connection.open(self._policy().tls)
                while self._answer(connection):
                    pass
            except BadRequest as bad:
                response, headers = plain(bad.status, bad.message), self._policy().headers
                connection.send(
                    render(response, unix_time=int(time.time()), close=True, policy=headers)
                )
                connection.linger()
        except OSError as error:
            log.debug("connection ended", extra={"peer": connection.peer, "err": error})
        finally:
            self._forget(connection)

    def _answer(self, connection: ClientConnection) -> bool:
        """Serve the next request; whether the connection stays open after it."""
        raw = connection.read_head()
        if raw is None:
            return False
        head = parse_head(raw)
        policy = self._policy()
        if policy.tls is not None and not connection.secure:  # TLS came with a reload
            return False
        with contextlib.ExitStack() as in_flight:
            is_kept = self._exchange(connection, head, policy, in_flight)
        if not is_kept:
            connection.linger()
        return is_kept

    def _exchange(
        self,
        connection: ClientConnection,
        head: Head,
        policy: WebPolicy,
        in_flight: contextlib.ExitStack,
    ) -> bool:
        """Answer a request; whether the connection can stay open.

        ``in_flight`` gets what frees the bytes of its body.
        """
        path, head_only = head.request.path, head.request.method == "HEAD"
        now = int(time.time())
        try:
            response, is_read = self._respond(connection, head, policy, in_flight)
            close = not is_read or not head.keep_alive or self._stopping.is_set()
            payload = render(
                response, unix_time=now, head_only=head_only, close=close, policy=policy.headers
            )
            if self._failing and response.status < 400:
                self._failing.pop(find_route(self._routes, path)[0], None)
        except (BadRequest, ClientLeft):
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the others are served on
            self._log_failure(path, error)
            close = True
            payload = render(
                _FAILED, unix_time=now, head_only=head_only, close=close, policy=policy.headers
            )
        connection.send(payload)
        return not close

    def _respond(
        self,
        connection: ClientConnection,
        head: Head,
        policy: WebPolicy,
        in_flight: contextlib.ExitStack,
    ) -> tuple[HttpResponse, bool]:
        """The response, and whether all of the request was read. Raises BadRequest, ClientLeft."""
        request = head.request
        key, route = find_route(self._routes, request.path)
        refusal = (
            policy.refusal(request)
            or self._forbidden(connection, key, route)
            or route.refusal(head)
        )
        if refusal is not None:
            return refusal, not head.has_body
        if head.body_length:
            if not self._body_bytes.reserve(head.body_length, self._body_wait):
                return _BUSY, False
            in_flight.callback(self._body_bytes.release, head.body_length)
            if not self._bodies.acquire(blocking=False):
                return _BUSY, False
            try:
                body = connection.read_body(head.body_length, waits_to_send=head.waits_to_send)
            finally:
                self._bodies.release()
            request = msgspec.structs.replace(
                request, body=body, client_left=connection.client_left
            )
        if not self._slots.acquire(blocking=False):
            return _BUSY, True
        try:
            return route.handler(request), True
        finally:
            self._slots.release()

    def _forbidden(
        self, connection: ClientConnection, key: str, route: Route
    ) -> HttpResponse | None:
        """The answer to a client whose certificate has no name for this path, logged by path."""
        if route.client_sans is None or route.client_sans & connection.client_sans:
            return None
        now = time.monotonic()
        if now >= self._forbidden_log_at.get(key, now):
            self._forbidden_log_at[key] = now + _FORBIDDEN_LOG_SECONDS
            names = ",".join(sorted(connection.client_sans)) or "none"
            log.warning(
                "client's certificate has no name that may use this path",
                extra={"path": key, "peer": connection.peer, "names": names[:_LOGGED_NAMES]},
            )
        return _FORBIDDEN

    def _log_failure(self, path: str, error: Exception) -> None:
        """One line when a path begins to fail, or to fail in another way."""
        key, _ = find_route(self._routes, path)
        problem = repr(error)
        if self._failing.get(key) != problem:
            self._failing[key] = problem
            log.error("request failed", extra={"path": key}, exc_info=error)
