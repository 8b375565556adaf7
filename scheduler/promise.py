"""The annotations of a placement, which a Binding writes on the pod; pure."""

from collections.abc import Mapping

from msgspec import structs

from scheduler.node_cache import PodPlacement
from vgpu.model.allocation import Allocation, Claim, Device, Share
from vgpu.model.names import ContainerKind, Phase
from vgpu.model.objects import Pod
from vgpu.placement.result import PlacementReason, PlacementRefusal
from vgpu.schemes.codec import ClaimError


def promise_annotations(
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
