"""The maximum memory of a device that a container can have or use. Pure.

The bounds check what tenants write. A share may exceed the GPU's own memory, since nodes are
oversold on purpose, but never what the node's plugin has registered of the GPU. Where nothing is
registered, the oversold amount is unknown, and only amounts that no device has are refused.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from vgpu.ledger.usage import is_over
from vgpu.model.allocation import Device
from vgpu.model.units import MOST_DEVICE_MEMORY, exact_size


class Bounds(msgspec.Struct, frozen=True, gc=False):
    """``memory`` is in bytes, by UUID; other devices have ``MOST_DEVICE_MEMORY`` as bound.

    ``uuids`` has the UUIDs of these devices by their other names.
    """

    memory: Mapping[str, int] = {}
    uuids: Mapping[str, str] = {}

    def limit_error(self, device: str, limit: int | None) -> str:
        """Why no container can have so many bytes of the device, as text; "" if one can."""
        if limit is None:
            return ""
        device = self.uuids.get(device) or device
        most = self._most(device)
        if limit <= most:
            return ""
        return f"a memory limit of {exact_size(limit)} of {device}, which has {exact_size(most)}"

    def use_error(self, device: str, used: int) -> str:
        """Why no container can use so many bytes of it, with the tolerance of :func:`is_over`."""
        most = self._most(device)
        if not is_over(used, most):
            return ""
        return f"{exact_size(used)} in use of {device}, which has {exact_size(most)}"

    def _most(self, device: str) -> int:
        return self.memory.get(device, MOST_DEVICE_MEMORY)


UNREGISTERED: Final = Bounds()
"""The bounds of a node whose GPUs are not registered."""


def bounds(devices: Iterable[Device], registered: Iterable[Device]) -> Bounds:
    """The bounds of the driver's ``devices``, by what is ``registered`` of them or their GPU."""
    registered_memory = {
        device.uuid: device.memory_bytes
        for device in registered
        if device.uuid and device.memory_bytes
    }
    memory = dict(registered_memory)
    uuids: dict[str, str] = {}
    for device in devices:
        most = registered_memory.get(device.uuid) or registered_memory.get(device.parent)
        if most:
            memory[device.uuid] = max(most, device.memory_bytes or 0)
        for name in device.names[1:]:  # a name of two devices names neither
            uuids[name] = device.uuid if name not in uuids else ""
    return Bounds(memory, uuids)
