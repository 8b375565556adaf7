"""What a pod counts for a quota by what counts of its claim: each GPU once, known or not. Pure."""

from collections.abc import Iterable, Mapping

from msgspec import structs

from vgpu.model.allocation import Device, Share
from vgpu.model.objects import Pod
from vgpu.placement.node_view import peak_shares
from vgpu.quota.usage import PodUsage, usage_of_shares
from vgpu.schemes.codec import SchemeCodec
from vgpu.schemes.mig import mig_slot, physical
from vgpu.schemes.requesting import Basis, CountedClaim, unknown_shares


def counted_usage(
    pod: Pod,
    codec: SchemeCodec,
    counted: CountedClaim,
    devices: Mapping[str, Device],
    model: str,
) -> PodUsage:
    """The usage of a pod that is bound or has a reservation.

    ``devices`` and ``model`` are those of :func:`~vgpu.quota.usage.usage_of_shares`. A share on a
    GPU that its node does not have is on an unknown GPU, and no share counts as more than its GPU.
    """
    shares = () if counted.claim is None else peak_shares(pod, counted.claim)
    if counted.missing:
        shares = tuple(share for share in shares if physical(share.device) in devices)
    if counted.basis is Basis.NAMED:
        shares = tuple(_at_most_whole(share, devices) for share in shares)
    missing = unknown_shares(counted.missing, devices.values(), codec.unit_bytes)
    named = {**devices, **unknown_devices(missing, devices.values())}
    return usage_of_shares(pod.requested_units(), (*shares, *missing), named, model)


def unknown_devices(shares: Iterable[Share], devices: Iterable[Device]) -> dict[str, Device]:
    """The unknown GPUs of these shares, of the model that all GPUs of their node have."""
    models = {device.model for device in devices}
    model = models.pop() if len(models) == 1 else ""
    return {share.device: Device(share.device, model=model) for share in shares}


def _at_most_whole(share: Share, devices: Mapping[str, Device]) -> Share:
    device = devices.get(share.device)
    if device is None or mig_slot(share.device) or share.memory_bytes is None:
        return share
    size = device.memory_bytes
    if size is None or share.memory_bytes <= size:
        return share
    return structs.replace(share, memory_bytes=size)
