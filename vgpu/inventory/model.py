"""The values of an inventory: the cluster's objects, and what a person is shown."""

from collections.abc import Mapping

import msgspec

from vgpu.inventory.nvidia import NvidiaDevices
from vgpu.inventory.other_schedulers import OtherPod
from vgpu.kube.pod_state import PodState, pod_state
from vgpu.ledger import DeviceEntry, Ledger
from vgpu.ledger.entries import HoldingSum
from vgpu.ledger.from_resource_claims import ClusterResourceClaims
from vgpu.model.allocation import Request
from vgpu.model.names import PodRef, Scheme
from vgpu.model.objects import MalformedObject, Node, Pod
from vgpu.model.reasons import Explained
from vgpu.model.units import MIB
from vgpu.schemes.registry import UnitBytes


class Objects(msgspec.Struct, frozen=True):
    """The objects that were read from the API server.

    ``pods`` are those that share GPUs; ``unhealthy`` is the text of gpushare's ConfigMaps by node;
    ``malformed`` are the unreadable objects, ``resource_claims`` those of dynamic resource
    allocation.
    """

    nodes: tuple[Node, ...] = ()
    pods: tuple[Pod, ...] = ()
    share_pods: tuple[Pod, ...] = ()
    unhealthy: Mapping[str, str] = {}
    malformed: tuple[MalformedObject, ...] = ()
    resource_claims: ClusterResourceClaims = ClusterResourceClaims()


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


class NodeView(msgspec.Struct, frozen=True, gc=False):
    """A node, the schemes that share its GPUs, and its ledger.

    ``known`` is False if only pods name the node; ``unit_confirmed`` is False if its data
    contradicts the unit of memory in force, so that all its sizes may be wrong. ``kept`` is what is
    kept free of GPUs for bound pods whose GPUs are not known, by the GPU's name.
    """

    node: Node
    schemes: tuple[Scheme, ...]
    ledger: Ledger
    known: bool = True
    unit_confirmed: bool = True
    kept: Mapping[str, HoldingSum] = {}

    def kept_of(self, entry: DeviceEntry) -> HoldingSum:
        """What is kept free of the GPU for pods whose GPUs are not known."""
        return self.kept.get(entry.device.name, HoldingSum())

    def free_memory_bytes(self, entry: DeviceEntry) -> int | None:
        """The memory that new shares can have, never below 0; None if the GPU's is unknown."""
        free = entry.free_memory_bytes
        return None if free is None else max(0, free - self.kept_of(entry).memory_bytes)

    def free_cores_milli(self, entry: DeviceEntry) -> int:
        """The cores that new shares can have, never below 0."""
        return max(0, entry.free_cores_milli - self.kept_of(entry).cores_milli)

    @property
    def kept_bytes(self) -> int:
        """The memory that is kept free for pods whose GPUs are not known."""
        return sum(kept.memory_bytes for kept in self.kept.values())


class Probe(msgspec.Struct, frozen=True, gc=False):
    """The share whose further fits are counted.

    Attributes:
        memory_bytes: of one GPU; None with ``memory_percent`` None is all that the GPU has.
        memory_percent: of the GPU's memory, in place of bytes.
        cores_milli: thousandths of one GPU's cores.
        pending: the pod of the largest pending request, or None for the most common share.
    """

    memory_bytes: int | None
    memory_percent: int | None
    cores_milli: int
    pending: PodRef | None = None


class UnavailableReason(Explained):
    """Why no new share can have free memory."""

    UNHEALTHY = "unhealthy", "on unhealthy GPUs"
    NOT_READY = "not_ready", "on nodes that are not ready"
    CORDONED = "cordoned", "on cordoned nodes"


class UnavailableMemory(msgspec.Struct, frozen=True, gc=False):
    """Free memory that no new share can have; ``names`` are the GPUs or nodes, for people."""

    reason: UnavailableReason
    memory_bytes: int
    names: tuple[str, ...]


class FreeCapacity(msgspec.Struct, frozen=True, gc=False):
    """The free capacity of one scheme's GPUs, and its usable part.

    Attributes:
        scheme: the scheme that shares the GPUs.
        gpus: number of GPUs.
        memory_bytes, held_bytes, free_bytes: of all GPUs; free is what is neither held nor kept
            free for pods whose GPUs are not known.
        probe: the share that is counted; None if nothing waits and nothing is allocated.
        fits: number of further such shares that fit, counted on each GPU.
        usable_bytes: memory of these shares together. Nothing fits on GPUs that are unhealthy, of
            nodes that are not ready or cordoned, or without free cores or slots.
        apart: the parts of the free memory that no new share can have.
        kept_bytes: memory that is kept free for pods whose GPUs are not known.
    """

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
    """

    nodes: tuple[NodeView, ...]
    pending: tuple[Pending, ...]
    free_capacities: tuple[FreeCapacity, ...]
    notes: tuple[str, ...] = ()
    pods: Mapping[str, Pod] = {}
    nvidia: tuple[NvidiaDevices, ...] = ()
    others: tuple[OtherPod, ...] = ()

    def state(self, pod: PodRef, container: str) -> PodState | None:
        """The state of a container's pod; None if the API server does not have the pod."""
        known = self.pods.get(pod.uid)
        return None if known is None else pod_state(known, container)
