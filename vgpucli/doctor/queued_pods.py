"""Pods by the labels with which they name a queue of KAI Scheduler, for `vgpu doctor`; pure."""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from vgpu.kube import wire
from vgpu.kube.api_kind import Decoders
from vgpu.kube.kinds import PODS
from vgpucli.doctor.components import KAI, QUEUE_LABEL_FLAG, InstalledComponent

QUEUE_LABEL: Final = "kai.scheduler/queue"
"""The label of pods with the name of their queue, if no flag names another one."""

OLD_QUEUE_LABEL: Final = "runai/queue"
"""The same before v0.6."""

QUEUE_LABELS: Final = (QUEUE_LABEL, OLD_QUEUE_LABEL)

_ENDED: Final = frozenset({"Succeeded", "Failed"})


class QueueLabelsOfPod(msgspec.Struct, frozen=True):
    """A pod and the keys of its labels."""

    name: str
    labels: frozenset[str] = frozenset()


class _QueuedStatus(wire.Wire, frozen=True):
    phase: str = ""


class _QueuedFields(wire.ObjectFields, frozen=True):
    metadata: wire.Meta
    status: _QueuedStatus = _QueuedStatus()


def _queued(pod: _QueuedFields, _: str) -> QueueLabelsOfPod | None:
    meta = pod.metadata
    labels = frozenset(meta.labels or ())
    if pod.status.phase in _ENDED or labels.isdisjoint(QUEUE_LABELS):
        return None
    return QueueLabelsOfPod(f"{meta.namespace}/{meta.name}", labels)


QUEUED_PODS: Final = PODS.read_as(Decoders.of(_QueuedFields), _queued)
"""Pods that name a queue by one of the known labels; None in place of each other one."""


def queue_labels(components: Iterable[InstalledComponent]) -> dict[str, list[InstalledComponent]]:
    """The labels from which components of KAI Scheduler read the queue of a pod."""
    by_label: dict[str, list[InstalledComponent]] = {}
    for each in components:
        if each.row.system == KAI and each.workload.desired and QUEUE_LABEL_FLAG in each.row.flags:
            label = each.flags.get(QUEUE_LABEL_FLAG) or QUEUE_LABEL
            by_label.setdefault(label, []).append(each)
    return by_label


def unread_labels(components: Iterable[InstalledComponent]) -> tuple[str, tuple[str, ...]]:
    """The label that KAI Scheduler reads, and the known ones that it does not read.

    "" and () if its components read several, or if there are none.
    """
    read = tuple(queue_labels(components))
    if len(read) != 1:
        return "", ()
    return read[0], tuple(label for label in QUEUE_LABELS if label != read[0])


def pods_by_label(
    components: Iterable[InstalledComponent], pods: Iterable[QueueLabelsOfPod]
) -> Mapping[str, tuple[str, ...]]:
    """The pods that name their queue only by a label that is not read, by that label."""
    pods = tuple(pods)
    read, others = unread_labels(components)
    return {
        label: tuple(each.name for each in pods if label in each.labels and read not in each.labels)
        for label in others
    }
