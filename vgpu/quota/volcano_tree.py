"""Volcano's Queues as a tree of quotas, with what pods hold and what waits in each; pure.

A queue without a parent is below ``root``, which has no limit of its own. What a status counts for
a queue contains what it counts for those below it (``updateQueueStatus`` in
``pkg/scheduler/framework/session.go``).

From Volcano 1.13 on there are two counts of memory and cores of vGPUs (``session.go``
``addNodeSharableDeviceUsage``, ``pkg/scheduler/api/resource_info.go``): a status has what the
allocation of a pod has, summed over its GPUs; the check of the next pod compares what containers
request, once for each container, whatever the number of its GPUs, and 0 for a percentage or for no
amount. Older versions count neither.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from vgpu.kube.kueue_kinds import amount as amount_of
from vgpu.kube.volcano_kinds import INQUEUE, ROOT_QUEUE, PodGroup, Queue
from vgpu.model.declared_quota import QuotaCeiling, QuotaResource
from vgpu.model.objects import Pod
from vgpu.placement.volcano import GROUP_NAMES
from vgpu.quota.resources import Amounts, plus
from vgpu.quota.tree import QuotaLevel, QuotaName, QuotaNode, QuotaTree
from vgpu.quota.volcano_scheduler import VolcanoScheduler
from vgpu.schemes.registry import names_of

QUEUE_NAME: Final = "scheduling.volcano.sh/queue-name"
"""An annotation of a pod: its queue, where the pod has no PodGroup that was read."""


def device_resources() -> frozenset[str]:
    """The resources of vGPUs that a status and a check count differently."""
    names = names_of("volcano")
    return frozenset({names.memory, names.cores, names.percentage} - {""})


class VolcanoObjects(msgspec.Struct, frozen=True):
    """What was read of Volcano.

    Attributes:
        notes: what is unknown, for people.
        unread: the names of the kinds of which not all objects were read.
    """

    queues: tuple[Queue, ...] = ()
    groups: tuple[PodGroup, ...] = ()
    scheduler: VolcanoScheduler = VolcanoScheduler()
    notes: tuple[str, ...] = ()
    unread: frozenset[str] = frozenset()

    @property
    def has_queues(self) -> bool:
        """Whether some queue was read."""
        return bool(self.queues)

    @property
    def counts_devices(self) -> bool | None:
        """Whether memory and cores of vGPUs count; None if unknown.

        By the version; else a status that has such an amount shows it.
        """
        if self.scheduler.version is not None:
            return not self.scheduler.ignores_devices
        devices = device_resources()
        return True if any(devices & each.allocated.keys() for each in self.queues) else None

    def queue(self, name: str) -> Queue | None:
        """The queue of this name."""
        return next((each for each in self.queues if each.name == name), None)

    def path(self, name: str) -> tuple[Queue, ...]:
        """The queue, and those above it whose limits may hold for it, as far as they were read."""
        by_name = {each.name: each for each in self.queues}
        found: dict[str, Queue] = {}
        while name in by_name and name not in found:
            found[name] = by_name[name]
            if not self.scheduler.may_be_hierarchical:
                break
            name = parent_of(by_name[name])
        return tuple(found.values())


def parent_of(queue: Queue) -> str:
    """The name of the queue above a queue; "" above the root."""
    if queue.name == ROOT_QUEUE:
        return ""
    return queue.parent or ROOT_QUEUE


def queue_name(name: str) -> QuotaName:
    """The node of a queue."""
    return QuotaName(QuotaLevel.QUEUE, name)


def amounts(quantities: Mapping[str, str]) -> dict[str, int]:
    """Quantities in the unit of each resource; unreadable ones are missing."""
    counted = {name: amount_of(name, each) for name, each in quantities.items()}
    return {name: each for name, each in counted.items() if each is not None}


def group_of(pod: Pod) -> str:
    """The name of the pod's PodGroup; "" if it has none."""
    return next(filter(None, map(pod.annotations.get, GROUP_NAMES)), "") or ""


class PodsOfQueues:
    """Finds the queue of a pod: by its PodGroup, else by its annotation."""

    def __init__(self, volcano: VolcanoObjects) -> None:
        self._groups = {(each.namespace, each.name): each for each in volcano.groups}

    def group(self, pod: Pod) -> PodGroup | None:
        """The pod's PodGroup, if it was read."""
        return self._groups.get((pod.ref.namespace, group_of(pod)))

    def of(self, pod: Pod) -> str:
        """The name of the queue; "" if it is in none, or its PodGroup was not read."""
        group = self.group(pod)
        return group.queue_name if group is not None else pod.annotations.get(QUEUE_NAME, "")


def volcano_nodes(
    volcano: VolcanoObjects,
    held: Iterable[tuple[Pod, Amounts]] = (),
    driver: Mapping[str, Amounts] | None = None,
) -> list[QuotaNode]:
    """The nodes of all queues: those that were read, and those that others only name.

    ``held`` is what pods hold by the ledger, ``driver`` what pods use by their UID on the node,
    None if nobody was asked. What a pod of no queue holds is in no node.
    """
    if not volcano.has_queues:
        return []
    pods = PodsOfQueues(volcano)
    own_held: dict[str, list[Amounts]] = {}
    own_driver: dict[str, list[Amounts]] = {}
    for pod, amount in held:
        name = pods.of(pod)
        if not name:
            continue
        own_held.setdefault(name, []).append(amount)
        used = None if driver is None else driver.get(pod.kubelet_uid)
        if used is not None:
            own_driver.setdefault(name, []).append(used)
    waiting: dict[str, list[Amounts]] = {}
    for group in volcano.groups:
        if group.waits:
            waiting.setdefault(group.queue_name, []).append(amounts(group.requests))
    by_name = {each.name: each for each in volcano.queues}
    named = {*own_held, *waiting, *map(parent_of, volcano.queues)} - {""}
    queues = (*volcano.queues, *(Queue(name) for name in sorted(named - by_name.keys())))
    return [
        QuotaNode(
            queue_name(queue.name),
            queue_name(parent_of(queue)) if parent_of(queue) else None,
            used=_keyed(queue.allocated),
            held={"": plus(*own_held[queue.name])} if queue.name in own_held else {},
            driver={"": plus(*own_driver[queue.name])} if queue.name in own_driver else None,
            waiting=plus(*waiting.get(queue.name, ())),
            waiting_workloads=len(waiting.get(queue.name, ())),
            ceilings=_ceilings(queue),
        )
        for queue in queues
    ]


def volcano_tree(volcano: VolcanoObjects) -> QuotaTree:
    """The tree of the queues alone."""
    return QuotaTree(volcano_nodes(volcano))


def _keyed(quantities: Mapping[str, str]) -> dict[QuotaResource, int]:
    return {QuotaResource("", name): each for name, each in amounts(quantities).items()}


def _ceilings(queue: Queue) -> dict[QuotaResource, QuotaCeiling]:
    most, deserved = amounts(queue.capability), amounts(queue.deserved)
    guaranteed = amounts(queue.guarantee)
    return {
        QuotaResource("", name): QuotaCeiling(
            most.get(name), deserved.get(name), guaranteed.get(name)
        )
        for name in (most | deserved | guaranteed)
    }


def requested_once(volcano: VolcanoObjects, pods: Iterable[Pod]) -> dict[str, dict[str, int]]:
    """What the placed pods of each queue request, as Volcano's check counts it, by queue.

    A pod that ended or is being deleted no longer counts. What a queue counts is in those above it.
    """
    of_queues = PodsOfQueues(volcano)
    parents = {each.name: parent_of(each) for each in volcano.queues}
    sums: dict[str, dict[str, int]] = {}
    for pod in pods:
        name = of_queues.of(pod)
        if not (name and pod.node) or pod.terminal or pod.deleted_at is not None:
            continue
        units, passed = pod.requested_units(), set[str]()
        while name and name not in passed:
            passed.add(name)
            sums[name] = plus(sums.get(name, {}), units)
            name = parents.get(name, "")
    return sums


def admitted_requests(volcano: VolcanoObjects, name: str, without: PodGroup | None) -> Amounts:
    """What PodGroups that the queue has admitted and not placed request; but for one group."""
    of_others = (
        amounts(each.requests)
        for each in volcano.groups
        if each.phase == INQUEUE and each.queue_name == name and each != without
    )
    return plus(*of_others)
