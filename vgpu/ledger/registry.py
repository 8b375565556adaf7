"""The node's devices under all their names."""

import re

from vgpu.ledger.statements import Evidence, Statement
from vgpu.model.allocation import Device, Share
from vgpu.model.names import DEVICE_NODE
from vgpu.schemes.nvidia.gke import is_instance

_PROPER = re.compile(r"(?:GPU|MIG)-.+|[0-9]+")
"""The form of a device's own name, which no handle has."""

_NODE = re.compile(DEVICE_NODE + r"[0-9]+")
"""The form of a device node, which every GPU has."""

_INSTANCE = re.compile(DEVICE_NODE + r"[0-9]+/gi[0-9]+")
"""The form of a MIG instance's name by its GPU's device node."""

_UUIDS = ("GPU-", "MIG-")


class Registry:
    """Finds a device by any name that a source has for it. Built once for a merge, then only read.

    Attributes:
        devices: name in the ledger -> device, by index, then by name.
        lost: names of the devices that no longer answer.
        complete: whether the node has no other devices.
    """

    def __init__(self, evidence: Evidence) -> None:
        """Index the evidence's devices and the lost ones, without devices that have no name."""
        devices = {uuid: Device(uuid=uuid, healthy=False) for uuid in evidence.lost}
        # If a device has two values, the same one counts in any order.
        for device in sorted(evidence.devices, key=repr):
            for name in device.names[:1]:
                devices[name] = device
        names: dict[str, set[str]] = {name: {name} for name in devices}
        for name, device in devices.items():
            for other in device.names[1:]:
                names.setdefault(other, set()).add(name)
        self.devices = dict(sorted(devices.items(), key=_position))
        self.lost = evidence.lost
        self.complete = evidence.devices_complete
        self._all_nodes_known = all(
            device.minor is not None
            for name, device in devices.items()
            if name not in self.lost and not device.parent
        )
        self._all_instances_known = self._all_nodes_known and all(
            any(handle.startswith(DEVICE_NODE) for handle in device.handles)
            for name, device in devices.items()
            if device.parent and name not in self.lost
        )
        self._node = evidence.node
        # A name of two devices names neither, unless it is the only name of one of them.
        self._names = {
            name: min(owners) if len(owners) == 1 else "" for name, owners in names.items()
        }
        self._names |= {name: name for name in devices}
        self._parents = {name: device.parent for name, device in devices.items() if device.parent}

    def find(self, name: str) -> str:
        """The device's name in the ledger; "" if no device has this name, or several have.

        ``<UUID>[<group>-<position>]`` is how Volcano names a slice of a GPU in MIG mode.
        """
        known = self._names.get(name)
        return self._names.get(name.partition("[")[0], "") if known is None else known

    def uuid(self, name: str) -> str:
        """The device's name in the ledger; an unknown UUID is returned as it is, else ""."""
        return self.find(name) or (name if name.startswith(_UUIDS) else "")

    def gpus(self, statement: Statement) -> tuple[str, ...]:
        """The device of each share, "" where it is unknown or cannot be known.

        A UUID, index or device node that is not on the node stays as it is if all the node's
        devices are known by such a name: then it is certainly another device, while a handle may be
        any device's. Shares that were meant for another node are no evidence about the devices of
        this one.
        """
        if self.is_for_another_node(statement):
            return ("",) * len(statement.shares)
        return tuple(
            self.find(share.device) or self._stranger(share.device) for share in statement.shares
        )

    def _stranger(self, name: str) -> str:
        if not self.complete or name in self._names:
            return ""
        form = _PROPER
        if self._all_nodes_known and name.startswith(DEVICE_NODE):
            form = _INSTANCE if self._all_instances_known and is_instance(name) else _NODE
        return name if form.fullmatch(name) else ""

    def is_for_another_node(self, statement: Statement) -> bool:
        """Whether its shares were meant for another node."""
        return bool(statement.node and self._node and statement.node != self._node)

    def is_missing(self, name: str) -> bool:
        """Whether the device is not on the node, or no longer answers."""
        return name in self.lost or bool(name and self._stranger(name))

    def is_unhealthy(self, name: str) -> bool:
        """Whether the device is on the node and must get no new allocation."""
        return name in self.devices and not self.devices[name].healthy

    def parent(self, name: str) -> str:
        """The GPU of a MIG instance; "" for a GPU."""
        return self._parents.get(name, "")

    def gpu(self, name: str) -> str:
        """The GPU of the device: its parent if it is a MIG instance, else itself."""
        return self._parents.get(name, name)

    def size(
        self, name: str, memory: int | None, cores: int | None, *, is_unlimited: bool = False
    ) -> Share:
        """A share of the device; without an amount of memory, all cores mean all of its memory.

        So does a share of which the plugin's answer has lifted the limit.
        """
        device = self.devices.get(name)
        if device and memory is None:
            has_all_cores = cores is not None and cores >= device.cores_milli
            memory = device.memory_bytes if is_unlimited or has_all_cores else None
        return Share(name, memory, cores)

    def limits(self, name: str, memory_bytes: int, limit_bytes: int | None) -> bool:
        """Whether the limit, None for no limit, lets a container have exactly that memory."""
        if limit_bytes is not None:
            return limit_bytes == memory_bytes
        capacity = self.devices[name].memory_bytes if name in self.devices else None
        return capacity is not None and memory_bytes >= capacity


def _position(item: tuple[str, Device]) -> tuple[bool, int, str]:
    name, device = item
    return device.index is None, device.index or 0, name
