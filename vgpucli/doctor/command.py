"""`vgpu doctor`: what is installed of the sharing systems, and what is wrong with it."""

from typing import Any, Final

import click

from vgpu.model.documentation import page
from vgpu.program.flags import is_typed
from vgpu.program.kube_flags import connected, kubeconfig_flags, reads_dumps
from vgpu.program.resource_flags import resource_flags
from vgpucli.doctor import DUMPED
from vgpucli.flags import unit_flags

NODE: Final = "node"
"""The name of the command for this node."""

EPILOG: Final = f"""\
\b
Examples:
  vgpu doctor
  vgpu doctor node                       this node: driver, sockets, CDI, monitors
  vgpu doctor --scheduler-config kube-scheduler.yaml
  {DUMPED} \\
      -A -o json > dump.json
  vgpu doctor --from dump.json -o json | jq '.findings[] | select(.severity == "error")'

\b
The output has names, versions and settings, and nothing secret: send it to support.
Checks, reasons and JSON document: {page("doctor")}.

\b
Status: 0 if no finding is an error; 1 if the cluster or the dump could not be read; 2 for wrong
flags; 3 if a finding is an error.
"""


class _DoctorGroup(click.Group):
    """A group that imports its command for a node when it is called: it needs the exporter."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        return [NODE]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name != NODE:
            return None
        from vgpucli.doctor.local_node import command as node  # noqa: PLC0415  # see above

        return node


@click.group(
    "doctor",
    cls=_DoctorGroup,
    invoke_without_command=True,
    epilog=EPILOG,
    context_settings={"max_content_width": 100},
)
@click.option(
    "--scheduler-config",
    "configs",
    multiple=True,
    metavar="FILE",
    help="A KubeSchedulerConfiguration, or Volcano's volcano-scheduler.conf, to check as well;"
    " kubeadm keeps kube-scheduler's on the control plane. Repeatable.",
)
@unit_flags
@resource_flags
@click.option(
    "-o",
    "--output",
    type=click.Choice(("text", "json")),
    default="text",
    show_default=True,
    help="Form of the output.",
)
@kubeconfig_flags
@click.option(
    "--from",
    "files",
    multiple=True,
    metavar="FILE",
    help=f"Read '{DUMPED} -A -o json' from a file, or from - for standard input, and ask no API"
    " server. Repeatable.",
)
@click.pass_context
def command(ctx: click.Context, /, **flags: Any) -> None:
    """List what is installed of the sharing systems, and what is wrong with it.

    Versions, units of memory, missing rights, runtimes without CDI, clocks, settings that
    contradict each other, traps in configurations of schedulers. It changes nothing.
    """
    if ctx.invoked_subcommand is not None:
        if any(is_typed(ctx, name) for name in flags):
            raise click.UsageError(f"flags of this node come behind the word {NODE}", ctx)
        return
    from vgpucli.doctor.answer import cluster_findings  # noqa: PLC0415  # slow to import
    from vgpucli.doctor.model import diagnosis  # noqa: PLC0415  # slow to import
    from vgpucli.doctor.report import report  # noqa: PLC0415  # slow to import

    facts = _facts(ctx, flags)
    diagnosed = diagnosis(facts.as_of, tuple(cluster_findings(facts)))
    ctx.exit(report(diagnosed, flags["output"]))


def _facts(ctx: click.Context, flags: dict[str, Any]) -> Any:
    """The facts of the dumps, or of the API server. Raises click.ClickException."""
    from scheduler.check_config.command import MOST_BYTES  # noqa: PLC0415  # slow to import
    from vgpu.inventory import Units  # noqa: PLC0415  # slow to import
    from vgpucli.doctor import read  # noqa: PLC0415  # slow to import

    files = flags["files"]
    typed = Units(flags["volcano_factor"], flags["gpushare_unit"]).by_row
    units = {
        row: typed[row]
        for row, name in (("volcano", "volcano_factor"), ("gpushare", "gpushare_unit"))
        if is_typed(ctx, name, or_set=True)
    }
    configs = [read.given_config(path, MOST_BYTES) for path in flags["configs"]]
    if reads_dumps(files):
        return read.from_dumps(files, units, configs)
    with connected(flags["kubeconfig"], flags["context"], flags["request_timeout"]) as cluster:
        return read.from_server(cluster, units, configs)
