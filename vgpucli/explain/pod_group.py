"""The PodGroup of a pod and its queue: Volcano admits a group before it looks at GPUs. Pure."""

from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import pairwise

import msgspec

from vgpu.kube.errors import one_line
from vgpu.kube.volcano_kinds import PENDING, POD_GROUPS, QUEUES, PodGroup, Queue
from vgpu.quota.resources import Amounts
from vgpu.quota.volcano_answer import QueueRequest, QueueShortage, shortages
from vgpu.quota.volcano_tree import VolcanoObjects, amounts
from vgpucli.explain.model import ExplainReason


class GroupOfPod(msgspec.Struct, frozen=True, dict=True):
    """What is known of the PodGroup of a pod; None is not read, or missing.

    Attributes:
        volcano: the queues, and the scheduler's configuration.
        requests: what the pod requests.
        once: what the placed pods of each queue request; None if they were not read.
        holders: who holds what the first queue that refuses counts, as sentences.
        annotated: the queue that the pod itself names, which counts without a PodGroup.
    """

    name: str
    group: PodGroup | None = None
    volcano: VolcanoObjects = VolcanoObjects()
    requests: Mapping[str, int] = {}
    once: Mapping[str, Amounts] | None = None
    holders: tuple[str, ...] = ()
    annotated: str = ""

    @property
    def queue_name(self) -> str:
        """The name of the queue; "" if nothing that was read names one."""
        return self.annotated if self.group is None else self.group.queue_name

    @property
    def queue(self) -> Queue | None:
        """The queue of the group."""
        return self.volcano.queue(self.queue_name) if self.queue_name else None

    @property
    def texts(self) -> Iterator[str]:
        """The group and its queue for people."""
        group = self.group
        if group is None:
            is_read = self.volcano.groups and POD_GROUPS.name not in self.volcano.unread
            what = "is not among the PodGroups that were read" if is_read else "was not read"
            yield f"PodGroup {self.name} {what}"
            yield from self.volcano.notes
        else:
            yield (
                f"PodGroup {self.name}: phase {group.phase or 'unknown'}, {group.running} of at"
                f" least {group.least} pods run, queue {group.queue_name}"
            )
            if group.message:
                yield f"Volcano about PodGroup {self.name}: {one_line(group.message)}"
        if not self.queue_name:
            return
        if self.queue is None:
            is_read = self.volcano.has_queues and QUEUES.name not in self.volcano.unread
            yield f"Queue {self.queue_name} {'does not exist' if is_read else 'was not read'}"
            return
        above = [f"queue {each.name}" for each in self.volcano.path(self.queue_name)[1:]]
        if above:
            yield f"above queue {self.queue_name}: {', '.join(above)}"
        yield self.volcano.scheduler.text

    @cached_property
    def shortages(self) -> tuple[QueueShortage, ...]:
        """What the queue and those above it refuse; what is certain comes first.

        What Volcano's own message names is certain.
        """
        group = self.group
        request = self._of_group or self.requests
        found = shortages(QueueRequest(self.volcano, self.queue_name, request, self.once, group))
        message = "" if group is None else group.message
        named = [
            msgspec.structs.replace(each, is_certain=True)
            for each in found
            if each.resource in _named_resources(message)
        ]
        return (*named, *(each for each in found if each.resource not in _names(named)))

    @property
    def _of_group(self) -> Amounts:
        """What a group that its queue has not admitted requests, which is compared as a whole."""
        group = self.group
        return amounts(group.requests) if group is not None and group.phase == PENDING else {}

    def full(self) -> Iterator[str]:
        """Why the queue has no room for the pod, as sentences; what is certain comes first."""
        queue, group = self.queue, self.group
        if queue is not None and not queue.is_open:
            yield f"queue {queue.name} is {queue.state}"
        who = f"PodGroup {self.name}" if self._of_group else "the pod"
        yield from (each.text(who) for each in self.shortages)
        if group is not None and not self.shortages and _named_resources(group.message):
            names = ", ".join(sorted(_named_resources(group.message)))
            yield f"Volcano reports too little {names} in queue {group.queue_name}"

    def cause(self) -> tuple[ExplainReason, str] | None:
        """Why the group waits, with what shows it; None if nothing that was read does."""
        waits = self.group is not None and self.group.waits
        is_closed = self.queue is not None and not self.queue.is_open
        if waits or is_closed or any(each.is_certain for each in self.shortages):
            full = next(self.full(), "")
            if full:
                return ExplainReason.QUEUE_FULL, full
        return (ExplainReason.POD_GROUP_WAITS, next(self.texts)) if waits else None


def _names(found: list[QueueShortage]) -> set[str]:
    return {each.resource for each in found}


_REFUSAL = "queue resource quota insufficient"
"""How Volcano's message about a queue begins; ``insufficient <resource>`` follows for each."""


def _named_resources(message: str) -> frozenset[str]:
    """The resources of which Volcano reports too little in the queue."""
    _, refused, names = message.partition(_REFUSAL)
    if not refused:
        return frozenset()
    words = names.replace(",", " ").replace(":", " ").split()
    return frozenset(name for before, name in pairwise(words) if before == "insufficient")


def group_advice(group: GroupOfPod, namespace: str) -> str:
    """What shows more of the group and its queue."""
    queue = group.queue_name or "QUEUE"
    name = group.name.partition("/")[2]
    return (
        f"kubectl describe podgroup -n {namespace} {name} shows what the group waits for, and"
        f" kubectl describe queue {queue} what its queue allows and has allocated; vgpu inspect"
        " --by queue shows the tree of the queues"
    )
