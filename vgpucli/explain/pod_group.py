"""The PodGroup of a pod and its queue: Volcano admits a group before it looks at GPUs. Pure."""

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from vgpu.kube.closed_nodes import amount_text
from vgpu.kube.errors import one_line
from vgpu.kube.quantities import rounded_up, whole
from vgpu.kube.scheduling_objects import CPU
from vgpu.kube.volcano_kinds import PodGroup, Queue
from vgpu.model.objects import Pod
from vgpu.placement.volcano import GROUP_NAMES
from vgpu.schemes.volcano.key_set import VOLCANO
from vgpucli.explain.model import ExplainReason

_OPEN: Final = ("", "Open")

_DEFAULT: Final = "default"
"""The queue of a PodGroup that names none."""

MILLI: Final = 1000
"""Requests of CPU are in thousandths."""

_COUNTED_BY_GPU: Final = frozenset({VOLCANO.memory, VOLCANO.cores, VOLCANO.percentage})
"""Of these ``status.allocated`` has the amounts of all GPUs of a pod since Volcano 1.13, and none
before it (``addNodeSharableDeviceUsage`` of ``pkg/scheduler/framework/session.go``)."""

_WAITING: Final = ("Pending", "Inqueue")
"""Phases before the pods of a group are placed."""


class GroupOfPod(msgspec.Struct, frozen=True):
    """What is known of the PodGroup of a pod; None is not read, or missing.

    ``requests`` are those of the pod.
    """

    name: str
    group: PodGroup | None = None
    queue: Queue | None = None
    requests: Mapping[str, int] = {}

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

    def full(self) -> Iterator[str]:
        """Why the queue has no room for the pod, as sentences; what is certain comes first."""
        queue = self.queue
        if queue is not None and queue.state not in _OPEN:
            yield f"queue {queue.name} is {queue.state}"
        yield from self._exceeded(counted_once=True)
        yield from self._exceeded(counted_once=False)

    def _exceeded(self, *, counted_once: bool) -> Iterator[str]:
        """The resources of which the queue allows too little:

            allocated(r) + request(r) > capability(r)

        Volcano compares what a pod requests, and nothing else. A status counts the memory and the
        cores of each GPU of a pod, the check those of each container once: these sums are not
        ``counted_once``.
        """
        queue = self.queue
        if queue is None:
            return
        for name, amount in sorted(self.requests.items()):
            most = _amount(name, queue.capability.get(name, ""))
            used = _amount(name, queue.allocated.get(name, "0"))
            is_once = name not in _COUNTED_BY_GPU
            if most is None or used is None or is_once is not counted_once:
                continue
            if amount and used + amount > most:
                shown = [amount_text(name, each) for each in (used, most, amount)]
                yield (
                    f"queue {queue.name} has {shown[0]} of {shown[1]} {name} allocated, and the pod"
                    f" requests {shown[2]}"
                )

    def cause(self) -> tuple[ExplainReason, str] | None:
        """Why the group waits, with what shows it; None if nothing that was read does."""
        waits = self.group is not None and self.group.phase in _WAITING
        is_closed = self.queue is not None and self.queue.state not in _OPEN
        if waits or is_closed or any(self._exceeded(counted_once=True)):
            full = next(self.full(), "")
            if full:
                return ExplainReason.QUEUE_FULL, full
        return (ExplainReason.POD_GROUP_WAITS, next(self.texts)) if waits else None


def _amount(name: str, quantity: str) -> int | None:
    """A quantity of a queue in the unit of a pod's requests; None if it has none."""
    return rounded_up(quantity, MILLI) if name == CPU else whole(quantity)


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
