"""The vocabulary as frozen values: who asks, what is shared, who holds it. No I/O."""

from enum import StrEnum
from typing import Final, Self

import msgspec

_ADDED: Final[dict[str, "Scheme"]] = {}


class Scheme(StrEnum):
    """The name of a family of sharing systems; NONE is what belongs to none of them.

    The members are those that code speaks of by name. A further family is a row of
    :mod:`vgpu.schemes.registry` alone, which makes its name by :meth:`named`.
    """

    VOLCANO = "volcano"  # Volcano vGPU and HAMi
    GPUSHARE = "gpushare"  # Aliyun
    GAIA = "gaia"  # Tencent gpu-manager
    KUBESHARE = "kubeshare"  # KubeShare / Gemini
    NONE = "none"  # a process on a GPU that no sharing system knows of

    @classmethod
    def named(cls, name: str) -> Self:
        """The scheme of this name, which is a scheme from now on; the same one each time."""
        if name not in cls._value2member_map_ and name not in _ADDED:
            scheme = str.__new__(cls, name)
            scheme._name_, scheme._value_ = name.upper(), name
            _ADDED[name] = scheme
        return cls(name)

    @classmethod
    def _missing_(cls, value: object) -> "Scheme | None":
        """What outside text names is a scheme only if a row has added it."""
        return _ADDED.get(value) if isinstance(value, str) else None


class Phase(StrEnum):
    """Where an allocation stands."""

    ASSUMED = "assumed"  # a scheduler promised it
    ASSIGNED = "assigned"  # the plugin granted it
    RELEASED = "released"  # its containers are gone


class Source(StrEnum):
    """Where a fact was read. The exporter reports it of every container it attributes."""

    SHIM = "shim"
    PROCESS = "process"
    CHECKPOINT = "kubelet-checkpoint"
    POD_RESOURCES = "pod-resources"
    LIMIT_FILE = "limit-file"
    ANNOTATIONS = "annotations"
    OWN_CHECKPOINT = "own-checkpoint"


class PodRef(msgspec.Struct, frozen=True, gc=False, order=True):
    """A pod by identity (``uid``), with its name for people."""

    uid: str
    namespace: str
    name: str


class Share(msgspec.Struct, frozen=True, gc=False, order=True):
    """A slice of one device; None is unlimited, or unknown.

    Attributes:
        device: the device's name where the fact was read: its UUID if the scheme reports it, else
            the GPU's index in decimal (gpushare, gpu-manager) or the GPUID of a virtual GPU
            (kubeshare). :attr:`Device.names` resolves it.
        memory_bytes: bytes of the device's memory.
        cores_milli: thousandths of the device's cores; 10 are one percent.
    """

    device: str
    memory_bytes: int | None = None
    cores_milli: int | None = None


class ContainerKind(StrEnum):
    """When a container runs: its devices are used one kind after another."""

    APP = "app"
    INIT = "init"  # runs to its end before the app containers; they may take over its devices
    SIDECAR = "sidecar"  # an init container with restartPolicy Always: runs beside them
    EPHEMERAL = "ephemeral"  # put into a running pod by kubectl debug: has no devices of its own


class Request(msgspec.Struct, frozen=True, gc=False):
    """What one container asks for, of each of ``count`` devices.

    Attributes:
        container: its name; "" where the scheme knows whole pods only (kubeshare).
        count: how many devices.
        memory_bytes: of each device; None is all that the device has.
        memory_percent: of each device, in place of bytes (volcano); None if not asked that way.
        cores_milli: of each device; 0 is a share without promised cores.
        limit_milli: up to how many cores it may use when others leave them (gpu-manager,
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

    ``kind`` tells when the container runs, where the pod's spec is known.
    """

    container: str
    shares: tuple[Share, ...]
    phase: Phase
    kind: ContainerKind = ContainerKind.APP


class Claim(msgspec.Struct, frozen=True, gc=False):
    """All that a pod's own annotations say about its devices.

    Attributes:
        scheme: in whose language.
        pod: whose.
        node: where the scheduler placed it; "" if the annotations do not say.
        allocations: by container, in the pod's order.
        assumed_at: when a scheduler promised it, unix seconds; None if unknown.
        assigned_at: when the plugin granted it, unix seconds; None if unknown.
        unserved: containers whose devices Allocate has still to allocate, by what the
            annotations say (volcano's devices-to-allocate).
        failed: the plugin reports that it could not serve the pod (volcano's bind-phase).
        doubts: what the annotations say beside it that cannot be, or cannot be read, in words:
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
        index: its position on the node (gpushare's and gpu-manager's GPU index); None if unknown.
        memory_bytes: what there is to share; None if unknown.
        cores_milli: what there is to share: 1000, more with core scaling.
        slots: how many shares it takes at most; None is any number.
        healthy: whether new shares may go there.
        model: the GPU's name, "" if unknown.
        handles: further names that schemes give it (GPUIDs of kubeshare's virtual GPUs).
        parent: of a MIG instance, its GPU's UUID.
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

    @property
    def name(self) -> str:
        """What it is called in allocation records and reports."""
        return self.uuid or ("" if self.index is None else str(self.index))

    @property
    def names(self) -> tuple[str, ...]:
        """Everything that a :class:`Share` may call it."""
        index = () if self.index is None else (str(self.index),)
        uuid = (self.uuid,) if self.uuid else ()
        return (*uuid, *index, *self.handles)
