"""The amounts of each queue as numbers for metrics, by resource and flavor; pure.

They are those that ``vgpu inspect --by queue`` shows. An amount that is unknown, or that the system
does not have for the queue, is missing: 0 is never written in its place.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Final

import msgspec

from vgpu.kube.kueue_kinds import CLUSTER_QUEUES, COHORTS, LOCAL_QUEUES, WORKLOADS
from vgpu.model.declared_quota import QuotaResource
from vgpu.quota.kueue_tree import KueueObjects
from vgpu.quota.quota_units import quota_unit
from vgpu.quota.tree import QuotaLevel, QuotaName, QuotaTree
from vgpu.schemes.registry import UnitBytes

MOST_QUEUES: Final = 1000
"""Maximum number of queues with series."""


class AmountKind(StrEnum):
    """The kind of an amount; see :class:`vgpu.quota.tree.QuotaNode`."""

    LIMIT = "limit"
    NOMINAL = "nominal"
    BORROWED = "borrowed"
    LENT = "lent"
    USED = "used"
    HELD = "held"
    WAITING = "waiting"


class QueueAmounts(msgspec.Struct, frozen=True, gc=False):
    """The amounts of one resource and flavor of a queue; ``flavor`` "" is any, or unknown."""

    queue: QuotaName
    resource: QuotaResource
    amounts: Mapping[AmountKind, int]


class QueueNumbers(msgspec.Struct, frozen=True):
    """The numbers of all queues.

    Attributes:
        amounts: of at most ``MOST_QUEUES`` queues, those first that are above others.
        waiting_workloads: the number of workloads without quota, of the same queues; empty where
            workloads were not read.
        left_out: the number of the other queues.
        is_read: whether queues were read at all.
    """

    amounts: tuple[QueueAmounts, ...] = ()
    waiting_workloads: Mapping[QuotaName, int] = {}
    left_out: int = 0
    is_read: bool = False


def queue_numbers(
    kueue: KueueObjects, tree: QuotaTree, unit_bytes: UnitBytes, most: int = MOST_QUEUES
) -> QueueNumbers:
    """The numbers of the queues in the tree, of ``most`` of them."""
    by_depth = sorted((depth, node.name) for depth, node in tree.walk())
    names = [name for _, name in by_depth[:most]]
    waits = WORKLOADS.name not in kueue.unread
    return QueueNumbers(
        tuple(each for name in names for each in _of_queue(kueue, tree, unit_bytes, name)),
        {name: tree.waiting_workloads(name) for name in names} if waits else {},
        len(by_depth) - len(names),
        is_read=kueue.has_queues,
    )


def _of_queue(
    kueue: KueueObjects, tree: QuotaTree, unit_bytes: UnitBytes, name: QuotaName
) -> Iterator[QueueAmounts]:
    """The amounts of a queue. What waits has any flavor, unless its resource has only one."""
    node = tree.nodes[name]
    keys = [*tree.resources(name)]
    of_resource: dict[str, list[QuotaResource]] = {}
    for key in keys:
        of_resource.setdefault(key.resource, []).append(key)
    waiting = dict(tree.waiting(name)) if WORKLOADS.name not in kueue.unread else {}
    held_anywhere = "" in tree.flavors_held(name)
    keys += (
        QuotaResource("", each)
        for each in sorted({*waiting, *of_resource})
        if len(of_resource.get(each, ())) != 1 or held_anywhere
    )
    for key in keys:
        unit = quota_unit(key.resource, kueue.config, unit_bytes)
        amounts: dict[AmountKind, int | None] = {
            AmountKind.HELD: unit.of_ledger(tree.held(name, key.flavor)),
            AmountKind.USED: node.used.get(key),
            AmountKind.BORROWED: node.borrowed.get(key),
        }
        if key.flavor:
            amounts |= _of_quota(kueue, tree, name, key)
        alone = len(of_resource.get(key.resource, ())) == 1
        if WORKLOADS.name not in kueue.unread and alone == bool(key.flavor):
            amounts[AmountKind.WAITING] = waiting.get(key.resource, 0)
        known = {kind: amount for kind, amount in amounts.items() if amount is not None}
        if key.flavor or any(known.values()):
            yield QueueAmounts(name, key, known)


def _of_quota(
    kueue: KueueObjects, tree: QuotaTree, name: QuotaName, key: QuotaResource
) -> dict[AmountKind, int | None]:
    """What is declared of the queue, and what follows from it on its path, where all was read."""
    declared = tree.nodes[name].declared.get(key)
    nominal = declared.nominal if declared is not None else None
    path = [node.name.level for node in tree.path(name)]
    needed = {COHORTS.name} if QuotaLevel.COHORT in path else set()
    if path[-1] is QuotaLevel.LOCAL_QUEUE:
        needed |= {CLUSTER_QUEUES.name, LOCAL_QUEUES.name}
    if needed & kueue.unread:
        return {AmountKind.NOMINAL: nominal}
    return {
        AmountKind.NOMINAL: nominal,
        AmountKind.LIMIT: tree.limit(name, key),
        AmountKind.LENT: tree.lent(name, key) if declared is not None else None,
    }
