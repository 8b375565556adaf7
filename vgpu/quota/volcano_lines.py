"""The lines of Volcano's Queues, and what is remarkable about them; pure."""

from collections.abc import Callable, Iterator
from typing import Final

from vgpu.kube.volcano_kinds import POD_GROUPS, QUEUES
from vgpu.quota.queue_line import (
    AmountKind,
    QueueLine,
    SourcedAmount,
    driver_amount,
    held_amount,
)
from vgpu.quota.quota_units import QuotaUnit
from vgpu.quota.tree import QuotaNode, QuotaTree
from vgpu.quota.volcano_guarantees import Guarantees, left_by_others
from vgpu.quota.volcano_scheduler import CAPACITY
from vgpu.quota.volcano_tree import VolcanoObjects, device_resources, parent_of

_NO_BORROWING: Final = SourcedAmount(None, "Volcano names no borrowed amounts")


def volcano_lines(
    tree: QuotaTree,
    node: QuotaNode,
    volcano: VolcanoObjects,
    unit_of: Callable[[str], QuotaUnit],
    guarantees: Guarantees,
    *,
    is_measured: bool,
) -> list[QueueLine]:
    """The amounts of a queue by resource; those of CPU and memory are Volcano's business."""
    name = node.name.text
    waiting = tree.waiting(node.name)
    has_groups = POD_GROUPS.name not in volcano.unread
    lines = []
    for key in tree.resources(node.name):
        unit = unit_of(key.resource)
        ceiling = node.ceilings.get(key)
        amounts = {
            AmountKind.LIMIT: _limit(tree, node, volcano, key.resource, guarantees),
            AmountKind.NOMINAL: SourcedAmount(
                ceiling.deserved if ceiling else None, _deserved(volcano, name)
            ),
            AmountKind.GUARANTEED: SourcedAmount(
                ceiling.guaranteed if ceiling else None, f"{name}: spec.guarantee.resource"
            ),
            AmountKind.BORROWED: _NO_BORROWING,
            AmountKind.LENT: _NO_BORROWING,
            AmountKind.USED: SourcedAmount(
                node.used.get(key), f"{name}: status.allocated, with the queues below it"
            ),
            AmountKind.HELD: held_amount(unit, tree.held(node.name, ""))
            if has_groups
            else _NO_GROUPS,
            AmountKind.DRIVER: driver_amount(
                unit, tree.driver(node.name, ""), is_measured=is_measured
            ),
            AmountKind.WAITING: SourcedAmount(
                waiting.get(key.resource, 0), "PodGroups that are not placed: minResources"
            )
            if has_groups
            else _NO_GROUPS,
        }
        lines.append(QueueLine(key, unit, amounts))
    return lines


_NO_GROUPS: Final = SourcedAmount(None, "the PodGroups were not read")


def _limit(
    tree: QuotaTree,
    node: QuotaNode,
    volcano: VolcanoObjects,
    resource: str,
    guarantees: Guarantees,
) -> SourcedAmount:
    """The limit of a queue, and where it is from, or why there is none.

    It is assumed if the plugins are unknown, or if it is unknown whether this resource counts.
    """
    scheduler = volcano.scheduler
    if not scheduler.limits:
        return SourcedAmount(None, "no plugin of Volcano's scheduler compares limits")
    if resource in device_resources() and volcano.counts_devices is False:
        return SourcedAmount(None, f"Volcano {_version(volcano)} ignores it")
    levels = [
        level
        for key in tree.resources(node.name)
        if key.resource == resource
        for level in tree.levels(node.name, key)
        if scheduler.may_be_hierarchical or level.name == node.name
    ]
    least = min(levels, key=lambda level: level.limit, default=None)
    left = left_by_others(tree, node, volcano, resource, guarantees)
    if left is not None and left.amount is not None:
        if least is None or left.amount < least.limit:
            return SourcedAmount(left.amount, left.source)
        left = None
    if least is None:
        nothing = "nothing on its path limits it but what the cluster has"
        return SourcedAmount(None, f"{nothing}; {left.source}" if left else nothing)
    is_assumed = scheduler.plugins is None or (
        resource in device_resources() and volcano.counts_devices is None
    )
    where = f"{least.name.text}: spec.capability" + (f"; {left.source}" if left else "")
    return SourcedAmount(least.limit, where, is_assumed or left is not None)


def _deserved(volcano: VolcanoObjects, name: str) -> str:
    plugins = volcano.scheduler.plugins
    if plugins is None or CAPACITY in plugins:
        return f"{name}: spec.deserved"
    return f"{name}: spec.deserved, which only the plugin capacity uses"


def _version(volcano: VolcanoObjects) -> str:
    return "{}.{}".format(*volcano.scheduler.version or (0, 0))


def volcano_remarks(volcano: VolcanoObjects) -> Iterator[str]:
    """What admits nothing, and what is declared and has no effect."""
    names = {each.name for each in volcano.queues}
    plugins = volcano.scheduler.plugins
    for queue in volcano.queues:
        if not queue.is_open:
            yield f"Queue {queue.name} admits nothing: it is {queue.state}"
        if queue.parent and queue.parent not in names and QUEUES.name not in volcano.unread:
            yield f"Queue {queue.name}: its parent {queue.parent} does not exist"
        if plugins is not None and CAPACITY not in plugins and queue.deserved:
            yield (
                f"Queue {queue.name} has spec.deserved, which Volcano's scheduler does not use:"
                " that needs the plugin capacity"
            )
        if plugins is not None and not volcano.scheduler.is_hierarchical and queue.parent:
            above = volcano.queue(parent_of(queue))
            if above is not None and above.capability:
                yield (
                    f"Queue {queue.name} is below Queue {above.name}, whose limits do not hold for"
                    " it: that needs the plugin capacity with enableHierarchy"
                )
