"""Devices, shares, requests, allocations and claims as frozen values, and a pod's peak. No I/O.

Where no MIG instance has a UUID yet, a slot of a GPU in MIG mode is a device, too: Volcano's
scheduler names one ``<UUID>[<group>-<position>]``.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from vgpu.model.names import ContainerKind, Phase, PodRef, Scheme, device_node

_DEVICE_NAME: Final = re.compile(
    r"(?P<gpu>[A-Za-z0-9_./-]{1,96})"
    r"(?:\[(?P<group>[A-Za-z0-9_.]{1,64})-(?P<position>[0-9]{1,4})\])?"
)


def is_device_name(text: str) -> bool:
    """Whether it can name a device: a UUID, or a MIG slot as ``GPU-<uuid>[<group>-<position>]``."""
    return _DEVICE_NAME.fullmatch(text) is not None


def physical(device: str) -> str:
    """The GPU or MIG instance behind a device's name: what is in front of a MIG slot's bracket."""
    match = _DEVICE_NAME.fullmatch(device) if "[" in device else None
    return match["gpu"] if match else device


def mig_slot(device: str) -> tuple[str, int] | None:
    """Group and position of a MIG slot's name; None for any other device."""
    match = _DEVICE_NAME.fullmatch(device) if "[" in device else None
    return (match["group"], int(match["position"])) if match and match["group"] else None


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
        has_unknown_amounts: whether memory and cores are requested by names that are not known.
    """

    container: str
    count: int
    memory_bytes: int | None = None
    memory_percent: int | None = None
    cores_milli: int = 0
    limit_milli: int | None = None
    kind: ContainerKind = ContainerKind.APP
    has_unknown_amounts: bool = False


class RequestDefaults(msgspec.Struct, frozen=True):
    """What HAMi's scheduler assumes of a container that leaves a part of its request out.

    Attributes:
        memory_mib: memory of each GPU where neither memory nor a percentage is requested
            (``defaultMemory``); 0 is all of it.
        cores_percent: cores of each GPU (``defaultCores``).
        count: number of GPUs of a container that requests a part of one (``defaultGPUNum``); 0 is
            none.
    """

    memory_mib: int = 0
    cores_percent: int = 0
    count: int = 1


NO_DEFAULTS: Final = RequestDefaults()
"""Those of HAMi's chart."""


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


def effective(amounts: Iterable[tuple[ContainerKind, int]]) -> int:
    """The most that the containers of a pod have together at any time: its effective request, as
    Kubernetes calls it. Init containers run one by one, before the others.

    The device plugin, the ledger and the exporter count by this one function. An original scheduler
    that counts less or more is wrong.

    ``amounts`` are by container, init containers and sidecars in the order of the pod's spec:

        max(max over init containers i: amount(i) + Σ sidecars before i,  Σ sidecars + Σ others)

    An init container that has succeeded is to be left out.
    """
    largest = sidecars = others = 0
    for kind, amount in amounts:
        if kind is ContainerKind.INIT:
            largest = max(largest, sidecars + amount)
        elif kind is ContainerKind.SIDECAR:
            sidecars += amount
        else:
            others += amount
    return max(largest, sidecars + others)


def effective_shares(allocations: Sequence[Allocation]) -> tuple[Share, ...]:
    """Shares that come to the pod's peak of each device, in memory, cores and number.

    ``allocations`` are as for :func:`effective`. They are the containers' own shares where all run
    at the same time. Else the first share of a device has the peaks, and the rest only slots.
    """
    own = tuple(share for allocation in allocations for share in allocation.shares)
    if not any(allocation.kind is ContainerKind.INIT for allocation in allocations):
        return own
    return tuple(
        share
        for device in dict.fromkeys(share.device for share in own)
        for share in _peak(device, allocations)
    )


def _peak(device: str, allocations: Iterable[Allocation]) -> Iterable[Share]:
    here = [
        (allocation.kind, [share for share in allocation.shares if share.device == device])
        for allocation in allocations
    ]
    whole = any(share.memory_bytes is None for _, shares in here for share in shares)
    memory = effective((kind, sum(s.memory_bytes or 0 for s in shares)) for kind, shares in here)
    cores = effective((kind, sum(s.cores_milli or 0 for s in shares)) for kind, shares in here)
    yield Share(device, None if whole else memory, cores)
    for _ in range(effective((kind, len(shares)) for kind, shares in here) - 1):
        yield Share(device, 0, 0)
