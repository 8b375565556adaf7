"""The lines of Kueue's queues; pure.

What waits has no flavor yet: it stands beside the only flavor of its resource, else in a line
without one. So does what pods hold without a flavor that is known.
"""

from collections.abc import Callable
from typing import Final

from vgpu.kube.kueue_kinds import CLUSTER_QUEUES, COHORTS, LOCAL_QUEUES, WORKLOADS
from vgpu.model.declared_quota import QuotaResource
from vgpu.quota.kueue_tree import KueueObjects
from vgpu.quota.queue_line import (
    AmountKind,
    QueueLine,
    SourcedAmount,
    driver_amount,
    held_amount,
)
from vgpu.quota.quota_units import QuotaUnit
from vgpu.quota.tree import QuotaLevel, QuotaName, QuotaNode, QuotaTree

_NOT_COUNTED: Final = "Kueue counts no use of a Cohort"
_NO_LIMIT: Final = "nothing on its path limits it"


def kueue_lines(
    tree: QuotaTree,
    node: QuotaNode,
    kueue: KueueObjects,
    unit_of: Callable[[str], QuotaUnit],
    *,
    is_measured: bool,
) -> list[QueueLine]:
    """The amounts of a Cohort, a ClusterQueue or a LocalQueue by resource and flavor."""
    name = node.name
    keys = [*tree.resources(name)]
    waiting = {each: amount for each, amount in tree.waiting(name).items() if amount}
    resources = {key.resource for key in keys}
    alone = {each for each in resources if sum(key.resource == each for key in keys) == 1}
    keys += (QuotaResource("", each) for each in sorted(waiting.keys() - alone))
    if "" in tree.flavors_held(name):
        held = tree.held(name, "")
        keys += (
            QuotaResource("", each)
            for each in sorted(resources - (waiting.keys() - alone))
            if unit_of(each).of_ledger(held)
        )
    lines = []
    for key in keys:
        waits = None
        if WORKLOADS.name not in kueue.unread and (key.resource in alone) == bool(key.flavor):
            waits = waiting.get(key.resource, 0)
        amounts = _amounts(tree, node, key, unit_of(key.resource), kueue, is_measured=is_measured)
        amounts[AmountKind.WAITING] = SourcedAmount(waits, "Workloads without reserved quota")
        lines.append(QueueLine(key, unit_of(key.resource), amounts))
    return lines


def _amounts(
    tree: QuotaTree,
    node: QuotaNode,
    key: QuotaResource,
    unit: QuotaUnit,
    kueue: KueueObjects,
    *,
    is_measured: bool,
) -> dict[AmountKind, SourcedAmount]:
    name = node.name
    declared = node.declared.get(key)
    where = f"{name.text}: spec.resourceGroups" if declared else f"{name.text} has no quota of it"
    levels = tree.levels(name, key) if key.flavor else ()
    least = min(levels, key=lambda level: level.limit, default=None)
    unread = _unread_above(tree, name, kueue)
    is_counted = name.level is not QuotaLevel.COHORT
    status = f"{name.text}: status.flavorsReservation" if is_counted else _NOT_COUNTED
    lent = tree.lent(name, key) if key.flavor and declared and not unread else None
    return {
        AmountKind.LIMIT: SourcedAmount(least.limit, f"computed, at {least.name.text}")
        if least is not None and not unread
        else SourcedAmount(None, unread or _NO_LIMIT),
        AmountKind.NOMINAL: SourcedAmount(declared.nominal if declared else None, where),
        AmountKind.BORROWED: SourcedAmount(node.borrowed.get(key), status),
        AmountKind.LENT: SourcedAmount(
            lent, f"computed: what others have taken of {name.text}, at least"
        ),
        AmountKind.USED: SourcedAmount(node.used.get(key), status),
        AmountKind.HELD: held_amount(unit, tree.held(name, key.flavor)),
        AmountKind.DRIVER: driver_amount(
            unit, tree.driver(name, key.flavor), is_measured=is_measured
        ),
        AmountKind.GUARANTEED: SourcedAmount(
            None, "Kueue guarantees by nominal quotas that are not lent"
        ),
    }


def _unread_above(tree: QuotaTree, name: QuotaName, kueue: KueueObjects) -> str:
    """What decides the limit of a node and was not read, for people; "" if all was."""
    path = [node.name.level for node in tree.path(name)]
    unread = kueue.unread
    if QuotaLevel.COHORT in path and COHORTS.name in unread:
        return "Cohorts were not read"
    if QuotaLevel.COHORT in path and CLUSTER_QUEUES.name in unread:
        return "not all ClusterQueues were read"
    if path[-1] is QuotaLevel.LOCAL_QUEUE and unread & {CLUSTER_QUEUES.name, LOCAL_QUEUES.name}:
        return "the ClusterQueue was not read"
    return ""
