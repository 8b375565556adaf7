"""The GPUs of a node with what pods hold of them, from the API server's objects. Pure.

A bound pod holds what counts of its annotations (:mod:`vgpu.schemes.counted_claims`), at its peak
(:mod:`vgpu.model.allocation`), until it is gone; so do the annotations of another system that name
a GPU of the node. A reservation of another scheduler holds the GPUs that it names as long as it
stands. What a bound pod requests and no readable annotation places is kept free
(:mod:`vgpu.placement.pods_without_gpu`). A node is refused as a whole only while its register
cannot be read.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import structs

from vgpu.model.allocation import Allocation, Claim, Device, Share, effective_shares, physical
from vgpu.model.names import ContainerKind, PodRef
from vgpu.model.objects import Node, Pod
from vgpu.model.reasons import Explained
from vgpu.placement.candidate import (
    CandidateNode,
    GpuLinks,
    PodDemand,
    UsedGpu,
    places_of,
    with_all_shares,
)
from vgpu.placement.dialects import GpuTraits, SchedulerScheme
from vgpu.placement.pods_without_gpu import PodWithoutGpu, kept_free, pod_without_gpu
from vgpu.placement.result import (
    Placement,
    PlacementReason,
    PlacementRefusal,
)
from vgpu.schemes.codec import ClaimError
from vgpu.schemes.counted_claims import NOTHING, ClaimProblem, CountedClaim, counted_claim
from vgpu.schemes.pod_requests import Basis, basis_of

NEVER_SEEN: Final[Mapping[str, float]] = {}

_SPARE: Final = 16
"""Number of pods that have left a node, of which is known what they held."""


class Reservation(msgspec.Struct, frozen=True):
    """Shares of a pod that a scheduler has decided on; ``groups`` are its groups."""

    allocations: tuple[Allocation, ...]
    groups: tuple[str, ...] = ()


class ForeignReservation(msgspec.Struct, frozen=True):
    """Another scheduler's reservation on a node, for a pod that is not bound.

    Attributes:
        pod: the pod.
        node: the node that it names.
        system: the sharing system of its annotations, by the name of its row.
        asking: the pod as it was read.
    """

    pod: PodRef
    node: str
    system: str
    asking: Pod


class StandingReason(Explained):
    """Why a pod takes something off what is free of a node, beside what bound pods hold."""

    CLAIM_MISSING = "claim_missing", "no annotation names a GPU for all that it requests"
    CLAIM_UNREADABLE = "claim_unreadable", "its annotations about GPUs cannot be read"
    RESERVED = "reserved", "its GPUs are reserved, and it is not bound"


class StandingPod(msgspec.Struct, frozen=True):
    """A pod that stands in the way of others, on a node; ``named`` is what it names instead."""

    pod: PodRef
    reason: StandingReason
    named: str = ""

    @property
    def explanation(self) -> str:
        """The reason, for people."""
        return self.named or self.reason.explanation

    @property
    def text(self) -> str:
        """The pod and the reason, for people."""
        return f"pod {self.pod.namespace}/{self.pod.name}: {self.explanation}"


class CandidateView(msgspec.Struct, frozen=True, gc=False):
    """A node as a placement sees it.

    Attributes:
        candidate: its GPUs in use, without what is kept free.
        reason: why no pod may be placed there now; None if pods may.
        detail: what exactly is wrong, for people.
        until: unix seconds at which what is kept free changes by itself; None if it does not.
        held: the GPUs with what is held and reserved, if the candidate has more in use.
        without: the GPUs without what ``standing`` pods take, if there are such pods.
        standing: the pods that stand in the way of others, by name.
    """

    candidate: CandidateNode
    reason: PlacementReason | None = None
    detail: str = ""
    until: float | None = None
    held: tuple[UsedGpu, ...] = ()
    without: tuple[UsedGpu, ...] = ()
    standing: tuple[StandingPod, ...] = ()

    @property
    def held_gpus(self) -> tuple[UsedGpu, ...]:
        """The GPUs with what is held and reserved, each pod on its own GPUs only."""
        return self.held or self.candidate.gpus

    @property
    def is_readable(self) -> bool:
        """Whether the GPUs of every pod that claims some can be read."""
        return self.reason is not PlacementReason.UNREADABLE and not any(
            each.reason is StandingReason.CLAIM_UNREADABLE for each in self.standing
        )

    def with_unreadable(self, pods: Iterable[str]) -> "CandidateView":
        """The view of a node with pods that cannot be read at all; ``pods`` are texts of them."""
        view = self
        for detail in pods:
            view = structs.replace(self, reason=PlacementReason.UNREADABLE, detail=detail)
        return view

    @property
    def standing_reason(self) -> PlacementReason | None:
        """The reason why pods in the way refuse another; None if there are no such pods."""
        if not self.standing:
            return None
        is_foreign = all(each.reason is StandingReason.RESERVED for each in self.standing)
        return PlacementReason.OTHER_SCHEDULER if is_foreign else PlacementReason.POD_WITHOUT_GPU

    def blamed(
        self, scheme: SchedulerScheme, demand: PodDemand, refused: PlacementRefusal
    ) -> PlacementRefusal:
        """The refusal of a demand; by the pods in the way, if the node took it without them."""
        reason = self.standing_reason
        if reason is None:
            return refused
        node = structs.replace(self.candidate, gpus=self.without)
        if not isinstance(scheme.dialect.choose(demand, node), Placement):
            return refused
        return PlacementRefusal(reason, self.detail, free_bytes=refused.free_bytes)


def scheme_of(node: Node, schemes: Iterable[SchedulerScheme]) -> SchedulerScheme | PlacementReason:
    """The sharing system whose GPUs the node has registered."""
    present = [scheme for scheme in schemes if scheme.row.has_devices(node)]
    if not present:
        return PlacementReason.NO_GPUS
    return present[0] if len(present) == 1 else PlacementReason.MIXED_NODE


class IdleGpus(msgspec.Struct, frozen=True, gc=False):
    """A node's GPUs without any share, in the order of the register.

    ``mode`` is how all of them are shared, ``links`` how well they are connected, ``places`` the
    place of each GPU by its names, and ``by_name`` the GPU itself.
    """

    devices: tuple[Device, ...]
    gpus: tuple[UsedGpu, ...]
    mode: str
    links: GpuLinks
    places: Mapping[str, int]
    by_name: Mapping[str, Device]


class HeldByPod(msgspec.Struct, frozen=True, gc=False):
    """What a bound pod holds at its peak, and what it requests beside that.

    ``claimed`` are the shares to show, if that is less: of what the request leaves to the system,
    the original counts what it has claimed.
    """

    shares: tuple[Share, ...] = ()
    groups: tuple[str, ...] = ()
    without_gpu: PodWithoutGpu | None = None
    claimed: tuple[Share, ...] | None = None


class ViewParts:
    """What views of one node have in common: the register and the annotations of a pod are read
    once for each state of their object. Not for several threads.
    """

    def __init__(self) -> None:
        self._node: tuple[Node, str, IdleGpus] | None = None
        self._held: dict[str, tuple[Pod, HeldByPod]] = {}
        self._elsewhere: dict[str, tuple[Pod, SchedulerScheme, tuple[Share, ...]]] = {}
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
        self, scheme: SchedulerScheme, pods: Sequence[Pod], node: Node, idle: IdleGpus
    ) -> list[HeldByPod]:
        """What each of the bound pods holds."""
        devices = idle.by_name
        # A view in which pods are supposed to be gone has few of them, and must not end the others.
        self._most = max(self._most, len(pods))
        if len(self._held) > 2 * self._most + _SPARE:
            self._held.clear()
            self._elsewhere.clear()
            self._most = len(pods)
        held = []
        for pod in pods:
            known = self._held.get(pod.ref.uid)
            if known is None or known[0] is not pod:
                elsewhere = self.elsewhere(scheme, pod)
                own = held_by(scheme, pod, node, devices, elsewhere)
                known = self._held[pod.ref.uid] = pod, own
            held.append(known[1])
        return held

    def elsewhere(self, scheme: SchedulerScheme, pod: Pod) -> tuple[Share, ...]:
        """What the pod claims in other systems than the node's: few pods claim anything there."""
        if not scheme.is_marked_by_others(pod):
            return ()
        known = self._elsewhere.get(pod.ref.uid)
        if known is None or known[0] is not pod or known[1] is not scheme:
            shares = _claimed_elsewhere(scheme, pod)
            known = self._elsewhere[pod.ref.uid] = pod, scheme, shares
        return known[2]


def node_view(
    node: Node,
    scheme: SchedulerScheme,
    bound: Sequence[Pod],
    foreign: Sequence[ForeignReservation],
    reservations: Iterable[Reservation],
    *,
    now: float,
    unhealthy: str = "",
    seen: Mapping[str, float] = NEVER_SEEN,
    parts: ViewParts | None = None,
) -> CandidateView:
    """The node's view.

    ``bound`` are the pods on it that may hold devices, ``foreign`` other schedulers' reservations
    that name this node; ``reservations`` are our own of pods that are not in ``bound``.
    ``unhealthy`` is the text of the ConfigMap that lists its unhealthy GPUs, ``now`` unix seconds;
    ``seen`` is when pods were first seen as bound, by UID, of which the API server has no time, and
    ``parts`` are those of the node's earlier views.
    """
    parts = parts or ViewParts()
    try:
        idle = parts.idle(scheme, node, unhealthy)
    except ClaimError as error:
        return CandidateView(
            CandidateNode(node.name, ()),
            PlacementReason.UNREADABLE,
            f"{error.object_name}: {error.detail}",
        )
    held = parts.held(scheme, bound, node, idle)
    ours = tuple(reservations)
    gpus = shown = _in_use(idle, held, ours)
    if any(each.claimed is not None for each in held):
        shown = _in_use(
            idle,
            (each if each.claimed is None else HeldByPod(each.claimed) for each in held),
            ours,
        )
    candidate = CandidateNode(node.name, gpus, idle.mode, idle.links)
    lacking = [each.without_gpu for each in held if each.without_gpu is not None]
    reserved = [
        (reservation.pod, shares)
        for reservation in foreign
        if reservation.system == scheme.row.name
        and (shares := _reserved_shares(scheme, reservation.asking, node, idle))
    ]
    if not (lacking or reserved):
        return CandidateView(candidate, held=shown if shown is not gpus else ())
    groups = [(shares, ()) for _, shares in reserved]
    with_reserved = with_all_shares(gpus, groups, idle.places)
    placing, until = kept_free(with_reserved, lacking, now, seen, scheme.codec.unit_bytes)
    standing = tuple(
        sorted(
            (
                *(StandingPod(each.pod, _reason(each), each.named) for each in lacking),
                *(StandingPod(pod, StandingReason.RESERVED) for pod, _ in reserved),
            ),
            key=lambda each: (each.pod.namespace, each.pod.name, each.pod.uid),
        )
    )
    return CandidateView(
        structs.replace(candidate, gpus=placing),
        detail="; ".join(each.text for each in standing),
        until=until,
        held=with_all_shares(shown, groups, idle.places),
        without=gpus,
        standing=standing,
    )


def foreign_reservation(pod: Pod, schemes: Iterable[SchedulerScheme]) -> ForeignReservation | None:
    """The reservation in the annotations of a pod that is not bound; None if none names a node.

    A pod that requests nothing has none, whatever its annotations are, and one with a scheduling
    gate has none, since no scheduler has seen it.
    """
    if pod.gated:
        return None
    requested = [(basis_of(pod, scheme.codec), scheme) for scheme in schemes]
    # A pod that requests one system by its name can have annotations of another one, too.
    requested.sort(key=lambda each: each[0] is not Basis.NAMED)
    for basis, scheme in requested:
        if basis is Basis.NOTHING:
            continue
        try:
            claim = scheme.codec.claim(pod)
        except ClaimError:
            continue
        if claim is not None and claim.node:
            return ForeignReservation(pod.ref, claim.node, scheme.row.name, pod)
    return None


def held_by(
    scheme: SchedulerScheme,
    pod: Pod,
    node: Node,
    devices: Mapping[str, Device],
    elsewhere: Iterable[Share] = (),
) -> HeldByPod:
    """What a bound pod holds at its peak, and what it requests beside that.

    ``elsewhere`` is what it claims in other systems than the node's.
    """
    counted = counted_claim(pod, scheme.codec, devices, node.advertised)
    if counted.missing and is_of_other_plugin(scheme, pod, node, counted):
        counted = NOTHING
    shares = () if counted.claim is None else peak_shares(pod, counted.claim)
    groups = scheme.wishes(pod).groups if shares else ()
    of_others = _beside(elsewhere, shares, devices) if elsewhere else ()
    claimed = None
    if counted.problem is ClaimProblem.CLAIMS_LESS:
        shown = counted_claim(
            pod, scheme.codec, devices, node.advertised, resolves_defaults=False
        ).claim
        claimed = None if shown is None else peak_shares(pod, shown) + of_others
    return HeldByPod(shares + of_others, groups, pod_without_gpu(pod, counted, devices), claimed)


def is_of_other_plugin(
    scheme: SchedulerScheme, pod: Pod, node: Node, counted: CountedClaim
) -> bool:
    """Whether a pod without a claim has its devices of another plugin, whose names are the same."""
    is_foreign = scheme.row.is_foreign
    if is_foreign is None or counted.claim is not None or counted.unread:
        return False
    return is_foreign((node,))(pod)


def _claimed_elsewhere(scheme: SchedulerScheme, pod: Pod) -> tuple[Share, ...]:
    """What a bound pod claims in other systems than the node's, at its peak."""
    shares: list[Share] = []
    for codec in scheme.others:
        if codec.claim_keys(pod):
            claim = counted_claim(pod, codec, resolves_defaults=False).claim
            shares += () if claim is None else peak_shares(pod, claim)
    return tuple(shares)


def _beside(
    elsewhere: Iterable[Share], shares: Iterable[Share], devices: Mapping[str, Device]
) -> tuple[Share, ...]:
    """The shares of GPUs of the node of which the pod has none of ``shares``.

    Of one GPU a pod has several claims only where somebody has written one of them by hand.
    """
    taken = {devices[name].name for name in map(_gpu_of, shares) if name in devices}
    return tuple(
        share
        for share in elsewhere
        if (gpu := devices.get(_gpu_of(share))) is not None and gpu.name not in taken
    )


def _gpu_of(share: Share) -> str:
    return physical(share.device)


def held_shares(
    scheme: SchedulerScheme, pod: Pod, devices: Iterable[Device]
) -> tuple[Share, ...] | None:
    """What a bound pod holds at its peak by its annotations; None if nothing of them counts.

    ``devices`` are the node's, () if they are not known.
    """
    by_name = {name: device for device in devices for name in device.names}
    claim = counted_claim(pod, scheme.codec, by_name).claim
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
    by_name = {name: device for device in devices for name in device.names}
    return IdleGpus(devices, tuple(gpus), mode, links, places_of(gpus), by_name)


def _in_use(
    idle: IdleGpus, held: Iterable[HeldByPod], reservations: Iterable[Reservation]
) -> tuple[UsedGpu, ...]:
    """The GPUs with what pods hold, and with what is reserved."""
    in_use = [(each.shares, each.groups) for each in held if each.shares]
    in_use += [(effective_shares(each.allocations), each.groups) for each in reservations]
    return with_all_shares(idle.gpus, in_use, idle.places)


def _reserved_shares(
    scheme: SchedulerScheme, pod: Pod, node: Node, idle: IdleGpus
) -> tuple[Share, ...]:
    """What counts of another scheduler's reservation for a pod that is not bound."""
    counted = counted_claim(pod, scheme.codec, idle.by_name, node.advertised)
    return () if counted.claim is None else peak_shares(pod, counted.claim)


def _reason(pod: PodWithoutGpu) -> StandingReason:
    return StandingReason.CLAIM_UNREADABLE if pod.is_unread else StandingReason.CLAIM_MISSING
