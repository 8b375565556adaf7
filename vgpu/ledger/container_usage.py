"""Limits and use of containers on their devices: the values, and how they are built. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Final

import msgspec

from vgpu.ledger.credibility import Credibility
from vgpu.ledger.index import LedgerIndex
from vgpu.ledger.liveness import Presence
from vgpu.ledger.owners import Place
from vgpu.ledger.slots import Accounted
from vgpu.ledger.usage import DeviceUsage, Usage, is_over
from vgpu.model.names import Phase, PodRef, Scheme, Sharing, Source
from vgpu.model.reasons import Reason, Rejection

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
    The other fields are what its region reports.
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
    shares: dict[str, ShareUsage] = {}

    def share(self, device: str) -> ShareUsage:
        """The container's share of the device, created if there is none."""
        share = self.shares.get(device)
        if share is None:
            share = ShareUsage(device, self.pod, self.container, self.scheme)
            self.shares[device] = share
        return share


class LeftoverRegion(msgspec.Struct, frozen=True, gc=False):
    """A region whose container has ended; ``pod`` has no names if no source has them."""

    path: str
    pod: PodRef
    container: str


class NodeUsage(msgspec.Struct, frozen=True):
    """All containers of a node, including those with a share that is only reserved.

    Attributes:
        containers: in the order of the sources' trust.
        shares: those of all containers, in the same order.
        devices: the attribution gap by UUID, where it is known.
        orphans, released: regions of unknown pods, and of known containers that have ended; None
            where no source reports which pods live, or their names.
        refused: what was refused while this was built, with its source.
        processes: the driver's processes by container and device.
        replicas: how many replicas of a device NVIDIA's plugin has registered, by UUID.
    """

    containers: tuple[ContainerUsage, ...] = ()
    shares: tuple[ShareUsage, ...] = ()
    devices: Mapping[str, DeviceUsage] = {}
    orphans: tuple[LeftoverRegion, ...] | None = None
    released: tuple[LeftoverRegion, ...] | None = None
    refused: tuple[tuple[Source, Rejection], ...] = ()
    processes: tuple[Usage, ...] = ()
    replicas: Mapping[str, int] = {}


def shares_of(containers: Iterable[ContainerUsage]) -> Iterator[ShareUsage]:
    """All shares of the containers."""
    return (share for container in containers for share in container.shares.values())


class UsageBuilder:
    """The containers of one node under construction, source by source in the order of their trust.

    Attributes:
        registry: the node's devices.
        presence: which pods have containers on the node.
        credible: which values of a tenant are possible.
        containers: the containers that are known so far.
    """

    def __init__(
        self,
        index: LedgerIndex,
        *,
        presence: Presence,
        pods: Mapping[str, PodRef],
        finished: AbstractSet[Place],
        at: float,
    ) -> None:
        """``pods`` are the names by UID, ``finished`` the init containers that have succeeded."""
        self.registry = index.registry
        self.presence = presence
        self.credible = Credibility(index.placements, index.ledger.bounds, at, self.reject)
        self.containers: dict[Place, ContainerUsage] = {}
        self.refused: list[tuple[Source, Rejection]] = []
        self._holdings = index.holdings
        self._pods = pods
        self._finished = finished

    def reject(self, source: Source, object_name: str, reason: Reason, detail: str) -> None:
        """Refuse what ``source`` reports in a file or about a pod."""
        self.refused.append((source, Rejection(object_name, reason, detail)))

    def has_ended(self, place: Place) -> bool:
        """Whether the container's pod, or the init container itself, has ended."""
        return self.presence.of(place[0]) is False or place in self._finished

    def is_there(self, place: Place) -> bool:
        """Whether the pod is known to live, and the container is no succeeded init container."""
        return bool(self.presence.of(place[0])) and place not in self._finished

    def is_missing(self, device: str) -> bool:
        """Whether the node lacks the device; False while the driver's list is incomplete."""
        return self.registry.complete and device not in self.registry.devices

    def pod(self, uid: str) -> PodRef | None:
        """The pod, if it has a name here."""
        return self._pods.get(uid)

    def container(self, place: Place, scheme: Scheme, source: Source) -> ContainerUsage:
        """The container; its ``source`` is the first source that reports it."""
        usage = self.containers.get(place)
        if usage is None:
            uid, name = place
            of_pod = self._holdings.get(uid, {})
            holding = of_pod.get(name) or of_pod.get("")
            usage = ContainerUsage(self.pod(uid) or PodRef(uid, "", ""), name, scheme, source)
            if holding is not None:
                usage.phase = holding.phase
                usage.scheme = scheme if holding.scheme is Scheme.NONE else holding.scheme
            self.containers[place] = usage
        elif usage.scheme is Scheme.NONE is not scheme:
            usage.scheme = scheme
            for share in usage.shares.values():
                share.scheme = scheme
        return usage

    def shares(self) -> Iterator[ShareUsage]:
        """All shares of all containers."""
        return shares_of(self.containers.values())

    def add_promised(self) -> None:
        """Add the holders in the ledger that no source on the node reports yet."""
        names_by_pod: dict[str, set[str]] = {}
        for uid, name in self.containers:
            names_by_pod.setdefault(uid, set()).add(name)
        for uid, held in self._holdings.items():
            names = names_by_pod.get(uid, set())
            for name, holding in held.items():
                absent = name not in names if name else not names
                if absent and (uid, name) not in self._finished:
                    self.container((uid, name), holding.scheme, holding.source).pod = holding.pod
