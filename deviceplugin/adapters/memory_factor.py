"""The MiB of one unit of volcano.sh/vgpu-memory, where the plugin has to find the number.

A unit has to mean the same on every node, or a pod's request means nothing. So the plugin takes the
unit that the nodes publish, if all publish the same and it fits this node. If no node publishes
one, it takes the smallest unit with which this node's list is not too long.
"""

from collections.abc import Iterable
from typing import Final

from deviceplugin.list_size import SharedMemory, smallest_unit
from vgpu.model.allocation import Device
from vgpu.model.objects import Node
from vgpu.model.units import MIB
from vgpu.schemes.text import number
from vgpu.schemes.volcano.codec import VOLCANO
from vgpu.schemes.volcano.row import PUBLISHED_FACTOR as ANNOTATION
from vgpu.schemes.volcano.text import MOST

_NAMED: Final = 8
"""Maximum number of nodes that a message names."""


class FactorError(Exception):
    """No unit can be found that is right for all nodes; the message reports what to do."""


def published(factor: int) -> dict[str, str]:
    """The annotation."""
    return {ANNOTATION: str(factor)}


def smallest(devices: Iterable[Device]) -> int | None:
    """MiB of the smallest unit with which the list of these GPUs is not too long."""
    kind = dict(VOLCANO.id_parts)["memory"]
    gpu_devices = (
        SharedMemory(len(f"{gpu.uuid}{kind}-"), gpu.memory_bytes or 0) for gpu in devices
    )
    unit = smallest_unit(gpu_devices)
    return None if unit is None else unit // MIB


def automatic(devices: Iterable[Device], nodes: Iterable[Node]) -> int:
    """The factor for a node with these GPUs; ``nodes`` are all, with what each publishes.

    Memory is counted before it is cut into units. What this node published before counts too: the
    annotations of its pods are in that unit. Raises FactorError.
    """
    devices = tuple(devices)
    factor = smallest(devices)
    if factor is None:
        raise FactorError("there is no unit of memory with which the list is not too long")
    published_by = {
        node.name: node.annotations[ANNOTATION] for node in nodes if ANNOTATION in node.annotations
    }
    if len(set(published_by.values())) == 1:
        largest = min(((device.memory_bytes or 0) // MIB for device in devices), default=MOST)
        agreed = number(next(iter(published_by.values())), largest)
        if agreed is not None and agreed >= factor:
            return agreed
    others = {name: text for name, text in published_by.items() if text != str(factor)}
    if others:
        names = [f"{name} ({others[name]})" for name in sorted(others)]
        rest = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        named = ", ".join(names[:_NAMED]) + rest
        raise FactorError(
            f"a unit of {factor} MiB is the smallest for this node, and other nodes have another"
            f" one: {named}. Set the same --volcano.memory-factor on all nodes"
        )
    return factor
