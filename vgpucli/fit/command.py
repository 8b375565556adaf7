"""`vgpu fit`: how many pods of a shape fit into the cluster, and where; what a change would do."""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click
from msgspec import structs

from scheduler.flags import placement_policies, policy_flags
from vgpu.inventory import Units
from vgpu.inventory.unit_check import doubt_notes, doubts_of
from vgpu.kube.closed_nodes import NO_POD
from vgpu.kube.kept_keys import keep_also
from vgpu.kube.scheduling_objects import SchedulingNode
from vgpu.model.documentation import page
from vgpu.model.objects import Pod
from vgpu.model.reasons import SourceError
from vgpu.model.taints import Toleration, toleration_of
from vgpu.placement.dialects import (
    PlacementPolicies,
    SchedulerScheme,
    scheduler_schemes,
)
from vgpu.program import cluster_names
from vgpu.program.kube_flags import connected, kubeconfig_flags, read_dump, reads_dumps
from vgpu.program.output import say_wrapped
from vgpu.program.resource_flags import resource_flags
from vgpu.schemes.registry import registry
from vgpucli.document_output import print_document
from vgpucli.fit.document import fit_document
from vgpucli.fit.manifest import AskedPod, pod_of_requests, pods_of_manifest
from vgpucli.fit.model import STATES
from vgpucli.fit.question import FitQuestion, answered
from vgpucli.fit.table import table_lines, tolerations_note
from vgpucli.flags import unit_flags
from vgpucli.inspect.read import (
    Read,
    from_cluster,
    from_files,
    no_such_node,
    with_budgets,
    with_quotas,
)

if TYPE_CHECKING:
    from vgpu.apiserver.client import ApiClient

MOST_ADDED: Final = 1_000
"""Maximum number of nodes that one flag adds."""

_HOSTNAME: Final = "kubernetes.io/hostname"
"""A label of nodes with their own name."""

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
Of NVIDIA's own device plugin the free units are counted. As for kube-scheduler, a node has to be
ready and not cordoned, and to suit the pod's tolerations, nodeSelector, required node affinity,
CPU, memory and other resources. What else the pod has by which nodes are chosen, such as pod
affinity, is named as not checked. More: {page("fit")}.

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


class _WrittenToleration(click.ParamType[Toleration]):
    """A toleration in the form of ``kubectl taint``."""

    name = "toleration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Toleration:
        if isinstance(value, Toleration):
            return value
        try:
            return toleration_of(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


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
@click.option(
    "--pod",
    "like",
    metavar="NAMESPACE/NAME",
    shell_complete=cluster_names.pods,
    help="A pod like this one of the cluster.",
)
@click.option(
    "--toleration",
    "tolerations",
    multiple=True,
    type=_WrittenToleration(),
    metavar="KEY[=VALUE][:EFFECT]",
    help="A taint that the pods tolerate beside those that they name, such as nvidia.com/gpu."
    " Repeatable.",
)
@click.option(
    "-n",
    "--namespace",
    shell_complete=cluster_names.namespaces,
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
    shell_complete=cluster_names.nodes,
    help="Without this node: its pods are placed on other nodes first. Repeatable.",
)
@click.option(
    "--add-node",
    "added",
    multiple=True,
    type=_MoreNodes(),
    metavar="NODE[=NUMBER]",
    shell_complete=cluster_names.nodes,
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
@resource_flags
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
    tolerations: tuple[Toleration, ...],
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
    content = read_dump(manifest, "--filename")[0] if manifest else b""
    described = partial(_described, content, manifest or "", dict(requests), namespace)
    early = described()
    if is_dump:
        read = from_files(files, budgets=defragments, scheduling=True)
    else:
        of_pod = early[0].pod.ref.namespace if early else (like or "").partition("/")[0]
        places_others = bool(drained) or defragments
        with connected(kubeconfig, context, request_timeout) as cluster:
            read = _from_cluster(
                cluster, "" if places_others else of_pod, quotas=not no_quotas, budgets=defragments
            )
    if no_quotas:
        read = structs.replace(read, namespaces=(), quotas=(), gpu_quota=None)
    read = _with_nodes(read, added, drained)
    schemes, notes = schemes_in_units(read, Units(volcano_factor, gpushare_unit), policies)
    # Again, since the names of resources may have been found with the objects.
    asked = _like(read, like) if like else _the_only(described(), manifest or "")
    asked = structs.replace(
        asked,
        pod=_with_priority(asked.pod, priority),
        scheduling=structs.replace(
            asked.scheduling, tolerations=(*asked.scheduling.tolerations, *tolerations)
        ),
    )
    question = FitQuestion(asked, frozenset(drained), wanted, defragments=defragments)
    fit, requested = answered(read, schemes, question)
    notes = (*read.notes, *notes, *tolerations_note(fit))
    if files and defragments and not read.budgets:
        notes += ("there are no PodDisruptionBudgets in the dump: none protects a pod",)
    if output == "text":
        say_wrapped(*table_lines(fit, requested, wanted))
        say_wrapped(*(f"note: {note}" for note in notes), err=True)
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


def _from_cluster(cluster: "ApiClient", namespace: str, *, quotas: bool, budgets: bool) -> Read:
    """What the question needs: of quotas only those of the namespace, "" for all.

    Raises ClusterError and SourceError.
    """
    read = from_cluster(cluster, "", for_placement=True, scheduling=True)
    if quotas:
        read = with_quotas(read, cluster, namespace)
    return with_budgets(read, cluster) if budgets else read


def _with_priority(pod: Pod, priority: int | None) -> Pod:
    """The pod with another priority, if one is named."""
    return pod if priority is None else structs.replace(pod, priority=priority)


def _described(
    content: bytes, manifest: str, requests: Mapping[str, int], namespace: str
) -> tuple[AskedPod, ...]:
    """The pods that the flags describe; none if the pod is one of the cluster."""
    if not manifest:
        return (pod_of_requests(requests, namespace),) if requests else ()
    try:
        return pods_of_manifest(content, manifest, namespace)
    except SourceError as error:
        raise click.ClickException(str(error)) from error


def _the_only(pods: Sequence[AskedPod], manifest: str) -> AskedPod:
    """The pod of the manifest. Raises click.ClickException if there is not exactly one."""
    if len(pods) != 1:
        names = ", ".join(f"{each.pod.ref.namespace}/{each.pod.ref.name}" for each in pods)
        raise click.ClickException(
            f"{manifest}: one pod that requests shared GPUs is needed, found: {names or 'none'}"
        )
    return pods[0]


def _like(read: Read, name: str) -> AskedPod:
    """A new pod with the requests and wishes of this one of the cluster."""
    for pod in read.objects.pods:
        if f"{pod.ref.namespace}/{pod.ref.name}" == name:
            ref = structs.replace(pod.ref, name=f"{pod.ref.name}-fit", uid="fit")
            scheduling = (each.scheduling for each in read.scheduling.placed if each.pod is pod)
            return AskedPod(
                structs.replace(pod, ref=ref, node="", nominated_node=""),
                next(filter(None, scheduling), NO_POD),
            )
    raise click.ClickException(
        f"--pod {name}: there is no such pod that shares GPUs; name it as NAMESPACE/NAME"
    )


def _with_nodes(read: Read, added: Sequence[tuple[str, int]], drained: Sequence[str]) -> Read:
    """The objects with more nodes. Raises click.ClickException for a node that does not exist."""
    nodes = {node.name: node for node in read.objects.nodes}
    for name in (*(name for name, _ in added), *drained):
        if name not in nodes:
            raise no_such_node(name, nodes)
    like = {each.node.name: each for each in read.scheduling.nodes}
    more = [_copy(like[name], number + 1) for name, most in added for number in range(most)]
    objects = structs.replace(
        read.objects, nodes=(*read.objects.nodes, *(each.node for each in more))
    )
    scheduling = structs.replace(read.scheduling, nodes=(*read.scheduling.nodes, *more))
    return structs.replace(read, objects=objects, scheduling=scheduling)


def _copy(like: SchedulingNode, number: int) -> SchedulingNode:
    """An idle node like this one: without the taints that show its state."""
    node = like.node
    name = f"{node.name}+{number}"
    taints = tuple(each for each in node.taints if not each.key.startswith(STATES))
    copy = structs.replace(node, name=name, ready=True, unschedulable=False, uid="", taints=taints)
    own_name = {_HOSTNAME: name} if _HOSTNAME in like.labels else {}
    return structs.replace(like, node=copy, labels={**like.labels, **own_name})
