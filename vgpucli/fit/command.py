"""`vgpu fit`: how many pods of a shape fit into the cluster, and where; what a change would do."""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click
from msgspec import structs

from scheduler.filter.refusals import request_text
from scheduler.flags import placement_policies, policy_flags
from vgpu.inventory import Units
from vgpu.inventory.unit_check import doubt_notes, doubts_of
from vgpu.kube.kept_keys import keep_also
from vgpu.model.documentation import page
from vgpu.model.objects import Node, Pod
from vgpu.model.reasons import SourceError
from vgpu.placement.candidate import PodDemand
from vgpu.placement.dialects import (
    PlacementPolicies,
    SchedulerScheme,
    demand_of,
    scheduler_schemes,
)
from vgpu.placement.result import PlacementRefusal
from vgpu.program.kube_flags import connected, kubeconfig_flags, read_dump, reads_dumps
from vgpu.program.nvidia_flag import nvidia_resource_flag
from vgpu.program.output import say
from vgpu.schemes.registry import registry
from vgpucli.document_output import print_document
from vgpucli.fit.answer import answer, exclusions, move
from vgpucli.fit.document import fit_document
from vgpucli.fit.manifest import pod_of_requests, pods_of_manifest
from vgpucli.fit.model import Budgets, FitAnswer
from vgpucli.fit.table import table_lines
from vgpucli.flags import unit_flags
from vgpucli.inspect.read import (
    Read,
    from_cluster,
    from_files,
    no_such_node,
    with_budgets,
    with_quotas,
)
from vgpucli.prediction import ReadObjects, SchedulingSimulation, filled_cache

if TYPE_CHECKING:
    from vgpu.apiserver.client import ApiClient

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
  vgpu fit -f job.yaml --pods 4 --defragment
                                           which evictions would make room for 4 pods
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
    "--priority",
    type=click.IntRange(-(2**31), 2**31 - 1),
    help="Priority of the pods, for --defragment.  [default: that of the pod or of the manifest's"
    " spec.priority, else 0]",
)
@click.option(
    "--defragment",
    "defragments",
    is_flag=True,
    help="With --pods: where fewer fit, also plan the evictions after which all of them fit."
    " Nothing is evicted.",
)
@policy_flags
@click.option(
    "--no-quotas",
    is_flag=True,
    envvar="VGPU_NO_QUOTAS",
    help="Count no quotas of namespaces, as the scheduler with this flag.",
)
@unit_flags
@nvidia_resource_flag
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
    priority: int | None,
    defragments: bool,
    no_quotas: bool,
    volcano_factor: int,
    gpushare_unit: int | None,
    files: tuple[str, ...],
    kubeconfig: str,
    context: str,
    request_timeout: float | None,
    output: str,
    **policy_params: Any,
) -> None:
    """Count how many more pods fit on the cluster's shared GPUs, and show where they would go.

    The pods are those of a manifest, of a request, or like one of the cluster. Nothing is written.
    """
    if sum(map(bool, (manifest, requests, like))) != 1:
        raise click.UsageError("name the pods by one of --filename, --request and --pod")
    is_dump = reads_dumps(files)
    if [*files, manifest].count("-") > 1:
        raise click.UsageError("standard input can be read once only")
    if defragments and wanted is None:
        raise click.UsageError("--defragment needs --pods: the number of pods that are to fit")
    policies = placement_policies(policy_params)
    keep_also(key for rule in policies.exclusive for key, _ in rule.labels)
    pod = _described(manifest, dict(requests), namespace)
    if is_dump:
        read = from_files(files, budgets=defragments)
    else:
        of_pod = pod.ref.namespace if pod else (like or "").partition("/")[0]
        places_others = bool(drained) or defragments
        with connected(kubeconfig, context, request_timeout) as cluster:
            read = _from_cluster(
                cluster, "" if places_others else of_pod, quotas=not no_quotas, budgets=defragments
            )
    if no_quotas:
        read = structs.replace(read, namespaces=(), quotas=(), gpu_quota=None)
    read = _with_nodes(read, added, drained)
    schemes, notes = schemes_in_units(read, Units(volcano_factor, gpushare_unit), policies)
    pod = pod or _like(read.objects.pods, like or "")
    demanded = demand_of(_with_priority(pod, priority), schemes)
    if isinstance(demanded, PlacementRefusal):
        raise click.ClickException(demanded.text)
    fit = _answer(read, schemes, demanded, frozenset(drained), wanted, defragments=defragments)
    requested = request_text(demanded[1].requests)
    notes = (*read.notes, *notes)
    if files and defragments and not read.budgets:
        notes += ("there are no PodDisruptionBudgets in the dump: none protects a pod",)
    if output == "text":
        for line in table_lines(fit, requested, wanted):
            say(line)
        for note in notes:
            say(f"note: {note}", err=True)
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
    schemes: Sequence[SchedulerScheme],
    demanded: tuple[SchedulerScheme, PodDemand],
    drained: frozenset[str],
    wanted: int | None,
    *,
    defragments: bool,
) -> FitAnswer:
    objects = read.objects
    excluded = exclusions(objects.nodes, drained)
    names = sorted(node.name for node in objects.nodes if node.name not in excluded)
    simulation = SchedulingSimulation(filled_cache(schemes, objects_of(read)), names)
    moved = move(simulation, objects.pods, drained)
    fit = structs.replace(answer(simulation, demanded, wanted), excluded=excluded, moved=moved)
    if wanted is None or not defragments:
        return fit
    from vgpucli.fit.defragmentation import defragment  # noqa: PLC0415  # slow to import

    budgets = Budgets.of(read.budgets, read.labels, objects.malformed)
    return structs.replace(
        fit, plan=defragment(simulation, demanded, wanted, objects.pods, budgets)
    )


def _from_cluster(cluster: "ApiClient", namespace: str, *, quotas: bool, budgets: bool) -> Read:
    """What the question needs: of quotas only those of the namespace, "" for all.

    Raises ClusterError and SourceError.
    """
    read = from_cluster(cluster, "", for_placement=True)
    if quotas:
        read = with_quotas(read, cluster, namespace)
    return with_budgets(read, cluster) if budgets else read


def _with_priority(pod: Pod, priority: int | None) -> Pod:
    """The pod with another priority, if one is named."""
    return pod if priority is None else structs.replace(pod, priority=priority)


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
        names = ", ".join(f"{pod.ref.namespace}/{pod.ref.name}" for pod in pods) or "none"
        raise click.ClickException(
            f"{manifest}: one pod that requests shared GPUs is needed, found: {names}"
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
