"""How many pods of one demand fit into a cluster, and where, as the scheduler places them. Pure.

The scheduler's cache answers: its filter, its scores, its quotas. So the answer is that of
``vgpu scheduler`` on the same objects. kube-scheduler's own checks are known as far as nodes are
cordoned or not ready; CPU, memory, taints, selectors and affinity are not.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import structs

from scheduler.cache import SchedulerCache
from scheduler.explanation import rejection_text, summary_of
from scheduler.node_cache import PodPlacement
from scheduler.refused_nodes import RefusedNodes
from vgpu.effective import effective_shares
from vgpu.kube.objects import Node, Pod, holds_devices
from vgpu.model import Device, PodRef
from vgpu.placement.candidate import PodDemand
from vgpu.placement.counting import PodCounter
from vgpu.placement.dialects import SchedulerScheme
from vgpu.placement.result import PlacementReason, PlacementRefusal
from vgpu.reasons import Explained

MOST_ON_NODE: Final = 10_000
"""Maximum number of pods that are counted on a node."""

MOST_PLACED: Final = 1_000
"""Maximum number of pods that are placed one after another."""


class NodeExclusion(Explained):
    """Why kube-scheduler places no pod on a node, whatever its GPUs are."""

    NOT_READY = "not_ready", "the node is not ready"
    CORDONED = "cordoned", "the node is cordoned"
    DRAINED = "drained", "the node is drained in this question"


class GpuShares(msgspec.Struct, frozen=True):
    """The number of shares that the counted pods have on a GPU.

    ``position`` is that of the GPU in the node's register.
    """

    position: int
    device: Device
    shares: int


class NodeFit(msgspec.Struct, frozen=True):
    """The pods that a node takes, and their shares on each GPU that has some."""

    node: str
    pods: int
    gpus: tuple[GpuShares, ...]


class MovedPod(msgspec.Struct, frozen=True):
    """A pod of a drained node: the node that takes it, or "" and why none does."""

    pod: PodRef
    source: str
    target: str = ""
    refusal: str = ""


class FitAnswer(msgspec.Struct, frozen=True):
    """The answer.

    Attributes:
        scheme: the sharing system of the pods.
        pods: number of pods that fit.
        is_all: whether no more fit; False where only as many were asked for, or counted.
        nodes: the nodes that take some, by name.
        rejection: why the others, or the next pod, do not fit; the text of the scheduler's event.
        refused: number of nodes by the reason code for which they take none.
        excluded: why kube-scheduler places no pod on these nodes, by name.
        moved: the pods of drained nodes.
    """

    scheme: str
    pods: int
    is_all: bool
    nodes: tuple[NodeFit, ...]
    rejection: str = ""
    refused: Mapping[str, int] = {}
    excluded: Mapping[str, NodeExclusion] = {}
    moved: tuple[MovedPod, ...] = ()


def exclusions(nodes: Iterable[Node], drained: Iterable[str]) -> dict[str, NodeExclusion]:
    """The nodes on which kube-scheduler places no pod."""
    gone = frozenset(drained)
    excluded = {}
    for node in nodes:
        if node.name in gone:
            excluded[node.name] = NodeExclusion.DRAINED
        elif node.unschedulable:
            excluded[node.name] = NodeExclusion.CORDONED
        elif not node.ready:
            excluded[node.name] = NodeExclusion.NOT_READY
    return excluded


def answer(
    cache: SchedulerCache,
    demanded: tuple[SchedulerScheme, PodDemand],
    names: Sequence[str],
    wanted: int | None = None,
) -> FitAnswer:
    """How many pods fit on these nodes: as many as do, or at most ``wanted``.

    Pods are placed one after another where a number is wanted, or where a quota of their namespace
    has to be counted; else the pods of each node are counted, since they depend on nothing else.
    """
    scheme, demand = demanded
    if wanted is None:
        counted = _counted(cache, scheme, demand, names)
        if not counted.pods or not cache.quota_of(demand).quota:
            return counted
        wanted = counted.pods
    return _placed(cache, scheme, demand, names, wanted)


def move(
    cache: SchedulerCache, pods: Iterable[Pod], drained: frozenset[str], names: Sequence[str]
) -> tuple[MovedPod, ...]:
    """Place the pods of the drained nodes on these nodes, the most important first.

    The cache counts them there afterwards. Pods of DaemonSets end with their node, and KubeShare's
    have a scheduler of their own: neither are moved.
    """
    moved = []
    leaving = [
        pod
        for pod in pods
        if pod.node in drained and holds_devices(pod) and not _is_of_daemon_set(pod)
    ]
    for pod in leaving:
        cache.set_pod(f"{pod.ref.namespace}/{pod.ref.name}", None)
    for pod in sorted(leaving, key=lambda each: (-each.priority, each.created_at or 0.0, each.ref)):
        again = structs.replace(pod.ref, uid=f"{pod.ref.uid}-again")
        demanded = cache.demand_of(structs.replace(pod, ref=again, node=""))
        if isinstance(demanded, PlacementRefusal):
            if demanded.reason is not PlacementReason.NOTHING_REQUESTED:
                moved.append(MovedPod(pod.ref, pod.node, refusal=demanded.text))
            continue
        placed = _place(cache, *demanded, names)
        if isinstance(placed, str):
            moved.append(MovedPod(pod.ref, pod.node, refusal=placed))
        else:
            moved.append(MovedPod(pod.ref, pod.node, placed.node))
    return tuple(moved)


# ---------------------------------------------------------------- parts


def _is_of_daemon_set(pod: Pod) -> bool:
    return pod.owner is not None and pod.owner.kind == "DaemonSet"


def _counted(
    cache: SchedulerCache, scheme: SchedulerScheme, demand: PodDemand, names: Sequence[str]
) -> FitAnswer:
    """All pods that fit, each node by itself."""
    counter = PodCounter(scheme.dialect, demand, MOST_ON_NODE)
    wanted = frozenset(names)
    refused: dict[str, PlacementRefusal] = {}
    nodes = []
    for name, view, refusal in cache.explain(scheme, demand):
        if name not in wanted:
            continue
        if refusal is not None or view is None:
            refused[name] = refusal or PlacementRefusal.of(PlacementReason.NO_GPUS)
            continue
        counted = counter.count(view.candidate)
        devices = [gpu.device for gpu in view.candidate.gpus]
        nodes.append(NodeFit(name, counted.pods, _gpu_shares(devices, counted.shares)))
    over_quota = cache.quota_of(demand).refusal
    if over_quota is not None:
        refused = dict.fromkeys(names, over_quota)
        nodes = []
    return FitAnswer(
        scheme.row.name,
        sum(node.pods for node in nodes),
        all(node.pods < MOST_ON_NODE for node in nodes),
        tuple(nodes),
        _rejection(RefusedNodes.of(refused), demand),
        {reason.value: number for reason, number in RefusedNodes.of(refused).counts()},
    )


def _placed(
    cache: SchedulerCache,
    scheme: SchedulerScheme,
    demand: PodDemand,
    names: Sequence[str],
    wanted: int,
) -> FitAnswer:
    """At most ``wanted`` pods, placed one after another on the nodes with the best scores."""
    on_nodes: dict[str, list[PodPlacement]] = {}
    rejection = ""
    placed_pods = 0
    for number in range(min(wanted, MOST_PLACED)):
        ref = structs.replace(demand.pod, name=f"{demand.pod.name}-{number}", uid=f"fit-{number}")
        placed = _place(cache, scheme, structs.replace(demand, pod=ref), names)
        if isinstance(placed, str):
            rejection = placed
            break
        on_nodes.setdefault(placed.node, []).append(placed)
        placed_pods += 1
    nodes = tuple(_node_fit(name, on_nodes[name]) for name in sorted(on_nodes))
    return FitAnswer(scheme.row.name, placed_pods, bool(rejection), nodes, rejection)


def _place(
    cache: SchedulerCache, scheme: SchedulerScheme, demand: PodDemand, names: Sequence[str]
) -> PodPlacement | str:
    """Reserve GPUs for one pod, or why no node takes it."""
    filtered = cache.filter(scheme, demand, names)
    if not filtered.nodes:
        return _rejection(filtered.refused, demand)
    scores = cache.scores(scheme, demand, filtered.nodes)
    placed = cache.reserve(scheme, demand, filtered.nodes[scores.index(max(scores))])
    return placed.text if isinstance(placed, PlacementRefusal) else placed


def _node_fit(name: str, placements: Sequence[PodPlacement]) -> NodeFit:
    names = placements[0].devices
    shares = Counter(
        names[share.device]
        for placement in placements
        for share in effective_shares(placement.allocations)
    )
    devices = tuple(dict.fromkeys(names.values()))
    return NodeFit(name, len(placements), _gpu_shares(devices, map(shares.__getitem__, devices)))


def _gpu_shares(devices: Sequence[Device], shares: Iterable[int]) -> tuple[GpuShares, ...]:
    """The GPUs that have shares; ``devices`` are all of a node, in the order of its register."""
    numbered = zip(range(len(devices)), devices, shares, strict=True)
    return tuple(GpuShares(*row) for row in numbered if row[2])


def _rejection(refused: RefusedNodes, demand: PodDemand) -> str:
    return rejection_text(summary_of(refused), demand) if refused.names else ""
