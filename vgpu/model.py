"""The basic terms as frozen values: pods, devices, shares, requests, claims. No I/O."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, Self

import msgspec

_ADDED: Final[dict[str, "Scheme"]] = {}


class Scheme(StrEnum):
    """The name of a family of sharing systems; NONE means that none is known.

    The members are those that code refers to by name. A further family is only a row of
    :mod:`vgpu.schemes.registry`, which creates its name with :meth:`named`.
    """

    VOLCANO = "volcano"  # Volcano vGPU and HAMi
    GPUSHARE = "gpushare"  # Aliyun
    GAIA = "gaia"  # Tencent gpu-manager
    KUBESHARE = "kubeshare"  # KubeShare / Gemini
    DRA = "dra"  # dynamic resource allocation, whatever the driver
    NONE = "none"  # a process on a GPU that no sharing system knows of

    @classmethod
    def named(cls, name: str) -> Self:
        """The scheme of this name, added if it is new; always the same object."""
        if name not in cls._value2member_map_ and name not in _ADDED:
            scheme = str.__new__(cls, name)
            scheme._name_, scheme._value_ = name.upper(), name
            _ADDED[name] = scheme
        return cls(name)

    @classmethod
    def _missing_(cls, value: object) -> "Scheme | None":
        """The scheme of an outside text, only if a row has added it."""
        return _ADDED.get(value) if isinstance(value, str) else None


class Sharing(StrEnum):
    """How NVIDIA's own means share a device between its holders."""

    EXCLUSIVE = "exclusive"  # one container has the whole GPU
    TIME_SLICING = "time-slicing"  # replicas without any limit
    MPS = "mps"  # replicas through the control daemon of CUDA's Multi-Process Service
    MIG = "mig"  # one container has the whole instance
    MIG_TIME_SLICING = "mig-time-slicing"  # replicas of an instance
    UNKNOWN = "unknown"


UNLIMITED_SHARING: Final = frozenset({Sharing.TIME_SLICING, Sharing.MIG_TIME_SLICING})
"""Ways of sharing that limit neither memory nor cores."""

REPLICATED_SHARING: Final = UNLIMITED_SHARING | {Sharing.MPS, Sharing.UNKNOWN}
"""Ways of sharing with replicas."""


class Phase(StrEnum):
    """The state of an allocation."""

    ASSUMED = "assumed"  # a scheduler reserved it
    ASSIGNED = "assigned"  # the device plugin allocated it
    RELEASED = "released"  # its containers are gone


class Source(StrEnum):
    """Where a fact was read. The exporter reports it for every container that it attributes."""

    SHIM = "shim"
    PROCESS = "process"
    DRA_STATE = "dra-manager-state"
    CHECKPOINT = "kubelet-checkpoint"
    POD_RESOURCES = "pod-resources"
    LIMIT_FILE = "limit-file"
    ANNOTATIONS = "annotations"
    OWN_CHECKPOINT = "own-checkpoint"
    RESOURCE_CLAIM = "resource-claim"


class PodRef(msgspec.Struct, frozen=True, gc=False, order=True):
    """A pod's identity (``uid``), with its name for people."""

    uid: str
    namespace: str
    name: str


DEVICE_NODE: Final = "/dev/nvidia"
"""The beginning of the path of a GPU's device node; the GPU's minor number follows."""


def device_node(minor: int) -> str:
    """The path of the device node of the GPU with this minor number."""
    return f"{DEVICE_NODE}{minor}"


def is_number(device: str) -> bool:
    """Whether a share's name of a device is only a number of it, in decimal or of a device node."""
    return device.removeprefix(DEVICE_NODE).isdecimal()


class Share(msgspec.Struct, frozen=True, gc=False, order=True):
    """A slice of one device; None is unlimited, or unknown.

    Attributes:
        device: the device's name where the fact was read: its UUID if the scheme reports it, else
            the driver's index of the GPU in decimal (gpushare, ``NVIDIA_VISIBLE_DEVICES``), its
            device node (gpu-manager) or the GPUID of a virtual GPU (kubeshare).
            :attr:`Device.names` resolves it.
        memory_bytes: bytes of the device's memory.
        cores_milli: thousandths of the device's cores; 10 are one percent.
    """

    device: str
    memory_bytes: int | None = None
    cores_milli: int | None = None


class ContainerKind(StrEnum):
    """When a container runs: devices are used by one kind after another."""

    APP = "app"
    INIT = "init"  # runs to its end before the app containers; they may take over its devices
    SIDECAR = "sidecar"  # an init container with restartPolicy Always: runs beside them
    EPHEMERAL = "ephemeral"  # added to a running pod by kubectl debug: has no devices of its own


class ResourceClaimDevice(msgspec.Struct, frozen=True, gc=False, order=True):
    """One device that a ResourceClaim has: a result of its allocation.

    Attributes:
        resource_claim_uid, resource_claim: the ResourceClaim; its namespace is that of its pods.
        driver, pool, device: the device, as the driver names it.
        share_id: which share of a device that allows several; "" if it is whole, or not known.
        requests: names of the requests that it is for, sorted.
    """

    resource_claim_uid: str
    resource_claim: str
    driver: str
    pool: str
    device: str
    share_id: str = ""
    requests: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """``<driver>/<pool>/<device>``, the name of a device whose UUID is not known."""
        return f"{self.driver}/{self.pool}/{self.device}"


class AllocatedDevice(msgspec.Struct, frozen=True, gc=False, order=True):
    """One result in the status of a ResourceClaim.

    Attributes:
        request: the request that it is for, ``<request>`` or ``<request>/<alternative>``.
        driver, pool, device: the device, as the driver names it.
        share_id: of a device that allows several allocations; "" if the device is whole.
        memory_bytes: what is consumed of its memory; None of a whole device, or if unknown.
        cores_milli: what is consumed of its cores, as for :class:`Share`.
        admin: it only observes the device (``adminAccess``) and consumes nothing.
    """

    request: str
    driver: str
    pool: str
    device: str
    share_id: str = ""
    memory_bytes: int | None = None
    cores_milli: int | None = None
    admin: bool = False


class ResourceClaim(msgspec.Struct, frozen=True, gc=False):
    """A ResourceClaim, by its status.

    Attributes:
        uid, namespace, name: its identity.
        results: the devices that it has; () before its allocation.
        reserved_for: the pods that may use it.
        reserved_otherwise: whether an object that is no pod may use it.
        node: the node of its devices; "" if they are of no single node, or if it is not known.
        annotations: those that are kept of every object.
    """

    uid: str
    namespace: str
    name: str
    results: tuple[AllocatedDevice, ...]
    reserved_for: tuple[PodRef, ...] = ()
    reserved_otherwise: bool = False
    node: str = ""
    annotations: Mapping[str, str] = {}


class PublishedDevice(msgspec.Struct, frozen=True, gc=False):
    """A device of a ResourceSlice.

    Attributes:
        name: its name in its pool.
        uuid: its UUID; "" if its driver publishes none.
        memory_bytes: its memory; None if its driver publishes none.
        model: the name of its product, "" if unknown.
        parent: of a MIG instance, its GPU's UUID.
    """

    name: str
    uuid: str = ""
    memory_bytes: int | None = None
    model: str = ""
    parent: str = ""


class ResourceSlice(msgspec.Struct, frozen=True, gc=False):
    """A part of the devices that a DRA driver publishes.

    Attributes:
        name: the name of the object.
        driver, pool: the pool of the devices.
        generation: the version of the pool; only the newest one counts.
        slices: number of ResourceSlices of the pool in this generation.
        node: the node of the devices; "" if they are of no single node.
        devices: the devices.
    """

    name: str
    driver: str
    pool: str
    generation: int
    slices: int
    node: str = ""
    devices: tuple[PublishedDevice, ...] = ()


class Request(msgspec.Struct, frozen=True, gc=False):
    """The request of one container, from each of ``count`` devices.

    Attributes:
        container: its name; "" where the scheme knows whole pods only (kubeshare).
        count: number of devices.
        memory_bytes: of each device; None is all that the device has.
        memory_percent: of each device, in place of bytes (volcano); None if not requested so.
        cores_milli: of each device; 0 is a share without reserved cores.
        limit_milli: maximum cores that it may use when others leave them free (gpu-manager,
            kubeshare); None is ``cores_milli``.
        kind: when it runs.
    """

    container: str
    count: int
    memory_bytes: int | None = None
    memory_percent: int | None = None
    cores_milli: int = 0
    limit_milli: int | None = None
    kind: ContainerKind = ContainerKind.APP


class Allocation(msgspec.Struct, frozen=True, gc=False, order=True):
    """The shares of one container, in the order in which it sees them.

    ``kind`` is when the container runs, where the pod's spec is known.
    """

    container: str
    shares: tuple[Share, ...]
    phase: Phase
    kind: ContainerKind = ContainerKind.APP


class Claim(msgspec.Struct, frozen=True, gc=False):
    """All that a pod's own annotations have about its devices.

    Attributes:
        scheme: the scheme of the annotations.
        pod: the pod.
        node: where the scheduler placed it; "" if the annotations do not name it.
        allocations: by container, in the pod's order.
        assumed_at: when a scheduler reserved it, unix seconds; None if unknown.
        assigned_at: when the plugin allocated it, unix seconds; None if unknown.
        unserved: containers whose devices Allocate has still to allocate, by the annotations
            (volcano's devices-to-allocate).
        failed: the plugin reports that it could not serve the pod (volcano's bind-phase).
        remarks: impossible or unreadable parts of the annotations, as
            ``<key>: <what is wrong>: <the text>``.
    """

    scheme: Scheme
    pod: PodRef
    node: str
    allocations: tuple[Allocation, ...]
    assumed_at: float | None = None
    assigned_at: float | None = None
    unserved: tuple[str, ...] = ()
    failed: bool = False
    remarks: tuple[str, ...] = ()


class Device(msgspec.Struct, frozen=True, gc=False):
    """A GPU or MIG instance of a node, as a scheme counts it.

    Attributes:
        uuid: its identity; "" where only the API server was asked and the scheme does not say it.
        index: its index to the driver, which is gpushare's number of it; where only the API server
            was asked, its number to the scheme that registered it. None if unknown.
        memory_bytes: what there is to share; None if unknown.
        cores_milli: what there is to share: 1000, more with core scaling.
        slots: how many shares it takes at most; None is any number.
        healthy: whether new shares may go there.
        model: the GPU's name, "" if unknown.
        handles: further names that schemes give it (GPUIDs of kubeshare's virtual GPUs).
        parent: of a MIG instance, its GPU's UUID.
        minor: the N of ``/dev/nvidia<N>``, which is gpu-manager's number of it; on many hosts it is
            not the index. None if unknown: an index is never taken for it.
    """

    uuid: str = ""
    index: int | None = None
    memory_bytes: int | None = None
    cores_milli: int = 1000
    slots: int | None = None
    healthy: bool = True
    model: str = ""
    handles: tuple[str, ...] = ()
    parent: str = ""
    minor: int | None = None

    @property
    def name(self) -> str:
        """The device's name in allocation records and reports."""
        return self.uuid or ("" if self.index is None else str(self.index))

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that a :class:`Share` may have for the device."""
        index = () if self.index is None else (str(self.index),)
        node = () if self.minor is None else (device_node(self.minor),)
        uuid = (self.uuid,) if self.uuid else ()
        return (*uuid, *index, *node, *self.handles)
