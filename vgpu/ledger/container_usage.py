"""Limits and use of the containers of a node on their devices, and the tokens of pods. Pure."""

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Final

import msgspec

from vgpu.ledger.limit_verdict import LimitReason
from vgpu.ledger.regions import Accounted
from vgpu.ledger.usage import DeviceUsage, Usage, is_over
from vgpu.model.facts import RegionFile, TokenClient, TokenSample
from vgpu.model.names import Phase, PodRef, Scheme, Sharing, Source
from vgpu.model.reasons import Rejection

NO_POD: Final = PodRef("", "", "")
"""In place of a pod that is not known."""


class ShareUsage(msgspec.Struct, gc=False):
    """Limits and use of one container on one device.

    Attributes:
        device: its UUID.
        pod, container, scheme: those of its :class:`ContainerUsage`.
        vdevice: its position in the container's region; None without one.
        limit_bytes: None with ``unlimited`` False means that the limit is unknown.
        unlimited: nothing limits the memory.
        core_limit_percent, core_request_percent: of one device; None if there is none, or unknown.
        used_bytes, processes, sm_utilization: what the driver reports by process; None if unknown.
        accounted: what the shim reports; None if unknown.
        sharing: how NVIDIA's own means share the device; None where another system does.
        fair_share_bytes: its part of the device's memory by the number of its replicas, which
            nothing enforces; None without replicas.
        process_limit_bytes, process_core_limit_percent: what MPS lets each of its processes have
            of the device; None if that was not read.
    """

    device: str
    pod: PodRef = NO_POD
    container: str = ""
    scheme: Scheme = Scheme.NONE
    vdevice: int | None = None
    limit_bytes: int | None = None
    unlimited: bool = False
    core_limit_percent: int | None = None
    core_request_percent: int | None = None
    used_bytes: int | None = None
    processes: int | None = None
    sm_utilization: float | None = None
    accounted: Accounted | None = None
    sharing: Sharing | None = None
    fair_share_bytes: int | None = None
    process_limit_bytes: int | None = None
    process_core_limit_percent: int | None = None

    @property
    def is_over_limit(self) -> bool:
        """Whether the container exceeds its limit, by the tolerance of :func:`is_over`."""
        used, limit = self.used_bytes, self.limit_bytes
        return bool(used and limit and is_over(used, limit))


class ContainerUsage(msgspec.Struct, gc=False):
    """One container with its shares, by device, and the source that reports it.

    ``pod`` has no names where they are unknown; ``container`` is "" where only the pod is known.
    ``scheme`` and ``phase`` are the ledger's; ``source`` is the first that reports the container.
    ``limit_reason`` is why it is limited, or not; None without a share. The other fields are what
    its region reports.
    """

    pod: PodRef
    container: str
    scheme: Scheme
    source: Source
    phase: Phase = Phase.ASSIGNED
    layout: str = ""
    blocked: bool | None = None
    priority: int | None = None
    last_kernel_time: int | None = None
    limit_reason: LimitReason | None = None
    shares: dict[str, ShareUsage] = {}

    def share(self, device: str) -> ShareUsage:
        """The container's share of the device, created if there is none."""
        share = self.shares.get(device)
        if share is None:
            share = ShareUsage(device, self.pod, self.container, self.scheme)
            self.shares[device] = share
        return share


class NodeUsage(msgspec.Struct, frozen=True, dict=True):
    """All containers of a node, including those with a share that is only reserved.

    Attributes:
        containers: in the order of the sources' trust.
        devices: the attribution gap by UUID, where it is known.
        orphans: the regions of unknown pods; None where no source reports which pods live, or
            their names.
        released: likewise the container of each region whose container has ended.
        refused: what was refused while this was built, with its source.
        processes: the driver's processes by container and device.
        replicas: how many replicas of a device NVIDIA's plugin has registered, by UUID.
        library_writers: each library that limits and is on the node -> (pod, container) of those
            that have its file in a mount that they can write; None where maps are not read.
    """

    containers: tuple[ContainerUsage, ...] = ()
    devices: Mapping[str, DeviceUsage] = {}
    orphans: tuple[RegionFile, ...] | None = None
    released: tuple[ContainerUsage, ...] | None = None
    refused: tuple[tuple[Source, Rejection], ...] = ()
    processes: tuple[Usage, ...] = ()
    replicas: Mapping[str, int] = {}
    library_writers: Mapping[str, tuple[tuple[PodRef, str], ...]] | None = None

    @cached_property
    def shares(self) -> tuple[ShareUsage, ...]:
        """Those of all containers, in the same order."""
        return tuple([share for one in self.containers for share in one.shares.values()])


class TokenUse(msgspec.Struct, frozen=True, gc=False):
    """A pod that shares the time of a GPU by tokens; all its containers have one token.

    ``container`` is the only one that has a share of the GPU, "" if several have.
    """

    pod_uid: str
    container: str
    tenant: TokenClient


def token_uses(sample: TokenSample, shares: Iterable[ShareUsage]) -> tuple[TokenUse, ...]:
    """The pods of the token daemon that have a share of its GPU by KubeShare.

    The daemon knows pods by their names. Two pods of one name, of which one replaces the other,
    cannot be distinguished, and have none.
    """
    holders: dict[tuple[str, str, str], list[ShareUsage]] = {}
    for share in shares:
        if share.scheme is Scheme.KUBESHARE and share.pod.name:
            place = share.device, share.pod.namespace, share.pod.name
            holders.setdefault(place, []).append(share)
    uses: list[TokenUse] = []
    for tenant in sample.clients:
        own = holders.get((tenant.device, tenant.namespace, tenant.pod), [])
        if len({share.pod.uid for share in own}) == 1:
            container = own[0].container if len(own) == 1 else ""
            uses.append(TokenUse(own[0].pod.uid, container, tenant))
    return tuple(uses)
