"""gpushare on a node: its GPUs by index, the device IDs of their units, which are unhealthy.

The API server knows two numbers only, all memory and how many GPUs; so every GPU is counted
with the average. GPUs of different sizes cannot be distinguished this way: where the node itself
can be asked, its answer is better.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from vgpu.model.allocation import Device
from vgpu.model.objects import Node
from vgpu.schemes.codec import ClaimError, Slot
from vgpu.schemes.resource_names import ORIGINAL_NAMES, ResourceNames
from vgpu.schemes.text import number

NAMES: Final = ORIGINAL_NAMES["gpushare"]
"""gpushare's own names: units of memory, GiB unless the operator chose another, and number of GPUs.
The plugin writes the number into the node's status; the kubelet has no such resource."""

MOST_GPUS = 1024
"""Maximum number of GPUs of a node that gpushare writes."""

MOST_UNITS = 10**9 - 1
"""Units that are read in one number."""

UNHEALTHY_NAMESPACE = "kube-system"
"""The namespace of the ConfigMap ``unhealthy-gpu-<node>``, see :func:`unhealthy_name`."""

UNHEALTHY_KEY = "gpus"
"""The key of the ConfigMap's data."""

_NO_ISOLATION_LABEL = "cgpu.disable.isolation"
_ID = re.compile(r"([A-Za-z0-9-]{1,64})-_-(0|[1-9][0-9]{0,8})")


def gpus(node: Node, memory_unit: int, names: ResourceNames = NAMES) -> tuple[Device, ...]:
    """The node's GPUs by index, without UUID; none if gpushare is not there.

    Sizes are those of the capacity. Nothing new may go to any GPU if nothing is allocatable;
    which GPUs are unhealthy otherwise only the ConfigMap reports. Memory is unknown where the
    kubelet has forgotten the resource and only the count is left. Raises ClaimError.
    """
    count = node.capacity.get(names.count, 0)
    units = node.capacity.get(names.memory, 0)
    object_name = f"node {node.name}"
    if not 0 <= units <= MOST_UNITS * MOST_GPUS:
        raise ClaimError(object_name, names.memory, str(units), "no such amount of memory")
    if not 0 <= count <= MOST_GPUS:
        raise ClaimError(object_name, names.count, str(count), "no such number of GPUs")
    if units and not count:
        detail = f"no GPUs, but {units} of {names.memory}"
        raise ClaimError(object_name, names.count, str(count), detail)
    memory = units // count * memory_unit if units else None
    healthy = node.allocatable.get(names.memory, units) > 0
    return tuple(
        Device(index=index, memory_bytes=memory, healthy=healthy) for index in range(count)
    )


def gpu_number(text: str) -> int | None:
    """A GPU's index; None if the text is none."""
    return number(text, MOST_GPUS - 1)


def isolation(node: Node) -> bool:
    """Whether cGPU, where it is installed, is to enforce the limits on this node."""
    return node.labels.get(_NO_ISOLATION_LABEL) != "true"


def unhealthy_name(node: str) -> str:
    """The name of the ConfigMap that lists a node's unhealthy GPUs."""
    return f"unhealthy-gpu-{node}"


def unhealthy_gpus(text: str, node: str) -> frozenset[int]:
    """The GPUs by index that the node's ConfigMap declares unhealthy: ``0,2``; "" is none.

    Raises ClaimError for anything that is no index. The original takes that for GPU 0.
    """
    indices = set()
    for token in text.split(",") if text else ():
        index = gpu_number(token.strip(" "))
        if index is None:
            object_name = f"configmap {UNHEALTHY_NAMESPACE}/{unhealthy_name(node)}"
            raise ClaimError(object_name, UNHEALTHY_KEY, text, f"{token[:16]!r} is not a GPU")
        indices.add(index)
    return frozenset(indices)


def unhealthy_data(indices: Iterable[int]) -> dict[str, str]:
    """The ConfigMap's data for these GPUs; without the key if there is none.

    The original extender would take an empty text for GPU 0.
    """
    text = ",".join(map(str, sorted(indices)))
    return {UNHEALTHY_KEY: text} if text else {}


def with_health(devices: Iterable[Device], unhealthy: frozenset[int]) -> tuple[Device, ...]:
    """The devices, those of the unhealthy indices marked so."""
    return tuple(
        msgspec.structs.replace(device, healthy=device.healthy and device.index not in unhealthy)
        for device in devices
    )


def slot(resource: str, device_id: str, names: ResourceNames = NAMES) -> Slot:
    """What the ID ``<UUID>-_-<unit>`` stands for. Raises ClaimError."""
    _require_memory(resource, device_id, names)
    parts = _ID.fullmatch(device_id)
    if parts is None:
        raise ClaimError("kubelet", resource, device_id, "no device ID of gpushare")
    return Slot(resource, parts[1], int(parts[2]))


def device_ids(
    resource: str, devices: Iterable[Device], memory_unit: int, names: ResourceNames = NAMES
) -> Iterator[str]:
    """The IDs of all whole units of each device's own memory.

    The original counts every GPU as large as the first. Raises ClaimError for a device whose
    UUID or memory is not known.
    """
    _require_memory(resource, "", names)
    for device in devices:
        if not device.uuid or device.memory_bytes is None:
            raise ClaimError("kubelet", resource, device.name, "no UUID, or unknown memory")
        for unit in range(device.memory_bytes // memory_unit):
            yield f"{device.uuid}-_-{unit}"


def _require_memory(resource: str, device_id: str, names: ResourceNames) -> None:
    if resource != names.memory:
        raise ClaimError("kubelet", resource, device_id, "no resource of gpushare's plugin")
