"""The GPUs of a node with what pods hold of them, from the API server's objects. Pure.

A bound pod holds what its annotations have, at its peak (:mod:`vgpu.effective`), until it is gone.
A node is refused as a whole while this cannot be known: a register or claim cannot be read, a pod
on it has no GPU yet, or another scheduler's reservation for a pod that is not bound names it.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec
from msgspec import structs

from vgpu.effective import effective_shares
from vgpu.kube.objects import Node, Pod
from vgpu.model import Allocation, Claim, ContainerKind, Device, PodRef, Share
from vgpu.placement.candidate import (
    CandidateNode,
    GpuLinks,
    UsedGpu,
    places_of,
    with_all_shares,
)
from vgpu.placement.dialects import GpuTraits, SchedulerScheme
from vgpu.placement.result import PlacementReason
from vgpu.schemes.codec import ClaimError

RESERVED_SECONDS: Final = 300.0
"""Time after which another scheduler's reservation for a pod that is not bound counts no more."""

_SPARE: Final = 16
"""Number of pods that have left a node, of which is known what they held."""


class Reservation(msgspec.Struct, frozen=True):
    """Shares of a pod that a scheduler has decided on; ``groups`` are its groups."""

    allocations: tuple[Allocation, ...]
    groups: tuple[str, ...] = ()


class ForeignPromise(msgspec.Struct, frozen=True):
    """Another scheduler's reservation on a node, for a pod that is not bound.

    Attributes:
        pod: the pod.
        node: the node that it names.
        since: when it was made, but not later than we first read it; unix seconds. Any user may
            write these annotations, with any time.
    """

    pod: PodRef
    node: str
    since: float

    @property
    def until(self) -> float:
        """When it ends, in unix seconds."""
        return self.since + RESERVED_SECONDS


class CandidateView(msgspec.Struct, frozen=True, gc=False):
    """A node as a placement sees it.

    Attributes:
        candidate: its GPUs in use.
        reason: why no pod may be placed there now; None if pods may.
        detail: what exactly is wrong, for people.
        until: unix seconds at which ``reason`` ends by itself; None if it does not.
    """

    candidate: CandidateNode
    reason: PlacementReason | None = None
    detail: str = ""
    until: float | None = None


def scheme_of(node: Node, schemes: Iterable[SchedulerScheme]) -> SchedulerScheme | PlacementReason:
    """The sharing system whose GPUs the node has registered."""
    own = [scheme for scheme in schemes if scheme.row.has_devices(node)]
    if not own:
        return PlacementReason.NO_GPUS
    return own[0] if len(own) == 1 else PlacementReason.MIXED_NODE


class IdleGpus(msgspec.Struct, frozen=True, gc=False):
    """A node's GPUs without any share, in the order of the register.

    ``mode`` is how all of them are shared, ``links`` how well they are connected, ``places`` the
    place of each GPU by its names.
    """

    devices: tuple[Device, ...]
    gpus: tuple[UsedGpu, ...]
    mode: str
    links: GpuLinks
    places: Mapping[str, int]


class HeldByPod(msgspec.Struct, frozen=True, gc=False):
    """What a bound pod holds at its peak; ``shares`` are None if nothing shows it yet."""

    shares: tuple[Share, ...] | None
    groups: tuple[str, ...] = ()


class ViewParts:
    """What views of one node have in common: the register and the annotations of a pod are read
    once for each state of their object. Not for several threads.
    """

    def __init__(self) -> None:
        self._node: tuple[Node, str, IdleGpus] | None = None
        self._held: dict[str, tuple[Pod, HeldByPod]] = {}
        self._most = 0

    def idle(self, scheme: SchedulerScheme, node: Node, unhealthy: str) -> IdleGpus:
        """The GPUs without any share. Raises ClaimError."""
        known = self._node
        if known is not None and known[0] is node and known[1] == unhealthy:
            return known[2]
        self._node = None
        self._held.clear()
        idle = _idle(scheme, node, unhealthy)
        self._node = node, unhealthy, idle
        return idle

    def held(
        self, scheme: SchedulerScheme, pods: Sequence[Pod], devices: tuple[Device, ...]
    ) -> list[HeldByPod]:
        """What each of the bound pods holds. Raises ClaimError."""
        # A view in which pods are supposed to be gone has few of them, and must not end the others.
        self._most = max(self._most, len(pods))
        if len(self._held) > 2 * self._most + _SPARE:
            self._held.clear()
            self._most = len(pods)
        held = []
        for pod in pods:
            known = self._held.get(pod.ref.uid)
            if known is None or known[0] is not pod:
                shares = held_shares(scheme, pod, devices)
                groups = () if shares is None else scheme.wishes(pod).groups
                known = self._held[pod.ref.uid] = pod, HeldByPod(shares, groups)
            held.append(known[1])
        return held


def node_view(
    node: Node,
    scheme: SchedulerScheme,
    bound: Sequence[Pod],
    promised: Sequence[ForeignPromise],
    reservations: Iterable[Reservation],
    *,
    now: float,
    unhealthy: str = "",
    parts: ViewParts | None = None,
) -> CandidateView:
    """The node's view.

    ``bound`` are the pods on it that may hold devices, ``promised`` other schedulers' reservations
    that name this node; ``reservations`` are our own of pods that are not in ``bound``.
    ``unhealthy`` is the text of the ConfigMap that lists its unhealthy GPUs, ``now`` unix seconds;
    ``parts`` are those of the node's earlier views.
    """
    parts = parts or ViewParts()
    try:
        idle = parts.idle(scheme, node, unhealthy)
        held = parts.held(scheme, bound, idle.devices)
    except ClaimError as error:
        return CandidateView(
            CandidateNode(node.name, ()),
            PlacementReason.UNREADABLE,
            f"{error.object_name}: {error.detail}",
        )
    gpus = _in_use(idle, held, reservations)
    candidate = CandidateNode(node.name, gpus, idle.mode, idle.links)
    for pod, each in zip(bound, held, strict=True):
        if each.shares is None and scheme.is_asked(pod):
            detail = f"pod {pod.ref.namespace}/{pod.ref.name} has no GPU yet"
            return CandidateView(candidate, PlacementReason.POD_WITHOUT_GPU, detail)
    return _held_back(candidate, promised, now)


def readable_gpus(
    node: Node,
    scheme: SchedulerScheme,
    bound: Iterable[Pod],
    reservations: Iterable[Reservation],
) -> tuple[UsedGpu, ...]:
    """The GPUs of an unreadable node with what can be read of their use; none without a register.

    Only to be shown: a placement would allocate again what the unreadable pods hold.
    """
    try:
        idle = _idle(scheme, node, "")
    except ClaimError:
        return ()
    held = []
    for pod in bound:
        try:
            held.append(HeldByPod(held_shares(scheme, pod, idle.devices)))
        except ClaimError:
            continue
    return _in_use(idle, held, reservations)


def foreign_promise(
    pod: Pod, schemes: Iterable[SchedulerScheme], first_read: float
) -> ForeignPromise | None:
    """The reservation in the annotations of a pod that is not bound; None if none names a node.

    ``first_read`` is when we first read one of this pod, in unix seconds.
    """
    for scheme in schemes:
        try:
            claim = scheme.codec.claim(pod)
        except ClaimError:
            continue
        if claim is not None and claim.node:
            since = first_read if claim.assumed_at is None else min(claim.assumed_at, first_read)
            return ForeignPromise(pod.ref, claim.node, since)
    return None


def held_shares(
    scheme: SchedulerScheme, pod: Pod, devices: tuple[Device, ...]
) -> tuple[Share, ...] | None:
    """What a bound pod holds at its peak; None if nothing shows it yet. Raises ClaimError."""
    claim = scheme.codec.claim(pod) or scheme.codec.sole_gpu(pod, devices)
    return None if claim is None else peak_shares(pod, claim)


def peak_shares(pod: Pod, claim: Claim) -> tuple[Share, ...]:
    """What a pod holds by its claim, at its peak."""
    kinds = {container.name: container.kind for container in pod.containers}
    is_initialized = pod.initialized()
    allocations = []
    for allocation in claim.allocations:
        kind = kinds.get(allocation.container, allocation.kind)
        if not (is_initialized and kind is ContainerKind.INIT):
            allocations.append(structs.replace(allocation, kind=kind))
    allocations.sort(key=lambda allocation: allocation.kind is ContainerKind.APP)
    return effective_shares(allocations)


def _idle(scheme: SchedulerScheme, node: Node, unhealthy: str) -> IdleGpus:
    """The GPUs without any share. Raises ClaimError."""
    devices = scheme.codec.with_health(scheme.codec.devices(node), unhealthy, node.name)
    cordoned, traits = scheme.dialect_row.cordoned(node), scheme.dialect_row.traits(node)
    gpus = []
    for device in devices:
        of_gpu = traits.get(device.uuid, GpuTraits())
        is_cordoned = not cordoned.isdisjoint(device.names)
        gpus.append(UsedGpu(device, cordoned=is_cordoned, numa=of_gpu.numa, mode=of_gpu.mode))
    mode, links = scheme.dialect_row.mode(node), scheme.dialect_row.links(node)
    return IdleGpus(devices, tuple(gpus), mode, links, places_of(gpus))


def _in_use(
    idle: IdleGpus, held: Iterable[HeldByPod], reservations: Iterable[Reservation]
) -> tuple[UsedGpu, ...]:
    """The GPUs with what pods hold, and with what is reserved."""
    in_use = [(each.shares, each.groups) for each in held if each.shares]
    in_use += [(effective_shares(each.allocations), each.groups) for each in reservations]
    return with_all_shares(idle.gpus, in_use, idle.places)


def _held_back(
    candidate: CandidateNode, promised: Sequence[ForeignPromise], now: float
) -> CandidateView:
    for promise in promised:
        if promise.until > now:
            pod = promise.pod
            detail = (
                f"GPUs are reserved for pod {pod.namespace}/{pod.name}, which is not bound, until"
                f" {datetime.fromtimestamp(promise.until, UTC):%Y-%m-%dT%H:%M:%SZ}"
            )
            return CandidateView(candidate, PlacementReason.OTHER_SCHEDULER, detail, promise.until)
    return CandidateView(candidate)
