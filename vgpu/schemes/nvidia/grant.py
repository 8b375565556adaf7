"""What NVIDIA's device plugin allocated, by the kubelet's device IDs and the plugin's answer. Pure.

So does GKE's own plugin for NVIDIA's GPUs, which has other IDs and another answer (:mod:`.gke`).

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
from collections.abc import Mapping
from typing import Final

import msgspec

from vgpu.model.allocation import Share
from vgpu.model.names import Scheme, Sharing
from vgpu.model.units import MILLI_PER_PERCENT, MOST_DEVICE_MEMORY, WHOLE_DEVICE_MILLI
from vgpu.schemes.codec import NO_DEVICES, VISIBLE_DEVICES
from vgpu.schemes.nvidia import gke
from vgpu.schemes.nvidia.mps import MEMORY, THREADS, limits_in
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
            R470 names the instance by its parent and its IDs. GKE's plugin names the device node.
        replica: the number of the replica; None for the whole device.
        is_gkes: whether the ID has the form of GKE's plugin.
    """

    device: str
    replica: int | None = None
    is_gkes: bool = False

    @property
    def is_instance(self) -> bool:
        """Whether it is a MIG instance, or a replica of one."""
        return self.device.startswith("MIG-") or gke.is_instance(self.device)

    @property
    def may_be_hamis(self) -> bool:
        """Whether HAMi's plugin has IDs of this form, too: MIG instances by their UUID."""
        return self.is_instance and self.replica is None and not self.is_gkes


def parse_device_id(text: str) -> DeviceId | None:
    """The device that an ID of these plugins names; None for an ID of any other form."""
    matched = _OWN.fullmatch(text)
    if matched is None:
        gkes = gke.parse_device_id(text)
        return gkes and DeviceId(*gkes, is_gkes=True)
    replica = matched["replica"]
    return DeviceId(matched["device"], None if replica is None else int(replica))


def is_counted(text: str) -> bool:
    """Whether an ID has the form of HAMi's and Volcano's: a device's name, then ``-<n>``.

    A text that begins as GKE's IDs do is none of them: no such plugin names a device so.
    """
    if parse_device_id(text) is not None or gke.begins_as_ours(text):
        return False
    return _COUNTED.fullmatch(text) is not None


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
    if len(named) < len(ids) and (
        not is_nvidia_resource(resource) or any(map(is_counted, grant.device_ids))
    ):
        return None
    sized = iter(_shares(grant, named))
    return NamedDevices(
        _scheme(grant, named),
        tuple(next(sized) if device_id else Share("") for device_id in ids),
        _sharing(grant, named),
    )


def _shares(grant: KubeletGrant, ids: list[DeviceId]) -> tuple[Share, ...]:
    """All of each device, or a replica, which limits nothing.

    An MPS replica of GKE's plugin has an amount. Its answer has the sum of the container's units:
    the shares come to just this sum.
    """
    memory: list[int | None] = [None] * len(ids)
    cores = [WHOLE_DEVICE_MILLI if one.replica is None else None for one in ids]
    if _has_amounts(ids):
        limits = limits_in(grant.env)
        limit = limits.memory_bytes.get(0, 0)
        memory = _split(limit if limit <= MOST_DEVICE_MEMORY else 0, len(ids))
        cores = _split((limits.thread_percent or 0) * MILLI_PER_PERCENT, len(ids))
    return tuple(
        Share(one.device, *amount) for one, *amount in zip(ids, memory, cores, strict=True)
    )


def _has_amounts(ids: list[DeviceId]) -> bool:
    """Whether an MPS limit in the answer is that of the units: of replicas of one GPU on GKE.

    GKE's plugin counts with the memory of a GPU also where the replicas are those of its MIG
    instances (``pkg/gpu/nvidia/manager.go``, ``totalMemPerGPU``): such a limit is no amount.
    """
    return len({one.device for one in ids}) == 1 and all(
        one.is_gkes and one.replica is not None and not one.is_instance for one in ids
    )


def _split(total: int, count: int) -> list[int | None]:
    """The total in equal parts; the first one has the remainder."""
    if not total:
        return [None] * count
    part, rest = divmod(total, count)
    return [part + rest, *[part] * (count - 1)]


def _scheme(grant: KubeletGrant, ids: list[DeviceId]) -> Scheme:
    """The scheme: HAMi's plugin registers MIG instances by their UUID, too, and answers alike.

    Only what its node registers at the API server distinguishes the two.
    """
    if not ids:
        return UNKNOWN
    if is_only_nvidias(grant.resource) or not any(one.may_be_hamis for one in ids):
        return NVIDIA
    if grant.registered is None:
        return UNKNOWN
    return Scheme.VOLCANO if Scheme.VOLCANO in grant.registered else NVIDIA


def _sharing(grant: KubeletGrant, ids: list[DeviceId]) -> Sharing:
    is_mig = any(one.is_instance for one in ids)
    if all(one.replica is None for one in ids):
        return Sharing.UNKNOWN if not ids else Sharing.MIG if is_mig else Sharing.EXCLUSIVE
    is_gkes = any(one.is_gkes for one in ids)
    is_mps = _has_limits(grant.env) if is_gkes else MPS_PIPE in grant.env
    if is_mig and not is_gkes:
        return Sharing.MIG_TIME_SLICING  # NVIDIA's plugin has no MPS there
    if not grant.answered:
        return Sharing.UNKNOWN
    if is_mps:
        return Sharing.MPS
    return Sharing.MIG_TIME_SLICING if is_mig else Sharing.TIME_SLICING


def _has_limits(env: Mapping[str, str]) -> bool:
    """Whether the answer sets limits of MPS: GKE's plugin does, and does not name the pipe."""
    return MEMORY in env or THREADS in env
