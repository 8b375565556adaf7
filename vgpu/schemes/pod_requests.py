"""Who requests what of a sharing system, and what a request comes to. Pure.

For a pod p, a sharing system s, and n, the node of the pod or the node that its reservation names:

    asks(p, s, n)    = some container requests more than 0 of a name in
                       advertised(s), or in only_counted(s) and in advertised(n)
    unnamed(p, n)    = the sum of what p requests of names in advertised(n) that no system knows

A system without resources (KubeShare, a ResourceClaim) has other evidence of what pods request. A
pod of renamed resources (``unnamed``) requests no amount that we know. The kubelet ignores
resources that its node does not advertise (``removeMissingExtendedResources`` of
``pkg/kubelet/lifecycle/predicate.go``), so that HAMi's ``gpumem`` alone brings no device.
"""

from collections.abc import Collection, Iterable
from enum import StrEnum
from typing import Final

from msgspec import structs

from vgpu.model.allocation import Allocation, Device, Request, Share, effective, effective_shares
from vgpu.model.names import ContainerKind, Phase
from vgpu.model.objects import Pod
from vgpu.model.units import WHOLE_DEVICE_MILLI, WHOLE_DEVICE_PERCENT
from vgpu.schemes.codec import ClaimError, SchemeCodec
from vgpu.schemes.nvidia.resources import is_nvidia_resource
from vgpu.schemes.registry import registry

UNKNOWN_GPU: Final = "unknown GPU "
"""The beginning of the names of GPUs of which only a request is known."""


class Basis(StrEnum):
    """How a pod requests a system."""

    NAMED = "named"  # by a name that a device plugin of the system advertises
    UNNAMED = "unnamed"  # by a name that the node advertises and no system knows
    OWN = "own"  # the system has no resources, and other evidence
    NOTHING = "nothing"


def basis_of(pod: Pod, codec: SchemeCodec, advertised: Collection[str] | None = None) -> Basis:
    """How the pod requests the system.

    ``advertised`` are the extended resources of its node; None if the node is not known: then every
    name that no system knows may be advertised.
    """
    names = codec.advertised
    if not names:
        return Basis.OWN
    if _asks(pod, names):
        return Basis.NAMED
    if advertised and _asks(pod, [each for each in codec.only_counted if each in advertised]):
        return Basis.NAMED
    return Basis.UNNAMED if unnamed_units(pod, advertised) else Basis.NOTHING


def unnamed_units(pod: Pod, advertised: Collection[str] | None = None) -> int:
    """Units of the extended resources that no system knows, at the pod's peak.

    ``advertised`` are as for :func:`basis_of`.
    """
    names = {
        name
        for container in pod.containers
        for name in (*container.others, *container.limits)
        if (advertised is None or name in advertised) and not _is_known(name)
    }
    if not names:
        return 0
    ordered = sorted(pod.containers, key=lambda each: each.kind is ContainerKind.APP)
    return sum(
        effective(
            (each.kind, each.others.get(name, 0) or each.limits.get(name, 0)) for each in ordered
        )
        for name in names
    )


def known_requests(pod: Pod, codec: SchemeCodec) -> tuple[Request, ...]:
    """What the containers request; where that cannot be read, as much as it may be.

    Labels and annotations that contradict the resources do not reduce what these request. Of
    resources that the system does not allow, a whole GPU counts for each container.
    """
    try:
        return codec.requests(pod)
    except ClaimError:
        pass
    try:
        return codec.requests(structs.replace(pod, labels={}, annotations={}))
    except ClaimError:
        names = codec.advertised
        return tuple(
            Request(each.name, 1, cores_milli=WHOLE_DEVICE_MILLI, kind=each.kind)
            for each in pod.containers
            if any(name in names for name in (*each.limits, *each.broken))
        )


def requested_share(request: Request, device: Device, unit_bytes: int = 1) -> Share:
    """What the request comes to on the device: never more than the whole device."""
    size, memory = device.memory_bytes, request.memory_bytes
    if memory is None and request.memory_percent is not None and size is not None:
        part = size // unit_bytes * request.memory_percent // WHOLE_DEVICE_PERCENT
        memory = part * unit_bytes
    if memory is None:
        memory = size
    elif size is not None:
        memory = min(memory, size)
    cores = min(request.cores_milli, device.cores_milli)
    return Share(device.name, memory, cores or None)


def unknown_shares(
    requests: Iterable[Request], devices: Iterable[Device], unit_bytes: int = 1
) -> tuple[Share, ...]:
    """The requests as shares of unknown GPUs, at the pod's peak, each request once.

    What a request leaves to the size of the GPU is that of the node's largest one.
    """
    largest = max(devices, key=lambda each: each.memory_bytes or 0, default=Device())
    places: dict[str, list[Allocation]] = {}
    taken = 0
    for request in sorted(requests, key=lambda each: each.kind is ContainerKind.INIT):
        share = requested_share(request, largest, unit_bytes)
        is_init = request.kind is ContainerKind.INIT
        for number in range(request.count):
            name = f"{UNKNOWN_GPU}{number if is_init else taken + number}"
            own = structs.replace(share, device=name)
            places.setdefault(name, []).append(
                Allocation(request.container, (own,), Phase.ASSUMED, request.kind)
            )
        taken += 0 if is_init else request.count
    return tuple(
        share
        for allocations in places.values()
        for share in effective_shares(
            sorted(allocations, key=lambda each: each.kind is not ContainerKind.INIT)
        )
    )


def _asks(pod: Pod, names: Collection[str]) -> bool:
    """Whether a container requests one of the resources."""
    for container in pod.containers:
        for name in names:
            if container.limits.get(name) or name in container.broken:
                return True
    return False


def _is_known(name: str) -> bool:
    return name in registry().resource_names or is_nvidia_resource(name)
