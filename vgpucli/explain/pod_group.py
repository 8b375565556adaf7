"""The PodGroup of a pod and its queue: Volcano admits a group before it looks at GPUs. Pure."""

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from vgpu.kube.errors import one_line
from vgpu.kube.quantities import whole
from vgpu.kube.volcano_kinds import PodGroup, Queue
from vgpu.model.objects import Pod
from vgpu.placement.volcano import GROUP_NAMES
from vgpucli.explain.model import ExplainReason

_OPEN: Final = ("", "Open")

_DEFAULT: Final = "default"
"""The queue of a PodGroup that names none."""

_WAITING: Final = ("Pending", "Inqueue")
"""Phases before the pods of a group are placed."""


class GroupOfPod(msgspec.Struct, frozen=True):
    """What is known of the PodGroup of a pod; None is not read, or missing."""

    name: str
    group: PodGroup | None = None
    queue: Queue | None = None

    @property
    def texts(self) -> Iterator[str]:
        """The group and its queue for people."""
        if self.group is None:
            yield f"PodGroup {self.name} was not read"
            return
        group = self.group
        yield (
            f"PodGroup {self.name}: phase {group.phase or 'unknown'}, {group.running} of at least"
            f" {group.least} pods run, queue {queue_of(group)}"
        )
        if group.message:
            yield f"Volcano about PodGroup {self.name}: {one_line(group.message)}"

    def full(self, requested: Iterable[str]) -> Iterator[str]:
        """Why the queue has no room, as sentences: it is closed, or has allocated all it may."""
        queue = self.queue
        if queue is None:
            return
        if queue.state not in _OPEN:
            yield f"queue {queue.name} is {queue.state}"
        for name in sorted(requested):
            most = whole(queue.capability.get(name, ""))
            used = whole(queue.allocated.get(name, "0"))
            if most is not None and used is not None and used >= most:
                yield f"queue {queue.name} has {used} of {most} {name} allocated"

    def cause(self, requested: Iterable[str]) -> tuple[ExplainReason, str] | None:
        """Why the group waits, with what shows it; None if nothing that was read does."""
        full = next(self.full(requested), "")
        if full:
            return ExplainReason.QUEUE_FULL, full
        if self.group is not None and self.group.phase in _WAITING:
            return ExplainReason.POD_GROUP_WAITS, next(self.texts)
        return None


def group_name(pod: Pod) -> str:
    """The name of the pod's PodGroup; "" if it has none."""
    return next(filter(None, map(pod.annotations.get, GROUP_NAMES)), "") or ""


def queue_of(group: PodGroup) -> str:
    """The name of the group's queue."""
    return group.queue or _DEFAULT


def group_advice(group: GroupOfPod, namespace: str) -> str:
    """What shows more of the group and its queue."""
    queue = "QUEUE" if group.group is None else queue_of(group.group)
    name = group.name.partition("/")[2]
    return (
        f"kubectl describe podgroup -n {namespace} {name} shows what the group waits for, and"
        f" kubectl describe queue {queue} what its queue allows and has allocated"
    )
