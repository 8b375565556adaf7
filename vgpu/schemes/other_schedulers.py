"""Pods whose share of a GPU another GPU scheduler keeps: recognised, and not read. Pure.

KAI Scheduler (kai-scheduler/KAI-Scheduler, formerly NVIDIA/KAI-Scheduler, v0.4 to v0.17): users ask
for a part of a GPU by the annotation ``gpu-fraction`` or ``gpu-memory`` and request no resource;
the binder labels the pod with its GPU group, ``runai-gpu-group``, or with a label
``runai-gpu-group/<group>`` for each of several GPUs (``pkg/common/constants/constants.go``,
``pkg/common/resources/gpu_sharing.go``). A pod in the namespace of reservations keeps the GPU of
the group (``pkg/binder/binding/resourcereservation``); deleting it ends the group's pods.

Koordinator (koordinator-sh/koordinator, v1.0 to v1.8): the scheduler writes the devices of a pod
into ``scheduling.koordinator.sh/device-allocated`` (``apis/extension/device_share.go``). Other
``koordinator.sh`` keys are on pods without GPUs, too.
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import Final

import msgspec

from vgpu.model.objects import Pod
from vgpu.model.units import MIB
from vgpu.schemes.text import number

GPU_GROUP: Final = "runai-gpu-group"
"""The label with a pod's GPU group; with ``/<group>`` behind it, of each of several."""

FRACTIONS: Final = ("gpu-fraction", "gpu-memory")
"""Annotations by which users of KAI ask for a part of a GPU."""

DEVICE_ALLOCATED: Final = "scheduling.koordinator.sh/device-allocated"
"""The annotation with the devices that Koordinator has allocated."""

RESERVATION: Final = ("app", "kai-resource-reservation")
"""The label of KAI's reservation pods, in :data:`_RESERVATIONS`."""

_MOST_MIB: Final = 1 << 24
"""Maximum number of MiB of a GPU that a pod asks for."""

_RESERVATIONS: Final = frozenset({"kai-resource-reservation", "runai-reservation"})
"""Namespaces of KAI's reservation pods; the second is that of releases before v0.6."""


class OtherScheduler(StrEnum):
    """A GPU scheduler whose shares vgpu does not read; the value is its name for people."""

    KAI = "KAI Scheduler"
    KOORDINATOR = "Koordinator"


class Recognised(msgspec.Struct, frozen=True, gc=False):
    """Another scheduler's pod: by which label or annotation it is recognised."""

    scheduler: OtherScheduler
    key: str


class AskedFraction(msgspec.Struct, frozen=True, gc=False):
    """What a pod of KAI asks for of a GPU: a part of it, or an amount of memory."""

    part: float | None = None
    memory_bytes: int | None = None

    def memory_of(self, gpu_bytes: int | None) -> int | None:
        """Bytes of a GPU of this size, in whole MiB; None if unknown."""
        if self.memory_bytes is not None:
            return self.memory_bytes
        if self.part is None or gpu_bytes is None:
            return None
        return int(gpu_bytes // MIB * self.part) * MIB


def asked_fraction(pod: Pod) -> AskedFraction | None:
    """What a pod of KAI asks for; None of other pods. An amount that cannot be read is unknown."""
    recognised = other_scheduler(pod)
    if recognised is None or recognised.scheduler is not OtherScheduler.KAI:
        return None
    part, memory = (pod.annotations.get(key, "") for key in FRACTIONS)
    mebibytes = number(memory, _MOST_MIB)
    try:
        fraction = float(part)
    except ValueError:
        fraction = 0.0
    return AskedFraction(
        fraction if 0 < fraction <= 1 else None, mebibytes * MIB if mebibytes else None
    )


def is_mark(key: str) -> bool:
    """Whether an annotation or label of this key may show that a pod is another scheduler's."""
    return key in (GPU_GROUP, *FRACTIONS, DEVICE_ALLOCATED) or key.startswith(f"{GPU_GROUP}/")


def other_scheduler(pod: Pod) -> Recognised | None:
    """The other GPU scheduler that the pod belongs to; None if it belongs to none."""
    return next(_marks(pod), None)


def _marks(pod: Pod) -> Iterator[Recognised]:
    for key in pod.labels:
        if key == GPU_GROUP or key.startswith(f"{GPU_GROUP}/"):
            yield Recognised(OtherScheduler.KAI, key)
    label, value = RESERVATION
    if pod.labels.get(label) == value and pod.ref.namespace in _RESERVATIONS:
        yield Recognised(OtherScheduler.KAI, label)
    if DEVICE_ALLOCATED in pod.annotations:
        yield Recognised(OtherScheduler.KOORDINATOR, DEVICE_ALLOCATED)
    for key in FRACTIONS:
        if key in pod.annotations and not _requests_gpus(pod):
            yield Recognised(OtherScheduler.KAI, key)


def _requests_gpus(pod: Pod) -> bool:
    return any(each.broken or any(each.limits.values()) for each in pod.containers)
