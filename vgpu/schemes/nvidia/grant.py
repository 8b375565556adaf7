"""What NVIDIA's device plugin allocated, by the kubelet's device IDs and the plugin's answer. Pure.

The plugin (k8s-device-plugin 0.12 to 0.20, ``internal/rm/devices.go``) allocates the device that
the ID names, with every strategy of its answer (``envvar``, ``volume-mounts``,
``cdi-annotations``, ``cdi-cri``), so that the ID is enough. Of the answer only
``CUDA_MPS_PIPE_DIRECTORY`` counts, which the plugin sets with MPS and only then (k8s-device-plugin
0.15 to 0.20, ``internal/plugin/server.go``).

HAMi's IDs are distinguished by their form: HAMi's and Volcano's plugins append ``-<n>`` and
allocate what the scheduler's annotation names. Both plugins register ``nvidia.com/gpu``, and
entries of the one stay in the kubelet's checkpoint after the other was installed: one resource may
have both kinds of ID.
"""

import re
from typing import Final

import msgspec

from vgpu.model.allocation import Share
from vgpu.model.names import Scheme, Sharing
from vgpu.model.units import WHOLE_DEVICE_MILLI
from vgpu.schemes.codec import NO_DEVICES, VISIBLE_DEVICES
from vgpu.schemes.nvidia.resources import PREFIX, is_nvidia_resource, is_only_nvidias
from vgpu.schemes.row import KubeletGrant, NamedDevices
from vgpu.schemes.volcano.env import is_shared

_UUID: Final = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"

_OWN: Final = re.compile(
    rf"(?P<device>(?:GPU|MIG)-{_UUID}|MIG-GPU-{_UUID}/[0-9]{{1,4}}/[0-9]{{1,4}})"
    r"(?:::(?P<replica>[0-9]{1,6}))?"
)
_COUNTED: Final = re.compile(r".*-[0-9]+")


class DeviceId(msgspec.Struct, frozen=True, gc=False):
    """What an ID names.

    Attributes:
        device: the UUID of a GPU or MIG instance; ``MIG-GPU-<uuid>/<gi>/<ci>`` of drivers before
            R470 names the instance by its parent and its IDs.
        replica: the number of the replica; None for the whole device.
    """

    device: str
    replica: int | None = None

    @property
    def is_instance(self) -> bool:
        """Whether it is a MIG instance, or a replica of one."""
        return self.device.startswith("MIG-")


def parse_device_id(text: str) -> DeviceId | None:
    """The device that an ID of NVIDIA's plugin names; None for an ID of any other form."""
    matched = _OWN.fullmatch(text)
    if matched is None:
        return None
    replica = matched["replica"]
    return DeviceId(matched["device"], None if replica is None else int(replica))


def is_counted(text: str) -> bool:
    """Whether an ID has the form of HAMi's and Volcano's: a device's name, then ``-<n>``."""
    return parse_device_id(text) is None and _COUNTED.fullmatch(text) is not None


def legacy_instance(parent: str, gpu_instance: str, compute_instance: str) -> str:
    """The name of a MIG instance in drivers before R470."""
    return f"MIG-{parent}/{gpu_instance}/{compute_instance}"


NVIDIA: Final = Scheme.named("nvidia")
"""The scheme of NVIDIA's own device plugin."""

UNKNOWN: Final = Scheme.named("unknown")
"""The scheme of an allocation whose plugin cannot be known from what was read."""

MPS_PIPE: Final = "CUDA_MPS_PIPE_DIRECTORY"
"""The folder of the MPS control daemon's pipe."""


def named_devices(grant: KubeletGrant) -> NamedDevices | None:
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
        return NamedDevices(
            _scheme(grant, named), tuple(map(_share, named)), _sharing(grant, named)
        )
    if not is_nvidia_resource(resource) or any(map(is_counted, grant.device_ids)):
        return None
    shares = tuple(Share(device_id.device if device_id else "") for device_id in ids)
    return NamedDevices(UNKNOWN, shares, Sharing.UNKNOWN)


def _share(device_id: DeviceId) -> Share:
    """All of a device, or a replica, which limits nothing."""
    return Share(device_id.device, None, WHOLE_DEVICE_MILLI if device_id.replica is None else None)


def _scheme(grant: KubeletGrant, ids: list[DeviceId]) -> Scheme:
    """The scheme: HAMi's plugin registers MIG instances by their UUID, too, and answers alike.

    Only what its node registers at the API server distinguishes the two.
    """
    ambiguous = any(one.is_instance and one.replica is None for one in ids)
    if is_only_nvidias(grant.resource) or not ambiguous:
        return NVIDIA
    if grant.registered is None:
        return UNKNOWN
    return Scheme.VOLCANO if Scheme.VOLCANO in grant.registered else NVIDIA


def _sharing(grant: KubeletGrant, ids: list[DeviceId]) -> Sharing:
    replicas = any(one.replica is not None for one in ids)
    if any(one.is_instance for one in ids):
        return Sharing.MIG_TIME_SLICING if replicas else Sharing.MIG
    if not replicas:
        return Sharing.EXCLUSIVE
    if not grant.answered:
        return Sharing.UNKNOWN
    return Sharing.MPS if MPS_PIPE in grant.env else Sharing.TIME_SLICING
