"""The codec of a sharing system: one Protocol that all four schemes implement.

A scheme is a frozen value that holds its operator's settings (the size of a unit, HAMi's or
Volcano's spellings) and whose methods are pure: API objects in, vocabulary out, and back. Text
that does not follow the scheme's format is a :class:`ClaimError`, never another exception.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Final, Protocol

import msgspec

from vgpu.model.allocation import Allocation, Claim, Device, Request, Share
from vgpu.model.names import PodRef, Scheme
from vgpu.model.objects import Node, Pod
from vgpu.model.reasons import Reason, SourceError

VISIBLE_DEVICES: Final = "NVIDIA_VISIBLE_DEVICES"
"""The variable in which NVIDIA's container runtime reads a container's devices."""

NO_DEVICES: Final = "void"
"""The variable's value for no devices: our plugin's answer where CDI injects them."""

_QUOTED: Final = 120
"""Maximum number of characters of a text that a message repeats."""


def remark(key: str, detail: str, text: str) -> str:
    """The sentence of :attr:`Claim.remarks` and of errors about a wrong text."""
    return f"{key}: {detail}: {text[:_QUOTED]!r}"


class ClaimError(SourceError):
    """A text of a pod, node or ConfigMap does not follow the scheme's format.

    Attributes:
        object_name: the object: ``<namespace>/<pod>``, ``node <name>`` or ``configmap …``.
        key: the annotation, label, resource or field.
        text: the wrong text, unchanged.
    """

    def __init__(self, object_name: str, key: str, text: str, detail: str) -> None:
        super().__init__(Reason.MALFORMED, object_name, remark(key, detail, text))
        self.key = key
        self.text = text


class Slot(msgspec.Struct, frozen=True, gc=False, order=True):
    """What a kubelet device ID stands for: the ``ordinal``-th unit of ``resource``.

    ``device`` is the device it belongs to, None where the scheme's IDs only count (gpu-manager).
    """

    resource: str
    device: str | None
    ordinal: int


EXPIRY_SECONDS: Final = 300.0
"""Age at which a lock that does not name its pod is void, in seconds; the originals' own."""


class NodeLock(msgspec.Struct, frozen=True, gc=False):
    """A lock that a scheduler keeps on a node while one pod is being served.

    ``since`` is unix seconds, None if unreadable; ``owner`` is a (namespace, name), None where
    the scheme's lock does not name its owner. ``text`` is the value as it stands.
    """

    key: str
    text: str
    since: float | None
    owner: tuple[str, str] | None = None

    def is_expired(self, now: float) -> bool:
        """Whether the lock is so old that no binding for it is on its way."""
        return self.since is not None and self.since <= now - EXPIRY_SECONDS


class HandshakeState(StrEnum):
    """The side that wrote last."""

    REPORTED = "reported"  # the plugin
    REQUESTING = "requesting"  # the scheduler asks whether the plugin lives
    DELETED = "deleted"  # the scheduler abandoned the node


class Handshake(msgspec.Struct, frozen=True, gc=False):
    """The scheduler's and the plugin's heartbeat to one another; ``written_at`` is in unix
    seconds, None where it cannot be read.
    """

    key: str
    state: HandshakeState
    written_at: float | None


class Mount(msgspec.Struct, frozen=True, gc=False):
    """A host path that a container gets."""

    host: str
    container: str
    read_only: bool


class ContainerEdits(msgspec.Struct, frozen=True, gc=False):
    """What a container gets for its allocation. ``devices`` are host device nodes."""

    env: Mapping[str, str]
    mounts: tuple[Mount, ...] = ()
    devices: tuple[str, ...] = ()
    annotations: Mapping[str, str] = {}


class LeftoverClaim(msgspec.Struct, frozen=True, gc=False):
    """What a pod's annotations still offer to Allocate, and their text after Allocate.

    Attributes:
        key: the annotation.
        text, struck: its value, and its value with nothing left to allocate.
        served: the annotation that shows the pod was served, ``<key>: <value>``; "" if none does.
    """

    key: str
    text: str
    struck: str
    served: str = ""


class SchemeCodec(Protocol):
    """Reads and writes the formats of one sharing system. All methods are pure.

    :class:`BaseCodec` has what most systems do not have: locks, handshakes and the like.
    """

    @property
    def name(self) -> str:
        """The name of its row in :mod:`vgpu.schemes.registry`."""
        ...

    @property
    def scheme(self) -> Scheme:
        """The scheme that it reads."""
        ...

    @property
    def resources(self) -> tuple[str, ...]:
        """The extended resources of the scheme: a pod that requests one of them uses the scheme."""
        ...

    def answered(self, env: Mapping[str, str]) -> tuple[Share, ...]:
        """The shares in the environment of an Allocate answer, whatever its resource is called.

        () if the environment is not that of the system's plugin. ``Share.device`` is "" where it
        names no device.
        """
        ...

    @property
    def advertised(self) -> tuple[str, ...]:
        """The extended resources that device plugins advertise: they bring a container a device.

        An operator may have renamed one of them: a container that requests none of these may have
        its device by a name that is not known.
        """
        ...

    @property
    def only_counted(self) -> tuple[str, ...]:
        """Further extended resources that pods request beside these; no device plugin has them."""
        ...

    @property
    def unit_bytes(self) -> int:
        """Bytes of one unit of memory in annotations: a percentage is rounded down to units."""
        ...

    def requests(self, pod: Pod) -> tuple[Request, ...]:
        """What each container requests, without the containers that request nothing.

        Raises ClaimError for a request that the scheme does not allow.
        """
        ...

    def inadmissible(self, pod: Pod) -> str:
        """Why no scheduler may reserve for the pod's requests, although they can be read.

        "" if it may. Such a pod can have been bound by another scheduler, and counts as
        :meth:`requests` has it.
        """
        ...

    def without_limit(self, pod: Pod, claim: Claim) -> Iterator[tuple[str, str]]:
        """The containers of the claim, each with a device, that no limit of memory was set for.

        The claim and the request show together that the scheduler reserved no memory on purpose.
        """
        ...

    def claim(self, pod: Pod) -> Claim | None:
        """The devices in the pod's annotations; None if there are none.

        Reads every known age and variant of the format. The pod's own phase is not read:
        that is the part of ``holds_devices``. Raises ClaimError.
        """
        ...

    def claim_keys(self, pod: Pod) -> tuple[str, ...]:
        """The pod's annotations that its claim is made of, sorted; without them it has none.

        Only what schedulers and plugins write, and nothing that the pod's user requests: the
        requests do not change.
        """
        ...

    def annotations(
        self, claim: Claim, devices: Mapping[str, Device], containers: Sequence[str] = ()
    ) -> dict[str, str]:
        """The annotations of this claim, in the newest form; ``claim`` reads them back.

        ``devices`` has the node's devices under every name that a share may use, ``containers``
        the pod's app containers in the spec's order: some annotations count them. What the scheme
        keeps elsewhere (a node in the spec, a time that it overwrites) is lost. Raises ClaimError
        for a claim that the scheme cannot express.
        """
        ...

    def devices(self, node: Node) -> tuple[Device, ...]:
        """The devices that the node reports in this scheme. Raises ClaimError."""
        ...

    def locks(self, node: Node) -> tuple[NodeLock, ...]:
        """The node locks in force. Raises ClaimError."""
        ...

    def needs_lock(self, node: Node) -> bool:
        """Whether the node has a plugin that finds a pod by the node's lock only."""
        ...

    def handshake(self, node: Node) -> Handshake | None:
        """The last heartbeat between plugin and scheduler. Raises ClaimError."""
        ...

    def slot(self, resource: str, device_id: str) -> Slot:
        """What a kubelet device ID stands for. Raises ClaimError."""
        ...

    def device_ids(self, resource: str, devices: tuple[Device, ...]) -> Iterator[str]:
        """All IDs that a plugin reports of a resource for these devices, in order."""
        ...

    def edits(
        self, pod: PodRef, allocation: Allocation, devices: Mapping[str, Device]
    ) -> ContainerEdits:
        """What the plugin injects into a container for its allocation. Raises ClaimError."""
        ...

    def sole_gpu(self, pod: Pod, devices: tuple[Device, ...]) -> Claim | None:
        """What the plugin allocates to a pod without writing it anywhere: its node's only GPU.

        ``devices`` are the node's. None if the pod is no such case. Raises ClaimError.
        """
        ...

    def marks_late(self, node: Node | None) -> bool:
        """Whether a pod on this node may be served long before, or without, an annotation."""
        ...

    def with_health(
        self, devices: tuple[Device, ...], unhealthy: str, node: str
    ) -> tuple[Device, ...]:
        """The devices, unhealthy those that the text of the node's ConfigMap lists.

        Raises ClaimError.
        """
        ...

    def leftover(self, pod: Pod) -> LeftoverClaim | None:
        """What Allocate has still to allocate; None if it finds nothing in the annotations."""
        ...

    def rewritten(self, pod: Pod, claim: Claim, devices: Mapping[str, Device]) -> dict[str, str]:
        """:meth:`annotations`, in the form in which the pod has its claim now. Raises ClaimError.

        ``devices`` has the node's devices under every name that a share may use.
        """
        ...


class BaseCodec(msgspec.Struct, frozen=True):
    """Answers for what a system does not have; a codec overrides what its system has."""

    def answered(self, env: Mapping[str, str]) -> tuple[Share, ...]:  # noqa: ARG002
        """None: nothing in the environment identifies the system's plugin."""
        return ()

    def inadmissible(self, pod: Pod) -> str:  # noqa: ARG002
        """Nothing: each request that can be read can be reserved."""
        return ""

    def without_limit(self, pod: Pod, claim: Claim) -> Iterator[tuple[str, str]]:  # noqa: ARG002
        """None: no amount of memory stands for no limit."""
        return iter(())

    @property
    def advertised(self: "SchemeCodec") -> tuple[str, ...]:
        """All of its resources."""
        return self.resources

    @property
    def only_counted(self) -> tuple[str, ...]:
        """None."""
        return ()

    @property
    def unit_bytes(self) -> int:
        """One byte: memory is not requested as a percentage."""
        return 1

    def locks(self, node: Node) -> tuple[NodeLock, ...]:  # noqa: ARG002  # there are none
        """None: the system does not lock nodes."""
        return ()

    def needs_lock(self, node: Node) -> bool:  # noqa: ARG002  # no node
        """False: the plugin finds a pod without a lock."""
        return False

    def handshake(self, node: Node) -> Handshake | None:  # noqa: ARG002  # there is none
        """None: scheduler and plugin have no heartbeat."""
        return None

    def sole_gpu(self, pod: Pod, devices: tuple[Device, ...]) -> Claim | None:  # noqa: ARG002
        """None: the plugin writes an annotation for whatever it allocates."""
        return None

    def marks_late(self, node: Node | None) -> bool:  # noqa: ARG002  # on no node
        """False: the plugin marks a pod when Allocate serves it."""
        return False

    def with_health(
        self,
        devices: tuple[Device, ...],
        unhealthy: str,  # noqa: ARG002  # there is none
        node: str,  # noqa: ARG002
    ) -> tuple[Device, ...]:
        """The same devices."""
        return devices

    def leftover(self, pod: Pod) -> LeftoverClaim | None:  # noqa: ARG002  # there is none
        """None: the plugin does not find a pod by what Allocate has still to allocate."""
        return None

    def rewritten(
        self: "SchemeCodec", pod: Pod, claim: Claim, devices: Mapping[str, Device]
    ) -> dict[str, str]:
        """There is one form, in which init containers come first where they have a share."""
        apps = pod.apps
        others = [container.name for container in pod.containers if container.name not in apps]
        only_apps = all(allocation.container in apps for allocation in claim.allocations)
        return self.annotations(claim, devices, apps if only_apps else (*others, *apps))
