"""KAI Scheduler's Queues as a tree of quotas, with what pods hold and what waits in each; pure.

A Queue has numbers of GPUs (0.7 is 70 % of one), of thousandths of a CPU, and of 10^6 bytes of
memory; -1 is unlimited, and 0 or nothing is zero. A workload that cannot be preempted must fit in
the quota of its queue and of each queue above it, every workload in their limits. A status has
what the queues below it have, too. Of a share on several GPUs ``requested`` counts each, and
``allocated`` counts one (``requested.go`` and ``received.go`` in
``pkg/podgroupcontroller/controllers/resources`` of kai-scheduler/KAI-Scheduler d5bc503a). The
scheduler counts each GPU, and so does what is held here:

    held(pod) = part of a GPU × its number of GPUs, or 1 for each whole GPU, or n for each MIG
                instance of the profile ng

The sum of ``requested`` has an amount of memory as a resource of its own, ``run.ai/gpu.memory``.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from math import ceil
from typing import Final

import msgspec

from vgpu.kube.kai_groups import QUEUE_LABELS, KaiGroup, KaiQueue, KaiQuota
from vgpu.kube.kueue_kinds import CPU
from vgpu.kube.quantities import rounded_up
from vgpu.model.declared_quota import QuotaCeiling, QuotaResource
from vgpu.model.objects import Node, Pod
from vgpu.quota.quota_units import QuotaUnit
from vgpu.quota.resources import GPUS, Amounts, plus
from vgpu.quota.tree import QuotaLevel, QuotaName, QuotaNode
from vgpu.schemes.kai.keys import FRACTIONS
from vgpu.schemes.kai.request import asked, label_mib

GPU: Final = "nvidia.com/gpu"
GPU_MEMORY: Final = "run.ai/gpu.memory"
"""Resources of a status: GPUs with parts of them, and MiB that pods request by ``gpu-memory``."""

GROUP_OF_POD: Final = "pod-group-name"
"""The annotation of a pod with its PodGroup."""

PARTS: Final = "gpu_parts"
"""An amount that pods hold: 10^-9 of a GPU, as KAI counts it."""

UNKNOWN_PARTS: Final = "unknown_gpu_parts"
"""Likewise the number of pods of which that is unknown."""

_PARTS_OF_GPU: Final = 10**9
_MILLI: Final = 1000
_MEGABYTE: Final = 10**6
_MOST: Final = 1e12
"""Maximum number in a Queue that is read; a larger one limits nothing."""

_MIG: Final = re.compile(r"nvidia\.com/mig-([0-9]{1,2})g\.[0-9]{1,4}gb", re.ASCII)


class KaiQueues(msgspec.Struct, frozen=True):
    """What was read of KAI Scheduler's queues.

    Attributes:
        notes: what is unknown, for people.
        unread: the names of the kinds of which not all objects were read.
    """

    queues: tuple[KaiQueue, ...] = ()
    groups: tuple[KaiGroup, ...] = ()
    notes: tuple[str, ...] = ()
    unread: frozenset[str] = frozenset()

    @property
    def has_queues(self) -> bool:
        """Whether some queue was read."""
        return bool(self.queues)


def kai_queue_name(name: str) -> QuotaName:
    """The node of a queue."""
    return QuotaName(QuotaLevel.KAI_QUEUE, name)


def kai_unit(resource: str) -> QuotaUnit:
    """The unit of a resource."""
    if resource == GPU:
        return QuotaUnit("thousandths of a GPU", PARTS, Fraction(_PARTS_OF_GPU, _MILLI))
    if resource == CPU:
        return QuotaUnit("thousandths of a CPU")
    return QuotaUnit({"memory": "bytes", GPU_MEMORY: "MiB"}.get(resource, "units"))


def kai_amounts(quantities: Mapping[str, str]) -> dict[QuotaResource, int]:
    """Quantities of a status in the unit of each resource; unreadable ones are missing."""
    counted = {
        name: rounded_up(text, _MILLI if name in (GPU, CPU) else 1)
        for name, text in quantities.items()
    }
    return {QuotaResource("", name): each for name, each in counted.items() if each is not None}


def kai_nodes(
    kai: KaiQueues, held: Iterable[tuple[Pod, Amounts]] = (), nodes: Iterable[Node] = ()
) -> list[QuotaNode]:
    """The nodes of all queues: those that were read, and those that others only name.

    ``held`` is what pods hold by the ledger, and ``nodes`` have the memory of their GPUs.
    """
    if not kai.has_queues:
        return []
    by_node = {node.name: node for node in nodes}
    groups = {(each.namespace, each.name): each for each in kai.groups}
    own_held: dict[str, list[Amounts]] = {}
    for pod, amounts in held:
        name = _queue_of(pod, groups)
        if name:
            own_held.setdefault(name, []).append(_held(pod, amounts, by_node.get(pod.node)))
    waiting: dict[str, list[Amounts]] = {}
    for group in kai.groups:
        if group.waits and group.queue:
            requests = kai_amounts(group.requested)
            waiting.setdefault(group.queue, []).append(
                {key.resource: amount for key, amount in requests.items()}
            )
    known = {each.name for each in kai.queues}
    named = {*own_held, *waiting, *(each.parent for each in kai.queues)} - {""}
    queues = (*kai.queues, *(KaiQueue(name) for name in sorted(named - known)))
    return [
        QuotaNode(
            kai_queue_name(queue.name),
            kai_queue_name(queue.parent) if queue.parent else None,
            used=kai_amounts(queue.allocated),
            held={"": plus(*own_held[queue.name])} if queue.name in own_held else {},
            waiting=plus(*waiting.get(queue.name, ())),
            waiting_workloads=len(waiting.get(queue.name, ())),
            ceilings=_ceilings(queue),
            requested=kai_amounts(queue.requested),
        )
        for queue in queues
    ]


def _queue_of(pod: Pod, groups: Mapping[tuple[str, str], KaiGroup]) -> str:
    """The queue of a pod: that of its PodGroup, else its label; "" if it is in none."""
    group = groups.get((pod.ref.namespace, pod.annotations.get(GROUP_OF_POD, "")))
    if group is not None and group.queue:
        return group.queue
    return next(filter(None, (pod.labels.get(key, "") for key in QUEUE_LABELS)), "")


def _held(pod: Pod, amounts: Amounts, node: Node | None) -> Amounts:
    """What a pod holds, as KAI counts it."""
    gpus = amounts.get(GPUS, 0)
    if any(key in pod.annotations for key in FRACTIONS):
        part = asked(pod).status_part(label_mib(node))
        if part is None:
            return {UNKNOWN_PARTS: 1}
        return {PARTS: ceil(round(part * _PARTS_OF_GPU, 3)) * gpus}
    instances = _mig_parts(pod.requested_units())
    return {PARTS: (gpus if instances is None else instances) * _PARTS_OF_GPU}


def _mig_parts(units: Mapping[str, int]) -> int | None:
    """The GPUs that MIG instances count as; None if none are requested."""
    found = [(_MIG.fullmatch(name), amount) for name, amount in units.items() if amount]
    counted = [int(profile[1]) * amount for profile, amount in found if profile is not None]
    return sum(counted) if counted else None


_RESOURCES: Final[Sequence[tuple[str, str, int]]] = (
    ("gpu", GPU, _MILLI),
    (CPU, CPU, 1),
    ("memory", "memory", _MEGABYTE),
)
"""The name in a Queue, the resource of its status, and how many units one of the Queue's is."""


def _ceilings(queue: KaiQueue) -> dict[QuotaResource, QuotaCeiling]:
    """The limits of a queue; those of CPU and memory only if the queue has any."""
    found = {}
    for name, resource, size in _RESOURCES:
        quota = queue.quotas.get(name)
        if quota is None or (resource != GPU and not _limits(quota)):
            continue
        most, deserved = (_number(each, size) for each in (quota.limit, quota.quota))
        found[QuotaResource("", resource)] = QuotaCeiling(most, deserved, weight=quota.weight)
    return found


def _limits(quota: KaiQuota) -> bool:
    return _number(quota.limit, 1) is not None or bool(_number(quota.quota, 1))


def _number(number: float, size: int) -> int | None:
    """A number of a Queue in the unit of its resource; None is unlimited."""
    return round(number * size) if 0 <= number < _MOST else None
