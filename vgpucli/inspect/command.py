"""`vgpu inspect`: who holds what on the cluster's shared GPUs, who waits and why, what still fits.

The command reads only the API server, or a dump of it: it works from anywhere, without any
installation in the cluster.
"""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import click
import msgspec

from vgpu.inventory import (
    SORTS,
    Inventory,
    Units,
    in_order,
    inventory,
    of_node,
    only_node,
    only_pods,
    only_scheme,
)
from vgpu.kube.label_selector import parse_selector
from vgpu.model.documentation import page
from vgpu.model.names import PodRef, Scheme
from vgpu.program import cluster_names
from vgpu.program.flags import ChoiceOf, Duration
from vgpu.program.kube_flags import connected, kubeconfig_flags, reads_dumps
from vgpu.program.output import say_text
from vgpu.program.resource_flags import resource_flags
from vgpu.schemes.codec import ClaimError
from vgpu.schemes.registry import scheme_names
from vgpucli.document_output import print_document
from vgpucli.flags import unit_flags
from vgpucli.inspect.read import (
    Read,
    from_cluster,
    from_files,
    no_such_node,
    with_groups,
)
from vgpucli.measure_flags import measure_flags, measuring

if TYPE_CHECKING:
    from vgpu.apiserver.client import ApiClient
    from vgpucli.measured_use import Measured

OUTPUTS: Final = ("table", "wide", "json", "yaml")

GROUPS: Final = ("namespace", "team", "owner", "queue")
"""The groups of ``--by``."""


EPILOG: Final = """\
\b
Examples:
  vgpu inspect                      the whole cluster
  vgpu inspect node-7               one node
  vgpu inspect --by namespace       sums of each namespace, with its quota
  vgpu inspect --by team --prometheus http://localhost:9090
                                    with what each team uses, and what is idle
  vgpu inspect --by queue           queues of teams: limits, use, what is held, what waits
  vgpu inspect -o wide | less -S    with UUIDs, models, free memory and sources
  kubectl get nodes,pods -A -o json | vgpu inspect --from -
  kubectl get nodes,pods,sharepods -A -o json > dump.json
  kubectl get configmaps -n kube-system -o json > configs.json
  kubectl get nodes,pods,resourceclaims,resourceslices -A -o json | vgpu inspect --from -
  vgpu inspect --from dump.json --from configs.json -o json | jq .pending
  vgpu inspect --scheme gpushare --legacy -d
                                    as 'kubectl inspect gpushare -d' prints it

\b
How to read it:
  █ assigned: allocated by the device plugin     ░ free
  ▒ assumed: reserved by a scheduler, not yet allocated by the device plugin
  Beside the bars: held/total memory, percent of cores, then shares held/possible.
  Pods that have finished hold nothing and are not shown.

\b
Free capacity: free memory is of no use where it is fragmented over GPUs in parts that are too
small, or where cores or shares have run out. For each sharing system, the command counts how many
more of one pod fit, as 'vgpu fit' does: of the pod with the largest request that waits for a
node, or, without one, of one with the most common share (of equally common ones the largest). The
memory of these pods is the usable part of the free memory. Unhealthy and cordoned GPUs, and GPUs
of nodes that are cordoned, not ready, of several systems or unreadable, have no usable memory.

\b
Status: 0 if the cluster could be read, whatever its state; 1 if not; 2 for wrong flags.
"""


# ---------------------------------------------------------------- printing


def _nothing(node: str, scheme: str | None, *, of_pods: bool) -> str:
    """The message if no node is shown, with the search."""
    by = f" by {scheme}" if scheme else ""
    if of_pods:  # --namespace, --selector
        return f"No selected pod has a share of a GPU{f' of {node}' if node else ''}{by}."
    return f"Node {node} shares no GPUs{by}." if node else f"No node shares GPUs{by}."


def _print(shown: Inventory, as_of: float, output: str, nothing: str) -> None:
    if output in ("table", "wide"):
        from vgpu.program.terminal import standard_output  # noqa: PLC0415
        from vgpucli.inspect.table import show  # noqa: PLC0415  # only this output needs it

        show(standard_output(), shown, as_of, wide=output == "wide", nothing=nothing)
        return
    from vgpucli.inspect.document import document  # noqa: PLC0415

    print_document(document(shown, as_of), output)


def _print_legacy(read: Read, node: str, *, details: bool) -> None:
    from vgpucli.inspect import legacy as legacy_inspect  # noqa: PLC0415  # only --legacy needs it

    form = legacy_inspect.details if details else legacy_inspect.summary
    nodes = [each for each in read.objects.nodes if node in ("", each.name)]
    try:
        say_text(form(nodes, read.objects.pods))
    except ClaimError as error:
        raise click.ClickException(str(error)) from error


# ---------------------------------------------------------------- the command


def _selector(_: click.Context, __: click.Parameter, text: str) -> str:
    try:
        if text:
            parse_selector(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    return text


@click.command("inspect", epilog=EPILOG, context_settings={"max_content_width": 100})
@click.argument("node", default="", metavar="[NODE]", shell_complete=cluster_names.nodes)
@click.option(
    "--from",
    "files",
    multiple=True,
    metavar="FILE",
    help="Read 'kubectl get nodes,pods -A -o json' from a file, or from - for standard input, and"
    " ask no API server. SharePods and ConfigMaps in it are used. Repeatable.",
)
@kubeconfig_flags
@click.option(
    "-o",
    "--output",
    type=click.Choice(OUTPUTS),
    default="table",
    show_default=True,
    help=f"Form of the output; for json and yaml see {page('inspect')}.",
)
@click.option("--scheme", type=ChoiceOf(scheme_names), help="Only nodes and pods of this one.")
@unit_flags
@resource_flags
@click.option(
    "--legacy",
    is_flag=True,
    help="With --scheme gpushare: what 'kubectl inspect gpushare' prints, byte for byte.",
)
@click.option(
    "-n",
    "--namespace",
    "namespaces",
    multiple=True,
    shell_complete=cluster_names.namespaces,
    help="Only pods of this one. Repeatable.",
)
@click.option(
    "-l",
    "--selector",
    metavar="LABELS",
    default="",
    callback=_selector,
    help="Only pods with these labels, as for kubectl: app=web,tier in (a, b),!canary.",
)
@click.option(
    "--by",
    type=click.Choice(GROUPS),
    help="Sums of each namespace (with its quota), team or owner, or Kueue's tree of queues with"
    " their quotas, in place of the GPUs.",
)
@click.option(
    "--team-key",
    default="team",
    show_default=True,
    metavar="KEY",
    help="With --by team: the label, or else the annotation, that has the team: of the pod, or else"
    " of its Namespace.",
)
@click.option(
    "--limits",
    is_flag=True,
    help="Add a column: whether each container is really limited, as exporters report.",
)
@measure_flags("With --by: what pods use, with --limits: whether they are limited,")
@click.option(
    "--sort",
    type=click.Choice(tuple(SORTS)),
    default="name",
    show_default=True,
    help="Order of the nodes; amounts from the largest to the smallest.",
)
@click.option(
    "-w", "--watch", "watches", is_flag=True, help="Show it again and again, until Ctrl-C."
)
@click.option(
    "--interval",
    type=Duration(),
    default="5s",
    show_default=True,
    metavar="DURATION",
    help="With --watch: time between two reads of the API server.",
)
@click.option("-d", "--details", is_flag=True, help="With --legacy: a table for every node.")
def command(
    *,
    node: str,
    files: tuple[str, ...],
    kubeconfig: str,
    context: str,
    request_timeout: float | None,
    output: str,
    scheme: str | None,
    volcano_factor: int,
    gpushare_unit: int | None,
    namespaces: tuple[str, ...],
    selector: str,
    by: str | None,
    team_key: str,
    limits: bool,
    prometheus: str | None,
    exporters: tuple[str, ...],
    sort: str,
    watches: bool,
    interval: float,
    legacy: bool,
    details: bool,
    **access: str | None,
) -> None:
    """Show who holds what on shared GPUs, who waits and why, and what still fits.

    Of the whole cluster, or of one NODE, by what the API server knows: the schedulers' and device
    plugins' annotations of Volcano vGPU and HAMi, gpushare, gpu-manager and KubeShare, the
    requests of pods of NVIDIA's own device plugin, and the ResourceClaims of dynamic resource
    allocation (DRA).
    """
    is_dump = reads_dumps(files)
    _refuse(
        (legacy and scheme != Scheme.GPUSHARE, "--legacy needs --scheme gpushare"),
        (legacy and output != "table", "--legacy has its own form: drop --output"),
        (details and not legacy, "--details needs --legacy; without it every GPU is shown"),
        (is_dump and watches, "--watch follows a cluster: drop --from"),
        (
            legacy and (namespaces or selector or watches or sort != "name" or by),
            "--legacy shows everything: drop --namespace, --selector, --sort, --watch, --by",
        ),
        (
            by and (node or scheme or sort != "name"),
            "--by sums up the whole cluster: drop NODE, --scheme, --sort",
        ),
        (limits and (by or legacy), "--limits is a column of the GPUs: drop --by, --legacy"),
        (
            (prometheus or exporters) and not (by or limits),
            "--prometheus and --exporter need --by or --limits",
        ),
        (limits and not (prometheus or exporters), "--limits needs --prometheus or --exporter"),
        (by == "queue" and selector, "--by queue shows whole queues: drop --selector"),
    )
    measure = measuring(prometheus, exporters, access, limits=limits)
    units = Units(volcano_factor, gpushare_unit)
    team = team_key if by == "team" else ""

    def print_(read: Read) -> None:
        if by:
            from vgpucli.inspect.groups import print_groups  # noqa: PLC0415  # only for --by

            measured = measure("") if measure is not None else None
            if measured is not None:
                older = ("used and idle are measured now, and the dump may be older",)
                notes = (*read.notes, *measured.notes, *(older if files else ()))
                read = msgspec.structs.replace(read, notes=notes)
            pods = None if measured is None else measured.pods
            print_groups(read, units, by, output, namespaces, measured=pods)
            return
        objects = of_node(read.objects, node) if node else read.objects
        shown = inventory(objects, units, read.as_of, read.scheduling)
        shown = _with_limits(shown, read.notes, measure)
        if scheme:
            shown = only_scheme(shown, Scheme(scheme))
        if node:
            shown = only_node(shown, node)
        of_pods = bool(namespaces) or read.selected is not None
        if of_pods:
            shown = only_pods(shown, _chooser(shown, namespaces, read.selected))
        _print(in_order(shown, sort), read.as_of, output, _nothing(node, scheme, of_pods=of_pods))

    if is_dump:
        selects = parse_selector(selector) if selector else None
        read = (
            _queues_in(files)
            if by == "queue"
            else from_files(files, selects, team, scheduling=not by)
        )
        if node and node not in (names := [each.name for each in read.objects.nodes]):
            raise no_such_node(node, names)
        if legacy:
            _print_legacy(read, node, details=details)
        else:
            print_(read)
        return

    def ask(cluster: "ApiClient") -> Read:
        if by == "queue":
            return _queues_at(cluster, node)
        read = from_cluster(cluster, node, selector, scheduling=not (by or node))
        return with_groups(read, cluster, by, team)

    with connected(kubeconfig, context, request_timeout) as cluster:
        read = ask(cluster)
        if legacy:
            _print_legacy(read, node, details=details)
            return
        print_(read)
        while watches:
            time.sleep(interval)
            read = ask(cluster)
            click.clear()
            print_(read)


def _queues_in(files: tuple[str, ...]) -> Read:
    from vgpucli.inspect.queue_read import queues_in_files  # noqa: PLC0415  # only for queues

    return queues_in_files(files)


def _queues_at(cluster: "ApiClient", node: str) -> Read:
    from vgpucli.inspect.queue_read import queues_at  # noqa: PLC0415  # only for queues

    return queues_at(cluster, node)


def _with_limits(
    shown: Inventory, notes: tuple[str, ...], measure: "Callable[[str], Measured] | None"
) -> Inventory:
    """The inventory with notes, and what exporters report of limits if they are to be asked.

    Codes of newer exporters are left out.
    """
    notes = (*notes, *shown.notes)
    if measure is None:
        return msgspec.structs.replace(shown, notes=notes)
    measured = measure("")
    notes = (*notes, *measured.notes)
    return msgspec.structs.replace(shown, limits=measured.limits, notes=notes)


def _refuse(*checks: tuple[object, str]) -> None:
    """Raise click.UsageError with the complaint of the first check that is true."""
    for wrong, complaint in checks:
        if wrong:
            raise click.UsageError(complaint)


def _chooser(
    whole: Inventory, namespaces: Sequence[str], selected: frozenset[str] | None
) -> Callable[[PodRef], bool]:
    """Whether a pod, by its UID on the node, is in the namespaces and selected."""

    def chooses(ref: PodRef) -> bool:
        pod = whole.pods.get(ref.uid)
        uid = ref.uid if pod is None else pod.ref.uid
        return (not namespaces or ref.namespace in namespaces) and (
            selected is None or uid in selected
        )

    return chooses
