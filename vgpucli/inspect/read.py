"""The objects that `vgpu inspect` shows: from the API server, or from dumps of it."""

import difflib
import gc
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, TypeVar

import click
import msgspec

from vgpu.inventory import Objects, with_resource_claims
from vgpu.kube.api_kind import ApiKind
from vgpu.kube.disruption import DisruptionBudget
from vgpu.kube.documents import Keep, ObjectPage
from vgpu.kube.dump import (
    GPU_QUOTA,
    GPU_QUOTA_NAMESPACE,
    Dump,
    DumpItems,
    decode_dump,
    ignored_text,
    labels_in_dump,
    marks_in_dump,
    nothing_in_it,
)
from vgpu.kube.kai_groups import KAI_QUEUE_KINDS
from vgpu.kube.kai_kinds import BIND_REQUESTS, BindRequest
from vgpu.kube.kinds import (
    BUDGETS,
    NAMESPACE_MARKS,
    NAMESPACES,
    NODES,
    POD_LABELS,
    POD_MARKS,
    RESOURCE_CLAIMS,
    RESOURCE_QUOTAS,
    RESOURCE_SLICES,
    SHARE_PODS,
)
from vgpu.kube.kueue_kinds import KUEUE_KINDS
from vgpu.kube.label_selector import Selects
from vgpu.kube.scheduling_objects import (
    SCHEDULING_NODES,
    PlacedPod,
    SchedulingNode,
    SchedulingObjects,
    scheduling_pods,
)
from vgpu.kube.volcano_kinds import VOLCANO_KINDS
from vgpu.model.names import PodRef
from vgpu.model.objects import (
    NODE_KIND,
    MalformedObject,
    Namespace,
    Node,
    Pod,
    ResourceQuota,
    holds_devices,
)
from vgpu.model.reasons import SourceError
from vgpu.model.resource_claims import ResourceClaim, ResourceSlice
from vgpu.model.units import count
from vgpu.program.kube_flags import ReadDump, not_a_dump, read_dump
from vgpu.program.resource_names import settle_by_cluster, settle_by_dumps, unknown_names
from vgpu.quota.kai_tree import KaiQueues
from vgpu.quota.kueue_tree import KueueObjects
from vgpu.quota.limits import has_gpu_admission
from vgpu.quota.volcano_tree import VolcanoObjects
from vgpu.schemes.kai.config_map import config_map_names
from vgpu.schemes.kai.groups import groups_of, is_reservation
from vgpu.schemes.other_schedulers import fraction_requests
from vgpu.schemes.registry import registry
from vgpucli.kai_queue_objects import kai_queues_in_dumps
from vgpucli.queue_objects import KUEUE_CONFIG, kueue_in_dumps
from vgpucli.volcano_objects import volcano_in_dumps

if TYPE_CHECKING:
    from vgpu.apiserver.client import ApiClient

_Kept = TypeVar("_Kept")

_OF_QUEUES: Final = (*KUEUE_KINDS, *VOLCANO_KINDS, *KAI_QUEUE_KINDS)


class Read(msgspec.Struct, frozen=True):
    """The objects, with the time of the read in unix seconds; ``notes`` name missing ones.

    ``selected`` are the UIDs of the pods that the label selector selects, None without one.
    ``namespaces``, ``quotas`` and ``gpu_quota`` (the data of gpu-admission's ConfigMap) declare
    quotas; ``marks`` are teams by ``<namespace>/<pod>``, and by ``/<namespace>``. ``budgets`` are
    the PodDisruptionBudgets, and ``labels`` all labels of pods, by UID. ``pods_read`` is False of a
    dump without a pod. ``scheduling`` is what kube-scheduler reads of all nodes and pods, if that
    was asked for. ``others`` are the kinds of a dump that are not read. ``kueue``,
    ``volcano`` and ``kai`` are the objects of these systems, if they were asked for.
    """

    objects: Objects
    as_of: float
    notes: tuple[str, ...] = ()
    selected: frozenset[str] | None = None
    namespaces: tuple[Namespace, ...] = ()
    quotas: tuple[ResourceQuota, ...] = ()
    gpu_quota: Mapping[str, str] | None = None
    marks: Mapping[str, str] = {}
    budgets: tuple[DisruptionBudget, ...] = ()
    labels: Mapping[str, Mapping[str, str]] = {}
    pods_read: bool = True
    scheduling: SchedulingObjects = SchedulingObjects()
    others: frozenset[str] = frozenset()
    kueue: KueueObjects = KueueObjects()
    volcano: VolcanoObjects = VolcanoObjects()
    kai: KaiQueues = KaiQueues()


def from_files(
    paths: Sequence[str],
    selects: Selects | None = None,
    team_key: str = "",
    *,
    budgets: bool = False,
    scheduling: bool = False,
    queues: bool = False,
    used: Collection[str] = (),
    read: ReadDump = read_dump,
) -> Read:
    """The objects of all dumps of ``kubectl get … -o json``. Raises click.ClickException.

    ``labels`` are read with ``selects`` or ``budgets`` only, ``scheduling`` with this flag, and
    objects of Kueue and Volcano with ``queues``. ``used`` are kinds that the caller reads by
    itself, and ``read`` reads a file.
    """
    with _without_collection():
        return _from_files(
            paths,
            selects,
            team_key,
            budgets=budgets,
            scheduling=scheduling,
            queues=queues,
            used=used,
            read=read,
        )


@contextmanager
def _without_collection() -> Iterator[None]:
    """What is made here stays until the command ends: no collection of cycles looks at it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
        gc.freeze()


def _from_files(
    paths: Sequence[str],
    selects: Selects | None,
    team_key: str,
    *,
    budgets: bool,
    scheduling: bool,
    queues: bool,
    used: Collection[str],
    read: ReadDump,
) -> Read:
    marks: dict[str, str] = {}
    nodes: dict[str, Node] = {}
    pods: dict[str, Pod] = {}
    share_pods: dict[str, Pod] = {}
    unhealthy: dict[str, str] = {}
    others: Counter[str] = Counter()
    malformed: dict[tuple[str, PodRef], MalformedObject] = {}
    resource_claims_by_uid: dict[str, ResourceClaim] = {}
    slices: dict[str, ResourceSlice] = {}
    seen = 0
    times: list[float] = []
    labels: dict[str, Mapping[str, str]] = {}
    dumps: list[Dump] = []
    for path, content, written in _contents(paths, read):
        try:
            dump = decode_dump(
                content,
                path,
                keep=Keep.RESOURCE_CLAIMS,
                scheduling=scheduling,
                node_labels=queues,
                also=(
                    BIND_REQUESTS,
                    *((*KUEUE_KINDS, *VOLCANO_KINDS, *KAI_QUEUE_KINDS) if queues else ()),
                ),
                config_maps=(KUEUE_CONFIG,) if queues else (),
            )
        except SourceError as error:
            raise not_a_dump(str(error)) from error
        if selects is not None or budgets:
            labels |= labels_in_dump(content, path)
        if team_key:
            marks |= marks_in_dump(content, team_key, path)
        times.append(written)
        dumps.append(dump)
        nodes |= {node.name: node for node in dump.nodes}
        pods |= {pod.ref.uid: pod for pod in dump.pods}
        share_pods |= {pod.ref.uid: pod for pod in dump.share_pods}
        unhealthy |= dump.unhealthy
        resource_claims_by_uid |= {
            resource_claim.uid: resource_claim for resource_claim in dump.resource_claims
        }
        slices |= {resource_slice.name: resource_slice for resource_slice in dump.resource_slices}
        malformed |= {(broken.kind, broken.ref): broken for broken in dump.malformed}
        others.update(dump.others)
        seen += dump.total
    ignored = ignored_text({kind: number for kind, number in others.items() if kind not in used})
    if dumps and all(dump.is_foreign for dump in dumps):
        raise not_a_dump(f"{' and '.join(paths)}: {nothing_in_it(ignored)}")
    notes = [f"{ignored} ignored"] if ignored else []
    notes += unknown_names()
    if not nodes and not any(kind == NODE_KIND for kind, _ in malformed):
        notes.append("there are no nodes in the dump, so it is not known what GPUs there are")
    if not seen:
        notes.append("there are no pods in the dump: all GPUs look free")
    if "ConfigMap" not in others and not unhealthy:
        notes += _unknown_health(nodes.values(), "there are no ConfigMaps in the dump")
    sharing, resource_claims = with_resource_claims(
        pods.values(), resource_claims_by_uid.values(), slices.values()
    )
    objects = Objects(
        tuple(nodes.values()),
        sharing,
        tuple(share_pods.values()),
        unhealthy,
        tuple(malformed.values()),
        resource_claims,
        lists_all=any(dump.lists_all for dump in dumps),
        bind_requests=tuple(each for dump in dumps for each in dump.of(BIND_REQUESTS)),
        config_maps={name: data for dump in dumps for name, data in dump.shared_gpu.items()},
    )
    chosen = None
    if selects is not None:
        chosen = frozenset(uid for uid, own in labels.items() if selects(own))
    return Read(
        objects,
        min(times),
        tuple(notes),
        chosen,
        tuple(namespace for dump in dumps for namespace in dump.namespaces),
        tuple(quota for dump in dumps for quota in dump.resource_quotas),
        next((dump.gpu_quota for dump in dumps if dump.gpu_quota is not None), None),
        marks,
        tuple(budget for dump in dumps for budget in dump.budgets),
        labels,
        pods_read=bool(seen),
        scheduling=_merged(dump.scheduling for dump in dumps),
        others=frozenset(others),
        kueue=kueue_in_dumps(dumps),
        volcano=volcano_in_dumps(dumps),
        kai=kai_queues_in_dumps(dumps),
    )


def _contents(paths: Sequence[str], read: ReadDump) -> list[tuple[str, DumpItems, float]]:
    """Path, objects and time of each dump; the names of resources in them are in force."""
    files = [(path, *read(path)) for path in paths]
    try:
        contents = [
            (path, DumpItems.of(content, path), written) for path, content, written in files
        ]
        settle_by_dumps([(content, path) for path, content, _ in contents])
    except SourceError as error:
        raise not_a_dump(str(error)) from error
    return contents


def _merged(parts: Iterable[SchedulingObjects]) -> SchedulingObjects:
    """The objects of several dumps, each once."""
    nodes: dict[str, SchedulingNode] = {}
    placed: dict[str, PlacedPod] = {}
    for part in parts:
        nodes |= {each.node.name: each for each in part.nodes}
        placed |= {each.uid: each for each in part.placed}
    return SchedulingObjects(tuple(nodes.values()), tuple(placed.values()))


def from_cluster(
    cluster: "ApiClient",
    node: str,
    selector: str = "",
    *,
    for_placement: bool = False,
    reads_resource_claims: bool = True,
    scheduling: bool = False,
    node_labels: bool = False,
) -> Read:
    """The API server's objects; with a node only its own, and pods that are not bound yet.

    With ``for_placement`` neither SharePods nor ResourceClaims are read: others place these.
    Without ``reads_resource_claims`` no ResourceClaims are read either. With ``scheduling`` what
    kube-scheduler reads of all nodes and pods is read, too: of the same lists; with ``node_labels``
    that of the nodes alone.

    Raises ClusterError, SourceError, and click.ClickException for a node that does not exist.
    """
    from vgpu.apiserver.connection import ClusterError  # noqa: PLC0415  # slow to import, see connection.py

    as_of = time.time()
    malformed: list[MalformedObject] = []
    of_nodes = scheduling or node_labels
    nodes, scheduling_nodes, bad = _read_nodes(cluster, node, scheduling=of_nodes)
    if settle_by_cluster(cluster, nodes):
        nodes, scheduling_nodes, bad = _read_nodes(cluster, node, scheduling=of_nodes)
    malformed += bad
    notes: list[str] = [*unknown_names()]
    # Before the pods: so each pod that is reserved a device is among them, unless it is gone.
    unread = for_placement or not reads_resource_claims
    listed_resource_claims, slices = (
        ((), ()) if unread else _resource_claims(cluster, notes, malformed)
    )
    keep = Keep.RESOURCE_CLAIMS if listed_resource_claims else Keep.SHARING
    of_pods = scheduling and bool(scheduling_nodes)
    pods, placed, bad = _listed_pods(cluster, node, keep, scheduling=of_pods)
    malformed += bad
    share_pages: list[ObjectPage[Pod]] = []
    try:
        share_pages += () if for_placement else cluster.sharepod_pages()
    except ClusterError as error:
        if error.reason == "Forbidden":
            notes.append(f"SharePods could not be read: {error.message}")
        elif error.status != HTTPStatus.NOT_FOUND:  # KubeShare is not installed
            raise
    malformed += (broken for page in share_pages for broken in page.malformed)
    unhealthy = {}
    if any(map(registry().lists_unhealthy, nodes)):
        try:
            unhealthy = dict(cluster.unhealthy_gpus())
        except SourceError as error:
            notes += _unknown_health(nodes, error.detail)
        except ClusterError as error:
            if error.reason != "Forbidden":
                raise
            notes += _unknown_health(nodes, error.message)
    share_pods = tuple(pod for page in share_pages for pod in page.objects)
    sharing, resource_claims = with_resource_claims(pods, listed_resource_claims, slices)
    objects = Objects(
        nodes,
        sharing,
        share_pods,
        unhealthy,
        tuple(malformed),
        resource_claims,
        lists_all=True,
        bind_requests=_bind_requests(cluster, sharing, notes, malformed),
        config_maps=shared_gpu_maps(cluster, sharing, notes),
    )
    selected = _selected(cluster, selector, share_pods) if selector else None
    return Read(
        objects,
        as_of,
        tuple(notes),
        selected,
        scheduling=SchedulingObjects(scheduling_nodes, placed),
    )


_Bad = tuple[MalformedObject, ...]
"""Unreadable objects of a list."""


def _read_nodes(
    cluster: "ApiClient", node: str, *, scheduling: bool
) -> tuple[tuple[Node, ...], tuple[SchedulingNode, ...], _Bad]:
    """The node of this name, or all as :func:`_listed_nodes` has them."""
    if node:
        return (_named_node(cluster, node),), (), ()
    return _listed_nodes(cluster, scheduling=scheduling)


def _named_node(cluster: "ApiClient", name: str) -> Node:
    """The node of this name. Raises ClusterError, and click.ClickException if there is none."""
    from vgpu.apiserver.connection import ClusterError  # noqa: PLC0415  # slow to import

    try:
        return cluster.node(name)
    except ClusterError as error:
        if error.reason == "NotFound":
            raise no_such_node(name, (other.name for other in cluster.nodes())) from error
        raise


def _listed_nodes(
    cluster: "ApiClient", *, scheduling: bool
) -> tuple[tuple[Node, ...], tuple[SchedulingNode, ...], _Bad]:
    """All nodes, also with what kube-scheduler reads of them if that is asked for."""
    if not scheduling:
        nodes, bad = _listed(cluster, NODES)
        return nodes, (), bad
    scheduling_nodes, bad = _listed(cluster, SCHEDULING_NODES)
    return tuple(each.node for each in scheduling_nodes), scheduling_nodes, bad


def _listed_pods(
    cluster: "ApiClient", node: str, keep: Keep, *, scheduling: bool
) -> tuple[tuple[Pod, ...], tuple[PlacedPod, ...], _Bad]:
    """All pods, with a node its own and those that are not bound."""
    if scheduling:
        placed, bad = _listed(cluster, scheduling_pods(keep))
        return tuple(each.pod for each in placed if each.pod is not None), placed, bad
    pages = [
        page
        for selector in ([f"spec.nodeName={node}", "spec.nodeName="] if node else [""])
        for page in cluster.pods(field_selector=selector, keep=keep, ahead=True)
    ]
    return (
        tuple(pod for page in pages for pod in page.objects),
        (),
        tuple(broken for page in pages for broken in page.malformed),
    )


def _listed(
    cluster: "ApiClient", kind: ApiKind[_Kept]
) -> tuple[tuple[_Kept, ...], tuple[MalformedObject, ...]]:
    """All objects of a kind, and the unreadable ones."""
    pages = tuple(cluster.pages(kind, ahead=True))
    return (
        tuple(object_ for page in pages for object_ in page.objects),
        tuple(broken for page in pages for broken in page.malformed),
    )


def _bind_requests(
    cluster: "ApiClient", pods: Iterable[Pod], notes: list[str], malformed: list[MalformedObject]
) -> tuple[BindRequest, ...]:
    """KAI Scheduler's BindRequests, if a pod of KAI is not bound yet."""
    if not any(not pod.node and fraction_requests(pod) for pod in pods):
        return ()
    pages, note = if_allowed(lambda: cluster.optional_pages(BIND_REQUESTS), "BindRequests")
    notes += note
    malformed += (broken for page in pages or () for broken in page.malformed)
    return tuple(each for page in pages or () for each in page.objects)


_MOST_CONFIG_MAPS: Final = 100
"""Maximum number of pods whose ConfigMaps are read."""


def shared_gpu_maps(
    cluster: "ApiClient", pods: Iterable[Pod], notes: list[str]
) -> dict[tuple[str, str], Mapping[str, str]]:
    """The ConfigMaps of KAI Scheduler's pods whose group has no known GPU, each by its name.

    Without such a pod nothing is read; ``notes`` gets what was not read. Raises ClusterError.
    """
    lacking = [
        pod
        for pod in registry().resolved(pods)
        if pod.node and not pod.group_gpus and holds_devices(pod)
        if groups_of(pod) and not is_reservation(pod)
    ]
    found: dict[tuple[str, str], Mapping[str, str]] = {}
    refused: set[str] = set()
    for pod in lacking[:_MOST_CONFIG_MAPS]:
        namespace = pod.ref.namespace
        for name in config_map_names(pod) if namespace not in refused else ():
            what = f"ConfigMap {namespace}/{name} of a pod of KAI Scheduler"
            try:
                data, note = if_allowed(partial(cluster.config_map, namespace, name), what)
            except SourceError as error:
                notes.append(f"{what} cannot be read: {error.detail}")
                continue
            notes += note
            if note:
                refused.add(namespace)
                break
            if data is not None:
                found[namespace, name] = data
    if len(lacking) > _MOST_CONFIG_MAPS:
        number = len(lacking) - _MOST_CONFIG_MAPS
        notes.append(f"ConfigMaps of {count(number, 'pod')} of KAI Scheduler were not read")
    return found


UNREAD_CLAIMS: Final = "ResourceClaims could not be read"
"""The beginning of the note that the user may not read them."""


def _resource_claims(
    cluster: "ApiClient", notes: list[str], malformed: list[MalformedObject]
) -> tuple[tuple[ResourceClaim, ...], tuple[ResourceSlice, ...]]:
    """The ResourceClaims and ResourceSlices; ``notes`` gets why they are not read.

    A server without the kind is asked for ResourceClaims only. Without them nothing is known of
    who holds the devices, and these are not read.
    """
    resource_claim_pages, note = if_allowed(
        lambda: cluster.optional_pages(RESOURCE_CLAIMS), "ResourceClaims"
    )
    notes += note
    if not resource_claim_pages:
        return (), ()
    slices, note = if_allowed(lambda: cluster.optional_pages(RESOURCE_SLICES), "ResourceSlices")
    notes += note
    malformed += (broken for page in resource_claim_pages for broken in page.malformed)
    malformed += (broken for page in slices or () for broken in page.malformed)
    return (
        tuple(resource_claim for page in resource_claim_pages for resource_claim in page.objects),
        tuple(resource_slice for page in slices or () for resource_slice in page.objects),
    )


def with_quotas(read: Read, cluster: "ApiClient", namespace: str = "") -> Read:
    """The same with what declares quotas; a note names what may not be read.

    With a namespace only what declares its own. Raises ClusterError and SourceError.
    """
    notes = list(read.notes)
    if namespace:
        declared, note = if_allowed(
            lambda: cluster.find(NAMESPACES, "", namespace), f"the Namespace {namespace}"
        )
        namespaces: tuple[Namespace, ...] = () if declared is None else (declared,)
    else:
        everything, note = if_allowed(lambda: _objects(cluster, NAMESPACES), "Namespaces")
        namespaces = everything or ()
    notes += note
    quotas, note = if_allowed(
        lambda: _objects(cluster, RESOURCE_QUOTAS, namespace=namespace), "ResourceQuotas"
    )
    notes += note
    gpu_quota = None
    if not namespace or has_gpu_admission(read.objects.nodes):
        gpu_quota, note = if_allowed(
            lambda: cluster.config_map(GPU_QUOTA_NAMESPACE, GPU_QUOTA),
            f"the ConfigMap {GPU_QUOTA_NAMESPACE}/{GPU_QUOTA}",
        )
        notes += note
    return msgspec.structs.replace(
        read,
        notes=tuple(notes),
        namespaces=namespaces,
        quotas=quotas or (),
        gpu_quota=gpu_quota,
    )


def with_groups(read: Read, cluster: "ApiClient", by: str | None, team_key: str) -> Read:
    """The same with what the groups of ``--by`` need. Raises ClusterError and SourceError."""
    if by == "namespace":
        return with_quotas(read, cluster)
    return with_teams(read, cluster, team_key) if team_key else read


def with_budgets(read: Read, cluster: "ApiClient") -> Read:
    """The same with the PodDisruptionBudgets, and with all labels of the pods that may have one.

    Raises ClusterError, also Forbidden, and SourceError.
    """
    pages = tuple(cluster.pages(BUDGETS))
    malformed = [broken for page in pages for broken in page.malformed]
    budgets = tuple(budget for page in pages for budget in page.objects)
    namespaces = {pod.ref.namespace for pod in read.objects.pods if pod.node}
    labels = {
        uid: of_pod
        for namespace in sorted(namespaces & {budget.namespace for budget in budgets})
        for uid, of_pod in _objects(cluster, POD_LABELS, namespace=namespace)
    }
    objects = msgspec.structs.replace(read.objects, malformed=(*read.objects.malformed, *malformed))
    return msgspec.structs.replace(read, objects=objects, budgets=budgets, labels=labels)


def with_teams(read: Read, cluster: "ApiClient", key: str) -> Read:
    """The same with the team of each pod and Namespace. Raises ClusterError and SourceError."""
    pods = _objects(cluster, POD_MARKS)
    namespaces, notes = if_allowed(lambda: _objects(cluster, NAMESPACE_MARKS), "Namespaces")
    marks = {name: texts[key] for name, texts in (*pods, *(namespaces or ())) if key in texts}
    return msgspec.structs.replace(read, notes=(*read.notes, *notes), marks=marks)


def _objects(cluster: "ApiClient", kind: ApiKind[_Kept], namespace: str = "") -> tuple[_Kept, ...]:
    pages = cluster.pages(kind, namespace=namespace)
    return tuple(object_ for page in pages for object_ in page.objects)


def if_allowed(ask: Callable[[], _Kept], what: str) -> tuple[_Kept | None, tuple[str, ...]]:
    """The answer, and no note; or None, and the note that it may not be read.

    Raises ClusterError.
    """
    from vgpu.apiserver.connection import ClusterError  # noqa: PLC0415  # slow to import

    try:
        return ask(), ()
    except ClusterError as error:
        if error.reason != "Forbidden":
            raise
        return None, (f"{what} could not be read: {error.message}",)


def _selected(cluster: "ApiClient", selector: str, share_pods: Sequence[Pod]) -> frozenset[str]:
    """UIDs of the pods, and if there are any of the SharePods, with these labels."""
    pages = [*cluster.pods(label_selector=selector)]
    if share_pods:
        pages += cluster.pages(SHARE_PODS, label_selector=selector)
    return frozenset(pod.ref.uid for page in pages for pod in page.objects)


def _unknown_health(nodes: Iterable[Node], why: str) -> Iterator[str]:
    """The note that gpushare's unhealthy GPUs are unknown, if there may be some."""
    if any(map(registry().lists_unhealthy, nodes)):
        yield f"which of gpushare's GPUs are unhealthy is not known: {why}"


def no_such_node(name: str, known: Iterable[str]) -> click.ClickException:
    """The error for a node that does not exist, with similar names."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5) or [
        other for other in names if name in other
    ]
    if near:
        hint = f"Is it {' or '.join(near[:3])}?"
    elif names:
        verb = "is" if len(names) == 1 else "are"
        hint = f"There {verb} {count(len(names), 'node')}: kubectl get nodes"
    else:
        hint = "No node is known at all"
    return click.ClickException(f"there is no node {name!r}. {hint}")
