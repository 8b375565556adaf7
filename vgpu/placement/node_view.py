"""The GPUs of a node with what pods hold of them, from the API server's objects. Pure.

A bound pod holds what its annotations have, at its peak (:mod:`vgpu.effective`), until it is gone.
A node is refused as a whole while this cannot be known: a register or claim cannot be read, a pod
on it has no GPU yet, or another scheduler's reservation for a pod that is not bound names it.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
from msgspec import structs

from vgpu.effective import effective_shares
from vgpu.kube.objects import Node, Pod
from vgpu.model import Allocation, Claim, ContainerKind, Device, PodRef, Share
from vgpu.placement.candidate import CandidateNode, UsedGpu, with_shares
from vgpu.placement.dialects import GpuTraits, SchedulerScheme
from vgpu.placement.result import PlacementReason
from vgpu.schemes.codec import ClaimError

RESERVED_SECONDS: Final = 300.0
"""Time after which another scheduler's reservation for a pod that is not bound counts no more."""


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


class CandidateView(msgspec.Struct, frozen=True):
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


def node_view(
    node: Node,
    scheme: SchedulerScheme,
    bound: Sequence[Pod],
    promised: Sequence[ForeignPromise],
    reservations: Iterable[Reservation],
    *,
    now: float,
    unhealthy: str = "",
) -> CandidateView:
    """The node's view.

    ``bound`` are the pods on it that may hold devices, ``promised`` other schedulers' reservations
    that name this node; ``reservations`` are our own of pods that are not in ``bound``.
    ``unhealthy`` is the text of the ConfigMap that lists its unhealthy GPUs, ``now`` unix seconds.
    """
    empty = CandidateNode(node.name, ())
    try:
        devices = scheme.codec.with_health(scheme.codec.devices(node), unhealthy, node.name)
        gpus = _idle(scheme, node, devices)
        gpus, waiting = _in_use(scheme, gpus, devices, bound)
        mode, links = scheme.dialect_row.mode(node), scheme.dialect_row.links(node)
    except ClaimError as error:
        return CandidateView(
            empty, PlacementReason.UNREADABLE, f"{error.object_name}: {error.detail}"
        )
    for reservation in reservations:
        shares = effective_shares(reservation.allocations)
        gpus = with_shares(gpus, shares, reservation.groups)
    candidate = CandidateNode(node.name, gpus, mode, links)
    if waiting is not None:
        detail = f"pod {waiting.ref.namespace}/{waiting.ref.name} has no GPU yet"
        return CandidateView(candidate, PlacementReason.POD_WITHOUT_GPU, detail)
    return _held_back(candidate, promised, now)


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


def _idle(scheme: SchedulerScheme, node: Node, devices: tuple[Device, ...]) -> tuple[UsedGpu, ...]:
    """The GPUs without any share. Raises ClaimError."""
    cordoned, traits = scheme.dialect_row.cordoned(node), scheme.dialect_row.traits(node)
    gpus = []
    for device in devices:
        of_gpu = traits.get(device.uuid, GpuTraits())
        is_cordoned = not cordoned.isdisjoint(device.names)
        gpus.append(UsedGpu(device, cordoned=is_cordoned, numa=of_gpu.numa, mode=of_gpu.mode))
    return tuple(gpus)


def _in_use(
    scheme: SchedulerScheme,
    gpus: tuple[UsedGpu, ...],
    devices: tuple[Device, ...],
    bound: Sequence[Pod],
) -> tuple[tuple[UsedGpu, ...], Pod | None]:
    """The GPUs with what bound pods hold; a pod whose GPUs nothing shows. Raises ClaimError."""
    waiting = None
    for pod in bound:
        shares = held_shares(scheme, pod, devices)
        if shares is not None:
            gpus = with_shares(gpus, shares, scheme.wishes(pod).groups)
        elif scheme.is_asked(pod):
            waiting = pod
    return gpus, waiting


def _held_back(
    candidate: CandidateNode, promised: Sequence[ForeignPromise], now: float
) -> CandidateView:
    for promise in promised:
        until = promise.since + RESERVED_SECONDS
        if until > now:
            pod = promise.pod
            detail = f"GPUs are reserved for pod {pod.namespace}/{pod.name}, which is not bound"
            return CandidateView(candidate, PlacementReason.OTHER_SCHEDULER, detail, until)
    return CandidateView(candidate)
