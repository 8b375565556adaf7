"""`vgpu doctor node`: what is wrong on this node."""

import logging
import stat
import time
from pathlib import Path
from typing import Any, Final

import click

from vgpu.model.documentation import page
from vgpu.model.reasons import SourceError
from vgpu.program.flags import field
from vgpu.schemes.registry import registry
from vgpu.sources.files import read_file
from vgpucli.doctor.check_node import ContainerdConfig, NodeFacts, node_findings, parse_containerd
from vgpucli.doctor.model import diagnosis
from vgpucli.doctor.report import report
from vgpucli.feedback.other_writers import running_monitor
from vgpucli.node_flags import node_flags
from vgpucli.this_node import ThisNode, this_node

CONTAINERD: Final = "/etc/containerd/config.toml"

POD_RESOURCES: Final = "/var/lib/kubelet/pod-resources/kubelet.sock"

_MOST_BYTES: Final = 1024 * 1024
"""Maximum size of containerd's configuration, in bytes."""

EPILOG: Final = f"""\
\b
Examples:
  vgpu doctor node
  vgpu doctor node --containerd.config /host/etc/containerd/config.toml
  vgpu doctor node --simulate

\b
Checks, reasons and JSON document: {page("doctor")}.

\b
Status: 0 if no finding is an error; 2 for wrong flags; 3 if a finding is an error.
"""


@node_flags
@click.command("node", epilog=EPILOG, context_settings={"max_content_width": 100})
@click.option(
    "-o",
    "--output",
    type=click.Choice(("text", "json")),
    default="text",
    show_default=True,
    help="Form of the output.",
)
@click.option(
    "--containerd.config",
    "containerd",
    default=CONTAINERD,
    show_default=True,
    metavar="FILE",
    help="Configuration of containerd, of which two settings about CDI are read.",
)
@click.pass_context
def command(ctx: click.Context, /, *, output: str, **_: Any) -> None:
    """Check this node: the driver, what the exporter reads, sockets, CDI, monitors.

    Run it as root: what it may not read is a finding.
    """
    logging.getLogger().addHandler(logging.NullHandler())  # failures are findings
    with this_node(ctx) as node:
        facts = _facts(ctx, node)
        status = report(diagnosis(facts.as_of, tuple(node_findings(facts))), output)
        status = node.leave(status)
    ctx.exit(status)


def _facts(ctx: click.Context, node: ThisNode) -> NodeFacts:
    as_of = time.time()
    sample = node.sample()
    gpus = sample.gpu.gpus if sample.gpu else ()
    collectors = tuple(sample.page.view.collectors)
    if ctx.params["simulate"]:
        return NodeFacts(as_of, node.name, collectors, gpus)
    config, config_note = _containerd(ctx.params["containerd"])
    monitor, monitor_note = _monitor(ctx)
    plugins = Path(ctx.params[field("--kubelet.checkpoint")]).with_name("kubelet.sock")
    pod_resources = Path(ctx.params[field("--kubelet.pod-resources")] or POD_RESOURCES)
    return NodeFacts(
        as_of,
        node.name,
        collectors,
        gpus,
        {str(path): _is_socket(path) for path in (plugins, pod_resources)},
        config,
        config_note,
        monitor,
        monitor_note,
    )


def _is_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(path.stat().st_mode)
    except OSError:
        return False


def _containerd(path: str) -> tuple[ContainerdConfig | None, str]:
    """The configuration, and why it was not read."""
    try:
        text = read_file(path, _MOST_BYTES, follow=True).decode()
        return parse_containerd(text), ""
    except SourceError as error:
        return None, str(error)
    except ValueError:
        return None, f"{path}: not TOML"


def _monitor(ctx: click.Context) -> tuple[str | None, str]:
    """HAMi's monitor, and why it is not known whether it runs."""
    try:
        roots = ctx.params[field("--shim.root")] or registry().region_roots
        return running_monitor(ctx.params[field("--path.procfs")], roots), ""
    except (SourceError, OSError) as error:
        return None, str(error)
