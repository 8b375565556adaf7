"""Keeps each resource registered through every restart of the kubelet or the plugin.

A kubelet that starts removes all sockets of its folder and has forgotten all plugins; a plugin that
starts is unknown. A resource whose socket is gone is therefore served and registered again, always
on a socket of a **fresh name**: kubelet 1.37 refuses a name that it still holds ("device plugin
already connected"), and from then on for ever. Older kubelets, when a connection ends, close the
connection that replaced it. So a list that no kubelet reads is a reason to register as well.

One thread looks at the kubelet's folder five times a second, with one stat for the kubelet's socket
and one for every own socket, so that it registers again within a second of the kubelet's return.
"""

import logging
import os
import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from deviceplugin.kubelet.registration import (
    KUBELET_SOCKET,
    RegistrationOutcome,
    Unregistered,
    register,
    require_kubelet,
)
from deviceplugin.kubelet.server import Endpoint, ListReaders
from deviceplugin.ports import Allocator
from vgpu.io.unix_socket import SocketError, is_served
from vgpu.model.names import Scheme
from vgpu.sources.files import printable

log = logging.getLogger(__name__)

NEVER_READ_SECONDS: Final = 10.0
"""Time without a reader after which a registration counts as lost, in seconds, if the list was
never read: a kubelet asks for the list as soon as it has taken a plugin."""

NO_LONGER_READ_SECONDS: Final = 1.0
"""The same time, in seconds, for a list that was read before: a kubelet reads it as long as it
lives."""

SETTLED_SECONDS: Final = 10.0
"""Minimum time for which a list is read, in seconds, before the pauses between tries restart."""

FIRST_PAUSE_SECONDS: Final = 0.1
LONGEST_PAUSE_SECONDS: Final = 5.0
UNSUPPORTED_PAUSE_SECONDS: Final = 60.0

_RANDOM_BYTES: Final = 5

Identity = tuple[int, int]
"""Inode and ctime in nanoseconds: the system reuses an inode number at once."""


def identity(path: str) -> Identity | None:
    """The identity of the present socket; None if there is no accessible one."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_ino, status.st_ctime_ns


def pause(failures: int, outcome: RegistrationOutcome) -> float:
    """Seconds until the next try, after this number of failures in a row."""
    if outcome is RegistrationOutcome.UNSUPPORTED:
        return UNSUPPORTED_PAUSE_SECONDS
    return min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** min(failures - 1, 10))


def objection(readers: ListReaders, now: float) -> Unregistered | None:
    """Why the kubelet has probably lost the resource; ``now`` as :attr:`ListReaders.since`."""
    patience = NO_LONGER_READ_SECONDS if readers.was_read else NEVER_READ_SECONDS
    if readers.count or now - readers.since <= patience:
        return None
    detail = "it has ended" if readers.was_read else "it was never asked for"
    return Unregistered(RegistrationOutcome.NOT_READ, detail)


class ResourceState(msgspec.Struct, frozen=True):
    """The state of a resource.

    Attributes:
        resource: its name.
        offered: whether it has a list, so that it is to be registered.
        registered: whether the kubelet has taken it and reads the list.
        socket: the path that it is served on, "" if it is not served.
        problem: the error for which it is not registered; "" if there is none.
        outcomes: number of tries so far, by outcome.
    """

    resource: str
    offered: bool
    registered: bool
    socket: str
    problem: str
    outcomes: Mapping[RegistrationOutcome, int]


class ResourceServer:
    """Keeps one resource registered. One thread calls :meth:`look`, any the others."""

    def __init__(
        self,
        folder: Path,
        prefix: str,
        resource: str,
        allocator: Allocator,
        *,
        binding: bool,
        cdi: bool,
    ) -> None:
        """``prefix`` begins the names of sockets; see :class:`Endpoint` for the others."""
        self._folder = folder
        self._prefix = prefix
        self._resource = resource
        self._allocator = allocator
        self._binding = binding
        self._cdi = cdi
        self._lock = threading.Lock()  # over what several threads see
        self._offered: bytes | None = None
        self._endpoint: Endpoint | None = None
        self._problem = ""
        self._outcomes: Counter[RegistrationOutcome] = Counter()
        self._socket_identity: Identity | None = None
        self._kubelet: Identity | None = None
        self._failures = 0
        self._next_try = 0.0

    def offer(self, offered: bytes | None) -> None:
        """Offer this list from now on; None withdraws the resource."""
        with self._lock:
            if offered == self._offered:
                return  # one copy of several MB is enough
            self._offered = offered
            if self._endpoint and offered is not None:
                self._endpoint.offer(offered)

    def state(self) -> ResourceState:
        """The present state."""
        with self._lock:
            endpoint = self._endpoint
            read = endpoint is not None and endpoint.readers.count > 0
            return ResourceState(
                resource=self._resource,
                offered=self._offered is not None,
                registered=read,
                socket=endpoint.path if endpoint else "",
                problem="" if read else self._problem,
                outcomes=dict(self._outcomes),
            )

    def check(self, kubelet: Identity | None, now: float) -> None:
        """Do what is due, at most one registration.

        ``kubelet`` is the kubelet's socket as it is now, ``now`` of the monotonic clock.
        """
        if kubelet is not None and kubelet != self._kubelet:
            self._drop()  # the reader of its list is gone
            self._kubelet, self._failures, self._next_try = kubelet, 0, 0.0
        lost = self._lost(now)
        if lost:
            # The next look registers again, not this one: a kubelet that notices the end of this
            # connection late would take it for the end of the new connection.
            self._drop()
            self._note(lost, now)
        elif self._offered is None:
            self._drop()
        elif self._endpoint is None and kubelet is None:
            self._log_problem(f"{self._folder / KUBELET_SOCKET} is not there")
        elif self._endpoint is None and now >= self._next_try:
            self._register(now)

    def stop(self, grace: float) -> threading.Event:
        """Stop serving. Calls under way have ``grace`` seconds; the event is set after them."""
        return self._drop(grace)

    # ------------------------------------------------------------ the looking thread's side

    def _lost(self, now: float) -> Unregistered | None:
        """Why the present socket is of no use any more; None if it is."""
        if self._endpoint is None:
            return None
        readers = self._endpoint.readers
        if readers.count and now - readers.since > SETTLED_SECONDS:
            self._failures = 0
        if identity(self._endpoint.path) != self._socket_identity:
            return Unregistered(RegistrationOutcome.REMOVED, self._endpoint.path)
        return objection(readers, now)

    def _register(self, now: float) -> None:
        """Serve on a fresh socket and register it, by one call."""
        try:
            require_kubelet(self._folder)
            name = self._serve()
            register(self._folder, name, self._resource, binding=self._binding)
        except SocketError as error:
            self._drop()
            self._note(Unregistered(RegistrationOutcome.NOT_SERVED, str(error)), now)
        except Unregistered as error:
            self._drop()
            self._note(error, now)
        else:
            with self._lock:
                self._outcomes[RegistrationOutcome.REGISTERED] += 1
                self._problem = ""
            log.info("resource registered", extra={"resource": self._resource, "socket": name})

    def _serve(self) -> str:
        """Serve on a new socket; returns its name. Raises SocketError."""
        short = self._resource.rpartition("/")[2]
        name = f"{self._prefix}{short}-{secrets.token_hex(_RANDOM_BYTES)}.sock"
        path = str(self._folder / name)
        with self._lock:
            endpoint = Endpoint(
                self._resource,
                path,
                self._allocator,
                self._offered or b"",
                binding=self._binding,
                cdi=self._cdi,
            )
            self._endpoint = endpoint
        endpoint.start()
        self._socket_identity = identity(path)
        return name

    def _drop(self, grace: float = 0.0) -> threading.Event:
        with self._lock:
            endpoint, self._endpoint = self._endpoint, None
        if endpoint is None:
            ended = threading.Event()
            ended.set()
            return ended
        with suppress(OSError):
            Path(endpoint.path).unlink(missing_ok=True)
        return endpoint.stop(grace)

    def _note(self, error: Unregistered, now: float) -> None:
        """Count the failure, and wait longer than last time."""
        self._failures += 1
        self._next_try = now + pause(self._failures, error.outcome)
        self._log_problem(str(error), error.outcome)

    def _log_problem(self, problem: str, *outcomes: RegistrationOutcome) -> None:
        """Keep the problem as the resource's, and log it if it has changed."""
        with self._lock:
            self._outcomes.update(outcomes)
            news, self._problem = problem != self._problem, problem
        if news:
            log.warning(
                "resource not registered", extra={"resource": self._resource, "err": problem}
            )


LOOK_SECONDS: Final = 0.2

ENDING_SECONDS: Final = 2.0


class Registrar:
    """Serves and registers a scheme's resources between :meth:`start` and :meth:`stop`."""

    def __init__(
        self,
        folder: str,
        scheme: Scheme,
        resources: Iterable[str],
        allocator: Allocator,
        *,
        cdi: bool,
    ) -> None:
        """``folder`` is the kubelet's; the first resource is the binding one.

        A resource is served as soon as it is offered. ``cdi``: whether answers carry their name as
        a CDI device.
        """
        binding, *others = resources
        self._folder = Path(folder)
        self._prefix = f"vgpu-{scheme}-"
        self._servers = {
            name: ResourceServer(
                self._folder, self._prefix, name, allocator, binding=name == binding, cdi=cdi
            )
            for name in (binding, *others)
        }
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="registration", daemon=True)

    def start(self) -> None:
        """Keep the resources registered, in the background."""
        self._thread.start()

    def offer(self, resource: str, offered: bytes | None) -> None:
        """Offer this list (a ListAndWatchResponse) from now on; None withdraws the resource."""
        self._servers[resource].offer(offered)
        self._wake.set()

    def states(self) -> tuple[ResourceState, ...]:
        """The present state of each resource."""
        return tuple(server.state() for server in self._servers.values())

    def stop(self, grace: float = 1.0) -> None:
        """Stop serving; calls under way have ``grace`` seconds. The sockets are gone afterwards."""
        self._stopping = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(grace + ENDING_SECONDS)  # a silent kubelet does not block the end
        for ended in [server.stop(grace) for server in self._servers.values()]:
            ended.wait(grace + 1.0)

    def _run(self) -> None:
        self._remove_left_behind()
        socket = str(self._folder / KUBELET_SOCKET)
        while not self._stopping:
            self._wake.clear()
            kubelet = identity(socket)
            for server in self._servers.values():
                if self._stopping:
                    return
                try:
                    server.check(kubelet, time.monotonic())
                except Exception:
                    log.exception("unexpected error while keeping a resource registered")
            self._wake.wait(LOOK_SECONDS)

    def _remove_left_behind(self) -> None:
        """Remove sockets of earlier processes, except those of a plugin that is still ending."""
        try:
            left_behind = [*self._folder.glob(f"{self._prefix}*.sock")]
        except OSError as error:
            what = {"path": printable(str(self._folder)), "err": str(error)}
            log.warning("sockets left behind cannot be looked for", extra=what)
            return
        for path in left_behind:
            try:
                if path.is_socket() and not is_served(str(path)):
                    path.unlink()
                    log.info(
                        "socket of an earlier process removed", extra={"path": printable(str(path))}
                    )
            except OSError as error:
                what = {"path": printable(str(path)), "err": str(error)}
                log.warning("a socket left behind cannot be removed", extra=what)
