"""The daemon's loop: one thread, a listener for each tenant's port, an epoll for all.

A tenant is who comes through its port; the name in a message is only compared. A connection that
has sent a valid message is not closed by the daemon while it is within bounds: Gemini's hook is
killed by SIGPIPE at its next message.
"""

import errno
import logging
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import msgspec

from kubeshare.tokens.frames import REQUEST_BYTES, RESPONSE_BYTES, FrameError, decode
from kubeshare.tokens.gpu_tokens import Answer, GpuTokens, TokenTenantView
from kubeshare.tokens.scheduler import TokenRules
from kubeshare.tokens.tenant_entry import TenantEntry
from kubeshare.tokens.tenant_files import FolderEvents, TenantFiles

log = logging.getLogger(__name__)

ROUND: Final = 1_000_000
"""Interval between two checks of folders and ports that were not usable, in microseconds."""

MAX_QUEUED: Final = 8
"""Maximum number of messages or answers of a connection that wait. Gemini's hook sends one, and
repeats it up to five times."""

MAX_CONNECTIONS: Final = 8192
"""Maximum number of connections of a tenant. Gemini 1.1 opens one for each message and closes
none before its process ends."""

BACKLOG: Final = 512
"""Maximum number of connections that wait to be accepted, for each port."""


class ServerView(msgspec.Struct, frozen=True):
    """What the page of metrics shows.

    Attributes:
        complaint: why a tenant may not be served; "" if all are.
        tenants: the tenants.
        config_errors: how often files or ports could not be used.
        refused_connections: connections that were closed because a tenant had too many.
        late, timers: the time by which timers were late, in microseconds, and their number.
    """

    complaint: str
    tenants: tuple[TokenTenantView, ...]
    config_errors: int
    refused_connections: int
    late: int
    timers: int


class _Listener:
    def __init__(self, entry: TenantEntry, listening: socket.socket) -> None:
        self.entry = entry
        self.socket = listening


class _Connection:
    def __init__(self, entry: TenantEntry, connected: socket.socket) -> None:
        self.entry = entry
        self.socket = connected
        self.received = b""
        self.unsent = b""
        self.is_valid = False
        self.waits = False
        self.is_blocked = False


def now_us() -> int:
    """The monotonic clock, in microseconds."""
    return time.monotonic_ns() // 1000


class TokenServer:
    """The loop, on a thread of its own from :meth:`start` to :meth:`stop`."""

    def __init__(
        self, folder: Path, host: str, rules: TokenRules, failed: Callable[[str], None]
    ) -> None:
        """``host`` is the address to listen on, "" for all; ``failed`` ends the program.

        Raises OSError.
        """
        self._failed = failed
        self._files = TenantFiles(folder)
        self._host = host
        self._rules = rules
        self._events = FolderEvents(folder)
        self._selector = selectors.DefaultSelector()
        self._wake, self._waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._gpus: dict[str, GpuTokens[_Connection]] = {}
        self._listeners: dict[int, _Listener] = {}
        self._connections: set[_Connection] = set()
        self._paused: list[_Listener] = []
        self._problems: tuple[str, ...] = ("the files have not been read yet",)
        self._next_round = 0
        self._config_errors = self._refused = self._late = self._timers = 0
        self._lock = threading.Lock()
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="tokens", daemon=True)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._selector.register(self._events.fd, selectors.EVENT_READ)

    def start(self) -> None:
        """Read the files, listen, and begin."""
        with self._lock:
            self._configure(now_us())
        self._thread.start()

    def stop(self) -> None:
        """End; every connection is closed."""
        self._ending = True
        os.write(self._waker, b"x")
        self._thread.join()
        for connection in self._connections:
            connection.socket.close()
        for listener in self._listeners.values():
            listener.socket.close()
        self._selector.close()
        self._events.close()
        os.close(self._wake)
        os.close(self._waker)

    def complaint(self) -> str:
        """Why a tenant may not be served; "" if all are."""
        return next(iter(self._problems), "")

    def view(self) -> ServerView:
        """What the page of metrics shows. Any thread may call this."""
        with self._lock:
            now = now_us()
            tenants = tuple(view for gpu in self._gpus.values() for view in gpu.views(now))
            return ServerView(
                self.complaint(),
                tenants,
                self._config_errors,
                self._refused,
                self._late,
                self._timers,
            )

    # ------------------------------------------------------------ the thread's side

    def _run(self) -> None:
        try:
            self._loop()
        except Exception:
            log.exception("the loop ended by a defect")
            self._failed("the loop ended by a defect; the log has it")

    def _loop(self) -> None:
        while not self._ending:
            events = self._selector.select(self._timeout(now_us()))
            with self._lock:
                for key, mask in events:
                    self._handle(key, mask)
                self._tick(now_us())

    def _timeout(self, now: int) -> float | None:
        times = [gpu.wake_at for gpu in self._gpus.values() if gpu.wake_at is not None]
        if self._problems or self._paused:
            times.append(self._next_round)
        return max(0, min(times) - now) / 1e6 if times else None

    def _handle(self, key: selectors.SelectorKey, mask: int) -> None:
        if isinstance(key.data, _Listener):
            self._accept(key.data)
        elif isinstance(key.data, _Connection):
            connection = key.data
            if mask & selectors.EVENT_WRITE and connection in self._connections:
                self._flush(connection)
            if mask & selectors.EVENT_READ and connection in self._connections:
                self._receive(connection)
        elif key.fd == self._events.fd:
            self._events.drain()
            self._configure(now_us())

    def _tick(self, now: int) -> None:
        for gpu in self._gpus.values():
            if gpu.wake_at is not None and gpu.wake_at <= now:
                self._late += now - gpu.wake_at
                self._timers += 1
                self._answer(gpu.tick(now))
        if (self._problems or self._paused) and now >= self._next_round:
            for listener in self._paused:
                self._selector.register(listener.socket, selectors.EVENT_READ, listener)
            self._paused.clear()
            self._configure(now)

    # ------------------------------------------------------------ files and ports

    def _configure(self, now: int) -> None:
        """Take the files as they are now: open and close ports; connections stay."""
        self._next_round = now + ROUND
        self._events.watch()
        entries = self._files.read()
        problems = list(self._files.problems)
        for port in [port for port in self._listeners if port not in entries]:
            self._unlisten(self._listeners.pop(port))
        for port, entry in entries.items():
            known = self._listeners.get(port)
            if known is not None:
                known.entry = entry
                continue
            try:
                listener = _Listener(entry, _listening(self._host, port))
            except OSError as error:
                problems.append(f"port {port} of {entry.name}: {error.strerror}")
                continue
            self._listeners[port] = listener
            self._selector.register(listener.socket, selectors.EVENT_READ, listener)
        by_gpu: dict[str, list[TenantEntry]] = {uuid: [] for uuid in self._gpus}
        for entry in entries.values():
            by_gpu.setdefault(entry.uuid, []).append(entry)
        for uuid, tenants in by_gpu.items():
            gpu = self._gpus.setdefault(uuid, GpuTokens(self._rules, now))
            self._answer(gpu.configure(tenants, now))
            if gpu.is_empty:
                del self._gpus[uuid]
        for problem in problems:
            if problem not in self._problems:
                log.warning("%s", problem)
                self._config_errors += 1
        self._problems = tuple(problems)

    def _unlisten(self, listener: _Listener) -> None:
        if listener in self._paused:
            self._paused.remove(listener)
        else:
            self._selector.unregister(listener.socket)
        listener.socket.close()

    def _accept(self, listener: _Listener) -> None:
        try:
            connected, _ = listener.socket.accept()
        except OSError as error:
            if error.errno in {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS}:
                self._selector.unregister(listener.socket)
                self._paused.append(listener)
            return
        connected.setblocking(False)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = _Connection(listener.entry, connected)
        gpu = self._gpus[listener.entry.uuid]
        self._connections.add(connection)
        self._selector.register(connected, selectors.EVENT_READ, connection)
        if gpu.connect(listener.entry, connection) > MAX_CONNECTIONS:
            self._refused += 1
            self._close(connection)

    # ------------------------------------------------------------ connections

    def _receive(self, connection: _Connection) -> None:
        try:
            received = connection.socket.recv(REQUEST_BYTES * MAX_QUEUED)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if not received:
            self._close(connection)
            return
        connection.received += received
        self._process(connection)

    def _process(self, connection: _Connection) -> None:
        """Handle whole messages, one after the other: the next one when the last is answered."""
        gpu = self._gpus[connection.entry.uuid]
        while len(connection.received) >= REQUEST_BYTES and not connection.waits:
            message = connection.received[:REQUEST_BYTES]
            connection.received = connection.received[REQUEST_BYTES:]
            try:
                request = decode(message)
            except FrameError as error:
                gpu.malformed(connection.entry, error.kind)
                if not connection.is_valid:
                    self._close(connection)
                    return
                continue
            connection.is_valid = connection.waits = True
            self._answer(gpu.request(connection.entry, connection, request, now_us()))
        if len(connection.received) > REQUEST_BYTES * MAX_QUEUED:
            self._close(connection)

    def _answer(self, answers: Iterable[Answer[_Connection]]) -> None:
        for connection, response in answers:
            if connection not in self._connections:
                continue
            connection.unsent += response
            self._flush(connection)
            connection.waits = False
            if len(connection.received) >= REQUEST_BYTES and connection in self._connections:
                self._process(connection)

    def _flush(self, connection: _Connection) -> None:
        try:
            sent = connection.socket.send(connection.unsent)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._close(connection)
            return
        connection.unsent = connection.unsent[sent:]
        if len(connection.unsent) > RESPONSE_BYTES * MAX_QUEUED:
            self._close(connection)
        elif bool(connection.unsent) != connection.is_blocked:
            connection.is_blocked = not connection.is_blocked
            writes = selectors.EVENT_WRITE if connection.is_blocked else 0
            self._selector.modify(connection.socket, selectors.EVENT_READ | writes, connection)

    def _close(self, connection: _Connection) -> None:
        if connection not in self._connections:
            return
        self._connections.discard(connection)
        self._selector.unregister(connection.socket)
        connection.socket.close()
        gpu = self._gpus[connection.entry.uuid]
        self._answer(gpu.disconnect(connection.entry, connection, now_us()))


def _listening(host: str, port: int) -> socket.socket:
    listening = socket.create_server((host, port), backlog=BACKLOG)
    listening.setblocking(False)
    return listening
