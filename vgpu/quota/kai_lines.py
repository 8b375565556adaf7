"""The lines of KAI Scheduler's Queues, and what is remarkable about them; pure."""

from collections.abc import Iterator
from typing import Final

from vgpu.kube.kai_groups import KAI_GROUPS, KAI_QUEUES
from vgpu.model.declared_quota import QuotaResource
from vgpu.quota.kai_tree import (
    GPU,
    GPU_MEMORY,
    UNKNOWN_PARTS,
    KaiQueues,
    kai_amounts,
    kai_queue_name,
    kai_unit,
)
from vgpu.quota.queue_line import AmountKind, QueueLine, SourcedAmount, held_amount
from vgpu.quota.tree import QuotaNode, QuotaTree

_NO_BORROWING: Final = SourcedAmount(None, "KAI names no borrowed amounts")
_NO_GUARANTEE: Final = SourcedAmount(None, "KAI guarantees the quota: see nominal")
_NO_GROUPS: Final = SourcedAmount(None, "the PodGroups were not read")
_NO_DRIVER: Final = SourcedAmount(None, "the driver measures memory, and no part of a GPU")
_ELSEWHERE: Final = SourcedAmount(None, f"KAI counts what of it is allocated as {GPU}")
_PODS: Final = "PodGroups that have nothing: status.resourcesStatus.requested"


def kai_lines(tree: QuotaTree, node: QuotaNode, kai: KaiQueues) -> list[QueueLine]:
    """The amounts of a queue by resource."""
    name, waiting = node.name, tree.waiting(node.name)
    keys = {*tree.resources(name), *(QuotaResource("", each) for each in waiting)}
    return [_line(tree, node, key, kai, waiting.get(key.resource, 0)) for key in sorted(keys)]


def _line(
    tree: QuotaTree, node: QuotaNode, key: QuotaResource, kai: KaiQueues, waiting: int
) -> QueueLine:
    name, unit, ceiling = node.name.text, kai_unit(key.resource), node.ceilings.get(key)
    has_groups = KAI_GROUPS.name not in kai.unread
    is_read = any(each.name == node.name.name for each in kai.queues)
    status = f"{name}: status" if is_read else f"{name} was not read"
    return QueueLine(
        key,
        unit,
        {
            AmountKind.LIMIT: _limit(tree, node, key, kai),
            AmountKind.NOMINAL: SourcedAmount(
                ceiling.deserved if ceiling else None,
                f"{name}: spec.resources quota" if ceiling else f"{name} has no quota of it",
            ),
            AmountKind.GUARANTEED: _NO_GUARANTEE,
            AmountKind.BORROWED: _NO_BORROWING,
            AmountKind.LENT: _NO_BORROWING,
            AmountKind.USED: _ELSEWHERE
            if key.resource == GPU_MEMORY
            else SourcedAmount(
                node.used.get(key, 0) if is_read else None,
                f"{status}.allocated, which counts a share on several GPUs once",
            ),
            AmountKind.HELD: _held(tree, node, key) if has_groups else _NO_GROUPS,
            AmountKind.DRIVER: _NO_DRIVER,
            AmountKind.WAITING: SourcedAmount(waiting, _PODS) if has_groups else _NO_GROUPS,
            AmountKind.REQUESTED: SourcedAmount(
                node.requested.get(key, 0) if is_read else None,
                f"{status}.requested, with what is allocated, on each GPU of a share",
            ),
        },
        None if ceiling is None else ceiling.weight,
    )


def _held(tree: QuotaTree, node: QuotaNode, key: QuotaResource) -> SourcedAmount:
    held = tree.held(node.name, "")
    unknown = held.get(UNKNOWN_PARTS, 0)
    if unknown and key.resource == GPU:
        return SourcedAmount(None, f"the parts of {unknown} pods are unknown")
    return held_amount(kai_unit(key.resource), held)


def _limit(tree: QuotaTree, node: QuotaNode, key: QuotaResource, kai: KaiQueues) -> SourcedAmount:
    """The least limit on the path of a queue, or why there is none."""
    names = {each.name for each in kai.queues}
    absent = [each.name.text for each in tree.path(node.name) if each.name.name not in names]
    if absent:
        return SourcedAmount(None, f"{absent[0]} was not read")
    least = min(tree.levels(node.name, key), key=lambda level: level.limit, default=None)
    if least is None:
        return SourcedAmount(None, "nothing on its path limits it")
    return SourcedAmount(least.limit, f"{least.name.text}: spec.resources limit")


def kai_remarks(tree: QuotaTree, kai: KaiQueues) -> Iterator[str]:
    """What has more than its quota, and parents that do not exist."""
    names = {each.name for each in kai.queues}
    for queue in kai.queues:
        name = kai_queue_name(queue.name)
        if queue.parent and queue.parent not in names and KAI_QUEUES.name not in kai.unread:
            yield f"{name.text}: its parent {queue.parent} does not exist"
        key = QuotaResource("", GPU)
        ceiling = tree.nodes[name].ceilings.get(key)
        quota = ceiling.deserved if ceiling else None
        used = kai_amounts(queue.allocated).get(key, 0)
        if quota is not None and used > quota:
            yield (
                f"{name.text} has {used / 1000:g} of its quota of {quota / 1000:g} {GPU} allocated:"
                " pods above the quota may be evicted for queues below theirs"
            )
