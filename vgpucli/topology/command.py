"""`vgpu topology`: this node's GPU topology and its users, as gpu-manager reports them.

The command prints text once, or serves the gRPC service ``display.GPUDisplay`` and its pages over
HTTP, for clients that were written for gpu-manager. The pages are ``/graph``, ``/usage`` and
``/version``; a source that fails is a 503 with the body of the original's gateway. Unknown facts
are listed on standard error, never invented.
"""

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
import msgspec

from vgpu.io.unix_socket import SocketError
from vgpu.model.reasons import NO_DRIVER, NO_DRIVER_ADVICE, Reason, SourceError
from vgpu.model.topology import MATRIX_LIMIT, LinkLevel, parse_matrix
from vgpu.program import logs
from vgpu.program.failures import HintedFailure
from vgpu.program.flags import Duration, composed, is_typed
from vgpu.program.host import ProgramHost
from vgpu.program.output import say, say_text
from vgpu.program.pages import program_routes
from vgpu.program.termination import EXIT_FAILURE
from vgpu.program.web_flags import LISTEN_FLAG, WebOptions, web_flags
from vgpu.sources.files import read_file
from vgpu.web.message import Handler, HttpRequest, HttpResponse
from vgpucli.node_flags import AnyCommand, node_flags
from vgpucli.this_node import NvLinks, ThisNode, this_node
from vgpucli.topology.messages import (
    DisplayState,
    Message,
    graph,
    graph_text,
    usages,
    usages_text,
    version,
)
from vgpucli.topology.state import (
    by_links,
    by_matrix,
    state_of,
    unknown,
    unknown_nvlinks,
    whole_gpus,
    with_nvlink,
)

log = logging.getLogger(__name__)

SOCKET = "/var/run/gpu-manager.sock"
ADDRESS = "localhost:5678"
"""The addresses of gpu-manager: the socket, ``--query-addr`` and ``--query-port``."""

LISTEN = "--listen"
"""A shorter name of ``--web.listen-address``."""

ENDING_SECONDS = 1.0
"""Maximum time to wait at the end for a running sample, in seconds."""

EPILOG = """\
\b
Examples:
  vgpu topology                     the drawing
  vgpu topology --usage | jq .usage
  vgpu topology --usage | jq '.. | select(.level? == "NVLINK").gpus'
  nvidia-smi topo -m | vgpu topology --matrix -
"""

SERVE_EPILOG = """\
\b
Examples:
  vgpu topology serve
  vgpu topology serve --simulate --socket '' --listen localhost:5678
  curl -s localhost:5678/graph | jq -r .graph
"""

Matrix = tuple[tuple[LinkLevel, ...], ...]

MATRIX = click.Option(
    ["--matrix"],
    type=click.Path(),
    metavar="FILE",
    help="The output of 'nvidia-smi topo -m', where the driver cannot report how GPUs are"
    " connected; - is standard input.",
)


def matrix_flag(command: AnyCommand) -> AnyCommand:
    """Give the command ``--matrix``."""
    command.params.append(MATRIX)
    return command


class Display:
    """A node's state, sampled again with every :meth:`look`; any thread may read it."""

    def __init__(
        self, node: ThisNode, matrix: Matrix | None, object_name: str, *, nvlink: bool
    ) -> None:
        """``object_name`` is the matrix's name in errors; ``nvlink``: whether NVLink is read."""
        self._node = node
        self._matrix = matrix
        self._object_name = object_name
        self._nvlink = nvlink
        self._seen: DisplayState | SourceError = SourceError(
            Reason.TIMEOUT, "node", "not looked at yet"
        )
        self.unknown: tuple[str, ...] = ()
        """The facts that the last sample could not read, as text."""

    def refresh(self) -> None:
        """Sample now; :meth:`state` raises a failure, be it a defect or a lack of memory."""
        try:
            self._seen = self._look()
        except SourceError as error:
            self._seen, self.unknown = error, (str(error),)
        except Exception:  # an old state must not look like a new one
            log.exception("unexpected error in a sample")
            failure = SourceError(Reason.INTERNAL, "node")
            self._seen, self.unknown = failure, (str(failure),)

    def state(self) -> DisplayState:
        """The last sample's state. Raises SourceError if it failed."""
        seen = self._seen
        if isinstance(seen, SourceError):
            raise seen
        return seen

    def complaint(self) -> str:
        """Why there is no state; "" if there is one."""
        return str(self._seen) if isinstance(self._seen, SourceError) else ""

    def _look(self) -> DisplayState:
        sample = self._node.sample()
        view, gpu = sample.page.view, sample.gpu
        if gpu is None:
            nvml = next(row for row in view.collectors if row.name == "nvml")
            reason = Reason.TIMEOUT if nvml.stuck_seconds else Reason.DRIVER_ERROR
            if nvml.failures and nvml.failures.keys() <= NO_DRIVER:
                reason = next(iter(nvml.failures))
            raise SourceError(reason, "driver", nvml.last_error)
        nvlinks: NvLinks | None = None
        if self._matrix is None:
            between = by_links(self._node.links())
            nvlinks = self._node.nvlinks() if self._nvlink else None
        else:
            between = by_matrix(self._matrix, whole_gpus(gpu), self._object_name)
        nearest = with_nvlink(between, nvlinks or {}) if self._nvlink else None
        unread = () if nvlinks is None else unknown_nvlinks(gpu, nvlinks)
        self.unknown = (*unknown(view, gpu, between), *unread)
        return state_of(view, gpu, sample.process, sample.kubelet, between, nearest=nearest)


def display(ctx: click.Context, node: ThisNode, *, nvlink: bool = False) -> Display:
    """The display of the node with the matrix that the flags name."""
    path: str | None = ctx.params["matrix"]
    if path is None:
        return Display(node, None, "", nvlink=nvlink)
    try:
        return Display(node, parse_matrix(matrix_text(path), path), path, nvlink=nvlink)
    except SourceError as error:
        hint = "It is to be the output of: nvidia-smi topo -m"
        raise HintedFailure(f"--matrix: {error}", hint) from error


def matrix_text(path: str) -> str:
    """The content of the file, or of standard input. Raises SourceError."""
    if path == "-":
        return sys.stdin.buffer.read(MATRIX_LIMIT + 1).decode("utf-8", "replace")
    return read_file(path, MATRIX_LIMIT, follow=True).decode("utf-8", "replace")


@node_flags
@matrix_flag
@click.group(
    "topology",
    invoke_without_command=True,
    context_settings={"max_content_width": 100},
    epilog=EPILOG,
)
@click.option(
    "--graph",
    "what",
    flag_value="graph",
    default="graph",
    help="GPU topology and free capacity.  [default]",
)
@click.option(
    "--usage",
    "what",
    flag_value="usage",
    help="Pods that use the GPUs, and which GPUs are joined by NVLink and PCIe, as JSON.",
)
@click.pass_context
def command(ctx: click.Context, /, what: str, **_: object) -> None:
    """Print this node's GPUs as gpu-manager does (PrintGraph, PrintUsages).

    Memory is in bytes, cores in percent; 'aval' counts the GPUs that nobody has any part of.
    Shares of all schemes count. The drawing has PCIe levels only, as gpu-manager's; --usage has
    NVLink, too. Goes to the driver directly; no exporter need run.
    """
    if ctx.invoked_subcommand is not None:
        typed = [param.opts[0] for param in ctx.command.params if is_typed(ctx, param.name or "")]
        if typed:
            message = f"{', '.join(typed)}: give flags after '{ctx.invoked_subcommand}'"
            raise click.UsageError(message, ctx)
        return
    logs.configure("error", "logfmt")
    text = {"graph": graph_text, "usage": usages_text}[what]
    with this_node(ctx) as node:
        shown = display(ctx, node, nvlink=what == "usage")
        shown.refresh()
        try:
            say_text(text(shown.state()))
        except SourceError as error:
            hints = [NO_DRIVER_ADVICE] if error.reason in NO_DRIVER else []
            hints += [] if ctx.params["simulate"] else ["--simulate shows a simulated node"]
            advice = f" ({'; '.join(hints)})" if hints else ""
            say(f"Error: {error}{advice}", err=True)
            ctx.exit(node.leave(EXIT_FAILURE))
        for line in shown.unknown:
            say(f"vgpu topology: {line}", err=True)
        ctx.exit(node.leave(0))


@node_flags
@matrix_flag
@command.command("serve", epilog=SERVE_EPILOG, context_settings={"max_content_width": 100})
@click.option(
    "--socket",
    default=SOCKET,
    show_default=True,
    metavar="PATH",
    help="Unix socket of the gRPC service display.GPUDisplay; needs vgpu[pod-resources]. An"
    " empty PATH serves none.",
)
@composed(*web_flags(ADDRESS, LISTEN))
@click.option(
    "--interval",
    type=Duration(),
    default="5s",
    show_default=True,
    metavar="DURATION",
    help="Interval between two samples of the node. Clients get the newest sample.",
)
@click.pass_context
def serve(ctx: click.Context, /, socket: str, interval: float, **_: object) -> None:
    """Serve the same to clients of gpu-manager, until SIGTERM or Ctrl-C."""
    logs.configure("info", "logfmt")
    web = msgspec.structs.replace(WebOptions.of(ctx.params), listen_flag=f"{LISTEN_FLAG}, {LISTEN}")
    with ProgramHost(web) as host, this_node(ctx, interval) as node:
        shown = display(ctx, node)
        shown.refresh()  # so that the first client gets an answer, too
        with serving_socket(shown, socket), watching(shown, interval):
            host.start(
                program_routes(
                    "topology",
                    {"/metrics": host.metrics(), **routes(shown.state)},
                    ready=shown.complaint,
                )
            )
            host.announce(socket=socket)
            host.wait()
        node.leave(0)
    ctx.exit(host.leave())


@contextmanager
def serving_socket(shown: Display, path: str) -> Iterator[None]:
    """Serve gRPC at ``path``, unless it is empty."""
    if not path:
        yield
        return
    try:
        from vgpucli.topology.service import DisplayServer  # noqa: PLC0415  # an extra
    except ImportError as error:
        message = "--socket needs vgpu[pod-resources]; --socket '' serves HTTP alone"
        raise click.UsageError(message) from error
    server = DisplayServer(shown.state, path)
    try:
        server.start()
        yield
    except SocketError as error:
        raise click.ClickException(f"--socket: {error}") from error
    finally:
        server.stop()


@contextmanager
def watching(shown: Display, interval: float) -> Iterator[None]:
    """Sample every ``interval`` seconds on a thread of its own."""
    ended = threading.Event()
    watcher = threading.Thread(
        target=watch, args=(shown, interval, ended), name="display-watch", daemon=True
    )
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join(ENDING_SECONDS)


def watch(shown: Display, interval: float, ended: threading.Event) -> None:
    """Sample every ``interval`` seconds; changes of the unknown facts are logged."""
    logged: tuple[str, ...] = ()
    due = time.monotonic()
    while True:
        if shown.unknown != logged:
            logged = shown.unknown
            for fact in logged:
                log.warning("unknown fact of this node", extra={"reason": fact})
            if not logged:
                log.info("all facts of this node known again")
        due = max(due + interval, time.monotonic())
        if ended.wait(due - time.monotonic()):
            return
        shown.refresh()


# ---------------------------------------------------------------- pages


UNAVAILABLE = 14
"""gRPC's status code, which the gateway writes into the body."""

_PATHS: dict[str, Callable[[DisplayState], Message]] = {
    "/graph": graph,
    "/usage": usages,
    "/version": version,
}


def routes(state: Callable[[], DisplayState]) -> dict[str, Handler]:
    """The pages by path; ``state`` is asked at each request, on many threads at once.

    It may raise SourceError.
    """
    return {path: _handler(answer, state) for path, answer in _PATHS.items()}


def _handler(
    answer: Callable[[DisplayState], Message], state: Callable[[], DisplayState]
) -> Handler:
    def handle(_request: HttpRequest) -> HttpResponse:
        try:
            return _json(200, answer(state()))
        except SourceError as error:
            message = str(error)
            return _json(503, {"error": message, "code": UNAVAILABLE, "message": message})

    return handle


def _json(status: int, value: object) -> HttpResponse:
    return HttpResponse(status, (("Content-Type", "application/json"),), msgspec.json.encode(value))
