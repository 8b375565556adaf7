"""What NVIDIA's device plugin allocated, by the kubelet's device IDs and the plugin's answer. Pure.

The plugin allocates the device that the ID names, with every strategy of its answer
(``envvar``, ``volume-mounts``, ``cdi-annotations``, ``cdi-cri``), so that the ID is enough. Of the
answer only ``CUDA_MPS_PIPE_DIRECTORY`` counts, which the plugin sets with MPS and only then
(k8s-device-plugin 0.15 to 0.20, ``internal/plugin/server.go``).
"""

from typing import Final

from vgpu.model.allocation import Share
from vgpu.model.names import Scheme, Sharing
from vgpu.model.units import WHOLE_DEVICE_MILLI
from vgpu.schemes.codec import NO_DEVICES, VISIBLE_DEVICES
from vgpu.schemes.nvidia.device_ids import DeviceId, is_counted, parse_device_id
from vgpu.schemes.nvidia.resources import PREFIX, is_only_nvidias, is_own_resource
from vgpu.schemes.own_devices import OwnDevices, OwnGrant
from vgpu.schemes.volcano.env import is_shared

NVIDIA: Final = Scheme.named("nvidia")
"""The scheme of NVIDIA's own device plugin."""

UNKNOWN: Final = Scheme.named("unknown")
"""The scheme of an allocation whose plugin cannot be known from what was read."""

MPS_PIPE: Final = "CUDA_MPS_PIPE_DIRECTORY"
"""The folder of the MPS control daemon's pipe."""


def own_devices(grant: OwnGrant) -> OwnDevices | None:
    """The devices that NVIDIA's plugin allocated; None if the resource is another system's."""
    resource = grant.resource
    named_so = resource.startswith(PREFIX) or is_only_nvidias(resource)
    if not named_so or not grant.device_ids:
        return None
    if is_shared(grant.env) or grant.env.get(VISIBLE_DEVICES) == NO_DEVICES:
        return None  # the answer of HAMi's plugin, or of ours
    ids = [parse_device_id(text) for text in grant.device_ids]
    named = [device_id for device_id in ids if device_id]
    if len(named) == len(ids):
        return OwnDevices(_scheme(grant, named), tuple(map(_share, named)), _sharing(grant, named))
    if not is_own_resource(resource) or any(map(is_counted, grant.device_ids)):
        return None
    shares = tuple(Share(device_id.device if device_id else "") for device_id in ids)
    return OwnDevices(UNKNOWN, shares, Sharing.UNKNOWN)


def _share(device_id: DeviceId) -> Share:
    """All of a device, or a replica, which limits nothing."""
    return Share(device_id.device, None, WHOLE_DEVICE_MILLI if device_id.replica is None else None)


def _scheme(grant: OwnGrant, ids: list[DeviceId]) -> Scheme:
    """The scheme: HAMi's plugin registers MIG instances by their UUID, too, and answers alike.

    Only what its node registers at the API server distinguishes the two.
    """
    ambiguous = any(one.is_instance and one.replica is None for one in ids)
    if is_only_nvidias(grant.resource) or not ambiguous:
        return NVIDIA
    if grant.registered is None:
        return UNKNOWN
    return Scheme.VOLCANO if Scheme.VOLCANO in grant.registered else NVIDIA


def _sharing(grant: OwnGrant, ids: list[DeviceId]) -> Sharing:
    replicas = any(one.replica is not None for one in ids)
    if any(one.is_instance for one in ids):
        return Sharing.MIG_TIME_SLICING if replicas else Sharing.MIG
    if not replicas:
        return Sharing.EXCLUSIVE
    if not grant.answered:
        return Sharing.UNKNOWN
    return Sharing.MPS if MPS_PIPE in grant.env else Sharing.TIME_SLICING
