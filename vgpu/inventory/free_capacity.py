"""The free capacity of each sharing system's GPUs, and the part that further pods could use.

A GPU counts for one system. Pods of systems that our scheduler places for are counted by their
placement algorithm on the nodes as it finds them, and by the checks of kube-scheduler
(:mod:`vgpu.placement.node_offers`): taints, node selectors and affinity, CPU, memory, the number of
pods and extended resources. So there is room for as many as ``vgpu fit`` answers and the scheduler
binds. Where only GPUs were read, taints and units alone are judged. Of other systems there is room
for as many shares as the ledger's numbers leave.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from vgpu.inventory.model import (
    CapacityProbes,
    ClosedNodes,
    FreeCapacity,
    MaybeHeld,
    NodeView,
    Pending,
    Probe,
    UnavailableMemory,
    UnavailableReason,
)
from vgpu.kube.closed_nodes import (
    ClosedNode,
    ClosedReason,
    closed_to,
    closed_to_new_pods,
    none_allocatable,
)
from vgpu.kube.kept_keys import is_gpu_resource
from vgpu.kube.scheduling_objects import SchedulingPod
from vgpu.ledger import DeviceEntry
from vgpu.model.allocation import Request
from vgpu.model.names import PodRef, Scheme
from vgpu.model.objects import Node, Pod
from vgpu.model.taints import Taint, Toleration
from vgpu.placement.candidate import PodDemand
from vgpu.placement.dialects import SchedulerScheme, demand_of
from vgpu.placement.node_offers import NodeOffers
from vgpu.placement.pod_count import MOST_ON_NODE, PodCounter
from vgpu.placement.result import PlacementReason
from vgpu.schemes.registry import registry

_SHORT: Final = 12
"""Length of a UUID that identifies a GPU for people: GPU-8dcd427f."""

_OF_CLOSED: Final = {
    ClosedReason.NOT_READY: UnavailableReason.NOT_READY,
    ClosedReason.CORDONED_NODE: UnavailableReason.CORDONED,
}

_OF_PLACEMENT: Final = {
    PlacementReason.MIXED_NODE: UnavailableReason.MIXED_NODE,
    PlacementReason.UNREADABLE: UnavailableReason.UNREADABLE,
}

_OF_ONE_GPU: Final = frozenset({UnavailableReason.UNHEALTHY, UnavailableReason.CORDONED_GPU})

_COMMON: Final = PodRef("", "", "")
"""The pod with the most common share."""

_NOTHING: Final[Mapping[str, int]] = {}

_Place = tuple[NodeView, DeviceEntry]


def capacity_probes(
    pending: Iterable[Pending],
    pods: Mapping[str, Pod],
    schemes: Sequence[SchedulerScheme],
    offers: NodeOffers | None = None,
) -> CapacityProbes:
    """The largest request without a node of each system; ``pods`` are by the UID on the node."""
    waiting = [
        each
        for each in pending
        if not each.node and each.request and not each.request.has_unknown_amounts
    ]
    waiting.sort(key=_size_of, reverse=True)
    largest: dict[str, Probe] = {}
    for each in waiting:
        pod, request = pods.get(each.pod.uid), each.request
        demanded = None if pod is None else demand_of(pod, schemes)
        system, demand = "", None
        if isinstance(demanded, tuple):
            system, demand = demanded[0].row.name, demanded[1]
        elif (row := registry().of(each.scheme)) and not any(
            scheme.row.scheme is each.scheme for scheme in schemes
        ):
            system = row.name
        if system and request is not None and system not in largest:
            largest[system] = Probe(
                request.memory_bytes,
                request.memory_percent,
                request.cores_milli,
                each.pod,
                demand,
                () if pod is None else pod.tolerations,
            )
    return CapacityProbes(largest, {scheme.row.name: scheme for scheme in schemes}, offers)


def free_capacities(views: Sequence[NodeView], probes: CapacityProbes) -> Iterator[FreeCapacity]:
    """The free capacity of each system's GPUs on these nodes.

    Without GPUs is a system that a pod waits for, if others on the same nodes have its GPUs.
    """
    by_system: dict[str, list[_Place]] = {}
    for view in views:
        for entry in view.full_ledger.devices:
            by_system.setdefault(view.system_of(entry), []).append((view, entry))
    for row in registry().rows:
        places = by_system.get(row.name, [])
        if not places and not _is_asked_in_vain(row.name, views, probes):
            continue
        of_nodes = {view.node.name: view for view, _ in places}
        free = sum(view.free_memory_bytes(entry) or 0 for view, entry in places)
        unknown = [each for view in of_nodes.values() for each in view.on_unknown_gpu]
        capacity = FreeCapacity(
            row.name,
            row.scheme,
            gpus=len(places),
            memory_bytes=sum(entry.device.memory_bytes or 0 for _, entry in places),
            held_bytes=sum(entry.held.memory_bytes for _, entry in places),
            free_bytes=free,
            apart=tuple(_apart(places)),
            kept_bytes=sum(view.kept_of(entry).memory_bytes for view, entry in places),
            maybe_held=MaybeHeld.of(unknown, free),
            unsized=sum(entry.device.memory_bytes is None for _, entry in places),
        )
        probe = probes.pending.get(row.name) or _common_share(row.scheme, places)
        if probe is not None:
            scheme = probes.schemes.get(row.name)
            shut = dict(_closed_to(probe, of_nodes.values(), scheme, probes.offers))
            if scheme is None:
                open_places = (each for each in places if each[0].node.name not in shut)
                fits, usable = _count_shares(open_places, probe)
            else:
                open_nodes = [view for name, view in of_nodes.items() if name not in shut]
                fits, usable = _count_pods(open_nodes, scheme, probe, probes.offers)
            usable = min(usable, capacity.available_bytes)
            capacity = msgspec.structs.replace(
                capacity, probe=probe, fits=fits, usable_bytes=usable, closed=_by_reason(shut)
            )
        yield capacity


def _closed_to(
    probe: Probe,
    views: Iterable[NodeView],
    scheme: SchedulerScheme | None,
    offers: NodeOffers | None,
) -> Iterator[tuple[str, ClosedNode]]:
    """The nodes that take other pods and none of the counted ones, by name."""
    wanted = None if offers is None else _asked(probe, offers)
    for view in views:
        if closed(view) is not None:
            continue
        name = view.node.name
        why = closed_to(probe.tolerations, (view.node,)).get(name)
        if offers is not None and wanted is not None:
            why = offers.closed(name, wanted)
            is_gone = why is not None and why.reason is ClosedReason.NOTHING_ALLOCATABLE
            if is_gone and not any(map(_is_healthy, view.full_ledger.devices)):
                why = None  # that its GPUs are unhealthy is the reason
        if why is None and scheme is not None and probe.demand is not None:
            why = _misses_units(view, scheme, probe.demand)
        if why is not None:
            yield name, why


def _asked(probe: Probe, offers: NodeOffers) -> SchedulingPod:
    """What kube-scheduler reads of the counted pod: all of one that waits, else its units."""
    demand = probe.demand
    units = {} if demand is None else dict(demand.units)
    of_probe = SchedulingPod(units, tolerations=probe.tolerations)
    own = None if probe.pending is None else offers.known(probe.pending.uid)
    return own or of_probe


def _misses_units(view: NodeView, scheme: SchedulerScheme, demand: PodDemand) -> ClosedNode | None:
    """That the node does not have a resource that the pod requests, such as a misspelt one.

    A resource of a sharing system that the node does not have may be one that only its scheduler
    counts (:class:`~vgpu.kube.closed_nodes.FreeResources`).
    """
    if not view.units_left:
        return None
    uncompared, known = _uncompared(scheme), registry().resource_names
    for name, units in demand.units:
        is_counted = name in known and name not in view.node.capacity
        if units and name not in view.units_left and name not in uncompared and not is_counted:
            detail = f"{units} of {name} requested, and it has none"
            return ClosedNode(ClosedReason.INSUFFICIENT_RESOURCE, detail)
    return None


def _uncompared(scheme: SchedulerScheme) -> frozenset[str]:
    """What kube-scheduler does not compare, since only the scheduler of the system counts it."""
    return frozenset((*scheme.dialect_row.only_counted, *scheme.dialect_row.unread))


def _by_reason(shut: Mapping[str, ClosedNode]) -> tuple[ClosedNodes, ...]:
    """The nodes by reason, each with the detail that all have, or with that of the first.

    Each taint is a reason of its own.
    """
    nodes: dict[tuple[ClosedReason, str], dict[str, ClosedNode]] = {}
    for name, why in sorted(shut.items()):
        taint = why.detail if why.reason is ClosedReason.TAINTED_NODE else ""
        nodes.setdefault((why.reason, taint), {})[name] = why
    found = []
    for of_reason in nodes.values():
        (first, why), *_ = of_reason.items()
        if len({each.detail for each in of_reason.values()}) > 1:
            why = ClosedNode(why.reason, f"{first}: {why.detail}")
        found.append(ClosedNodes(why, tuple(of_reason)))
    return tuple(found)


def _is_asked_in_vain(system: str, views: Iterable[NodeView], probes: CapacityProbes) -> bool:
    """Whether a pod waits for the system, whose GPUs all count for other systems of their nodes."""
    return system in probes.pending and any(system in view.systems for view in views)


def closed(view: NodeView) -> UnavailableReason | None:
    """Why the node takes no new pod; None if it takes some."""
    kept_off = closed_to_new_pods(view.node)
    if kept_off is not None:
        return _OF_CLOSED[kept_off.reason]
    reason = view.placement.closed
    if reason is not None:
        return _OF_PLACEMENT[reason]
    # Of unhealthy GPUs alone nothing is allocatable either: each of them has its own reason.
    if _serves_nothing(view) and any(map(_is_healthy, view.full_ledger.devices)):
        return UnavailableReason.NOTHING_ALLOCATABLE
    return None


def _serves_nothing(view: NodeView) -> bool:
    """Whether nothing is allocatable of a resource of the node's own systems.

    What another device plugin has left there does not count, unless the node advertises nothing
    else: the names of its systems' resources may have been changed.
    """
    gone, by_system = none_allocatable(view.node), registry().advertised_by
    own = frozenset().union(*(by_system.get(system, ()) for system in view.systems))
    return not own.isdisjoint(gone) or bool(gone and own.isdisjoint(view.node.capacity))


def unavailable(view: NodeView, entry: DeviceEntry) -> UnavailableReason | None:
    """Why no new share can have the free memory of this GPU; None if it can."""
    reason = closed(view)
    if reason is not None and reason is not UnavailableReason.NOTHING_ALLOCATABLE:
        return reason
    if not _is_healthy(entry):
        return UnavailableReason.UNHEALTHY
    used = view.in_use.get(entry.device.name)
    return UnavailableReason.CORDONED_GPU if used is not None and used.cordoned else reason


def _is_healthy(entry: DeviceEntry) -> bool:
    return entry.device.healthy and not entry.lost


def available_bytes(view: NodeView) -> int:
    """The free memory of a node that new shares can have."""
    return sum(
        view.free_memory_bytes(entry) or 0
        for entry in view.full_ledger.devices
        if unavailable(view, entry) is None
    )


def _apart(places: Iterable[_Place]) -> Iterator[UnavailableMemory]:
    """Free memory that no new share can have, each GPU once."""
    sums: dict[UnavailableReason, tuple[int, dict[str, None]]] = {}
    for view, entry in places:
        reason = unavailable(view, entry)
        free = view.free_memory_bytes(entry)
        if reason is None or not free:
            continue
        memory, names = sums.get(reason, (0, {}))
        name = view.node.name
        if reason in _OF_ONE_GPU:
            name += f" {entry.device.name[:_SHORT]}"
        sums[reason] = memory + free, {**names, name: None}
    for reason in UnavailableReason:
        if reason in sums:
            yield UnavailableMemory(reason, sums[reason][0], tuple(sums[reason][1]))


def _common_share(scheme: Scheme, places: Sequence[_Place]) -> Probe | None:
    """The most common share (of equals the larger) of these GPUs; None if there is no share."""
    of_nodes = {view.node.name: view.full_ledger.unplaced for view, _ in places}
    holdings = (*(entry.holdings for _, entry in places), *of_nodes.values())
    shares = Counter(
        (holding.share.memory_bytes, holding.share.cores_milli or 0)
        for own in holdings
        for holding in own
        if holding.scheme is scheme and holding.share.memory_bytes
    )
    if not shares:
        return None
    (memory, cores), _ = max(shares.items(), key=lambda item: (item[1], item[0]))
    demand = PodDemand(_COMMON, (Request("", 1, memory, cores_milli=cores),))
    return Probe(memory, None, cores, demand=demand, tolerations=_tolerated(scheme, places))


def _tolerated(scheme: Scheme, places: Iterable[_Place]) -> tuple[Toleration, ...]:
    """The taints of these nodes that pods of the scheme tolerate, as far as that shows.

    Of a bound pod it is known only where it is. A taint that is named after a GPU's resource is
    tolerated by pods that request this (Kubernetes' admission plugin ExtendedResourceToleration).
    """
    views = {view.node.name: view for view, _ in places}.values()
    tolerated: dict[Taint, None] = {}
    for view in views:
        is_used = any(each.scheme is scheme for each in view.full_ledger.holdings)
        for taint in view.node.taints:
            if is_used or is_gpu_resource(taint.key):
                tolerated[taint] = None
    return tuple(Toleration(each.key, value=each.value, effect=each.effect) for each in tolerated)


def _size_of(pending: Pending) -> tuple[int, int, int, int]:
    """The order of requests: a whole GPU is more than a part of it, a part more than any bytes."""
    request = pending.request or Request("", 0, 0)
    whole = request.memory_bytes is None and request.memory_percent is None
    return whole, request.memory_percent or 0, request.memory_bytes or 0, request.cores_milli


def _count_pods(
    views: Iterable[NodeView],
    scheme: SchedulerScheme,
    probe: Probe,
    offers: NodeOffers | None,
) -> tuple[int, int]:
    """The number of pods that the nodes take one after another, and their memory."""
    if probe.demand is None:
        return 0, 0
    counter = PodCounter(scheme.dialect, probe.demand, MOST_ON_NODE)
    pods = memory = 0
    for view in views:
        found = view.placement.view
        if found is None or view.placement.system != scheme.row.name or closed(view) is not None:
            continue
        left = _pods_by_units(view, scheme, probe.demand)
        if offers is not None:
            left = offers.room(view.node.name, _asked(probe, offers))
        counted = counter.first(found.candidate, MOST_ON_NODE if left is None else left)
        pods += counted.pods
        memory += counted.memory_bytes
    return pods, memory


def _pods_by_units(view: NodeView, scheme: SchedulerScheme, demand: PodDemand) -> int | None:
    """The number of pods for which the node's kubelet has units left; None without a bound."""
    uncompared = _uncompared(scheme)
    bounds = (
        max(0, view.units_left[name]) // units
        for name, units in demand.units
        if units and name in view.units_left and name not in uncompared
    )
    return min(bounds, default=None)


def units_left(nodes: Iterable[Node], pods: Iterable[Pod]) -> Mapping[str, Mapping[str, int]]:
    """What is allocatable of the units of each node beside what its pods request, by its name."""
    used: dict[str, Counter[str]] = {}
    for pod in pods:
        if pod.node and not pod.terminal:
            used.setdefault(pod.node, Counter()).update(pod.requested_units())
    left = {}
    for node in nodes:
        beside = used.get(node.name, _NOTHING)
        left[node.name] = {
            name: units - beside.get(name, 0) for name, units in node.allocatable.items()
        }
    return left


def _count_shares(places: Iterable[_Place], probe: Probe) -> tuple[int, int]:
    """The number of such shares for which the ledger's numbers leave room, and their bytes."""
    fits = usable = 0
    for view, entry in places:
        device, free = entry.device, view.free_memory_bytes(entry)
        if unavailable(view, entry) is not None or free is None or device.memory_bytes is None:
            continue
        if probe.memory_bytes is not None:
            memory = probe.memory_bytes
        else:
            memory = device.memory_bytes * (probe.memory_percent or 100) // 100
        bounds = [free // memory] if memory else []
        if probe.cores_milli:
            bounds.append(view.free_cores_milli(entry) // probe.cores_milli)
        if device.slots is not None:
            bounds.append(max(0, device.slots - entry.held.slots))
        count = min(bounds, default=0)
        fits += count
        usable += count * memory
    return fits, usable
