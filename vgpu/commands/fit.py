"""`vgpu fit`: how many pods of a shape fit into the cluster, and where; what a change would do."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click
from msgspec import structs

from scheduler.cache import SchedulerCache
from scheduler.explanation import request_text
from scheduler.read_once import ReadObjects, filled_cache
from vgpu.commands.cluster_flags import unit_flags
from vgpu.commands.document_output import print_document
from vgpu.commands.fit_answer import FitAnswer, answer, exclusions, move
from vgpu.commands.fit_manifest import pod_of_requests, pods_of_manifest
from vgpu.commands.fit_report import fit_document, report_lines
from vgpu.commands.inspect_read import (
    Read,
    from_cluster,
    from_files,
    no_such_node,
    with_quotas,
)
from vgpu.documentation import page
from vgpu.inventory import Units
from vgpu.inventory.unit_check import doubt_notes, doubts_of
from vgpu.kube.flags import connected, kubeconfig_flags, read_dump
from vgpu.kube.objects import Node, Pod
from vgpu.placement.candidate import PodDemand
from vgpu.placement.dialect import BINPACK, SPREAD
from vgpu.placement.dialects import (
    PlacementPolicies,
    SchedulerScheme,
    demand_of,
    scheduler_schemes,
)
from vgpu.placement.result import PlacementRefusal
from vgpu.reasons import SourceError
from vgpu.schemes.registry import registry

MOST_ADDED: Final = 1_000
"""Maximum number of nodes that one flag adds."""

_QUANTITY: Final = re.compile(r"([^=\s]+)=([1-9][0-9]{0,15})")
_ADDED: Final = re.compile(r"([^=\s]+)(?:=([1-9][0-9]{0,3}))?")

EPILOG: Final = f"""\
\b
Examples:
  vgpu fit --request nvidia.com/gpu=1 --request nvidia.com/gpumem=8000
  vgpu fit -f deployment.yaml              the pods of a manifest
  vgpu fit --pod team-a/train-0            more pods like one of the cluster
  vgpu fit -f job.yaml --pods 20           where 20 pods would go
  vgpu fit -f job.yaml --add-node gpu-7=2  with two more nodes like gpu-7
  vgpu fit -f job.yaml --drain gpu-3       with the pods of gpu-3 on other nodes
  kubectl get nodes,pods,namespaces,resourcequotas -A -o json | vgpu fit --from - -f job.yaml

\b
The answer is that of 'vgpu scheduler' on the same objects: its placement, scores and quotas.
Cordoned nodes and nodes that are not ready take no pods. CPU, memory, taints, selectors and
affinity are not known to it. More: {page("fit")}.

\b
Status: 0 if the question was answered, whatever fits; 1 if not; 2 for wrong flags.
"""


class _Quantity(click.ParamType[tuple[str, int]]):
    """An extended resource with its units."""

    name = "quantity"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        match = _QUANTITY.fullmatch(str(value))
        if match is None:
            self.fail(f"{value!r} is not RESOURCE=UNITS such as nvidia.com/gpu=1", param, ctx)
        return match[1], int(match[2])


class _MoreNodes(click.ParamType[tuple[str, int]]):
    """The name of a node, and a number of nodes like it."""

    name = "nodes"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        match = _ADDED.fullmatch(str(value))
        if match is None or int(match[2] or 1) > MOST_ADDED:
            self.fail(f"{value!r} is not NODE or NODE=NUMBER up to {MOST_ADDED}", param, ctx)
        return match[1], int(match[2] or 1)


@click.command("fit", epilog=EPILOG, context_settings={"max_content_width": 100})
@click.option(
    "-f",
    "--filename",
    "manifest",
    metavar="FILE",
    help="Manifest of a Pod, or of a workload with a pod template; - for standard input.",
)
@click.option(
    "--request",
    "requests",
    multiple=True,
    type=_Quantity(),
    metavar="RESOURCE=UNITS",
    help="An extended resource that a pod with one container requests. Repeatable.",
)
@click.option("--pod", "like", metavar="NAMESPACE/NAME", help="A pod like this one of the cluster.")
@click.option(
    "-n",
    "--namespace",
    default="default",
    show_default=True,
    help="Namespace of the pods, for its quotas, where the manifest has none.",
)
@click.option(
    "--pods",
    "wanted",
    type=click.IntRange(1, 1_000),
    metavar="NUMBER",
    help="Place this many pods, one after another, in place of counting all that fit.",
)
@click.option(
    "--drain",
    "drained",
    multiple=True,
    metavar="NODE",
    help="Without this node: its pods are placed on other nodes first. Repeatable.",
)
@click.option(
    "--add-node",
    "added",
    multiple=True,
    type=_MoreNodes(),
    metavar="NODE[=NUMBER]",
    help="With so many more nodes that are like this one, and idle. Repeatable.",
)
@click.option(
    "--node-policy",
    type=click.Choice((BINPACK, SPREAD)),
    default=BINPACK,
    show_default=True,
    envvar="VGPU_NODE_POLICY",
    help="The scheduler's: whether nodes whose GPUs are in use score more, or idle ones.",
)
@click.option(
    "--gpu-policy",
    type=click.Choice((BINPACK, SPREAD)),
    envvar="VGPU_GPU_POLICY",
    help="The scheduler's: which GPUs of a node come first.  [default: the original's]",
)
@unit_flags
@click.option(
    "--from",
    "files",
    multiple=True,
    metavar="FILE",
    help="Read 'kubectl get nodes,pods -A -o json' from a file, or from - for standard input, and"
    " ask no API server. Namespaces and ResourceQuotas in it are used. Repeatable.",
)
@kubeconfig_flags
@click.option(
    "-o",
    "--output",
    type=click.Choice(("text", "json", "yaml")),
    default="text",
    show_default=True,
    help="Form of the output.",
)
def command(
    *,
    manifest: str | None,
    requests: tuple[tuple[str, int], ...],
    like: str | None,
    namespace: str,
    wanted: int | None,
    drained: tuple[str, ...],
    added: tuple[tuple[str, int], ...],
    node_policy: str,
    gpu_policy: str | None,
    volcano_factor: int,
    gpushare_unit: int | None,
    files: tuple[str, ...],
    kubeconfig: str,
    context: str,
    request_timeout: float | None,
    output: str,
) -> None:
    """Count how many more pods fit on the cluster's shared GPUs, and show where they would go.

    The pods are those of a manifest, of a request, or like one of the cluster. Nothing is written.
    """
    if sum(map(bool, (manifest, requests, like))) != 1:
        raise click.UsageError("name the pods by one of --filename, --request and --pod")
    if files and (kubeconfig or context or request_timeout):
        raise click.UsageError(
            "--from asks no cluster: drop --kubeconfig, --context, --request-timeout"
        )
    if [*files, manifest].count("-") > 1:
        raise click.UsageError("standard input can be read once only")
    pod = _described(manifest, dict(requests), namespace)
    if files:
        read = from_files(files)
    else:
        with connected(kubeconfig, context, request_timeout) as cluster:
            read = with_quotas(from_cluster(cluster, ""), cluster)
    read = _with_nodes(read, added, drained)
    policies = PlacementPolicies(node_policy, gpu_policy or "")
    schemes, notes = schemes_in_units(read, Units(volcano_factor, gpushare_unit), policies)
    demanded = demand_of(pod or _like(read.objects.pods, like or ""), schemes)
    if isinstance(demanded, PlacementRefusal):
        raise click.ClickException(demanded.text)
    fit = _answer(
        read, demanded, filled_cache(schemes, objects_of(read)), frozenset(drained), wanted
    )
    requested = request_text(demanded[1].requests)
    notes = (*read.notes, *notes)
    if output == "text":
        for line in report_lines(fit, requested, wanted):
            click.echo(line)
        for note in notes:
            click.echo(f"note: {note}", err=True)
        return
    document = fit_document(fit, requested, wanted, read.as_of, notes)
    print_document(document, output)


def schemes_in_units(
    read: Read, units: Units, policies: PlacementPolicies
) -> tuple[tuple[SchedulerScheme, ...], tuple[str, ...]]:
    """The sharing systems in these units, and notes about the units."""
    unit_bytes, notes = registry().assumed_units(units.by_row, read.objects.nodes)
    doubts = doubts_of(read.objects.nodes, {}, registry().rows, unit_bytes)
    return scheduler_schemes(unit_bytes, policies), (*notes, *doubt_notes(doubts))


def objects_of(read: Read) -> ReadObjects:
    """What the scheduler would know."""
    objects = read.objects
    return ReadObjects(
        read.as_of,
        objects.nodes,
        objects.pods,
        objects.malformed,
        objects.unhealthy,
        read.namespaces,
        read.quotas,
        read.gpu_quota,
    )


def _answer(
    read: Read,
    demanded: tuple[SchedulerScheme, PodDemand],
    cache: SchedulerCache,
    drained: frozenset[str],
    wanted: int | None,
) -> FitAnswer:
    excluded = exclusions(read.objects.nodes, drained)
    names = sorted(node.name for node in read.objects.nodes if node.name not in excluded)
    moved = move(cache, read.objects.pods, drained, names)
    counted = answer(cache, demanded, names, wanted)
    return structs.replace(counted, excluded=excluded, moved=moved)


def _described(manifest: str | None, requests: Mapping[str, int], namespace: str) -> Pod | None:
    """The pod that the flags describe; None if it is one of the cluster."""
    if not manifest:
        return pod_of_requests(requests, namespace) if requests else None
    content, _ = read_dump(manifest, "--filename")
    try:
        pods = pods_of_manifest(content, manifest, namespace)
    except SourceError as error:
        raise click.ClickException(str(error)) from error
    if len(pods) != 1:
        found = ", ".join(f"{pod.ref.namespace}/{pod.ref.name}" for pod in pods) or "none"
        raise click.ClickException(
            f"{manifest}: one pod that requests shared GPUs is needed, found: {found}"
        )
    return pods[0]


def _like(pods: Sequence[Pod], name: str) -> Pod:
    """A new pod with the requests and wishes of this one of the cluster."""
    for pod in pods:
        if f"{pod.ref.namespace}/{pod.ref.name}" == name:
            ref = structs.replace(pod.ref, name=f"{pod.ref.name}-fit", uid="fit")
            return structs.replace(pod, ref=ref, node="", nominated_node="")
    raise click.ClickException(
        f"--pod {name}: there is no such pod that shares GPUs; name it as NAMESPACE/NAME"
    )


def _with_nodes(read: Read, added: Sequence[tuple[str, int]], drained: Sequence[str]) -> Read:
    """The objects with more nodes. Raises click.ClickException for a node that does not exist."""
    nodes = {node.name: node for node in read.objects.nodes}
    for name in (*(name for name, _ in added), *drained):
        if name not in nodes:
            raise no_such_node(name, nodes)
    more = [_copy(nodes[name], number + 1) for name, most in added for number in range(most)]
    objects = structs.replace(read.objects, nodes=(*read.objects.nodes, *more))
    return structs.replace(read, objects=objects)


def _copy(node: Node, number: int) -> Node:
    """An idle node like this one."""
    return structs.replace(
        node, name=f"{node.name}+{number}", ready=True, unschedulable=False, uid=""
    )
