"""The inventory of a cluster: made of what was read, and its parts about a scheme, node or pods.

The pods that share GPUs and the schemes in use are detected first, then the ledgers of all nodes
become the inventory. Pure.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from vgpu.inventory.free_capacity import (
    available_bytes,
    capacity_probes,
    free_capacities,
    units_left,
)
from vgpu.inventory.kai_shares import (
    gpus_of_kai,
    held_by_kai,
    held_on_unknown_gpus,
    unchecked_note,
)
from vgpu.inventory.marked_pods import marked_note
from vgpu.inventory.model import Inventory, NodeView, Objects, Units
from vgpu.inventory.nvidia import SCHEME as NVIDIA
from vgpu.inventory.nvidia import is_on_unknown_gpu, nvidia_devices
from vgpu.inventory.other_schedulers import other_pods
from vgpu.inventory.pending import pending_containers
from vgpu.inventory.unit_check import NodeDoubt, doubt_notes, doubts_of, sizes_by_scheme
from vgpu.kube.closed_nodes import with_all_allocatable
from vgpu.kube.kept_keys import shares_gpus
from vgpu.kube.scheduling_objects import SchedulingObjects
from vgpu.ledger import Conflict, Ledger
from vgpu.ledger.cluster import ClusterLedgers, cluster
from vgpu.ledger.conflict_kinds import OF_GPU_GROUPS
from vgpu.ledger.from_resource_claims import ClusterResourceClaims
from vgpu.ledger.liveness import node_uid, pods_by_node_uid
from vgpu.model.names import PodRef, Scheme
from vgpu.model.objects import NODE_KIND, MalformedObject, Node, Pod
from vgpu.model.resource_claims import ResourceClaim, ResourceSlice
from vgpu.placement.cluster_views import ViewedNode, cluster_views
from vgpu.placement.dialects import scheduler_schemes
from vgpu.placement.node_offers import NodeOffers
from vgpu.placement.result import PlacementReason
from vgpu.schemes.codec import ClaimError, SchemeCodec
from vgpu.schemes.kai.groups import doubted_groups, is_reservation
from vgpu.schemes.kai.keys import KAI
from vgpu.schemes.registry import UnitBytes, registry


class DetectedSchemes(msgspec.Struct, frozen=True):
    """The pods that share GPUs, and the codecs that read them.

    Attributes:
        pods: the pods that share, joined with their SharePods; also SharePods without a pod.
        codecs: those of the schemes that some node or pod uses, in their units.
        nvidia: UIDs of pods with GPUs, replicas or MIG instances of NVIDIA's own device plugin.
        unit_bytes: bytes of one unit of memory in force, by the name of the registry's row.
        notes: the assumptions about the units, as sentences.
    """

    pods: tuple[Pod, ...]
    codecs: tuple[SchemeCodec, ...]
    nvidia: frozenset[str] = frozenset()
    unit_bytes: UnitBytes = {}
    notes: tuple[str, ...] = ()


def detect_schemes(objects: Objects, units: Units) -> DetectedSchemes:
    """Find the pods that share GPUs and the codecs that read them. Never raises."""
    schemes = registry()
    joined = schemes.join(schemes.resolved(objects.pods), objects.share_pods)
    is_foreign = schemes.foreign(objects.nodes)
    nvidia = frozenset(pod.ref.uid for pod in joined if is_foreign(pod))
    pods = tuple(pod for pod in joined if pod.ref.uid not in nvidia)
    unit_bytes, notes = schemes.assumed_units(units.by_row, objects.nodes)
    codecs = schemes.used(schemes.codecs(unit_bytes), objects.nodes, pods)
    return DetectedSchemes(pods, codecs, nvidia, unit_bytes, notes)


NO_SCHEDULING: Final = SchedulingObjects()
"""Nothing of what kube-scheduler reads beside GPUs."""

_NOT_PLACED: Final = ViewedNode(PlacementReason.NO_GPUS)

_NAMED: Final = 3
"""Number of malformed objects that a note names."""


def inventory(
    objects: Objects,
    units: Units,
    as_of: float = math.inf,
    scheduling: SchedulingObjects = NO_SCHEDULING,
) -> Inventory:
    """The inventory of these objects, as they were at a time in unix seconds. Never raises.

    The time decides on which GPUs something is kept free for pods that were bound just before.
    With what kube-scheduler reads of all nodes and pods, rooms are judged by its checks, too.
    """
    objects = replace(objects, pods=registry().resolved(objects.pods))
    schemes = detect_schemes(objects, units)
    ledgers = cluster(
        map(with_all_allocatable, objects.nodes),
        schemes.pods,
        schemes.codecs,
        objects.unhealthy,
        objects.resource_claims,
        lists_all=objects.lists_all,
        bind_requests=objects.bind_requests,
        config_maps=objects.config_maps,
        doubted_groups=doubted_groups(objects.pods),
    )
    placing = scheduler_schemes(schemes.unit_bytes)
    placements = cluster_views(
        placing,
        objects.nodes,
        objects.pods,
        now=as_of,
        malformed=objects.malformed,
        unhealthy=objects.unhealthy,
    )
    views = tuple(
        sorted(_views(objects, ledgers, placements, schemes), key=lambda view: view.node.name)
    )
    pending = pending_containers(ledgers, views, schemes.pods, schemes.codecs)
    doubts = _doubts(views, schemes)
    doubtful = {doubt.node for doubt in doubts}
    views = tuple(
        msgspec.structs.replace(view, unit_confirmed=view.node.name not in doubtful)
        for view in views
    )
    kai_uids = held_by_kai(ledgers.ledgers.values())
    notes = [
        *_malformed_note(objects.malformed),
        *schemes.notes,
        *doubt_notes(doubts),
        *marked_note(objects.pods),
        *unchecked_note(schemes.pods, lists_all=objects.lists_all),
    ]
    offers = NodeOffers(scheduling) if scheduling.nodes else None
    probes = capacity_probes(pending, pods_by_node_uid(schemes.pods), placing, offers)
    capacities = tuple(free_capacities(views, probes))
    nvidia = [pod for pod in objects.pods if pod.ref.uid in schemes.nvidia]
    reservations = filter(registry().is_reservation, objects.pods)
    return Inventory(
        views,
        pending,
        capacities,
        tuple(notes),
        pods_by_node_uid((*schemes.pods, *nvidia, *objects.resource_claims.pods)),
        nvidia_devices(objects.nodes, (*nvidia, *reservations)),
        other_pods(pod for pod in objects.pods if node_uid(pod) not in kai_uids),
        probes,
    )


def _doubts(views: Iterable[NodeView], schemes: DetectedSchemes) -> tuple[NodeDoubt, ...]:
    """What contradicts the units in force, by the registers and shares of all nodes."""
    views = tuple(views)
    shares = {view.node.name: sizes_by_scheme(view.ledger.holdings) for view in views}
    nodes = (view.node for view in views)
    return doubts_of(nodes, shares, registry().rows, schemes.unit_bytes)


def _malformed_note(malformed: Sequence[MalformedObject]) -> Iterator[str]:
    """The note about the unreadable objects; it names the first few."""
    if malformed:
        names = "; ".join(map(str, malformed[:_NAMED]))
        more = f"; and {len(malformed) - _NAMED} more" if len(malformed) > _NAMED else ""
        yield f"malformed objects, whose shares are not counted: {len(malformed)}: {names}{more}"


def _views(
    objects: Objects,
    ledgers: ClusterLedgers,
    placements: Mapping[str, ViewedNode],
    detected: DetectedSchemes,
) -> Iterator[NodeView]:
    known = {node.name: node for node in objects.nodes}
    unread = {each.name for each in objects.malformed if each.kind == NODE_KIND}
    of_nvidia: dict[str, list[Pod]] = {}
    for pod in objects.pods:
        if pod.node and (pod.ref.uid in detected.nvidia or is_on_unknown_gpu(pod)):
            of_nvidia.setdefault(pod.node, []).append(pod)
    reservations: dict[str, list[Pod]] = {}
    for pod in filter(is_reservation, objects.pods):
        reservations.setdefault(pod.node, []).append(pod)
    left = units_left(objects.nodes, objects.pods)
    publishing = {one.node for one in objects.resource_claims.slices if one.devices}
    for name, ledger in ledgers.ledgers.items():
        node = known.get(name, Node(name))
        schemes = set(registry().schemes_of(node))
        schemes.update(holding.scheme for holding in ledger.holdings)
        schemes.update(wanted.scheme for wanted in ledger.waiting)
        schemes.update(malformed.scheme for malformed in ledger.malformed)
        if any(each.kind in OF_GPU_GROUPS for each in ledger.conflicts):
            schemes.add(KAI)
        if ledger.devices and name in publishing:
            schemes.add(Scheme.DRA)
        if ledger.devices or schemes:
            known_schemes = (*registry().schemes, Scheme.NONE)
            ordered = tuple(scheme for scheme in known_schemes if scheme in schemes)
            systems = tuple(row.name for row in registry().rows if row.has_devices(node))
            placement = placements.get(name, _NOT_PLACED)
            of_kai = gpus_of_kai(ledger, reservations.get(name, ()))
            yield NodeView(
                node,
                ordered,
                ledger,
                known=name in known,
                is_unread=name in unread,
                placement=placement,
                in_use=placement.in_use,
                systems=systems,
                of_other_systems={
                    **of_other_systems(node, ledger, systems, schemes, detected.codecs),
                    **of_kai,
                },
                units_left=left.get(name, {}),
                of_nvidia=held_on_unknown_gpus(ledger, of_nvidia.get(name, ()), of_kai),
            )


def of_other_systems(
    node: Node,
    ledger: Ledger,
    systems: Sequence[str],
    schemes: Collection[Scheme],
    codecs: Iterable[SchemeCodec],
) -> Mapping[str, str]:
    """The system of each GPU that is not of the first one, "" if no system has registered it."""
    if len(systems) + (Scheme.DRA in schemes) < 2:  # two systems
        return {}
    own: dict[str, str] = {}
    by_name = {codec.name: codec for codec in codecs}
    for system in systems:
        try:
            devices = by_name[system].devices(node) if system in by_name else ()
        except ClaimError:
            continue
        for device in devices:
            own |= {name: system for name in device.names if name not in own}
    names = (entry.device.name for entry in ledger.devices)
    return {name: own.get(name, "") for name in names if own.get(name, "") not in systems[:1]}


def only_scheme(whole: Inventory, scheme: Scheme) -> Inventory:
    """The part about one scheme: its nodes, pending containers and free capacity."""
    return msgspec.structs.replace(
        whole,
        nodes=tuple(view for view in whole.nodes if scheme in view.schemes),
        pending=tuple(waiting for waiting in whole.pending if waiting.scheme is scheme),
        free_capacities=tuple(free for free in whole.free_capacities if free.scheme is scheme),
        nvidia=whole.nvidia if scheme is NVIDIA else (),
        others=(),
    )


def only_node(whole: Inventory, name: str) -> Inventory:
    """The part about one node; its free capacity is counted for all pending containers."""
    views = tuple(view for view in whole.nodes if view.node.name == name)
    pending = tuple(waiting for waiting in whole.pending if waiting.node == name)
    capacities = tuple(free_capacities(views, whole.probes))
    return msgspec.structs.replace(
        whole,
        nodes=views,
        pending=pending,
        free_capacities=capacities,
        nvidia=tuple(devices for devices in whole.nvidia if devices.node == name),
        others=tuple(other for other in whole.others if other.node == name),
    )


def of_node(objects: Objects, name: str) -> Objects:
    """The objects on one node, and the pods that are not bound yet."""
    here = ("", name)
    return msgspec.structs.replace(
        objects,
        nodes=tuple(node for node in objects.nodes if node.name == name),
        pods=tuple(pod for pod in objects.pods if pod.node in here),
        share_pods=tuple(pod for pod in objects.share_pods if pod.node in here),
        malformed=tuple(
            malformed
            for malformed in objects.malformed
            if (
                malformed.name == name if malformed.kind == NODE_KIND else malformed.may_be_on(name)
            )
        ),
        resource_claims=ClusterResourceClaims(
            tuple(
                resource_claim
                for resource_claim in objects.resource_claims.resource_claims
                if resource_claim.node in here
            ),
            tuple(one for one in objects.resource_claims.slices if one.node in here),
            tuple(pod for pod in objects.resource_claims.pods if pod.node in here),
        ),
    )


def with_resource_claims(
    pods: Iterable[Pod],
    resource_claims: Iterable[ResourceClaim] = (),
    slices: Iterable[ResourceSlice] = (),
) -> tuple[tuple[Pod, ...], ClusterResourceClaims]:
    """The pods that share GPUs, and the ResourceClaims with the pods that only use these."""
    sharing: list[Pod] = []
    resource_claim_pods: list[Pod] = []
    for pod in pods:
        (sharing if shares_gpus(pod) else resource_claim_pods).append(pod)
    return tuple(sharing), ClusterResourceClaims(
        tuple(resource_claims), tuple(slices), tuple(resource_claim_pods)
    )


ChoosesPod = Callable[[PodRef], bool]


def only_pods(whole: Inventory, chooses: ChoosesPod) -> Inventory:
    """The pods that are chosen, with their GPUs and nodes; sums of GPUs are those of all pods."""
    views = (_of_pods(view, chooses) for view in whole.nodes)
    return replace(
        whole,
        nodes=tuple(view for view in views if view.ledger.devices or view.ledger.unplaced),
        pending=tuple(pending for pending in whole.pending if chooses(pending.pod)),
        nvidia=tuple(
            replace(devices, holders=own)
            for devices in whole.nvidia
            if (own := tuple(each for each in devices.holders if chooses(each.pod)))
        ),
        others=tuple(other for other in whole.others if chooses(other.pod)),
    )


def _of_pods(view: NodeView, chooses: ChoosesPod) -> NodeView:
    ledger = view.ledger
    entries = (
        replace(entry, holdings=tuple(own for own in entry.holdings if chooses(own.pod)))
        for entry in ledger.devices
    )
    return replace(
        view,
        whole=view.full_ledger,
        ledger=replace(
            ledger,
            devices=tuple(entry for entry in entries if entry.holdings),
            unplaced=tuple(holding for holding in ledger.unplaced if chooses(holding.pod)),
            conflicts=tuple(wrong for wrong in ledger.conflicts if _is_of(wrong, chooses)),
        ),
    )


def _is_of(conflict: Conflict, chooses: ChoosesPod) -> bool:
    pods = [statement.pod for statement in conflict.statements]
    return any(map(chooses, [conflict.pod] if conflict.pod is not None else pods))


def _held(view: NodeView) -> int:
    return sum(entry.held.memory_bytes for entry in view.full_ledger.devices)


SORTS: Final[Mapping[str, Callable[[NodeView], Any]]] = {
    "name": lambda view: view.node.name,
    "free": lambda view: (-available_bytes(view), view.node.name),
    "held": lambda view: (-_held(view), view.node.name),
    "conflicts": lambda view: (-len(view.ledger.conflicts), view.node.name),
}
"""The orders of nodes, by their names; amounts from the largest to the smallest."""


def in_order(whole: Inventory, sort: str) -> Inventory:
    """The same with its nodes in this order of :data:`SORTS`."""
    return replace(whole, nodes=tuple(sorted(whole.nodes, key=SORTS[sort])))
