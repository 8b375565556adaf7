"""Reservations: GPUs that are decided or held for a pod that is not shown as bound yet; pure.

A reservation has three forms: the value in the cache of this replica; the claim in the annotation
of the node's Lease, by which all replicas know it; and the annotations that the Binding writes on
the pod, in the form of the pod's sharing system.

A claim stays for as long as its pod does, so that a replica that has not seen the bound pod yet
counts it all the same. An annotation has at most 256 KiB: about 1,000 claims.

What preemptions free is remembered from the answer until kube-scheduler has chosen a node. Then it
is held for the pod, as a reservation.
"""

from collections import OrderedDict
from collections.abc import Mapping
from hashlib import sha256
from typing import Final

import msgspec
from msgspec import structs

from scheduler.cluster.demands import DemandShape
from vgpu.model.allocation import Allocation, Claim, Device, Share
from vgpu.model.names import ContainerKind, Phase, PodRef
from vgpu.model.objects import Pod
from vgpu.model.reasons import Reason, SourceError
from vgpu.placement.dialects import SchedulerScheme
from vgpu.placement.node_view import Reservation
from vgpu.placement.result import PlacementReason, PlacementRefusal
from vgpu.schemes.codec import ClaimError

PREFIX: Final = "vgpu-node-"
"""The prefix of a Lease's name; the node's name follows."""

CHOICE_SECONDS: Final = 60.0
"""Maximum time between the answer to preempt and the choice of a node, in seconds."""

MOST_PREEMPTING: Final = 1000
"""Maximum number of pods whose preemptions are remembered; the oldest are forgotten first."""

_LONGEST_NAME: Final = 253


class PodReservation(Reservation, frozen=True, kw_only=True):
    """A reservation with its pod.

    Attributes:
        pod: the pod.
        shape: its demand; None of another replica's.
        since: when it was decided or confirmed, in unix seconds.
        is_held: whether the pod was not decided on yet: the GPUs that its preemption frees are held
            for it against pods that are not more important.
        priority: the pod's, if ``is_held``.
        units: the pod's extended resources, as in :class:`PodDemand`.
    """

    pod: PodRef
    shape: DemandShape | None = None
    since: float
    is_held: bool = False
    priority: int = 0
    units: tuple[tuple[str, int], ...] = ()

    def is_for(self, shape: DemandShape) -> bool:
        """Whether it is a decision on what the pod still requests."""
        return not self.is_held and (self.shape is None or self.shape.content == shape.content)


class PodPlacement(msgspec.Struct, frozen=True):
    """What bind has decided.

    Attributes:
        scheme: the pod's sharing system.
        node: the node.
        allocations: the containers' shares.
        devices: the node's devices under every name that a share may use.
    """

    scheme: SchedulerScheme
    node: str
    allocations: tuple[Allocation, ...]
    devices: Mapping[str, Device]

    @property
    def gpu_names(self) -> tuple[str, ...]:
        """The names of the pod's GPUs, each once."""
        shares = (share for allocation in self.allocations for share in allocation.shares)
        names = (
            self.devices[share.device].name if share.device in self.devices else share.device
            for share in shares
        )
        return tuple(dict.fromkeys(names))


def reservation_annotations(
    pod: Pod, placement: PodPlacement, now: float
) -> dict[str, str] | PlacementRefusal:
    """The annotations of the placement, in the form of the pod's sharing system.

    ``now`` is unix seconds. Refused if the pod, with annotations that its user wrote, would be read
    otherwise afterwards: a Binding adds annotations, and removes none.
    """
    codec = placement.scheme.codec
    claim = Claim(
        scheme=placement.scheme.row.scheme,
        pod=pod.ref,
        node=placement.node,
        allocations=_in_the_specs_order(pod, placement.allocations),
        assumed_at=now,
    )
    if placement.scheme.dialect_row.lists_unserved:
        unserved = tuple(allocation.container for allocation in claim.allocations)
        claim = structs.replace(claim, unserved=unserved)
    try:
        annotations = codec.rewritten(pod, claim, placement.devices)
        bound = structs.replace(
            pod, annotations={**pod.annotations, **annotations}, node=placement.node
        )
        written = codec.claim(bound)
    except ClaimError as error:
        return PlacementRefusal(PlacementReason.FOREIGN_ANNOTATIONS, error.detail)
    devices = placement.devices
    if written is None or _shares(written, devices) != _shares(claim, devices):
        keys = ", ".join(sorted(set(codec.claim_keys(pod)) - annotations.keys()))
        return PlacementRefusal(PlacementReason.FOREIGN_ANNOTATIONS, f"remove {keys}")
    if any(allocation.phase is not Phase.ASSUMED for allocation in written.allocations):
        return PlacementRefusal(PlacementReason.FOREIGN_ANNOTATIONS, "they report an allocation")
    return annotations


def _in_the_specs_order(pod: Pod, allocations: tuple[Allocation, ...]) -> tuple[Allocation, ...]:
    """Init containers and sidecars first, then the others, as annotations count them."""
    places = {container.name: place for place, container in enumerate(pod.containers)}
    return tuple(
        sorted(
            allocations,
            key=lambda each: (each.kind is ContainerKind.APP, places.get(each.container, 0)),
        )
    )


def _shares(claim: Claim, devices: Mapping[str, Device]) -> dict[str, list[Share]]:
    """The shares by container, with the GPUs by one of their names."""
    return {
        allocation.container: [
            structs.replace(share, device=devices[share.device].name)
            if share.device in devices
            else share
            for share in allocation.shares
        ]
        for allocation in claim.allocations
    }


class NodeClaim(msgspec.Struct, frozen=True):
    """What was decided for a pod.

    Attributes:
        pod: the pod.
        allocations: the containers' shares.
        groups: its groups.
        confirmed_at: when a replica last confirmed it, in unix seconds by that replica's clock.
        is_held: whether nothing is decided yet, and the shares are held for the pod, for which
            kube-scheduler preempts others.
        priority: the pod's, if ``is_held``.
        units: the pod's extended resources, which its quota counts.
    """

    pod: PodRef
    allocations: tuple[Allocation, ...]
    groups: tuple[str, ...] = ()
    confirmed_at: float = msgspec.field(default=0.0, name="at")
    is_held: bool = False
    priority: int = 0
    units: tuple[tuple[str, int], ...] = ()


Claims = Mapping[str, NodeClaim]
"""Claims by the UID of their pod."""

_CLAIMS: Final = msgspec.json.Decoder(dict[str, NodeClaim])


def lease_name(node: str) -> str:
    """The name of the node's Lease."""
    name = PREFIX + node
    if len(name) <= _LONGEST_NAME:
        return name
    return PREFIX + sha256(node.encode()).hexdigest()


def read_claims(text: str, lease: str) -> dict[str, NodeClaim]:
    """The claims in the annotation; none in "". Raises SourceError MALFORMED."""
    if not text:
        return {}
    try:
        return _CLAIMS.decode(text.encode(errors="replace"))
    except (msgspec.DecodeError, RecursionError) as error:
        raise SourceError(Reason.MALFORMED, f"Lease {lease}", str(error)) from error


def write_claims(claims: Claims) -> str:
    """The annotation."""
    return msgspec.json.encode(claims).decode()


class HeldShares(msgspec.Struct, frozen=True):
    """The shares that a pod gets once its victims are gone; ``groups`` are its groups."""

    allocations: tuple[Allocation, ...]
    groups: tuple[str, ...] = ()


class Preemptions:
    """The shares by pod and node. Not for several threads: the cache locks."""

    def __init__(self) -> None:
        self._pods: OrderedDict[str, tuple[float, Mapping[str, HeldShares]]] = OrderedDict()

    def add(self, uid: str, freed: Mapping[str, HeldShares], now: float) -> None:
        """Remember the nodes of an answer; a new answer replaces the last one."""
        self._pods.pop(uid, None)
        self._pods[uid] = now, freed
        if len(self._pods) > MOST_PREEMPTING:
            self._pods.popitem(last=False)

    def shares(self, uid: str, node: str, now: float) -> HeldShares | None:
        """The shares on the chosen node; None if no answer that is new enough has that node."""
        answered_at, freed = self._pods.get(uid, (now, {}))
        return freed.get(node) if now - answered_at <= CHOICE_SECONDS else None

    def discard(self, uid: str) -> None:
        """Forget a pod: it is bound or gone."""
        self._pods.pop(uid, None)
