"""What a pod of KAI Scheduler asks for, and the sizes of it that KAI's parts compute. Pure.

One request has three sizes. The scheduler compares its own with the room of a GPU, HAMi-core its
limit with the use, and the status of PodGroups and Queues its fraction with quotas:

- room = ⌊label / 100⌋ × 100 MiB; an amount of memory counts as it is, a fraction as
  ⌊fraction × room⌋ MiB (``pkg/scheduler/api/node_info/node_info.go``: ``getNodeGpuMemory``,
  ``GetResourceGpuMemory``);
- portion = fraction, or ⌈memory / room × 100⌉ / 100 (``gpu_sharing_node_info.go``), printed with
  two decimals (``pkg/scheduler/cache/cache.go``: ``createBindRequest``);
  limit = ⌊label × printed portion⌋ MiB, and none if that is 0
  (``pkg/binder/plugins/hamicore/hami_core.go``);
- status = fraction, or memory / label (``pkg/podgroupcontroller/controllers/resources/
  fraction.go``).

The label is that of the node, one number for all of its GPUs. Amounts are computed in float64 as
there, so that cutting gives the same integer.
"""

import math
import re
from typing import Final

import msgspec

from vgpu.model.names import ContainerKind
from vgpu.model.objects import Node, Pod
from vgpu.model.units import MIB
from vgpu.schemes.kai.keys import CONTAINER, DEVICES, FRACTION, MEMORY, MEMORY_LABEL
from vgpu.schemes.text import number

_MOST_MIB: Final = 1 << 24
"""Maximum number of MiB of a GPU that a pod asks for."""

_MOST_DEVICES: Final = 1024
"""Maximum number of GPUs that a pod asks for."""

_MOST_LABEL: Final = 1 << 53
"""Maximum value of the label, in MiB or bytes."""

_TIB_IN_MIB: Final = 1 << 20
"""A label of at least this is taken for bytes, as GPU feature discovery once wrote it."""

_FLOOR: Final = 100
"""The scheduler cuts the memory of a GPU to a multiple of so many MiB."""

_FRACTION: Final = re.compile(
    r"\+?(?:[0-9]{1,20}(?:\.[0-9]{0,40})?|\.[0-9]{1,40})(?:[eE][+-]?[0-9]{1,2})?", re.ASCII
)


class AskedFraction(msgspec.Struct, frozen=True, gc=False):
    """What a pod of KAI asks for of each GPU: a part of it, or an amount of memory in MiB."""

    part: float | None = None
    memory_mib: int | None = None

    @property
    def is_known(self) -> bool:
        """Whether the amount could be read."""
        return self.part is not None or self.memory_mib is not None

    def room_mib(self, label_mib: int | None) -> int | None:
        """MiB that the scheduler counts of a GPU; None if unknown."""
        if self.memory_mib is not None:
            return self.memory_mib
        if self.part is None or label_mib is None:
            return None
        return int(self.part * capacity_mib(label_mib))

    def portion(self, label_mib: int | None) -> float | None:
        """The part of a GPU that the scheduler gives, not rounded to two decimals yet."""
        if self.memory_mib is None:
            return self.part
        capacity = capacity_mib(label_mib) if label_mib else 0
        return math.ceil(self.memory_mib / capacity * 100) / 100 if capacity else None

    def limit_mib(self, label_mib: int | None) -> int | None:
        """MiB that HAMi-core is to enforce, 0 if none are; None if unknown."""
        portion = self.portion(label_mib)
        if portion is None or label_mib is None:
            return None
        return int(label_mib * float(printed(portion)))

    def status_part(self, label_mib: int | None) -> float | None:
        """The part of a GPU that the status of a PodGroup and a Queue counts."""
        if self.memory_mib is None:
            return self.part
        return self.memory_mib / label_mib if label_mib else None

    def memory_of(self, gpu_bytes: int | None) -> int | None:
        """Bytes that the scheduler counts of a GPU of this size; None if unknown."""
        mib = self.room_mib(None if gpu_bytes is None else gpu_bytes // MIB)
        return None if mib is None else mib * MIB


def printed(portion: float) -> str:
    """A portion as a BindRequest, a ConfigMap and the container's environment have it."""
    return f"{portion:.2f}"


def capacity_mib(label_mib: int) -> int:
    """The memory of a GPU for the scheduler, in MiB."""
    return label_mib - label_mib % _FLOOR


def label_mib(node: Node | None) -> int | None:
    """The memory of each GPU by the label of the node, in MiB; None without one."""
    value = number(node.labels.get(MEMORY_LABEL, ""), _MOST_LABEL) if node is not None else None
    if not value:
        return None
    return value if value < _TIB_IN_MIB else value // MIB or None


def asked(pod: Pod) -> AskedFraction:
    """What the annotations of a pod ask for; an amount that cannot be read is unknown."""
    text = pod.annotations.get(FRACTION, "")
    part = float(text) if _FRACTION.fullmatch(text) else 0.0
    memory = number(pod.annotations.get(MEMORY, ""), _MOST_MIB)
    return AskedFraction(part if 0 < part < 1 else None, memory or None)


def asked_devices(pod: Pod) -> int | None:
    """The number of GPUs that a pod asks for; None if it cannot be read."""
    text = pod.annotations.get(DEVICES)
    return 1 if text is None else number(text, _MOST_DEVICES) or None


def fraction_container(pod: Pod) -> str:
    """The container that gets the GPUs: the one that is named, else the first; "" if unknown."""
    named = pod.annotations.get(CONTAINER)
    if named is not None:
        return named if any(each.name == named for each in pod.containers) else ""
    apps = (each.name for each in pod.containers if each.kind is ContainerKind.APP)
    return next(apps, "")
