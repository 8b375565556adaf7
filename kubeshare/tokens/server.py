"""The daemon's loop: one thread, an epoll for each tenant's port, and one for all of these.

A tenant is who comes through its port, from its pod's address where that is known; the name in a
message is only compared. A connection that has sent a valid message is not closed by the daemon
while it is within bounds: Gemini's hook is killed by SIGPIPE at its next message.

In each round every port is served that has something to do, up to a quantum
(:mod:`kubeshare.tokens.round_robin`). One message is read at a time, and none of a process that
waits for an answer: what else has come stays in the kernel, and fills the peer's window.
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
    END,
    READ,
    WRITE,
    Connection,
    DescriptorPoller,
    Port,
    listening_socket,
    plain_address,
)
from kubeshare.tokens.descriptors import at_the_top, for_connections, for_each_port
from kubeshare.tokens.frames import (
    REQUEST_BYTES,
    RESPONSE_BYTES,
    FrameError,
    QuotaRequest,
    decode,
)
from kubeshare.tokens.gpu_tokens import (
    MANY_MESSAGES,
    NEVER,
    Answer,
    GpuTokens,
    TokenTenantView,
)
from kubeshare.tokens.round_robin import QUANTUM, serve_round
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

MAX_UNSENT: Final = 8
"""Maximum number of answers that a connection has not taken. Gemini's hook takes the answer to a
message before it sends the next one."""

TOKEN_COST: Final = 4
"""Cost of a request for a token, beside 1 of a message about memory in a round."""

OPENING_COST: Final = 4
"""Cost of a new connection, with the end of another one."""

_EXHAUSTED: Final = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.ENOSPC}
)
"""Errors for want of descriptors, memory, or room in the user's epolls (``max_user_watches``)."""

LAST_ROUNDS: Final = 1_000
"""Maximum number of rounds in which the daemon handles what has come before it ends: a flood does
not keep it."""

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
        clock: Callable[[], int] = now_us,
    ) -> None:
        """``host`` is the address to listen on, "" for all; ``failed`` ends the program.

        ``takeover_path`` is the Unix socket of the running process, from which this one takes over;
        it calls ``handed_over`` when the next one has taken over from it. ``clock`` has the time in
        microseconds, and both processes have the same one. Raises OSError.
        """
        self._failed = failed
        self._now = clock
        self._takeover_path = takeover_path
        self._handed_over = handed_over
        self._successors: socket.socket | None = None
        self._is_handed_over = threading.Event()
        self._files = TenantFiles(folder)
        self._host = host
        self._rules = rules
        self._events = FolderEvents(folder)
        self._poller = DescriptorPoller[Port | str]()
        self._wake, self._waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._gpus: dict[str, GpuTokens[Connection]] = {}
        self._ports: dict[int, Port] = {}
        self._connections: set[Connection] = set()
        self._epolls = 0
        self._paused: list[Port] = []
        self._unused: list[Port] = []
        self._problems: tuple[str, ...] = ("the files have not been read yet",)
        self._next_round = 0
        self._config_errors = self._refused = self._end_grants = 0
        self._lags, self._token_switches = no_lags(), no_token_switches()
        self._began = 0
        self._lock = threading.Lock()
        self._ending = self._has_failed = False
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
            self._began = self._now()
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
            if not self._is_handed_over.is_set() and not self._has_failed:
                self._answer_all()
            self._close_all()
        self._poller.close()
        self._events.close()
        os.close(self._wake)
        os.close(self._waker)

    def _answer_all(self) -> None:
        """Handle what has come, close the ports, and answer every process that waits.

        A process with Gemini 1.1 that is answered asks again soon, and must not find a port. So
        what the files have now opens none, and a next process that connects now gets nothing.
        """
        for fd in (self._wake, self._events.fd):
            self._poller.remove(fd)
        if self._successors is not None:
            self._poller.remove(self._successors.fileno())
        self._serve_what_has_come()
        for number in [*self._ports]:
            self._unlisten(self._ports.pop(number))
        self._serve_what_has_come()
        for gpu in self._gpus.values():
            answers = gpu.end(self._now())
            self._end_grants += sum(is_token for *_, is_token in answers)
            self._answer(answers)
        for connection in self._connections:
            connection.reset_at_close()
        if self._end_grants:
            log.info("tokens granted at the end", extra={"tokens": self._end_grants})

    def _serve_what_has_come(self) -> None:
        for _ in range(LAST_ROUNDS):
            if not (ready := self._poller.wait(0)):
                return
            self._began = self._now()
            self._serve(ready)

    def complaint(self) -> str:
        """Why a tenant may not be served; "" if all are."""
        return next(iter(self._problems), "")

    def view(self) -> ServerView:
        """What the page of metrics shows. Any thread may call this."""
        with self._lock:
            now = self._now()
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
            self._has_failed = True
            log.exception("unexpected error: the loop has ended")
            self._failed("the loop has ended by an unexpected error; the log has the details")

    def _loop(self) -> None:
        while not self._ending:
            due, now = self._due_at(), self._now()
            ready = self._poller.wait(None if due == NEVER else max(0, due - now) / 1e6)
            with self._lock:
                self._began = self._now()
                self._serve(ready)
                if self._ending:  # also: all was handed over
                    return
                if (now := self._now()) >= due:
                    self._tick(now)

    def _due_at(self) -> int:
        """When :meth:`_tick` has to be called, whatever comes before."""
        due = self._next_round if self._problems or self._paused else NEVER
        for gpu in self._gpus.values():
            due = min(due, gpu.wake_at)
        return due

    def _serve(self, ready: Iterable[tuple[Port | str, int]]) -> None:
        """One round: what the daemon has to do, then each port that has something to do."""
        ports = []
        for value, _ in ready:
            if isinstance(value, Port):
                ports.append(value)
            elif value == FILES:
                self._events.drain()
                self._configure(self._now())
            elif value == TAKEOVER:
                self._hand_over()
        if not self._is_handed_over.is_set():
            serve_round(ports, self._serve_port)
        while self._unused:
            port = self._unused.pop()
            self._poller.remove(port.poller.fileno())
            port.poller.close()
            self._epolls -= 1

    def _serve_port(self, port: Port, allowance: int) -> int:
        """Handle events of a port; returns what that costs."""
        spent, is_last = 0, False
        while spent < allowance:
            if not port.pending:
                if is_last:
                    break
                port.pending = port.poller.wait(0, QUANTUM)
                is_last = len(port.pending) < QUANTUM
                continue
            connection, events = port.pending.pop()
            if connection is None:
                self._accept(port)
                spent += OPENING_COST
            elif connection in self._connections:  # another event has not closed it
                spent += self._handle(connection, events)
        return spent

    def _handle(self, connection: Connection, events: int) -> int:
        """Handle an event; returns its cost."""
        if events == READ and not connection.waits:
            return self._receive(connection)
        if events & WRITE and connection.is_blocked:
            self._flush(connection)
            if connection not in self._connections:
                return 1
        if not connection.waits:
            return self._receive(connection) if events & ~WRITE else 1
        if events & END:
            self._close(connection)
        elif events & READ:
            connection.wait_for(more=False, room=connection.is_blocked)
        return 1

    def _tick(self, now: int) -> None:
        for gpu in self._gpus.values():
            if gpu.wake_at <= now:
                self._began = gpu.wake_at
                self._lags.add(now - gpu.wake_at)
                self._answer(gpu.tick(now))
        if (self._problems or self._paused) and now >= self._next_round:
            paused, self._paused = self._paused, []
            for port in paused:
                self._listen(port)
            self._configure(now)

    # ------------------------------------------------------------ the next and the last process

    def _hand_over(self) -> None:
        """Give everything to the process that has connected; go on if that fails."""
        if self._successors is None:
            return
        listening = {port: each for port in self._ports.values() if (each := port.listening)}
        connections = [*self._connections]
        record = encode_record(self._record([*listening], connections))
        sockets = [
            self._successors,
            *listening.values(),
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
        for port in self._ports.values():
            port.close()
        for connection in self._connections:
            connection.socket.close()
        ports = {*self._ports.values(), *(each.port for each in self._connections), *self._unused}
        for port in ports:
            port.poller.close()
        self._unused.clear()
        if self._successors is not None:
            self._successors.close()
        self._connections.clear()
        self._ports.clear()
        self._successors = None

    def _record(self, ports: Sequence[Port], connections: Sequence[Connection]) -> DaemonRecord:
        numbers = {each: number for number, each in enumerate(connections)}
        return DaemonRecord(
            VERSION,
            tuple(
                ListenerRecord(each.entry.port, each.entry.uuid, each.entry.name) for each in ports
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
            begin = self._now()
            with last:
                last.receive()
                self._successors = self._restored(last)
                last.take()
            log.info(
                "takeover done: this process serves",
                extra={
                    "ports": len(self._ports),
                    "connections": len(self._connections),
                    "milliseconds": f"{(self._now() - begin) / 1000:.1f}",
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
            ports: dict[tuple[str, str], Port] = {}
            for each in record.listeners:
                tenant = each.uuid, each.pod
                ports[tenant] = port = Port(entries[tenant], at_the_top(next(sockets)))
                self._ports[each.port] = port
                self._poller.add(port.poller.fileno(), port)
                self._epolls += 1
                self._listen(port)
            connections = []
            for last_one in record.connections:
                tenant = last_one.uuid, last_one.pod
                if tenant not in ports:
                    ports[tenant] = port = Port(entries[tenant], None)
                    self._poller.add(port.poller.fileno(), port)
                    self._epolls += 1
                connections.append(
                    Connection.restored(last_one, ports[tenant], entries[tenant], next(sockets))
                )
            for uuid, gpu in record.gpus.items():
                self._gpus[uuid] = GpuTokens.restored(gpu, self._rules, connections)
        except (RecordError, LookupError) as error:
            raise takeover.TakeoverError(f"its state cannot be used: {error}") from error
        self._connections.update(connections)
        for connection in connections:
            connection.port.connections += 1
            poller = connection.port.poller
            poller.add(connection.socket.fileno(), connection, connection.events)
        for gpu in record.gpus.values():
            for pod in gpu.pods:
                for number in pod.connections if pod.keeps_connections else ():
                    connections[number].reset_at_close()
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
        for number in [number for number in self._ports if number not in entries]:
            self._unlisten(self._ports.pop(number))
        for number, entry in entries.items():
            known = self._ports.get(number)
            if known is not None:
                known.entry = entry
                continue
            try:
                port = self._opened(entry, number)
            except OSError as error:
                problems.append(f"port {number} of {entry.name}: {error.strerror}")
                continue
            self._ports[number] = port
            self._listen(port)
        by_gpu: dict[str, list[TenantEntry]] = {uuid: [] for uuid in self._gpus}
        for entry in entries.values():
            by_gpu.setdefault(entry.uuid, []).append(entry)
        connections = for_each_port(len(self._ports))
        for uuid, tenants in by_gpu.items():
            gpu = self._gpus.setdefault(uuid, GpuTokens(self._rules, now))
            gpu.limit_connections(connections)
            self._answer(gpu.configure(tenants, now))
            for surplus in gpu.surplus():
                self._close(surplus)
            if gpu.is_empty:
                del self._gpus[uuid]
        for problem in problems:
            if problem not in self._problems:
                log.warning("a file of tenants cannot be used", extra={"reason": problem})
                self._config_errors += 1
        self._problems = tuple(problems)

    def _opened(self, entry: TenantEntry, number: int) -> Port:
        """A port that listens. Raises OSError."""
        listening = listening_socket(self._host, number)
        try:
            port = Port(entry, listening)
            self._poller.add(port.poller.fileno(), port)
        except OSError:
            listening.close()
            raise
        self._epolls += 1
        return port

    def _unlisten(self, port: Port) -> None:
        if port in self._paused:
            self._paused.remove(port)
        elif port.listening is not None:
            port.poller.remove(port.listening.fileno())
        port.close()
        self._forget_if_unused(port)

    def _forget_if_unused(self, port: Port) -> None:
        if port.listening is None and not port.connections:
            self._unused.append(port)

    def _accept(self, port: Port) -> None:
        if port.listening is None:
            return
        if len(self._connections) + self._epolls >= for_connections():
            self._pause(port)
            return
        try:
            connected, peer = port.listening.accept()
        except OSError as error:
            self._pause_if_exhausted(port, error)
            return
        connection = Connection(port, port.entry, connected)
        try:
            connected.setblocking(False)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            port.poller.add(connected.fileno(), connection, connection.events)
        except OSError as error:
            connected.close()
            self._pause_if_exhausted(port, error)
            return
        gpu = self._gpus[port.entry.uuid]
        port.connections += 1
        self._connections.add(connection)
        for surplus in gpu.connect(port.entry, connection, plain_address(peer[0])):
            self._refused += surplus is connection
            self._close(surplus)

    def _listen(self, port: Port) -> None:
        """Wait for its connections; without room in the epoll, from the next round on."""
        if port.listening is None:
            return
        try:
            port.poller.add(port.listening.fileno(), None)
        except OSError:
            self._paused.append(port)

    def _pause_if_exhausted(self, port: Port, error: OSError) -> None:
        """Accept no more until the next round, if that is for want of a resource."""
        if error.errno in _EXHAUSTED:
            self._pause(port)

    def _pause(self, port: Port) -> None:
        if port.listening is not None:
            port.poller.remove(port.listening.fileno())
            self._paused.append(port)

    # ------------------------------------------------------------ connections

    def _receive(self, connection: Connection) -> int:
        """Read a message, or what has come of it, and handle it; returns the cost."""
        begin = connection.received
        try:
            received = connection.socket.recv(REQUEST_BYTES - len(begin))
        except BlockingIOError:
            return 1
        except OSError:
            received = b""
        if not received:
            self._close(connection)
            return 1
        message = begin + received
        if len(message) < REQUEST_BYTES:
            connection.received = message
            return 1
        connection.received = b""
        return self._message(connection, message)

    def _message(self, connection: Connection, message: bytes) -> int:
        gpu = self._gpus[connection.entry.uuid]
        if message == connection.last:
            gpu.repeated(connection)
            return 1
        try:
            request = decode(message)
        except FrameError as error:
            gpu.malformed(connection, error.kind)
            if not connection.is_valid:
                self._close(connection)
            return 1
        is_first = not connection.is_valid
        knew_hook = not is_first or gpu.closes_none(connection)
        connection.is_valid = connection.waits = True
        connection.last = message
        answers = gpu.request(connection, request, self._now())
        if not knew_hook and gpu.closes_none(connection):
            self._keep_orderly_ends(connection.port)
        elif not is_first and not connection.resets and gpu.is_kept(connection, request.id):
            connection.reset_at_close()
        self._answer(answers)
        return TOKEN_COST if isinstance(request, QuotaRequest) else 1

    def _keep_orderly_ends(self, port: Port) -> None:
        """The hook of a pod is Gemini 1.1: threads have sent several messages through a connection.

        Those of 1.0 beside it, which have not sent many yet, reset again when they have.
        """
        for each in self._connections:
            if each.port is port and each.last and decode(each.last).id < MANY_MESSAGES:
                each.reset_at_close(resets=False)

    def _answer(self, answers: Iterable[Answer[Connection]]) -> None:
        for connection, response, is_token in answers:
            if connection not in self._connections:
                continue
            connection.waits = False
            connection.unsent += response
            self._flush(connection)
            if is_token:
                self._token_switches.add(self._now() - self._began)

    def _flush(self, connection: Connection) -> None:
        unsent = connection.unsent
        try:
            sent = connection.socket.send(unsent)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._close(connection)
            return
        connection.unsent = unsent = unsent[sent:]
        if len(unsent) > RESPONSE_BYTES * MAX_UNSENT:
            self._close(connection)
        elif unsent or connection.is_blocked or connection.is_paused:
            connection.wait_for(
                more=not connection.is_paused or not connection.waits, room=bool(unsent)
            )

    def _close(self, connection: Connection) -> None:
        if connection not in self._connections:
            return
        self._connections.discard(connection)
        port = connection.port
        port.poller.remove(connection.socket.fileno())
        port.connections -= 1
        self._forget_if_unused(port)
        connection.socket.close()
        gpu = self._gpus[connection.entry.uuid]
        self._answer(gpu.disconnect(connection, self._now()))
