"""How many pods of one demand fit into a cluster, and where, as the scheduler places them. Pure.

The scheduler's cache answers: its filter, its scores, its quotas. So the answer is that of
``vgpu scheduler`` on the same objects. It is asked for the nodes that kube-scheduler offers
(:mod:`vgpu.placement.node_offers`).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec import structs

from scheduler.cluster.reservations import PodPlacement
from scheduler.filter.refusals import RefusedNodes, largest_gpu, rejection_text, summary_of
from vgpu.model.allocation import Device, effective_shares
from vgpu.model.objects import Pod, holds_devices
from vgpu.placement.candidate import PodDemand
from vgpu.placement.dialects import SchedulerScheme
from vgpu.placement.node_offers import NodeOffers
from vgpu.placement.pod_count import MOST_ON_NODE, PodCounter
from vgpu.placement.result import PlacementReason, PlacementRefusal
from vgpucli.fit.model import (
    DRAINED,
    FitAnswer,
    GpuShares,
    MovedPod,
    NodeExclusion,
    NodeFit,
)
from vgpucli.prediction import SchedulingSimulation

MOST_PLACED: Final = 1_000
"""Maximum number of pods that are placed one after another."""


def exclusions(offers: NodeOffers, drained: Iterable[str] = ()) -> dict[str, NodeExclusion]:
    """The nodes on which kube-scheduler places none of the wanted pods."""
    closed = offers.closed_to(offers.wanted)
    return dict.fromkeys(drained, DRAINED) | {
        name: NodeExclusion.of(why) for name, why in closed.items()
    }


def answer(
    simulation: SchedulingSimulation,
    demanded: tuple[SchedulerScheme, PodDemand],
    wanted: int | None = None,
) -> FitAnswer:
    """How many pods fit: as many as do, or at most ``wanted``.

    Pods are placed one after another where a number is wanted, or where a quota of their namespace
    has to be counted; else the pods of each node are counted, since they depend on nothing else.
    The cache counts no pod of the answer afterwards.
    """
    scheme, demand = demanded
    if wanted is None:
        counted = _counted(simulation, scheme, demand)
        if not counted.pods or not simulation.cache.quota_of(demand).quota:
            return counted
        wanted = counted.pods
    with simulation.supposing():
        return _placed(simulation, scheme, demand, wanted)


def place_pods(
    simulation: SchedulingSimulation, scheme: SchedulerScheme, demand: PodDemand, wanted: int
) -> tuple[list[PodPlacement], RefusedNodes | None]:
    """Place at most ``wanted`` pods of the demand one after another; why the next one has no place.

    None if as many were placed as are wanted.
    """
    placed: list[PodPlacement] = []
    for number in range(wanted):
        ref = structs.replace(demand.pod, name=f"{demand.pod.name}-{number}", uid=f"fit-{number}")
        placement = simulation.place(scheme, structs.replace(demand, pod=ref))
        if isinstance(placement, RefusedNodes):
            return placed, placement
        placed.append(placement)
    return placed, None


def move(
    simulation: SchedulingSimulation, pods: Iterable[Pod], drained: frozenset[str]
) -> tuple[MovedPod, ...]:
    """Place the pods of the drained nodes on the others.

    The cache counts them there afterwards. Pods of DaemonSets end with their node, and KubeShare's
    have a scheduler of their own: neither are moved.
    """
    leaving = [
        pod
        for pod in pods
        if pod.node in drained and holds_devices(pod) and not _is_of_daemon_set(pod)
    ]
    for pod in leaving:
        simulation.evict(pod)
    return place_again(simulation, leaving)


def place_again(simulation: SchedulingSimulation, evicted: Iterable[Pod]) -> tuple[MovedPod, ...]:
    """Place what the owners of evicted pods create, the most important first.

    Pods that request nothing that the scheduler places are left out.
    """
    moved = []
    for pod in sorted(evicted, key=lambda each: (-each.priority, each.created_at or 0.0, each.ref)):
        demanded = simulation.replacement(pod)
        if isinstance(demanded, PlacementRefusal):
            if demanded.reason is not PlacementReason.NOTHING_REQUESTED:
                moved.append(MovedPod(pod.ref, pod.node, refusal=demanded.text))
            continue
        placed = simulation.place(*demanded)
        if isinstance(placed, RefusedNodes):
            refusal = rejection_of(placed, *demanded)
            moved.append(MovedPod(pod.ref, pod.node, refusal=refusal))
        else:
            moved.append(MovedPod(pod.ref, pod.node, placed.node))
    return tuple(moved)


# ---------------------------------------------------------------- parts


def _is_of_daemon_set(pod: Pod) -> bool:
    return pod.owner is not None and pod.owner.kind == "DaemonSet"


def _counted(
    simulation: SchedulingSimulation, scheme: SchedulerScheme, demand: PodDemand
) -> FitAnswer:
    """All pods that fit, each node by itself."""
    counter = PodCounter(scheme.dialect, demand, MOST_ON_NODE)
    offers = simulation.offers
    names = simulation.names if offers is None else offers.open_to(offers.wanted)
    wanted = frozenset(names)
    limited: dict[str, NodeExclusion] = {}
    refused: dict[str, PlacementRefusal] = {}
    nodes = []
    for name, view, refusal in simulation.cache.views(scheme, wanted):
        if refusal is not None or view is None:
            refused[name] = refusal or PlacementRefusal.of(PlacementReason.NO_GPUS)
            continue
        room = None if offers is None else offers.room(name, offers.wanted)
        counted = counter.first(view.candidate, MOST_ON_NODE if room is None else room)
        if counted.refusal is not None:
            refused[name] = view.blamed(scheme, demand, counted.refusal)
            continue
        if offers is not None and counted.pods == room:
            why = offers.shortage(name, offers.wanted, room)
            limited |= {} if why is None else {name: NodeExclusion.of(why)}
        devices = [gpu.device for gpu in view.candidate.gpus]
        nodes.append(NodeFit(name, counted.pods, _gpu_shares(devices, counted.shares)))
    over_quota = simulation.cache.quota_of(demand).refusal
    if over_quota is not None:
        refused = dict.fromkeys(simulation.names, over_quota)
        nodes = []
    return FitAnswer(
        scheme.row.name,
        sum(node.pods for node in nodes),
        all(node.pods < MOST_ON_NODE for node in nodes),
        tuple(nodes),
        rejection_of(
            RefusedNodes.of(refused),
            scheme,
            demand,
            _largest(simulation, scheme, demand, len(nodes)),
        ),
        {reason.value: number for reason, number in RefusedNodes.of(refused).counts()},
        limited=limited,
    )


def _placed(
    simulation: SchedulingSimulation, scheme: SchedulerScheme, demand: PodDemand, wanted: int
) -> FitAnswer:
    """At most ``wanted`` pods, placed one after another on the nodes with the best scores."""
    offers = simulation.offers
    before = frozenset() if offers is None else frozenset(offers.closed_to(offers.wanted))
    placed, refused = place_pods(simulation, scheme, demand, min(wanted, MOST_PLACED))
    rejection = ""
    if refused is not None:
        largest = _largest(simulation, scheme, demand, len(placed))
        rejection = rejection_of(refused, scheme, demand, largest)
    limited: Mapping[str, NodeExclusion] = {}
    if offers is not None and refused is not None:
        closed = offers.closed_to(offers.wanted).items()
        limited = {name: NodeExclusion.of(why) for name, why in closed if name not in before}
    return FitAnswer(
        scheme.row.name,
        len(placed),
        refused is not None,
        node_fits(placed),
        rejection,
        limited=limited,
    )


def node_fits(placed: Iterable[PodPlacement]) -> tuple[NodeFit, ...]:
    """The placements by node."""
    on_nodes: dict[str, list[PodPlacement]] = {}
    for placement in placed:
        on_nodes.setdefault(placement.node, []).append(placement)
    return tuple(_node_fit(name, on_nodes[name]) for name in sorted(on_nodes))


def rejection_of(
    refused: RefusedNodes,
    scheme: SchedulerScheme,
    demand: PodDemand,
    largest_bytes: int | None = None,
) -> str:
    """The scheduler's event for a pod that these nodes refuse; "" without nodes.

    With the memory of the largest GPU where that is less than is requested.
    """
    if not refused.names:
        return ""
    summary = structs.replace(summary_of(refused), largest_bytes=largest_bytes)
    return rejection_text(summary, scheme, demand)


def _largest(
    simulation: SchedulingSimulation, scheme: SchedulerScheme, demand: PodDemand, pods: int
) -> int | None:
    """The largest GPU of the nodes that kube-scheduler may offer, if no pod fits on any."""
    if pods:
        return None
    views = simulation.cache.views(scheme, frozenset(simulation.names))
    return largest_gpu(scheme, demand, (view for _, view, _ in views))


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
