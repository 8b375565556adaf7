"""The daemon's loop: one thread, a listener for each tenant's port, an epoll for all.

A tenant is who comes through its port, from its pod's address where that is known; the name in a
message is only compared. A connection that
has sent a valid message is not closed by the daemon while it is within bounds: Gemini's hook is
killed by SIGPIPE at its next message.
"""

import errno
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from kubeshare.tenant_identity import TenantEntry
from kubeshare.tokens import takeover
from kubeshare.tokens.connections import (
    READ,
    WRITE,
    Connection,
    DescriptorPoller,
    Listener,
    listening_socket,
    plain_address,
)
from kubeshare.tokens.descriptors import at_the_top
from kubeshare.tokens.frames import REQUEST_BYTES, RESPONSE_BYTES, FrameError, decode
from kubeshare.tokens.gpu_tokens import NEVER, Answer, GpuTokens, TokenTenantView
from kubeshare.tokens.scheduler import TokenRules
from kubeshare.tokens.takeover_record import (
    VERSION,
    DaemonRecord,
    ListenerRecord,
    RecordError,
    decode_record,
    encode_record,
)
from kubeshare.tokens.tally import no_lags, no_token_switches
from kubeshare.tokens.tenant_files import FolderEvents, TenantFiles
from vgpu.metrics.family import Histogram

log = logging.getLogger(__name__)

ROUND: Final = 1_000_000
"""Interval between two checks of folders and ports that were not usable, in microseconds."""

MAX_QUEUED: Final = 8
"""Maximum number of messages or answers of a connection that wait. Gemini's hook sends one, up to
five times. It takes the first answer, and what comes later for that of its next message."""

_EXHAUSTED: Final = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.ENOSPC}
)
"""Errors for want of descriptors, memory, or room in the user's epolls (``max_user_watches``)."""

LAST_TURNS: Final = 3
"""Number of times that the daemon looks for messages before it ends. A process connects in one turn
and is answered in the next one."""

WAKE, FILES, TAKEOVER = "wake", "files", "takeover"
"""What the poller has for the other descriptors: the one by which another thread wakes it, the
events of the files, and the socket of the next process."""


class ServerView(msgspec.Struct, frozen=True):
    """What the page of metrics shows.

    Attributes:
        complaint: why a tenant may not be served; "" if all are.
        tenants: the tenants.
        config_errors: how often files or ports could not be used.
        refused_connections: connections that were closed because a tenant had too many.
        lags: the times by which timers were late.
        token_switches: the times that the daemon took for token switches.
        end_grants: tokens that were granted at the end, whoever had the GPU's token.
    """

    complaint: str
    tenants: tuple[TokenTenantView, ...]
    config_errors: int
    refused_connections: int
    lags: Histogram
    token_switches: Histogram
    end_grants: int = 0


def now_us() -> int:
    """The monotonic clock, in microseconds."""
    return time.monotonic_ns() // 1000


class TokenServer:
    """The loop, on a thread of its own from :meth:`start` to :meth:`stop`."""

    def __init__(
        self,
        folder: Path,
        host: str,
        rules: TokenRules,
        failed: Callable[[str], None],
        *,
        takeover_path: Path | None = None,
        handed_over: Callable[[], None] = lambda: None,
    ) -> None:
        """``host`` is the address to listen on, "" for all; ``failed`` ends the program.

        ``takeover_path`` is the Unix socket of the running process, from which this one takes over;
        it calls ``handed_over`` when the next one has taken over from it. Raises OSError.
        """
        self._failed = failed
        self._takeover_path = takeover_path
        self._handed_over = handed_over
        self._successors: socket.socket | None = None
        self._is_handed_over = threading.Event()
        self._files = TenantFiles(folder)
        self._host = host
        self._rules = rules
        self._events = FolderEvents(folder)
        self._poller = DescriptorPoller[Connection | Listener | str]()
        self._wake, self._waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._gpus: dict[str, GpuTokens[Connection]] = {}
        self._listeners: dict[int, Listener] = {}
        self._connections: set[Connection] = set()
        self._paused: list[Listener] = []
        self._problems: tuple[str, ...] = ("the files have not been read yet",)
        self._next_round = 0
        self._config_errors = self._refused = self._end_grants = 0
        self._lags, self._token_switches = no_lags(), no_token_switches()
        self._began = 0
        self._lock = threading.Lock()
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="tokens", daemon=True)
        self._poller.add(self._wake, WAKE)
        self._poller.add(self._events.fd, FILES)

    def start(self) -> None:
        """Take over from a running process, read the files, listen, and begin.

        Raises TakeoverError if there is a running process and it cannot be taken over, and OSError
        if the next one could not connect.
        """
        with self._lock:
            if self._takeover_path is not None:
                self._take_over(self._takeover_path)
            self._began = now_us()
            self._configure(self._began)
        self._thread.start()

    def wait_handed_over(self, seconds: float) -> None:
        """Return when the next process has taken over, or after this time."""
        self._is_handed_over.wait(seconds)

    def stop(self) -> None:
        """End; every connection is closed, unless the next process has it."""
        self._ending = True
        os.write(self._waker, b"x")
        if self._thread.ident is not None:
            self._thread.join()
        if self._successors is not None and self._takeover_path is not None:
            self._takeover_path.unlink(missing_ok=True)
        with self._lock:
            if not self._is_handed_over.is_set():
                self._answer_all()
            self._close_all()
        self._poller.close()
        self._events.close()
        os.close(self._wake)
        os.close(self._waker)

    def _answer_all(self) -> None:
        """Handle what has come, close the ports, and answer every process that waits.

        A process with Gemini 1.1 that is answered asks again soon, and must not find a port.
        """
        for _ in range(LAST_TURNS):
            for value, events in self._poller.wait(0):
                self._handle(value, events)
        for port in [*self._listeners]:
            self._unlisten(self._listeners.pop(port))
        for value, events in self._poller.wait(0):
            self._handle(value, events)
        for gpu in self._gpus.values():
            answers = gpu.end(now_us())
            self._end_grants += sum(is_token for *_, is_token in answers)
            self._answer(answers)
        for connection in self._connections:
            connection.reset_at_close()
        if self._end_grants:
            log.info("tokens granted at the end", extra={"tokens": self._end_grants})

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
                self._lags.histogram(),
                self._token_switches.histogram(),
                self._end_grants,
            )

    # ------------------------------------------------------------ the thread's side

    def _run(self) -> None:
        try:
            self._loop()
        except Exception:
            log.exception("unexpected error: the loop has ended")
            self._failed("the loop has ended by an unexpected error; the log has the details")

    def _loop(self) -> None:
        while not self._ending:
            due, now = self._due_at(), now_us()
            ready = self._poller.wait(None if due == NEVER else max(0, due - now) / 1e6)
            with self._lock:
                self._began = now_us()
                for value, events in ready:
                    if self._ending:  # also: all was handed over
                        return
                    self._handle(value, events)
                if (now := now_us()) >= due:
                    self._tick(now)

    def _due_at(self) -> int:
        """When :meth:`_tick` has to be called, whatever comes before."""
        due = self._next_round if self._problems or self._paused else NEVER
        for gpu in self._gpus.values():
            due = min(due, gpu.wake_at)
        return due

    def _handle(self, value: Connection | Listener | str, events: int) -> None:
        if isinstance(value, Connection):
            if events & ~READ and value.is_blocked and value in self._connections:
                self._flush(value)
            if events & ~WRITE and value in self._connections:
                self._receive(value)
        elif isinstance(value, Listener):
            self._accept(value)
        elif value == TAKEOVER:
            self._hand_over()
        elif value == FILES:
            self._events.drain()
            self._configure(now_us())

    def _tick(self, now: int) -> None:
        for gpu in self._gpus.values():
            if gpu.wake_at <= now:
                self._began = gpu.wake_at
                self._lags.add(now - gpu.wake_at)
                self._answer(gpu.tick(now))
        if (self._problems or self._paused) and now >= self._next_round:
            paused, self._paused = self._paused, []
            for listener in paused:
                self._listen(listener)
            self._configure(now)

    # ------------------------------------------------------------ the next and the last process

    def _hand_over(self) -> None:
        """Give everything to the process that has connected; go on if that fails."""
        if self._successors is None:
            return
        listeners, connections = [*self._listeners.values()], [*self._connections]
        record = encode_record(self._record(listeners, connections))
        sockets = [
            self._successors,
            *(each.socket for each in listeners),
            *(each.socket for each in connections),
        ]
        try:
            takeover.hand_over(self._successors, record, sockets)
        except takeover.TakeoverError as error:
            log.warning("takeover failed; this process continues", extra={"reason": str(error)})
            return
        log.info("takeover done: the next process serves; this one only waits for its end")
        self._ending = True
        self._close_all()
        self._handed_over()
        self._is_handed_over.set()

    def _close_all(self) -> None:
        """Close everything, listening sockets first: see :mod:`kubeshare.tokens.descriptors`."""
        for listener in self._listeners.values():
            listener.socket.close()
        for connection in self._connections:
            connection.socket.close()
        if self._successors is not None:
            self._successors.close()
        self._connections.clear()
        self._listeners.clear()
        self._successors = None

    def _record(
        self, listeners: Sequence[Listener], connections: Sequence[Connection]
    ) -> DaemonRecord:
        numbers = {each: number for number, each in enumerate(connections)}
        return DaemonRecord(
            VERSION,
            tuple(
                ListenerRecord(each.entry.port, each.entry.uuid, each.entry.name)
                for each in listeners
            ),
            tuple(each.record() for each in connections),
            {uuid: gpu.record(numbers) for uuid, gpu in self._gpus.items()},
            self._files.content,
            self._refused,
            self._config_errors,
            self._lags,
            self._token_switches,
        )

    def _take_over(self, path: Path) -> None:
        last = takeover.predecessor(path)
        if last is None:
            self._successors = takeover.listen(path)
        else:
            begin = now_us()
            with last:
                last.receive()
                self._successors = self._restored(last)
                last.take()
            log.info(
                "takeover done: this process serves",
                extra={
                    "ports": len(self._listeners),
                    "connections": len(self._connections),
                    "milliseconds": f"{(now_us() - begin) / 1000:.1f}",
                },
            )
        self._poller.add(self._successors.fileno(), TAKEOVER)

    def _restored(self, last: takeover.Predecessor) -> socket.socket:
        """Have all that the last process had; returns the socket of the next one.

        Raises TakeoverError.
        """
        try:
            record = decode_record(last.record)
            entries = {
                (uuid, pod.entry.name): pod.entry
                for uuid, gpu in record.gpus.items()
                for pod in gpu.pods
            }
            sockets = last.sockets(1 + len(record.listeners) + len(record.connections))
            successors = next(sockets)
            for each in record.listeners:
                listening = at_the_top(next(sockets))
                listener = Listener(entries[each.uuid, each.pod], listening)
                self._listeners[each.port] = listener
                self._poller.add(listener.socket.fileno(), listener)
            connections = [
                Connection.restored(each, entries[each.uuid, each.pod], next(sockets))
                for each in record.connections
            ]
            for uuid, gpu in record.gpus.items():
                self._gpus[uuid] = GpuTokens.restored(gpu, self._rules, connections)
        except (RecordError, LookupError) as error:
            raise takeover.TakeoverError(f"its state cannot be used: {error}") from error
        self._connections.update(connections)
        for connection in connections:
            self._poller.add(connection.socket.fileno(), connection, connection.events)
        self._files.content = record.files
        self._refused, self._config_errors = record.refused_connections, record.config_errors
        self._lags, self._token_switches = record.lags, record.token_switches
        return successors

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
                listener = Listener(entry, listening_socket(self._host, port))
            except OSError as error:
                problems.append(f"port {port} of {entry.name}: {error.strerror}")
                continue
            self._listeners[port] = listener
            self._listen(listener)
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
                log.warning("a file of tenants cannot be used", extra={"reason": problem})
                self._config_errors += 1
        self._problems = tuple(problems)

    def _unlisten(self, listener: Listener) -> None:
        if listener in self._paused:
            self._paused.remove(listener)
        else:
            self._poller.remove(listener.socket.fileno())
        listener.socket.close()

    def _accept(self, listener: Listener) -> None:
        try:
            connected, peer = listener.socket.accept()
        except OSError as error:
            self._pause_if_exhausted(listener, error)
            return
        connection = Connection(listener.entry, connected)
        try:
            connected.setblocking(False)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._poller.add(connected.fileno(), connection)
        except OSError as error:
            connected.close()
            self._pause_if_exhausted(listener, error)
            return
        gpu = self._gpus[listener.entry.uuid]
        self._connections.add(connection)
        surplus = gpu.connect(listener.entry, connection, plain_address(peer[0]))
        if surplus is not None:
            self._refused += surplus is connection
            self._close(surplus)

    def _listen(self, listener: Listener) -> None:
        """Wait for its connections; without room in the epoll, from the next round on."""
        try:
            self._poller.add(listener.socket.fileno(), listener)
        except OSError:
            self._paused.append(listener)

    def _pause_if_exhausted(self, listener: Listener, error: OSError) -> None:
        """Accept no more until the next round, if that is for want of a resource."""
        if error.errno in _EXHAUSTED:
            self._poller.remove(listener.socket.fileno())
            self._paused.append(listener)

    # ------------------------------------------------------------ connections

    def _receive(self, connection: Connection) -> None:
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

    def _process(self, connection: Connection) -> None:
        """Handle whole messages, one after the other: the next one when the last is answered."""
        gpu = self._gpus[connection.entry.uuid]
        while len(connection.received) >= REQUEST_BYTES and not connection.waits:
            message = connection.received[:REQUEST_BYTES]
            connection.received = connection.received[REQUEST_BYTES:]
            if message == connection.last:
                gpu.repeated(connection)
                continue
            try:
                request = decode(message)
            except FrameError as error:
                gpu.malformed(connection, error.kind)
                if not connection.is_valid:
                    self._close(connection)
                    return
                continue
            if request.id == 1 and connection.last:  # Gemini 1.1 connects for its second message
                connection.reset_at_close()
            connection.is_valid = connection.waits = True
            connection.last = message
            self._answer(gpu.request(connection, request, now_us()))
            if connection not in self._connections:  # closed, since it takes no answers
                return
        if len(connection.received) > REQUEST_BYTES * MAX_QUEUED:
            self._close(connection)

    def _answer(self, answers: Iterable[Answer[Connection]]) -> None:
        for connection, response, is_token in answers:
            if connection not in self._connections:
                continue
            connection.unsent += response
            self._flush(connection)
            connection.waits = False
            if is_token:
                self._token_switches.add(now_us() - self._began)
            if len(connection.received) >= REQUEST_BYTES and connection in self._connections:
                self._process(connection)

    def _flush(self, connection: Connection) -> None:
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
            self._poller.change(connection.socket.fileno(), connection.events)

    def _close(self, connection: Connection) -> None:
        if connection not in self._connections:
            return
        self._connections.discard(connection)
        self._poller.remove(connection.socket.fileno())
        connection.socket.close()
        gpu = self._gpus[connection.entry.uuid]
        self._answer(gpu.disconnect(connection, now_us()))
