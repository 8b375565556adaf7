"""The values of an inventory: the cluster's objects, and what a person is shown."""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from vgpu.inventory.nvidia import NvidiaDevices
from vgpu.inventory.other_schedulers import OtherPod
from vgpu.kube.closed_nodes import ClosedNode
from vgpu.kube.kai_kinds import BindRequest
from vgpu.kube.pod_state import PodState, pod_state
from vgpu.ledger import DeviceEntry, Holding, Ledger
from vgpu.ledger.entries import HoldingSum
from vgpu.ledger.from_resource_claims import ClusterResourceClaims
from vgpu.ledger.limit_verdict import LimitReason
from vgpu.model.allocation import Request
from vgpu.model.names import PodRef, Scheme
from vgpu.model.objects import MalformedObject, Node, Pod
from vgpu.model.reasons import Explained
from vgpu.model.taints import Toleration
from vgpu.model.units import MIB
from vgpu.placement.candidate import PodDemand, UsedGpu
from vgpu.placement.cluster_views import ViewedNode
from vgpu.placement.dialects import SchedulerScheme
from vgpu.placement.node_offers import NodeOffers
from vgpu.placement.node_view import StandingPod
from vgpu.placement.result import PlacementReason
from vgpu.schemes.kai.config_map import ConfigMaps
from vgpu.schemes.kai.keys import KAI
from vgpu.schemes.registry import UnitBytes, registry


class Objects(msgspec.Struct, frozen=True):
    """The objects that were read from the API server.

    ``pods`` are those that share GPUs; ``unhealthy`` is the text of gpushare's ConfigMaps by node;
    ``malformed`` are the unreadable objects, ``resource_claims`` those of dynamic resource
    allocation, ``bind_requests`` and ``config_maps`` those of KAI Scheduler. ``lists_all`` is
    whether no pod of any namespace is missing, which a dump does not show.
    """

    nodes: tuple[Node, ...] = ()
    pods: tuple[Pod, ...] = ()
    share_pods: tuple[Pod, ...] = ()
    unhealthy: Mapping[str, str] = {}
    malformed: tuple[MalformedObject, ...] = ()
    resource_claims: ClusterResourceClaims = ClusterResourceClaims()
    lists_all: bool = False
    bind_requests: tuple[BindRequest, ...] = ()
    config_maps: ConfigMaps = {}


class Units(msgspec.Struct, frozen=True):
    """The units that the operators of the sharing systems have set.

    ``volcano_factor`` is MiB of one unit of Volcano's memory, ``gpushare_unit`` bytes of one unit
    of gpushare's; None means that it is derived from the sizes of the GPUs.
    """

    volcano_factor: int = 1
    gpushare_unit: int | None = None

    @property
    def by_row(self) -> UnitBytes:
        """Bytes of one unit, by the name of the registry's row; None means that it is derived."""
        return {"volcano": self.volcano_factor * MIB, "gpushare": self.gpushare_unit}


class WaitingReason(Explained):
    """Why a container has no device; ``explanation`` is the sentence for people."""

    UNREADABLE = "unreadable", "the pod's data about its device cannot be decoded"
    UNSCHEDULABLE = "unschedulable", "no node fits the pod"
    NOT_SCHEDULED = "not_scheduled", "no scheduler has tried to place the pod"
    GATED = "gated", "a scheduling gate keeps every scheduler from the pod"
    NO_ANNOTATION = (
        "no_annotation",
        "the pod is bound to its node, but no scheduler chose a device for it",
    )
    RUNNING_WITHOUT = (
        "running_without",
        "the container runs, but no scheduler chose a device for it",
    )
    DEVICE_MISSING = "device_missing", "the container's device is not on the node"
    DEVICE_UNHEALTHY = "device_unhealthy", "the device is unhealthy"
    FAILED = "failed", "the device plugin could not serve the pod"
    NOT_BOUND = "not_bound", "a device is reserved, but the pod is not bound to the node"
    NOT_ASSIGNED = (
        "not_assigned",
        "a device is reserved, but was never allocated",
    )


class Pending(msgspec.Struct, frozen=True, gc=False):
    """A container that has no device, or none yet.

    Attributes:
        pod: its pod.
        container: its name; "" for the whole pod.
        scheme: the scheme of the resources that it requests.
        node: the node that it is bound or reserved to; "" if none.
        reason: why it has no device.
        detail: the message of the scheduler or of the reader; "" if there is none.
        device: the device that was reserved or allocated; "" if none.
        since: when the state began, unix seconds; None if unknown.
        request: what it requests; None if that is unreadable.
    """

    pod: PodRef
    container: str
    scheme: Scheme
    node: str
    reason: WaitingReason
    detail: str = ""
    device: str = ""
    since: float | None = None
    request: Request | None = None


class MaybeHeld(msgspec.Struct, frozen=True, gc=False):
    """The part of an amount of free memory that pods on an unknown GPU may hold."""

    memory_bytes: int = 0
    pods: tuple[PodRef, ...] = ()

    @classmethod
    def of(cls, holdings: Iterable[Holding], free_bytes: int) -> "MaybeHeld":
        """Of these holdings; a share of unknown size may be all that is free.

        A device of a ResourceClaim without a size may be no GPU at all, and is left out.
        """
        amounts: list[int] = []
        pods: dict[PodRef, None] = {}
        for holding in holdings:
            memory = holding.share.memory_bytes
            if memory == 0 or (memory is None and holding.resource_claim_shares):
                continue
            amounts.append(free_bytes if memory is None else memory)
            pods[holding.pod] = None
        most = min(free_bytes, sum(amounts))
        return cls(most, tuple(pods)) if most else NOT_HELD


NOT_HELD: Final = MaybeHeld()


class NodeView(msgspec.Struct, frozen=True, gc=False):
    """A node, the schemes that share its GPUs, its ledger, and its GPUs as placements find them.

        free(g) = capacity(g) - max(held(g) in the ledger, in use(g) for placements)

    The difference is kept free: for pods whose GPUs are not known, and for what another scheduler
    has reserved. Without a view of placements it is what the ledger has.

    Attributes:
        node, schemes, ledger: the node; its pods may be those that a filter chooses.
        known: False if only pods name the node, or if its object cannot be read (``is_unread``).
        unit_confirmed: False if its data contradicts the unit of memory in force, so that all its
            sizes may be wrong.
        placement: the node as placements find it.
        in_use: its GPUs as placements find them, by each of their names.
        systems: the names of the sharing systems whose GPUs it has registered.
        of_other_systems: the system of each GPU that is not of the first of these, by its name; ""
            is none.
        whole: the ledger of all pods, if ``ledger`` has only some.
        units_left: what is allocatable of each extended resource beside what the node's pods
            request.
        of_nvidia: what pods of NVIDIA's own plugin hold of GPUs that another system has registered.
    """

    node: Node
    schemes: tuple[Scheme, ...]
    ledger: Ledger
    known: bool = True
    is_unread: bool = False
    unit_confirmed: bool = True
    placement: ViewedNode = ViewedNode(PlacementReason.NO_GPUS)
    in_use: Mapping[str, UsedGpu] = {}
    systems: tuple[str, ...] = ()
    of_other_systems: Mapping[str, str] = {}
    whole: Ledger | None = None
    units_left: Mapping[str, int] = {}
    of_nvidia: tuple[Holding, ...] = ()

    @property
    def full_ledger(self) -> Ledger:
        """The ledger of all pods, whatever a filter chooses."""
        return self.ledger if self.whole is None else self.whole

    @property
    def standing(self) -> tuple[StandingPod, ...]:
        """The pods that stand in the way of others, by name."""
        return () if self.placement.view is None else self.placement.view.standing

    @property
    def detail(self) -> str:
        """What exactly closes the node, for people; "" where the reason is enough."""
        view = self.placement.view
        return "" if view is None or view.reason is None else view.detail

    @property
    def sharing(self) -> tuple[str, ...]:
        """The names of the node's sharing systems, then the schemes that only its pods have."""
        registered = self._registered_schemes()
        return (*self.systems, *(each for each in self.schemes if each not in registered))

    def system_of(self, entry: DeviceEntry) -> str:
        """The sharing system in whose sums the GPU counts; "" if no system has registered it."""
        first = self.systems[0] if self.systems else ""
        return self.of_other_systems.get(entry.device.name, first)

    def kept_of(self, entry: DeviceEntry) -> HoldingSum:
        """What placements find in use of the GPU beside what the ledger has held."""
        used, held = self.in_use.get(entry.device.name), entry.held
        if used is None:
            return HoldingSum()
        return HoldingSum(
            max(0, used.memory_bytes - held.memory_bytes),
            max(0, used.cores_milli - held.cores_milli),
            max(0, used.users - held.slots),
        )

    def free_memory_bytes(self, entry: DeviceEntry) -> int | None:
        """The memory that new shares can have, never below 0; None if the GPU's is unknown."""
        free = entry.free_memory_bytes
        return None if free is None else max(0, free - self.kept_of(entry).memory_bytes)

    def free_cores_milli(self, entry: DeviceEntry) -> int:
        """The cores that new shares can have, never below 0."""
        return max(0, entry.free_cores_milli - self.kept_of(entry).cores_milli)

    @property
    def free_bytes(self) -> int:
        """The memory that is neither held nor kept free, of all GPUs."""
        return sum(self.free_memory_bytes(entry) or 0 for entry in self.full_ledger.devices)

    @property
    def kept_bytes(self) -> int:
        """The memory that is kept free, of all GPUs."""
        return sum(self.kept_of(entry).memory_bytes for entry in self.full_ledger.devices)

    # ------------------------------------------------------------ what is on an unknown GPU

    @property
    def on_unknown_gpu(self) -> tuple[Holding, ...]:
        """The holdings on no known GPU for which nothing is kept free."""
        if not self.full_ledger.unplaced:
            return self.of_nvidia
        kept = {(each.pod.namespace, each.pod.name) for each in self.standing}
        unplaced = (
            holding
            for holding in self.full_ledger.unplaced
            if (holding.pod.namespace, holding.pod.name) not in kept
        )
        return (*unplaced, *self.of_nvidia)

    @property
    def maybe_held(self) -> MaybeHeld:
        """How much of the free memory pods may hold, whose GPU is not known."""
        return MaybeHeld.of(self.on_unknown_gpu, self.free_bytes)

    def maybe_held_of(self, entry: DeviceEntry) -> MaybeHeld:
        """How much of the free memory of a GPU pods may hold, whose GPU is not known."""
        unknown = self.on_unknown_gpu
        if not unknown or self.system_of(entry) == KAI.value:  # reserved as a whole
            return NOT_HELD
        own, registered = self._scheme_of(entry), self._registered_schemes()
        may = [each for each in unknown if each.scheme not in registered or each.scheme is own]
        return MaybeHeld.of(may, self.free_memory_bytes(entry) or 0)

    def _scheme_of(self, entry: DeviceEntry) -> Scheme | None:
        return registry().schemes_by_name.get(self.system_of(entry))

    def _registered_schemes(self) -> frozenset[Scheme]:
        by_name = registry().schemes_by_name
        return frozenset(by_name[name] for name in self.systems)


class Probe(msgspec.Struct, frozen=True, gc=False):
    """The pod whose further fits are counted.

    Attributes:
        memory_bytes: of one GPU; None with ``memory_percent`` None is all that the GPU has.
        memory_percent: of the GPU's memory, in place of bytes.
        cores_milli: thousandths of one GPU's cores.
        pending: the pod of the largest pending request, or None for the most common share.
        demand: all that the pod requests; None where no placement algorithm is known.
        tolerations: the taints that it tolerates; for the most common share those of nodes with
            pods of the system, and those that are named after a GPU's resource.
    """

    memory_bytes: int | None
    memory_percent: int | None
    cores_milli: int
    pending: PodRef | None = None
    demand: PodDemand | None = None
    tolerations: tuple[Toleration, ...] = ()

    @property
    def requests(self) -> tuple[Request, ...]:
        """What the pod requests, by container."""
        if self.demand is not None:
            return self.demand.requests
        return (
            Request("", 1, self.memory_bytes, self.memory_percent, cores_milli=self.cores_milli),
        )


class CapacityProbes(msgspec.Struct, frozen=True):
    """The largest request that waits without a node, and the placement algorithm, by system.

    ``offers`` are the nodes that kube-scheduler offers; None if these were not read.
    """

    pending: Mapping[str, Probe] = {}
    schemes: Mapping[str, SchedulerScheme] = {}
    offers: NodeOffers | None = None


class UnavailableReason(Explained):
    """Why no new share can have free memory."""

    UNHEALTHY = "unhealthy", "on unhealthy GPUs"
    NOT_READY = "not_ready", "on nodes that are not ready"
    CORDONED = "cordoned", "on cordoned nodes"
    CORDONED_GPU = "cordoned_gpu", "on cordoned GPUs"
    MIXED_NODE = "mixed_node", "on nodes with GPUs of several sharing systems"
    UNREADABLE = "unreadable", "on nodes whose GPUs, or what their pods hold, cannot be read"
    NOTHING_ALLOCATABLE = "nothing_allocatable", "on nodes of which nothing is allocatable"


class UnavailableMemory(msgspec.Struct, frozen=True, gc=False):
    """Free memory that no new share can have; ``names`` are the GPUs or nodes, for people."""

    reason: UnavailableReason
    memory_bytes: int
    names: tuple[str, ...]


class ClosedNodes(msgspec.Struct, frozen=True, gc=False):
    """Nodes of a system that take none of the counted pods, and why."""

    why: ClosedNode
    names: tuple[str, ...]


class FreeCapacity(msgspec.Struct, frozen=True, gc=False):
    """The free capacity of one scheme's GPUs, and its usable part.

    Attributes:
        system: the name of the sharing system.
        scheme: its scheme.
        gpus: number of GPUs, each of which counts for one system.
        memory_bytes, held_bytes, free_bytes: of all GPUs; free is what is neither held nor kept
            free for pods whose GPUs are not known.
        probe: the pod that is counted; None if nothing waits and nothing is allocated.
        fits: number of further such pods that fit, each node by itself, as the scheduler places
            them.
        usable_bytes: memory of these pods together.
        apart: the parts of the free memory that no new share can have.
        kept_bytes: memory that is kept free for pods whose GPUs are not known.
        maybe_held: the part of the free memory that pods on an unknown GPU may hold.
        closed: the nodes that other pods may use, and that take none of the counted ones.
        unsized: number of GPUs whose memory is not known, which are in no sum of memory.
    """

    system: str
    scheme: Scheme
    gpus: int
    memory_bytes: int
    held_bytes: int
    free_bytes: int
    probe: Probe | None = None
    fits: int = 0
    usable_bytes: int = 0
    apart: tuple[UnavailableMemory, ...] = ()
    kept_bytes: int = 0
    maybe_held: MaybeHeld = NOT_HELD
    closed: tuple[ClosedNodes, ...] = ()
    unsized: int = 0

    @property
    def available_bytes(self) -> int:
        """Free memory that new shares can have."""
        return self.free_bytes - sum(apart.memory_bytes for apart in self.apart)


class Inventory(msgspec.Struct, frozen=True):
    """A cluster's shared GPUs: nodes, pending containers and free capacity.

    Attributes:
        nodes: the nodes with GPUs to share or with pods that share, by name.
        pending: the pending containers, by namespace and name of the pod.
        free_capacities: the free capacity, by scheme.
        notes: what a reader must know to trust the numbers, as sentences.
        pods: the pods of holdings and of pending containers, by the UID on the node.
        nvidia: the devices and pods of NVIDIA's own device plugin, by node and resource.
        others: the pods of other GPU schedulers, whose shares are not read.
        probes: what the free capacity is counted for.
        limits: (pod UID, container) -> why it is limited, or not, by exporters; None if no exporter
            was asked.
    """

    nodes: tuple[NodeView, ...]
    pending: tuple[Pending, ...]
    free_capacities: tuple[FreeCapacity, ...]
    notes: tuple[str, ...] = ()
    pods: Mapping[str, Pod] = {}
    nvidia: tuple[NvidiaDevices, ...] = ()
    others: tuple[OtherPod, ...] = ()
    probes: CapacityProbes = CapacityProbes()
    limits: Mapping[tuple[str, str], LimitReason] | None = None

    def limit(self, pod: PodRef, container: str) -> LimitReason | None:
        """Why a container is limited, or not; None if no exporter reports it."""
        known = self.limits or {}
        return known.get((pod.uid, container)) or known.get((pod.uid, ""))

    def state(self, pod: PodRef, container: str) -> PodState | None:
        """The state of a container's pod; None if the API server does not have the pod."""
        known = self.pods.get(pod.uid)
        return None if known is None else pod_state(known, container)

    def system(self, waiting: Pending) -> str:
        """The name of the sharing system by whose resources the pod waits; else its scheme."""
        pod, schemes = self.pods.get(waiting.pod.uid), registry().schemes_by_name
        requested = {name for each in (pod.containers if pod else ()) for name in each.limits}
        systems = [
            name
            for name, resources in registry().advertised_by.items()
            if schemes[name] is waiting.scheme and not resources.isdisjoint(requested)
        ]
        return systems[0] if len(systems) == 1 else waiting.scheme
