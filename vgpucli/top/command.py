"""`vgpu top`: the command, whose help needs nothing but the flags."""

import os
import sys

import click

from vgpu.program.flags import Duration
from vgpucli.flags import access_flags
from vgpucli.node_flags import node_flags
from vgpucli.top.columns import OPTIONAL

EPILOG = """\
\b
Examples:
  vgpu top                                  on a GPU node
  vgpu top --url http://gpu-node-1:9394     any exporter
  vgpu top --url http://gpu-node-1:9394 --url http://gpu-node-2:9394
  vgpu top --once | less                    one frame, plain text
  vgpu top --once --processes --filter trainer
  vgpu top --simulate                       no GPU needed
  kubectl port-forward pod/EXPORTER-POD 9394 & vgpu top --url http://localhost:9394
"""


@node_flags
@click.command(
    "top",
    context_settings={"max_content_width": 100},
    epilog=EPILOG,
)
@click.option(
    "--url",
    "urls",
    multiple=True,
    metavar="URL",
    help="The exporter to ask, such as http://gpu-node-1:9394; several are shown together."
    " Default: the one on this node; if there is none, or with a flag about this node, the node"
    " itself is sampled.",
)
@click.option("--once", "only_once", is_flag=True, help="Print one frame and exit.")
@click.option(
    "--interval",
    type=Duration(),
    default="2s",
    show_default=True,
    metavar="DURATION",
    help="Time between two questions. An exporter has news at its --sample.interval only.",
)
@click.option(
    "--hide",
    "hidden",
    multiple=True,
    type=click.Choice(OPTIONAL),
    help="A column that is not shown. Repeatable.",
)
@click.option(
    "--filter",
    "pattern",
    default="",
    metavar="TEXT",
    help="With --once: only containers with this text in their names.",
)
@click.option(
    "--processes", is_flag=True, help="Show the processes of each container, with their host pids."
)
@access_flags("an https exporter")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    *,
    urls: tuple[str, ...],
    only_once: bool,
    interval: float,
    hidden: tuple[str, ...],
    pattern: str,
    processes: bool,
    **_: object,
) -> None:
    """Watch this node's GPUs and the containers on them.

    Keys: n m u l sort by name, memory used, utilisation, memory limit; / shows only containers
    with a text in their names; p shows their processes; arrows and PgUp PgDn scroll; h explains;
    q quits.
    """
    if not only_once and (not sys.stdout.isatty() or os.environ.get("TERM", "dumb") == "dumb"):
        raise click.UsageError("the output is no terminal that can be drawn on: add --once", ctx)
    from vgpucli.top.session import once, open_source, watch  # noqa: PLC0415  # slow to import

    with open_source(ctx, urls, interval) as source:
        if only_once:
            status = once(source, hidden, pattern, processes=processes)
        else:
            status = watch(source, interval, hidden, processes=processes)
        ctx.exit(source.leave(status))
