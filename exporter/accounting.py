"""What a region accounts for one of its devices, living and dead slots apart. Pure."""

from collections.abc import Iterable

from exporter.view import Accounted
from vgpu.facts import RegionProcess


def account(
    slots: Iterable[RegionProcess],
    living: list[RegionProcess],
    position: int,
    told_utilization: bool,
) -> Accounted:
    """Add up what a region claims for its device at ``position``."""
    context = module = data = total = processes = 0
    utilization = 0
    for slot in living:
        use = slot.used[position]
        context += use.context
        module += use.module
        data += use.data
        total += use.total
        processes += use.total > 0
        utilization += use.sm_util or 0
    everything = sum(slot.used[position].total for slot in slots)
    return Accounted(
        context=context,
        module=module,
        data=data,
        other=max(0, total - context - module - data),
        total=total,
        phantom=everything - total,
        processes=processes,
        sm_utilization=utilization / 100 if told_utilization else None,
    )
