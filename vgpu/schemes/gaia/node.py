"""gpu-manager on a node: its GPUs by minor number, and the device IDs that the kubelet has.

The API server knows two numbers only, all cores and all memory, so every GPU is counted with the
average. IDs are units of the node, not of a GPU: they do not name the GPU that a container gets.
Names and numbers are those of gpu-manager (``pkg/types``, ``pkg/services/allocator``,
``pkg/services/watchdog``).
"""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from vgpu.model.allocation import Device
from vgpu.model.objects import Node
from vgpu.model.units import GAIA_MEMORY_BLOCK, WHOLE_DEVICE_PERCENT
from vgpu.schemes.codec import ClaimError, Slot
from vgpu.schemes.gaia.vcuda_config import MOST_CORES, MOST_MEMORY
from vgpu.schemes.resource_names import ORIGINAL_NAMES, ResourceNames

NAMES: Final = ORIGINAL_NAMES["gaia"]
"""gpu-manager's own names: percent of one GPU's cores, and blocks of 256 MiB."""

MOST_GPUS = MOST_CORES // WHOLE_DEVICE_PERCENT
MOST_BLOCKS = MOST_MEMORY // GAIA_MEMORY_BLOCK
"""Maximum number of blocks of a container or GPU that gpu-manager writes."""

MODEL_LABEL = "gaia.tencent.com/gpu-model"

_ORDINAL = re.compile(r"-(0|[1-9][0-9]{0,6})")
_SPACE = re.compile(r"[\t\n\f\r ]+")
_LABEL = re.compile(r"[0-9A-Za-z](?:[-_.0-9A-Za-z]{0,61}[0-9A-Za-z])?")


def gpus(node: Node, names: ResourceNames = NAMES) -> tuple[Device, ...]:
    """The GPUs that the node's capacity counts, all of one size, without UUID.

    gpu-admission counts so, too: the first GPU is ``/dev/nvidia0``. All are unhealthy while nothing
    is allocatable: no plugin serves the resource. Raises ClaimError for cores that are not of whole
    GPUs.
    """
    cores = node.capacity.get(names.cores, 0)
    count, rest = divmod(cores, WHOLE_DEVICE_PERCENT)
    if rest or not 0 <= count <= MOST_GPUS:
        detail = f"not 0 to {MOST_GPUS} GPUs of {WHOLE_DEVICE_PERCENT}"
        raise ClaimError(f"node {node.name}", names.cores, str(cores), detail)
    blocks = node.capacity.get(names.memory)
    if blocks is not None and not 0 <= blocks <= MOST_BLOCKS * MOST_GPUS:
        raise ClaimError(f"node {node.name}", names.memory, str(blocks), "no such amount of memory")
    return tuple(
        Device(
            index=minor,
            minor=minor,
            memory_bytes=None if blocks is None else blocks // count * GAIA_MEMORY_BLOCK,
            healthy=node.allocatable.get(names.cores, cores) > 0,
            model=node.labels.get(MODEL_LABEL, ""),
        )
        for minor in range(count)
    )


def model_label(gpu_name: str) -> str:
    """The node's label ``gaia.tencent.com/gpu-model``; "" where gpu-manager sets none.

    The second word of the first GPU's name, if that has more than two.
    """
    parts = _SPACE.split(gpu_name)
    return parts[1] if len(parts) > 2 and _LABEL.fullmatch(parts[1]) else ""


def slot(resource: str, device_id: str, names: ResourceNames = NAMES) -> Slot:
    """What an ID stands for: a unit of the node, of no GPU. Raises ClaimError."""
    prefix = _prefix(resource, device_id, names)
    ordinal = _ORDINAL.fullmatch(device_id.removeprefix(prefix))
    if ordinal is None or not device_id.startswith(prefix):
        raise ClaimError("kubelet", resource, device_id, "not a gpu-manager device ID")
    return Slot(resource, None, int(ordinal[1]))


def device_ids(
    resource: str, devices: Iterable[Device], names: ResourceNames = NAMES
) -> Iterator[str]:
    """All IDs of a resource: 100 for each GPU, or one for each block of all memory together.

    Raises ClaimError for another resource, and for memory where a GPU's is unknown.
    """
    prefix = _prefix(resource, "", names)
    is_cores = resource == names.cores
    units = WHOLE_DEVICE_PERCENT * sum(1 for _ in devices) if is_cores else _blocks(devices, names)
    return (f"{prefix}-{unit}" for unit in range(units))


def _blocks(devices: Iterable[Device], names: ResourceNames) -> int:
    total = 0
    for device in devices:
        if device.memory_bytes is None:
            raise ClaimError("kubelet", names.memory, device.name, "a GPU of unknown memory")
        total += device.memory_bytes
    return total // GAIA_MEMORY_BLOCK


def _prefix(resource: str, device_id: str, names: ResourceNames) -> str:
    if resource == names.cores:
        return resource
    if resource != names.memory:
        raise ClaimError("kubelet", resource, device_id, "not a gpu-manager resource")
    return f"{resource}-{GAIA_MEMORY_BLOCK}"
