"""KubeShare on a node: its GPUs, and the holder pods that make virtual GPUs of some of them.

A holder pod takes one whole GPU from NVIDIA's device plugin, reports its UUID in its log, and so
makes a virtual GPU of it: the GPUID in the holder's labels is a name of that GPU for as long as
the holder lives. Names: KubeShare branch release-1.0, ``pkg/devicemanager/gpupool.go``; older
versions call the holder a dummy pod.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
from msgspec import structs

from vgpu.model.allocation import Device
from vgpu.model.names import PodRef
from vgpu.model.objects import Pod
from vgpu.model.units import MIB
from vgpu.schemes.codec import ClaimError
from vgpu.schemes.kubeshare.sharepod import GPUID, PREFIX
from vgpu.schemes.kubeshare.text import MOST_GPUS, is_number, is_uuid
from vgpu.schemes.text import object_name_of

GPU_INFO: Final = PREFIX + "gpu_info"
"""On nodes: ``<uuid>:<MiB>,`` for each GPU."""

HOLDER_NAMESPACE: Final = "kube-system"
HOLDER_NAMES: Final = ("kubeshare-vgpu", "kubeshare-dummypod")
"""The prefixes of a holder's name, the newest first; its node and its GPUID follow."""

ROLE: Final = PREFIX + "role"
HOLDER_ROLE: Final = "dummyPod"
NODE_NAME: Final = PREFIX + "nodeName"


HOLDER_UUID: Final = "vgpu.dev/holder-gpu"
"""On holder pods: the UUID of the GPU that the kubelet's records have for the pod, as our node
component has read it. Upstream's device manager reads the holder's log in its place."""


KEEP_IDLE: Final = "vgpu.dev/keep-idle"
"""On holder pods of our controllers: they may keep the pod although nobody uses its GPU."""


class HolderPod(msgspec.Struct, frozen=True, gc=False, order=True):
    """A holder pod: it makes ``gpuid`` the name of a GPU of ``node``."""

    node: str
    gpuid: str
    pod: PodRef


def holder(pod: Pod) -> HolderPod | None:
    """The holder that a pod is, None if it is none: by its labels, and without them by its name.

    Raises ClaimError for a holder that does not say which virtual GPU it holds.
    """
    if pod.ref.namespace != HOLDER_NAMESPACE:
        return None
    named = next((name for name in HOLDER_NAMES if pod.ref.name.startswith(f"{name}-")), "")
    if not named and pod.labels.get(ROLE) != HOLDER_ROLE:
        return None
    node = pod.node or pod.labels.get(NODE_NAME, "")
    begin = f"{named}-{node}-"
    rest = pod.ref.name.removeprefix(begin) if pod.ref.name.startswith(begin) else ""
    gpuid = pod.labels.get(GPUID) or rest
    if not gpuid:
        raise ClaimError(object_name_of(pod.ref), GPUID, "", "a holder pod without virtual GPU")
    return HolderPod(node, gpuid, pod.ref)


def holder_name(node: str, gpuid: str) -> str:
    """The name of the pod that holds a virtual GPU."""
    return f"{HOLDER_NAMES[0]}-{node}-{gpuid}"


def holder_labels(node: str, gpuid: str) -> dict[str, str]:
    """The labels of the pod that holds a virtual GPU."""
    return {ROLE: HOLDER_ROLE, NODE_NAME: node, GPUID: gpuid}


def parse_gpu_info(text: str, object_name: str) -> tuple[Device, ...]:
    """The GPUs of ``<uuid>:<MiB>,<uuid>:<MiB>,`` in its order. Raises ClaimError."""
    devices: dict[str, Device] = {}
    entries = text.removesuffix(",").split(",", MOST_GPUS) if text else []
    if len(entries) > MOST_GPUS:
        raise ClaimError(object_name, GPU_INFO, text, f"more than {MOST_GPUS} GPUs")
    for entry in entries:
        uuid, _, size = entry.partition(":")
        if not is_uuid(uuid) or not is_number(size):
            raise ClaimError(object_name, GPU_INFO, text, "not UUIDs with their MiB")
        if uuid in devices:
            raise ClaimError(object_name, GPU_INFO, text, "the same UUID twice")
        devices[uuid] = Device(uuid, memory_bytes=int(size) * MIB)
    return tuple(devices.values())


def format_gpu_info(devices: Iterable[Device], object_name: str) -> str:
    """The text for these GPUs; memory is rounded down to MiB, as KubeShare does.

    Raises ClaimError for a GPU without UUID or memory.
    """
    entries = []
    for device in devices:
        if not is_uuid(device.uuid) or device.memory_bytes is None:
            raise ClaimError(object_name, GPU_INFO, device.name, "a GPU without UUID or memory")
        entries.append(f"{device.uuid}:{device.memory_bytes // MIB},")
    return "".join(entries)


def with_handles(devices: Iterable[Device], uuids: Mapping[str, str]) -> tuple[Device, ...]:
    """The devices, each with the GPUIDs whose UUID is its own; ``uuids`` is by GPUID."""
    gpuids: dict[str, list[str]] = {}
    for gpuid, uuid in sorted(uuids.items()):
        gpuids.setdefault(uuid, []).append(gpuid)
    return tuple(
        structs.replace(device, handles=(*device.handles, *gpuids.get(device.uuid, ())))
        for device in devices
    )
