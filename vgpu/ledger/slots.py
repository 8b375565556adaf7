"""The process slots of a shim region: which of them are alive, and what they account. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Final

import msgspec

from vgpu.model.facts import (
    SLOT_DEAD,
    ContainerName,
    ProcessSample,
    RegionFile,
    RegionProcess,
    RegionUse,
)
from vgpu.schemes.volcano.hami_core import LAYOUTS


class Accounted(msgspec.Struct, frozen=True, gc=False):
    """What a shim region accounts for the live processes of one share, in bytes.

    ``phantom`` is what slots of dead and killed processes still claim. ``sm_utilization`` is a
    ratio summed over processes, None in layouts without it. A sum is None where a part of it is
    unknown: a counter that cannot be, or a slot that claims something and may be dead.
    """

    context: int | None
    module: int | None
    data: int | None
    other: int | None
    total: int | None
    phantom: int | None
    processes: int | None
    sm_utilization: float | None


class Slots:
    """Decides which slots are alive.

    HAMi-core writes two pids into a slot: its own, and the one that NVML names inside the
    container. The second is the host's pid with NVIDIA's proprietary kernel modules. With the open
    ones it is the container's (HAMi-core#54), and it can be missing (HAMi-core#15). So

        slot lives ⟺ host_pid is a process of the pod, or pid is one inside the container

    A tenant can write any pid into its region, so the kernel decides. The pid of a killed process
    does not exist, or belongs to another pod by now.
    """

    def __init__(self, process: ProcessSample | None, names: Mapping[str, ContainerName]) -> None:
        """``process`` is None where processes were not read; ``names`` are by container id."""
        self._process = process if process is not None and process.sees_host else None
        self._names = names

    def host_pid(self, slot: RegionProcess, file: RegionFile) -> int | None:
        """The host's pid of the live process in a slot; 0 if it is dead, None if that is unknown.

        A container without a name may be that of the region.
        """
        if slot.status == SLOT_DEAD:
            return 0
        if self._process is None:
            return None
        owner = self._process.owners.get(slot.host_pid)
        if owner is not None and owner.pod_uid == file.pod_uid:
            return slot.host_pid
        pids = self._process.pod_pids.get(file.pod_uid)
        if pids is None:
            return None
        for container_id, inside in pids.containers.items():
            named = self._names.get(container_id)
            is_other = named is not None and file.container not in ("", named.container)
            if slot.pid in inside and not is_other:
                return inside[slot.pid]
        return 0 if pids.complete else None


def account(file: RegionFile, host_pids: Iterable[int | None], position: int) -> Accounted:
    """Add up what a region claims for its device at ``position``.

    ``host_pids`` are those of :meth:`Slots.host_pid`, slot by slot. For each counter

        sum = Σ counter(slot) over live slots, if no slot that may live has an unknown part
    """
    live: list[RegionUse] = []
    dead: list[RegionUse] = []
    unclear: list[RegionUse] = []
    for slot, pid in zip(file.region.processes, host_pids, strict=True):
        (unclear if pid is None else live if pid else dead).append(slot.used[position])
    context, module = _sum(_CONTEXT, live, unclear), _sum(_MODULE, live, unclear)
    data, total = _sum(_DATA, live, unclear), _sum(_TOTAL, live, unclear)
    other = None
    if total is not None and context is not None and module is not None and data is not None:
        other = max(0, total - context - module - data)
    sampled = LAYOUTS[file.region.layout].util is not None
    busy = sum(use.sm_util or 0 for use in live)
    return Accounted(
        context=context,
        module=module,
        data=data,
        other=other,
        total=total,
        phantom=_sum(_TOTAL, dead, unclear) if dead or unclear else 0,
        processes=None if total is None else sum(use.total != 0 for use in live),
        sm_utilization=busy / 100 if sampled and not any(u.sm_util for u in unclear) else None,
    )


_CONTEXT: Final = attrgetter("context")
_MODULE: Final = attrgetter("module")
_DATA: Final = attrgetter("data")
_TOTAL: Final = attrgetter("total")


def _sum(
    counter: Callable[[RegionUse], int | None],
    counted: Sequence[RegionUse],
    unclear: Sequence[RegionUse],
) -> int | None:
    """The sum of a counter; None if a part is unknown, or may be one of ``unclear``."""
    if unclear and any(counter(use) != 0 for use in unclear):
        return None
    total = 0
    for use in counted:
        number = counter(use)
        if number is None:
            return None
        total += number
    return total
