"""Which Queue of Volcano refuses a PodGroup or a pod, and who has what the queue counts; pure.

A level refuses a resource ``r`` of the request if

    counted(r) + admitted(r) + requested(r) > capability(r)

(``jobEnqueueable`` and ``queueAllocatable`` in ``pkg/scheduler/plugins/capacity/capacity.go``,
``proportion.go`` likewise). *counted* is ``status.allocated``, but for memory and cores of vGPUs,
which the check counts once for each container (:mod:`vgpu.quota.volcano_tree`): these are counted
again from the pods, if the number of GPUs of the same pods is that of the status. Without that, the
status is an upper bound, and such a level is not *certain*.
"""

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from vgpu.kube.closed_nodes import amount_text
from vgpu.kube.volcano_kinds import PodGroup, Queue
from vgpu.quota.resources import Amounts
from vgpu.quota.volcano_tree import (
    VolcanoObjects,
    admitted_requests,
    amounts,
    device_resources,
)
from vgpu.schemes.registry import names_of

MOST_HOLDERS: Final = 5


class QueueShortage(msgspec.Struct, frozen=True):
    """A resource that a queue has too little of.

    Attributes:
        queue: the queue whose limit it is.
        below: the queue of the PodGroup, if that is another one; "" if not.
        resource: the name of the resource.
        most: the limit.
        shown: what ``status.allocated`` has.
        counted: what the check counts; the same if it was not counted again.
        admitted: what PodGroups that are admitted and not placed request.
        requested: what the pod or its PodGroup requests.
        is_certain: whether the check counts no less than that.
    """

    queue: str
    below: str
    resource: str
    most: int
    shown: int
    counted: int
    admitted: int
    requested: int
    is_certain: bool

    def text(self, who: str) -> str:
        """The sentence; ``who`` requests it."""
        name = self.resource
        most, shown, counted, admitted, requested = (
            amount_text(name, each)
            for each in (self.most, self.shown, self.counted, self.admitted, self.requested)
        )
        where = f"queue {self.queue}" + (f", above queue {self.below}," if self.below else "")
        if self.counted == self.shown:
            text = f"{where} has {shown} of {most} {name} allocated"
        else:
            text = (
                f"{where} has {counted} of {most} {name} by Volcano's check, which counts each"
                f" container once, and {shown} by its status, which counts each GPU"
            )
        more = f", {admitted} promised to PodGroups in phase Inqueue" if self.admitted else ""
        never = ", which never fits" if self.requested > self.most else ""
        return f"{text}{more}, and {who} requests {requested}{never}"


class QueueRequest(msgspec.Struct, frozen=True):
    """What a pod or a PodGroup requests of a queue.

    Attributes:
        volcano: the queues.
        queue: the name of the queue.
        requests: the amounts.
        once: what placed pods request, by queue; None if they were not read.
        group: the PodGroup of the request.
    """

    volcano: VolcanoObjects
    queue: str
    requests: Amounts
    once: Mapping[str, Amounts] | None = None
    group: PodGroup | None = None


def shortages(request: QueueRequest) -> tuple[QueueShortage, ...]:
    """What refuses the request: what is certain first, then upwards."""
    volcano = request.volcano
    if not volcano.scheduler.limits:
        return ()
    found = [each for queue in volcano.path(request.queue) for each in _at(queue, request)]
    return tuple(sorted(found, key=lambda each: not each.is_certain))


def _at(queue: Queue, request: QueueRequest) -> Iterator[QueueShortage]:
    """What one level refuses."""
    volcano = request.volcano
    limits, allocated = amounts(queue.capability), amounts(queue.allocated)
    admitted = admitted_requests(volcano, queue.name, request.group)
    below = "" if queue.name == request.queue else request.queue
    again = (request.once or {}).get(queue.name, {})
    devices, number = device_resources(), names_of("volcano").count
    is_same = bool(again) and again.get(number, 0) == allocated.get(number, 0)
    for resource, requested in sorted(request.requests.items()):
        most, shown = limits.get(resource), allocated.get(resource, 0)
        if most is None or not requested:
            continue
        counted, is_certain = shown, True
        if resource in devices:
            if volcano.counts_devices is False:
                continue
            counted = again.get(resource, 0) if is_same else shown
            is_certain = is_same and volcano.counts_devices is True
        if below and volcano.scheduler.plugins is None:
            is_certain = False  # only the plugin capacity with hierarchy compares it
        promised = admitted.get(resource, 0)
        if counted + promised + requested > most:
            yield QueueShortage(
                queue.name, below, resource, most, shown, counted, promised, requested, is_certain
            )


def holders_texts(shortage: QueueShortage, held: Mapping[str, int]) -> Iterator[str]:
    """The largest holders; with the others they are what the status counts.

    ``held`` are the amounts of PodGroups, or of pods without one, by their names for people.
    """
    name = shortage.resource
    shown = sorted(((-amount, who) for who, amount in held.items() if amount))[:MOST_HOLDERS]
    if not shown:
        return
    yield (
        f"queue {shortage.queue}: {amount_text(name, shortage.shown)} {name} in use, as its status"
        " counts"
    )
    for amount, who in shown:
        yield f"{amount_text(name, -amount)} of it by {who}"
    others = shortage.shown + sum(amount for amount, _ in shown)
    if others > 0:
        yield f"{amount_text(name, others)} of it by others"
    elif others < 0:
        yield f"these hold {amount_text(name, -others)} more than that by the allocation records"
