"""The lines of Volcano's Queues in ``vgpu inspect --by queue``."""

from collections.abc import Callable, Iterator

from vgpu.kube.volcano_kinds import POD_GROUPS, QUEUES
from vgpu.quota.quota_units import QuotaUnit
from vgpu.quota.tree import QuotaNode, QuotaTree
from vgpu.quota.volcano_scheduler import CAPACITY
from vgpu.quota.volcano_tree import VolcanoObjects, device_resources, parent_of
from vgpucli.inspect.queue_document import AmountDocument, QuotaDocument

_NO_BORROWING = "Volcano names no borrowed amounts"


def volcano_quotas(
    tree: QuotaTree,
    node: QuotaNode,
    volcano: VolcanoObjects,
    unit_of: Callable[[str], QuotaUnit],
    *,
    is_measured: bool,
) -> list[QuotaDocument]:
    """The amounts of a queue by resource; those of CPU and memory are Volcano's business."""
    keys = {key.resource: key for key in tree.resources(node.name)}
    waiting = tree.waiting(node.name)
    has_groups = POD_GROUPS.name not in volcano.unread
    quotas = []
    for resource, key in keys.items():
        unit = unit_of(resource)

        def amount(value: int | None, source: str, unit: QuotaUnit = unit) -> AmountDocument:
            return AmountDocument(value, unit.text, source)

        ceiling = node.ceilings.get(key)
        limit, where = _limit(tree, node, volcano, resource)
        driver = tree.driver(node.name, "")
        name = node.name.text
        quotas.append(
            QuotaDocument(
                "",
                resource,
                amount(limit, where),
                amount(ceiling.deserved if ceiling else None, _deserved(volcano, name)),
                amount(None, _NO_BORROWING),
                amount(None, _NO_BORROWING),
                amount(node.used.get(key), f"{name}: status.allocated, with the queues below it"),
                amount(unit.of_ledger(tree.held(node.name, "")), _held(unit))
                if has_groups
                else amount(None, _NO_GROUPS),
                amount(
                    None if driver is None else unit.of_ledger(driver),
                    "exporters" if is_measured else "no exporter was asked",
                ),
                amount(waiting.get(resource, 0), "PodGroups that are not placed: minResources")
                if has_groups
                else amount(None, _NO_GROUPS),
                amount(ceiling.guaranteed if ceiling else None, f"{name}: spec.guarantee.resource"),
            )
        )
    return quotas


_NO_GROUPS = "the PodGroups were not read"


def _held(unit: QuotaUnit) -> str:
    return "the ledger" if unit.amount else "the ledger has no amount of this resource"


def _limit(
    tree: QuotaTree, node: QuotaNode, volcano: VolcanoObjects, resource: str
) -> tuple[int | None, str]:
    """The limit of a queue, and where it is from, or why there is none."""
    scheduler = volcano.scheduler
    if not scheduler.limits:
        return None, "no plugin of Volcano's scheduler compares limits"
    if resource in device_resources() and volcano.counts_devices is False:
        return None, f"Volcano {_version(volcano)} ignores it"
    levels = [
        level
        for key in tree.resources(node.name)
        if key.resource == resource
        for level in tree.levels(node.name, key)
        if scheduler.may_be_hierarchical or level.name == node.name
    ]
    least = min(levels, key=lambda level: level.limit, default=None)
    if least is None:
        return None, "nothing on its path limits it but what the cluster has"
    return least.limit, f"{least.name.text}: spec.capability"


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
