"""``vgpu inspect -o json``: the inventory as a document with stable fields.

Within a version fields are only added. Unknown values are null, never 0; times are RFC 3339 in UTC,
amounts are bytes and thousandths of one device's cores. docs/inspect.md describes the document.
"""

from collections.abc import Iterable
from datetime import UTC, datetime

import msgspec
from msgspec import UNSET, UnsetType

from vgpu.inventory import (
    FreeCapacity,
    Inventory,
    NodeView,
    Pending,
    Probe,
    available_bytes,
    closed,
)
from vgpu.inventory.nvidia import NvidiaDevices
from vgpu.inventory.other_schedulers import OtherPod
from vgpu.kube.pod_state import PodState
from vgpu.ledger import Conflict, DeviceEntry, Holding
from vgpu.model.allocation import Request
from vgpu.model.names import UNLIMITED_SHARING, PodRef, Sharing
from vgpu.model.objects import Node
from vgpu.model.units import MIB
from vgpu.schemes.kai.keys import KAI
from vgpu.schemes.kai.request import label_mib
from vgpu.schemes.other_schedulers import asked_fraction

API_VERSION = "vgpu.dev/v1alpha1"


class _Document(msgspec.Struct, frozen=True, rename="camel"):
    """The base of all parts."""


class PodName(_Document, frozen=True):
    """A pod; ``uid`` is its UID on the node: the real pod's for static pods and SharePods."""

    namespace: str
    name: str
    uid: str


class PodStateDocument(_Document, frozen=True):
    """The state of the pod; reason, message and restarts are the container's."""

    phase: str
    deleting_since: datetime | None
    waiting_reason: str
    waiting_message: str
    restarts: int


class ResourceClaimDocument(_Document, frozen=True):
    """A device of a ResourceClaim, as its driver names it; ``shareId`` is "" of a whole device."""

    name: str
    uid: str
    requests: list[str]
    driver: str
    pool: str
    device: str
    share_id: str
    memory_bytes: int | None
    cores_milli: int | None


class FractionSizesDocument(_Document, frozen=True):
    """The sizes that KAI Scheduler's parts compute of one share; null is unknown.

    ``room_bytes`` is compared with the room on a GPU, by the scheduler. ``limit_bytes`` is compared
    with the use, where HAMi-core enforces it. ``quota_gpus`` is compared with quotas, as the status
    of a Queue counts.
    """

    room_bytes: int | None
    limit_bytes: int | None
    quota_gpus: float | None


class HoldingDocument(_Document, frozen=True):
    """One container's share of one device.

    ``limit_state`` and ``limit_reason`` are whether the container is limited and why, as its
    exporter reports; absent if none was asked, or none reports it. ``sizes`` are those of KAI
    Scheduler; absent for other systems.
    """

    pod: PodName
    container: str
    scheme: str
    phase: str
    since: datetime | None
    device: str
    memory_bytes: int | None
    cores_milli: int | None
    shares: int
    sources: list[str]
    pod_state: PodStateDocument | None
    resource_claims: list[ResourceClaimDocument]
    limit_state: str | UnsetType = UNSET
    limit_reason: str | UnsetType = UNSET
    sizes: FractionSizesDocument | UnsetType = UNSET


class StandingDocument(_Document, frozen=True):
    """A pod that stands in the way of others on a node."""

    pod: PodName
    reason: str
    explanation: str


class DeviceDocument(_Document, frozen=True):
    """A device and its holdings; free is what is neither held nor kept free for other pods.

    ``memoryMaybeHeldBytes`` of the free memory pods may hold, whose GPU is not known; ``system`` is
    "" if no sharing system has registered the device.
    """

    name: str
    uuid: str
    index: int | None
    model: str
    healthy: bool
    memory_bytes: int | None
    memory_held_bytes: int
    memory_free_bytes: int | None
    cores_milli: int
    cores_held_milli: int
    cores_free_milli: int
    shares: int | None
    shares_held: int
    holdings: list[HoldingDocument]
    system: str
    memory_kept_bytes: int
    memory_maybe_held_bytes: int


class NodeDocument(_Document, frozen=True):
    """A node; ``known`` is false if only pods name it, and the API server does not have it.

    ``unit_confirmed`` is false if all sizes may be wrong, by a unit that its data contradicts.
    ``closed`` is why it takes no new pod, "" if it does. The amounts are of all pods and GPUs,
    whatever a filter shows; ``available`` is what of the free memory new shares can have, and
    ``maybeHeld`` what pods may hold of it, whose GPU is not known.
    """

    name: str
    known: bool
    ready: bool
    unschedulable: bool
    schemes: list[str]
    devices: list[DeviceDocument]
    unplaced: list[HoldingDocument]
    unit_confirmed: bool
    systems: list[str]
    closed: str
    closed_detail: str
    memory_free_bytes: int
    memory_available_bytes: int
    memory_kept_bytes: int
    memory_maybe_held_bytes: int
    maybe_held_by: list[PodName]
    standing: list[StandingDocument]


class RequestDocument(_Document, frozen=True):
    """A request from each of ``count`` devices; null memory is all that the device has."""

    count: int
    memory_bytes: int | None
    memory_percent: int | None
    cores_milli: int


class PendingDocument(_Document, frozen=True):
    """A container without a device; ``node`` is "" if it is not bound."""

    pod: PodName
    container: str
    scheme: str
    node: str
    reason: str
    explanation: str
    detail: str
    device: str
    since: datetime | None
    request: RequestDocument | None
    pod_state: PodStateDocument | None


class StatementDocument(_Document, frozen=True):
    """One source's statement in a conflict; ``node`` is the node it is for, "" if unknown."""

    source: str
    pod: PodName
    container: str
    node: str
    where: str


class ConflictDocument(_Document, frozen=True):
    """A conflict; ``pod`` is null if it is about several pods or about none."""

    node: str
    type: str
    explanation: str
    device: str
    pod: PodName | None
    container: str
    detail: str
    statements: list[StatementDocument]


class ProbeDocument(_Document, frozen=True):
    """The pod whose fits are counted; ``pendingPod`` is null for the most common share.

    The amounts are those of its largest request, ``requests`` are all.
    """

    memory_bytes: int | None
    memory_percent: int | None
    cores_milli: int
    pending_pod: PodName | None
    requests: list[RequestDocument]


class UnavailableDocument(_Document, frozen=True):
    """Free memory that no new share can have, and the GPUs or nodes that have it."""

    reason: str
    memory_bytes: int
    names: list[str]


class ClosedNodesDocument(_Document, frozen=True):
    """Nodes that take none of the counted pods, and why; ``detail`` is such as the taint."""

    reason: str
    detail: str
    names: list[str]


class FreeCapacityDocument(_Document, frozen=True):
    """The free capacity of one sharing system's devices; each device counts for one system.

    ``closed`` are nodes that other pods may use, and that take none of the counted ones.
    """

    scheme: str
    devices: int
    memory_bytes: int
    memory_held_bytes: int
    memory_free_bytes: int
    memory_usable_bytes: int | None
    fits: int | None
    probe: ProbeDocument | None
    unavailable: list[UnavailableDocument]
    system: str
    memory_kept_bytes: int
    memory_maybe_held_bytes: int
    maybe_held_by: list[PodName]
    closed: list[ClosedNodesDocument]


class NvidiaHolderDocument(_Document, frozen=True):
    """A container with ``number`` units of a resource of NVIDIA's own plugin."""

    pod: PodName
    container: str
    number: int
    since: datetime | None
    pod_state: PodStateDocument | None


class NvidiaDocument(_Document, frozen=True):
    """The devices of one resource of NVIDIA's own plugin on a node; ``node`` is "" for pods that
    are not bound. ``unlimited``: nothing limits what a container has of a device; null where the
    way of sharing is not known. ``capacity`` is more than ``allocatable`` while GPUs are unhealthy
    or the plugin does not run.
    """

    node: str
    resource: str
    sharing: str
    unlimited: bool | None
    model: str
    devices: int | None
    memory_bytes: int | None
    replicas: int | None
    allocatable: int
    held: int
    holders: list[NvidiaHolderDocument]
    capacity: int


class OtherPodDocument(_Document, frozen=True):
    """A pod of another GPU scheduler, whose share is not read; ``key`` is the label or annotation
    by which it is recognised, ``node`` is "" if it is not bound.
    """

    pod: PodName
    node: str
    scheduler: str
    key: str
    since: datetime | None
    pod_state: PodStateDocument | None


class InventoryDocument(_Document, frozen=True):
    """The whole document."""

    api_version: str
    kind: str
    as_of: datetime
    nodes: list[NodeDocument]
    pending: list[PendingDocument]
    conflicts: list[ConflictDocument]
    free_capacities: list[FreeCapacityDocument] = msgspec.field(name="rooms")
    notes: list[str]
    nvidia: list[NvidiaDocument]
    other_schedulers: list[OtherPodDocument]


def document(whole: Inventory, as_of: float) -> InventoryDocument:
    """The inventory, as it was at a time in unix seconds."""
    return InventoryDocument(
        api_version=API_VERSION,
        kind="Inventory",
        as_of=datetime.fromtimestamp(as_of, UTC),
        nodes=[_node(view, whole) for view in whole.nodes],
        pending=[_pending(pending, whole) for pending in whole.pending],
        conflicts=[
            _conflict(view.node.name, conflict)
            for view in whole.nodes
            for conflict in view.ledger.conflicts
        ],
        free_capacities=[_free_capacity(capacity) for capacity in whole.free_capacities],
        notes=list(whole.notes),
        nvidia=[_nvidia(devices) for devices in whole.nvidia],
        other_schedulers=[_other(other) for other in whole.others],
    )


def _node(view: NodeView, whole: Inventory) -> NodeDocument:
    return NodeDocument(
        name=view.node.name,
        known=view.known,
        ready=view.node.ready,
        unschedulable=view.node.unschedulable,
        schemes=[scheme.value for scheme in view.schemes],
        devices=[_device(view, entry, whole) for entry in view.ledger.devices],
        unplaced=_holdings(view.ledger.unplaced, whole, view.node),
        unit_confirmed=view.unit_confirmed,
        systems=list(view.systems),
        closed=reason.value if (reason := closed(view)) else "",
        closed_detail=view.detail,
        memory_free_bytes=view.free_bytes,
        memory_available_bytes=available_bytes(view),
        memory_kept_bytes=view.kept_bytes,
        memory_maybe_held_bytes=view.maybe_held.memory_bytes,
        maybe_held_by=[_pod(pod) for pod in view.maybe_held.pods],
        standing=[
            StandingDocument(_pod(each.pod), each.reason.value, each.explanation)
            for each in view.standing
        ],
    )


def _device(view: NodeView, entry: DeviceEntry, whole: Inventory) -> DeviceDocument:
    device = entry.device
    return DeviceDocument(
        name=device.name,
        uuid=device.uuid,
        index=device.index,
        model=device.model,
        healthy=device.healthy,
        memory_bytes=device.memory_bytes,
        memory_held_bytes=entry.held.memory_bytes,
        memory_free_bytes=view.free_memory_bytes(entry),
        cores_milli=device.cores_milli,
        cores_held_milli=entry.held.cores_milli,
        cores_free_milli=view.free_cores_milli(entry),
        shares=device.slots,
        shares_held=entry.held.slots,
        holdings=_holdings(entry.holdings, whole, view.node),
        system=view.system_of(entry),
        memory_kept_bytes=view.kept_of(entry).memory_bytes,
        memory_maybe_held_bytes=view.maybe_held_of(entry).memory_bytes,
    )


def _sizes(holding: Holding, node: Node, whole: Inventory) -> FractionSizesDocument | UnsetType:
    pod = whole.pods.get(holding.pod.uid)
    amount = asked_fraction(pod) if pod is not None and holding.scheme is KAI else None
    if amount is None:
        return UNSET
    label = label_mib(node)
    room, limit = amount.room_mib(label), amount.limit_mib(label)
    return FractionSizesDocument(
        None if room is None else room * MIB,
        None if limit is None else limit * MIB,
        amount.status_part(label),
    )


def _holdings(holdings: Iterable[Holding], whole: Inventory, node: Node) -> list[HoldingDocument]:
    return [
        HoldingDocument(
            pod=_pod(holding.pod),
            container=holding.container,
            scheme=holding.scheme.value,
            phase=holding.phase.value,
            since=_time(holding.since),
            device=holding.share.device,
            memory_bytes=holding.share.memory_bytes,
            cores_milli=holding.share.cores_milli,
            shares=holding.slots,
            sources=[source.value for source in holding.sources],
            pod_state=_state(whole.state(holding.pod, holding.container)),
            resource_claims=[
                ResourceClaimDocument(
                    name=part.resource_claim_device.resource_claim,
                    uid=part.resource_claim_device.resource_claim_uid,
                    requests=list(part.resource_claim_device.requests),
                    driver=part.resource_claim_device.driver,
                    pool=part.resource_claim_device.pool,
                    device=part.resource_claim_device.device,
                    share_id=part.resource_claim_device.share_id,
                    memory_bytes=part.memory_bytes,
                    cores_milli=part.cores_milli,
                )
                for part in holding.resource_claim_shares
            ],
            limit_state=UNSET if reason is None else reason.state.value,
            limit_reason=UNSET if reason is None else reason.value,
            sizes=_sizes(holding, node, whole),
        )
        for holding in holdings
        for reason in (whole.limit(holding.pod, holding.container),)
    ]


def _pending(pending: Pending, whole: Inventory) -> PendingDocument:
    request = pending.request
    return PendingDocument(
        pod=_pod(pending.pod),
        container=pending.container,
        scheme=pending.scheme.value,
        node=pending.node,
        reason=pending.reason.value,
        explanation=pending.reason.explanation,
        detail=pending.detail,
        device=pending.device,
        since=_time(pending.since),
        request=None if request is None else _request(request),
        pod_state=_state(whole.state(pending.pod, pending.container)),
    )


def _state(state: PodState | None) -> PodStateDocument | None:
    if state is None:
        return None
    return PodStateDocument(
        phase=state.phase,
        deleting_since=_time(state.deleting_since),
        waiting_reason=state.waiting_reason,
        waiting_message=state.waiting_message,
        restarts=state.restarts,
    )


def _request(request: Request) -> RequestDocument:
    return RequestDocument(
        request.count, request.memory_bytes, request.memory_percent, request.cores_milli
    )


def _conflict(node: str, conflict: Conflict) -> ConflictDocument:
    return ConflictDocument(
        node=node,
        type=conflict.kind.value,
        explanation=conflict.kind.explanation,
        device=conflict.device,
        pod=None if conflict.pod is None else _pod(conflict.pod),
        container=conflict.container,
        detail=conflict.detail,
        statements=[
            StatementDocument(
                statement.source.value,
                _pod(statement.pod),
                statement.container,
                statement.node,
                statement.where,
            )
            for statement in conflict.statements
        ],
    )


def _free_capacity(free: FreeCapacity) -> FreeCapacityDocument:
    probe = free.probe
    return FreeCapacityDocument(
        scheme=free.scheme.value,
        devices=free.gpus,
        memory_bytes=free.memory_bytes,
        memory_held_bytes=free.held_bytes,
        memory_free_bytes=free.free_bytes,
        memory_usable_bytes=free.usable_bytes if probe else None,
        fits=free.fits if probe else None,
        probe=None if probe is None else _probe(probe),
        unavailable=[
            UnavailableDocument(apart.reason.value, apart.memory_bytes, list(apart.names))
            for apart in free.apart
        ],
        system=free.system,
        memory_kept_bytes=free.kept_bytes,
        memory_maybe_held_bytes=free.maybe_held.memory_bytes,
        maybe_held_by=[_pod(pod) for pod in free.maybe_held.pods],
        closed=[
            ClosedNodesDocument(each.why.reason.value, each.why.detail, list(each.names))
            for each in free.closed
        ],
    )


def _probe(probe: Probe) -> ProbeDocument:
    pod = None if probe.pending is None else _pod(probe.pending)
    requests = [_request(request) for request in probe.requests]
    return ProbeDocument(probe.memory_bytes, probe.memory_percent, probe.cores_milli, pod, requests)


def _nvidia(of_node: NvidiaDevices) -> NvidiaDocument:
    devices = of_node.devices
    unknown = devices.sharing is Sharing.UNKNOWN
    return NvidiaDocument(
        node=of_node.node,
        resource=devices.resource,
        sharing=devices.sharing.value,
        unlimited=None if unknown else devices.sharing in UNLIMITED_SHARING,
        model=devices.model,
        devices=devices.devices,
        memory_bytes=devices.memory_bytes,
        replicas=devices.replicas,
        allocatable=devices.allocatable,
        held=of_node.held,
        holders=[
            NvidiaHolderDocument(
                _pod(holder.pod),
                holder.container,
                holder.number,
                _time(holder.since),
                _state(holder.state),
            )
            for holder in of_node.holders
        ],
        capacity=devices.capacity,
    )


def _other(other: OtherPod) -> OtherPodDocument:
    return OtherPodDocument(
        _pod(other.pod),
        other.node,
        other.recognised.scheduler.value,
        other.recognised.key,
        _time(other.since),
        _state(other.state),
    )


def _pod(pod: PodRef) -> PodName:
    return PodName(pod.namespace, pod.name, pod.uid)


_LATEST = 253402300799
"""The last second of the year 9999, in unix seconds; no clock has a later time."""


def _time(seconds: float | None) -> datetime | None:
    known = seconds is not None and 0 <= seconds <= _LATEST
    return datetime.fromtimestamp(seconds, UTC) if known and seconds is not None else None
