"""`vgpu demo`: the real exporter on an embedded simulated node, the real reconciler around it, and
the real scheduler.

All files that the exporter reads are written in their real format into a temporary folder and read
through the real sources; only the driver is simulated. The reconciler repairs a small simulated
cluster that has the node, and the scheduler places pods there. The command takes the exporter's
flags.
"""

import os
import shutil
import tempfile
import textwrap
import threading
import time
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self

import click
import msgspec

from exporter.flags import DEFAULT_PORT, all_flags, options_from
from exporter.main import run
from exporter.problems import problems, short_size, who
from exporter.sampler import MetricsPage
from simulator.apiserver import ApiServer
from simulator.cluster import SimulatedCluster
from simulator.demo import demo
from simulator.demo_cluster import demo_cluster
from simulator.node import SimulatedNode
from vgpu.ledger.container_usage import TokenUse
from vgpu.program import logs, termination
from vgpu.program.flags import field, is_typed
from vgpu.program.host import CannotServe
from vgpu.program.output import say, say_text
from vgpu.web.listen import ListenError, listen, parse_address
from vgpucli.demo.fleet_page import fleet_page
from vgpucli.demo.tokens import DemoTokens, with_tenants
from vgpucli.demo.walkthrough import ourselves, repair, schedule, show_more
from vgpucli.node_flags import NODE_FLAGS
from vgpucli.this_node import on_node

WRITE_SECONDS = 1.0
"""Interval between two updates of the node's files, in seconds."""

SAMPLE_SECONDS = 2.0
"""Interval between two samples, in seconds: short, so that a person sees changes."""

LISTEN_FLAG = "--web.listen-address"

DEFAULTS: Final[dict[str, object]] = {
    LISTEN_FLAG: (f"127.0.0.1:{DEFAULT_PORT}",),
    "--sample.interval": f"{SAMPLE_SECONDS:g}s",
    "--log.level": "error",
}
"""Flags of the exporter whose default is another one in the demo."""

SHOWN: Final = frozenset({*DEFAULTS, "--once", "--help"})
"""Flags in the help of the demo; the others are in that of the exporter."""

_NARROWEST, _WIDEST = 60, 100
"""Bounds of the width of the first text, in columns."""


def first_summary(url: str, page: MetricsPage) -> str:
    """The first text that the demo prints in the terminal."""
    lines = [
        "",
        "  A simulated node is being exported. Look at:",
        f"    {url}/           who holds what, and what is wrong",
        f"    {url}/metrics    what Prometheus scrapes ({page.exposition.series} series)",
        "",
        f"  {'container':<44}{'scheme':<11}{'used':>10}{'limit':>11}",
    ]
    for share in page.view.usage.shares:
        used = "–" if share.used_bytes is None else short_size(share.used_bytes)
        limit = "–" if share.limit_bytes is None else short_size(share.limit_bytes)
        lines.append(f"  {who(share):<44}{share.scheme.value:<11}{used:>10}{limit:>11}")
    lines += token_lines(page.view.tokens)
    lines += ["", "  Problems on this node:"]
    width = max(_NARROWEST, min(_WIDEST, shutil.get_terminal_size().columns))
    for problem in problems(page.view):
        head = f"    {problem.severity.name.lower():<8} "
        lines += textwrap.wrap(
            problem.text, width, initial_indent=head, subsequent_indent=" " * len(head)
        )
    return "\n".join([*lines, ""])


def token_lines(tokens: Iterable[TokenUse]) -> list[str]:
    """The lines about pods that share the time of a GPU; none without such pods."""
    lines = [
        f"  {f'{tenant.namespace}/{tenant.pod}':<44}"
        + "".join(
            f"{'–' if ratio is None else f'{ratio:.0%}':>10}"
            for ratio in (tenant.request_ratio, tenant.limit_ratio, tenant.window_share_ratio)
        )
        for tenant in (row.tenant for row in tokens)
    ]
    title = f"  {'time of a GPU, shared by tokens':<44}{'request':>10}{'limit':>10}{'share':>10}"
    return ["", title, *lines] if lines else []


class DemoNode:
    """The embedded node and its cluster, updated from the scenario every second."""

    def __init__(self, folder: str) -> None:
        """Write the node's files below ``folder``, first of all now."""
        start = time.time()
        story = demo_cluster(start)
        first, *others = story.nodes
        nodes = with_tenants(first), *others
        self.cluster = SimulatedCluster(msgspec.structs.replace(story, nodes=nodes), start)
        self.files = SimulatedNode(with_tenants(demo()), folder, start)
        self.driver = self.files.driver()
        self._version = -1
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._move_on, name="demo-node", daemon=True)
        self._write()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _move_on(self) -> None:
        while not self._ended.wait(WRITE_SECONDS):
            self._write()

    def _write(self) -> None:
        version = self.cluster.store.version
        if version != self._version:
            self._version = version
            scenario = self.cluster.node(self.files.scenario.node)
            self.driver.set_scenario(scenario)
            self.files.set_scenario(scenario, self.cluster.pods())
        self.files.write(time.time() - self.files.start)


def _with_own_defaults(command: click.Command) -> click.Command:
    """The command with the demo's defaults, and a help that is about the demo."""
    for parameter in command.params:
        name = parameter.opts[0]
        parameter.default = DEFAULTS.get(name, parameter.default)
        if isinstance(parameter, click.Option):
            parameter.hidden = name not in SHOWN
    return command


def _what_to_type(address: str) -> str:
    """The command that runs the demo on the next port that is free."""
    host, port = parse_address(address)
    for number in range(port + 1, 65536):
        free = f"{host}:{number}"
        try:
            listen(free).close()
        except ListenError:
            continue
        flag = f"{LISTEN_FLAG}={free}"
        by_make = ourselves().endswith(" -m vgpu") and "MAKELEVEL" in os.environ
        return f"make demo ARGS={flag}" if by_make else f"{ourselves()} demo {flag}"
    return f"{ourselves()} demo {LISTEN_FLAG}={host}:0"


@_with_own_defaults
@click.command(
    "demo",
    epilog="Example: vgpu demo --once | grep vgpu_allocation_conflicts",
    context_settings={"max_content_width": 100},
)
@all_flags
@click.pass_context
def command(ctx: click.Context, /, **_: object) -> None:
    """Run exporter, reconciler and scheduler on a simulated cluster, in this terminal.

    No GPU and no cluster are needed, and nothing is installed: a node with GPUs is simulated in a
    temporary folder, and a page shows who holds them. A plan for what is wrong is made and applied,
    pods are placed on a node that joins, and the commands to try in another terminal are
    printed. Only this machine can open the page. Ctrl-C ends the demo and deletes the folder.

    Each flag of `vgpu exporter` is taken, too, but those for the paths and names of a node.
    """
    options = options_from(ctx)
    taken = [name for name in NODE_FLAGS if is_typed(ctx, field(name))]
    if taken:
        raise click.UsageError(f"{', '.join(taken)}: the demo brings its own node", ctx)
    logs.configure(options.log_level, options.log_format)
    termination.ignore(termination.USER_DEFINED)  # not SIGHUP: a lost terminal ends the demo
    with (
        tempfile.TemporaryDirectory(prefix="vgpu-demo-") as folder,
        DemoNode(folder) as node,
        ApiServer(node.cluster.store) as api,
        ExitStack() as pages,
        DemoTokens(Path(node.files.paths.kubeshare_dir).parent, node.files.start) as tokens,
    ):
        kubeconfig = Path(folder, "kubeconfig")
        kubeconfig.write_text(api.kubeconfig())

        def announce(url: str, page: MetricsPage) -> None:
            say("", "  The whole cluster on one page, for one browser:")
            say(f"    {pages.enter_context(fleet_page(str(kubeconfig)))}")
            say_text(f"{first_summary(url, page)}\n")
            repair(str(kubeconfig), f"{page.view.node}={url}/")
            schedule(str(kubeconfig), node.cluster.store)
            show_more(str(kubeconfig))
            logs.configure(options.log_level, options.log_format)  # each command has its own
            say("  Ctrl-C ends it.", "")

        try:
            status = run(
                on_node(options, node.files, tokens.url),
                node.driver if "nvml" in options.collectors else None,
                announce,
                ignored=termination.USER_DEFINED,
            )
        except CannotServe as error:
            cause = error.__cause__
            if isinstance(cause, ListenError) and cause.is_in_use:
                free = _what_to_type(cause.address)
                text = f"another program uses {cause.address}. Type: {free}"
                raise click.ClickException(text) from error
            raise
    ctx.exit(status)
