"""The process slots of a shim region: which of them are alive, and what they account. Pure."""

from collections.abc import Mapping
from typing import Final

import msgspec

from vgpu.facts import ProcessOwner, Region, RegionProcess
from vgpu.schemes.volcano.hami_core import LAYOUTS

SLOT_DEAD: Final = 0
"""The status of a slot whose process has ended: the shim clears it, but not what it accounted."""


class Accounted(msgspec.Struct, frozen=True, gc=False):
    """What a shim region accounts for the live processes of one share, in bytes.

    ``phantom`` is what slots of dead and killed processes still claim, None if that is impossibly
    much. ``sm_utilization`` is a ratio summed over processes, None in layouts without it.
    """

    context: int
    module: int
    data: int
    other: int
    total: int
    phantom: int | None
    processes: int
    sm_utilization: float | None


def slot_lives(
    slot: RegionProcess, pod_uid: str, owners: Mapping[int, ProcessOwner | None] | None
) -> bool | None:
    """Whether the slot's process runs in the region's pod; None if unknown.

    A tenant can write any pid into its region, so the kernel decides: ``owners`` has all live
    processes, None where the host's are not seen. The pid of a killed process does not exist, or
    belongs to another pod by now.
    """
    if slot.status == SLOT_DEAD:
        return False
    if slot.host_pid <= 0 or owners is None:
        return None
    owner = owners.get(slot.host_pid)
    return owner is not None and owner.pod_uid == pod_uid


def living_slots(
    region: Region, pod_uid: str, owners: Mapping[int, ProcessOwner | None] | None
) -> list[RegionProcess]:
    """The slots that are not known to be dead."""
    return [slot for slot in region.processes if slot_lives(slot, pod_uid, owners) is not False]


def account(region: Region, living: list[RegionProcess], position: int) -> Accounted:
    """Add up what a region claims for its device at ``position``; ``living`` are its live slots."""
    context = module = data = total = processes = utilization = 0
    for slot in living:
        use = slot.used[position]
        context += use.context
        module += use.module
        data += use.data
        total += use.total
        processes += use.total > 0
        utilization += use.sm_util or 0
    claimed = sum(slot.used[position].total for slot in region.processes)
    return Accounted(
        context=context,
        module=module,
        data=data,
        other=max(0, total - context - module - data),
        total=total,
        phantom=claimed - total,
        processes=processes,
        sm_utilization=None if LAYOUTS[region.layout].util is None else utilization / 100,
    )
