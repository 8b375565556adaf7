"""How much memory of a device a container can have or use at most. Pure.

What tenants write is measured by it: a share may pass the GPU's own memory, since nodes are
oversold on purpose, but never what the node's plugin has registered of the GPU. Where nothing is
registered nobody knows how much is oversold, and only what no device has is refused.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from vgpu.ledger.usage import is_over
from vgpu.model import Device
from vgpu.units import MOST_DEVICE_MEMORY, size


class Bounds(msgspec.Struct, frozen=True, gc=False):
    """``memory`` is in bytes, by UUID; devices that it does not have are bounded all the same."""

    memory: Mapping[str, int] = {}

    def limit_error(self, device: str, limit: int | None) -> str:
        """Why nobody can be given so many bytes of the device, in words; "" if somebody can."""
        most = self._most(device)
        if limit is None or limit <= most:
            return ""
        return f"a memory limit of {size(limit)} of {device}, which has {size(most)}"

    def use_error(self, device: str, used: int) -> str:
        """Why nobody can use so many bytes of the device, with the tolerance of :func:`is_over`."""
        most = self._most(device)
        return f"{size(used)} in use of {device}, which has {size(most)}" * is_over(used, most)

    def _most(self, device: str) -> int:
        return self.memory.get(device, MOST_DEVICE_MEMORY)


UNREGISTERED: Final = Bounds()
"""Of a node of whose GPUs nothing is registered."""


def bounds(devices: Iterable[Device], registered: Iterable[Device]) -> Bounds:
    """The bounds of the driver's ``devices``, by what is ``registered`` of them or their GPU."""
    told = {one.uuid: one.memory_bytes for one in registered if one.uuid and one.memory_bytes}
    memory = dict(told)
    for device in devices:
        most = told.get(device.uuid) or told.get(device.parent)
        if most:
            memory[device.uuid] = max(most, device.memory_bytes or 0)
    return Bounds(memory)
