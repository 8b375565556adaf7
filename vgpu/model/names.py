"""What schemes, ways of sharing, pods and kinds of containers are called. No I/O."""

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
    RESERVATION_POD = "reservation-pod"
    BIND_REQUEST = "bind-request"
    CONFIG_MAP = "config-map"


class PodRef(msgspec.Struct, frozen=True, gc=False, order=True):
    """A pod's identity (``uid``), with its name for people."""

    uid: str
    namespace: str
    name: str

    @property
    def key(self) -> str:
        """``<namespace>/<name>``, as logs and messages name the pod."""
        return f"{self.namespace}/{self.name}"


DEVICE_NODE: Final = "/dev/nvidia"
"""The beginning of the path of a GPU's device node; the GPU's minor number follows."""


def device_node(minor: int) -> str:
    """The path of the device node of the GPU with this minor number."""
    return f"{DEVICE_NODE}{minor}"


def is_number(device: str) -> bool:
    """Whether a share's name of a device is only a number of it, in decimal or of a device node."""
    return device.removeprefix(DEVICE_NODE).isdecimal()


class ContainerKind(StrEnum):
    """When a container runs: devices are used by one kind after another."""

    APP = "app"
    INIT = "init"  # runs to its end before the app containers; they may take over its devices
    SIDECAR = "sidecar"  # an init container with restartPolicy Always: runs beside them
    EPHEMERAL = "ephemeral"  # added to a running pod by kubectl debug: has no devices of its own
