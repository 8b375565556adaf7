"""The host of a program's own routes and threads, from its flags to its end.

    @click.command("name")
    @program_flags(":9400")
    @click.pass_context
    def command(ctx, /, **_):
        with ProgramHost.from_flags(ctx.params) as host:
            metrics = host.metrics(TABLES, view)
            host.start(program_routes("name", {"/metrics": metrics, "/own": handler}))
            host.wait()
        ctx.exit(host.leave())

SIGTERM and SIGINT end it in good order, with status 0, and :meth:`ProgramHost.fail` with status 1.
What cannot be served is an error that names the flag, with status 1; wrong flags are status 2.
"""

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import IO, Any, Final, Self

import click

from vgpu.metrics.family import FamilyTable
from vgpu.metrics.process_families import ProcessView, process_tables
from vgpu.program import logs, termination
from vgpu.program.failures import report
from vgpu.program.flags import Decorator, composed, log_flags
from vgpu.program.pages import PROBES
from vgpu.program.process import build_info, process_numbers
from vgpu.program.termination import EXIT_FAILURE, exit_now, outlasting
from vgpu.program.web_flags import PROBE_FLAG, WebOptions, web_flags
from vgpu.web.config import OPEN, WebConfigError, WebConfigFile
from vgpu.web.message import Handler
from vgpu.web.metrics import LiveMetrics, metrics_page
from vgpu.web.routes import Routes
from vgpu.web.server import ListenError, WebServer

log = logging.getLogger(__name__)

ENDING_SECONDS: Final = 2.0
"""Maximum time to wait at the end for threads that are still at work, in seconds."""

PROBE_GRACE_SECONDS: Final = 1.0
"""Maximum time to wait at the end for answers to probes, in seconds."""


def program_flags(address: str) -> Decorator:
    """The flags of a program that serves on ``address``: its web server's and its log's."""
    return composed(*web_flags(address), *log_flags("info"))


class CannotServe(click.ClickException):
    """The web server cannot start; the message names the flag and is a line of the log."""

    exit_code = EXIT_FAILURE

    def show(self, file: IO[Any] | None = None) -> None:  # noqa: ARG002  # click's signature
        """Log it."""
        log.error("cannot serve", extra={"reason": self.message})


class ProgramHost:
    """One program that runs until a signal. A context manager: it stops the web server.

    Attributes:
        build: what is running, for the build_info metrics.
        process_numbers: reads the numbers about this process, by the name of their family.
        fatal: why the program ends by itself; "" if it does not.
    """

    def __init__(
        self, web: WebOptions, ignored: Iterable[signal.Signals] = termination.IGNORED
    ) -> None:
        """Made before the program's first thread, which inherits what becomes of signals.

        Raises:
            CannotServe: the web config file cannot be used.
        """
        termination.ignore(ignored)
        termination.block_ending()
        self._web = web
        try:
            self._config = WebConfigFile(web.config_file) if web.config_file else None
        except WebConfigError as error:
            raise CannotServe(str(error)) from error
        self.build: Mapping[str, str] = build_info()
        self.process_numbers = process_numbers(self._config)
        self.fatal = ""
        self._server: WebServer | None = None
        self._probes: WebServer | None = None
        self._is_announced = False
        self._foreign = frozenset(threading.enumerate())

    @classmethod
    def from_flags(cls, params: Mapping[str, Any], web: WebOptions | None = None) -> Self:
        """A host from the parameters of a command of :func:`program_flags`. Raises CannotServe.

        ``web`` replaces the web options of the parameters.
        """
        logs.configure(params["log_level"], params["log_format"])
        return cls(web or WebOptions.of(params))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.stop_serving()
        if error is not None and self._is_held():
            exit_now(_report(error))

    @property
    def urls(self) -> tuple[str, ...]:
        """Its addresses, as links for people on this host."""
        return self._server.urls if self._server is not None else ()

    @property
    def requires_client_certificates(self) -> bool:
        """Whether only clients with a certificate that the web config file accepts get in."""
        return self._config is not None and self._config.current().requires_client_certificates

    @property
    def knows_its_clients(self) -> bool:
        """Whether it serves with TLS, and only who has a password or an accepted certificate."""
        policy = OPEN if self._config is None else self._config.current()
        is_known = policy.users is not None or policy.requires_client_certificates
        return policy.tls is not None and is_known

    def metrics(
        self, tables: Iterable[FamilyTable] = (), view: Callable[[], Any] = lambda: None
    ) -> Handler:
        """The page of metrics: ``tables`` over the ``view`` of each request, and our own tables."""
        own = process_tables(lambda: ProcessView(self.build, self.process_numbers()))
        return metrics_page(LiveMetrics((*tables, *own), view).body)

    def start(self, routes: Routes, *, shares_port: bool = False) -> None:
        """Serve from now on: all routes, and those of the probes on an address of their own.

        With ``shares_port`` the next process of the same program may serve beside this one, until
        :meth:`stop_serving`.

        Raises:
            CannotServe: an address cannot be listened on.
        """
        web = self._web
        if web.probe_address:
            probes = {path: routes[path] for path in PROBES if path in routes}
            probe_server = WebServer(probes, (web.probe_address,), shares_port=shares_port)
            self._probes = _started(probe_server, PROBE_FLAG)
        server = WebServer(
            routes,
            web.listen_address,
            self._config,
            max_requests=web.max_requests,
            max_connections=web.max_connections,
            max_per_address=web.max_connections_per_address,
            max_bodies=web.max_bodies,
            shares_port=shares_port,
        )
        self._server = _started(server, web.listen_flag)

    def announce(self, **more: object) -> None:
        """Log that it serves, if that has not been logged."""
        if not self._is_announced:
            self._is_announced = True
            log.info("web server ready", extra={"addresses": ",".join(self.urls), **more})

    def stop_serving(self) -> None:
        """Stop the web server, while the process goes on. From any thread."""
        if self._server is not None:
            self._server.stop()
        if self._probes is not None:
            self._probes.stop(PROBE_GRACE_SECONDS)

    def is_ending(self) -> bool:
        """Whether it is to end, for callers that start a long operation."""
        return termination.is_ending()

    def wait(self) -> None:
        """Return when it is to end."""
        self.announce()
        received = termination.wait()
        log.info("program stopping", extra={"reason": self.fatal or received.name})

    def fail(self, reason: str) -> None:
        """End it, with status 1: only a new process can go on. From any thread."""
        self.fatal = self.fatal or reason
        os.kill(os.getpid(), signal.SIGTERM)

    def leave(self, *, stuck: bool = False) -> int:
        """The exit status, once all is closed.

        Ends the process itself where something is ``stuck`` or a thread would keep it.
        """
        status = EXIT_FAILURE if self.fatal else 0
        if stuck or self._is_held():
            exit_now(status)
        return status

    def _is_held(self) -> bool:
        """Whether a thread that was started since ours would keep the process."""
        started = [thread for thread in threading.enumerate() if thread not in self._foreign]
        return bool(outlasting(started, ENDING_SECONDS))


def _started(server: WebServer, flag: str) -> WebServer:
    """The server, which serves. Raises CannotServe, which names the flag."""
    try:
        server.start()
    except ListenError as error:
        raise CannotServe(f"{flag} {error.address!r}: {error.problem}") from error
    return server


def _report(error: BaseException) -> int:
    """Report an error that ends the program; returns the exit status."""
    status = report(error)
    if status is None:
        log.critical("program ended: unexpected error", exc_info=error)
        return EXIT_FAILURE
    return status
