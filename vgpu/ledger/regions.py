"""The regions of HAMi-core. Each is read once: for its statement, and for what it accounts. Pure.

A tenant can write its region, so a number that cannot be is unknown, and the kernel decides which
processes live.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from vgpu.ledger.bounds import Bounds
from vgpu.ledger.statements import Statement
from vgpu.ledger.usage import Place, container_name
from vgpu.model.allocation import Share
from vgpu.model.facts import (
    SLOT_DEAD,
    ContainerName,
    ProcessSample,
    RegionFile,
    RegionProcess,
    RegionUse,
    ShimSample,
)
from vgpu.model.names import PodRef, Scheme, Source
from vgpu.model.units import MILLI_PER_PERCENT, WHOLE_DEVICE_PERCENT
from vgpu.schemes.volcano.hami_core import LAYOUTS

COUNTERS: Final = ("context", "module", "data", "offset", "total")
"""The counters of memory of a process slot."""


class RegionReport(msgspec.Struct, frozen=True, gc=False):
    """A region with its container.

    Attributes:
        file: the region.
        statement: its devices and limits, without limits that cannot be. None if another region
            of the container counts.
        first: the path of that other region; "" if this one counts.
        host_pids: those of :func:`host_pid`, slot by slot.
        scheme: the system of its container, which is HAMi or Volcano if it is no other.
    """

    file: RegionFile
    statement: Statement | None = None
    first: str = ""
    host_pids: tuple[int | None, ...] = ()
    scheme: Scheme = Scheme.VOLCANO


def region_reports(
    shim: ShimSample | None,
    process: ProcessSample | None,
    names: Mapping[str, ContainerName],
    bounds: Bounds,
) -> tuple[tuple[RegionReport, ...], tuple[RegionReport, ...]]:
    """All regions that the plugin has created, and those inside of containers that count.

    Of each container the first that the plugin has created counts; a region inside counts where
    there is none. A container without a name may be any of its pod's, so each of its regions inside
    counts. ``names`` are by container id.
    """
    seen = process if process is not None and process.sees_host else None
    first: dict[Place, str] = {}
    on_node: list[RegionReport] = []
    for file in shim.files if shim else ():
        path = first.setdefault((file.pod_uid, file.container), file.path)
        on_node.append(
            region_report(file, seen, names, bounds)
            if path == file.path
            else RegionReport(file, first=path)
        )
    inside: list[RegionReport] = []
    for owner, path, region in process.bare if process else ():
        place = owner.pod_uid, container_name(owner, names)
        if place not in first:
            inside.append(region_report(RegionFile(path, *place, region), seen, names, bounds))
            if place[1]:
                first[place] = path
    return tuple(on_node), tuple(inside)


def region_report(
    file: RegionFile,
    process: ProcessSample | None,
    names: Mapping[str, ContainerName],
    bounds: Bounds,
) -> RegionReport:
    """Read a region that counts; its statement is alive if a process of its pod is in it."""
    shares: list[Share] = []
    for device in file.region.devices:
        memory, percent = device.memory_limit_bytes or None, device.core_limit_percent
        if memory is not None and bounds.limit_error(device.uuid, memory):
            memory = None
        # HAMi-core enforces no limit of 100 % of the cores.
        cores = percent * MILLI_PER_PERCENT if percent and percent < WHOLE_DEVICE_PERCENT else None
        shares.append(Share(device.uuid, memory, cores))
    pids = tuple([host_pid(slot, file, process, names) for slot in file.region.processes])
    statement = Statement(
        source=Source.SHIM,
        pod=PodRef(file.pod_uid, "", ""),
        container=file.container,
        shares=tuple(shares),
        scheme=Scheme.VOLCANO,
        alive=any(pids),
        where=file.path,
    )
    return RegionReport(file, statement, "", pids)


def host_pid(
    slot: RegionProcess,
    file: RegionFile,
    process: ProcessSample | None,
    names: Mapping[str, ContainerName],
) -> int | None:
    """The host's pid of the live process in a slot; 0 if it is dead, None if that is unknown.

    HAMi-core writes two pids into a slot: its own, and the one that NVML names inside the
    container. The second is the host's pid with NVIDIA's proprietary kernel modules. With the open
    ones it is the container's (HAMi-core#54), and it can be missing (HAMi-core#15). So

        slot lives ⟺ host_pid is a process of the pod, or pid is one inside the container

    The pid of a killed process does not exist, or belongs to another pod by now. A container
    without a name may be that of the region. ``process`` is None where the host's processes were
    not read.
    """
    if slot.status == SLOT_DEAD:
        return 0
    if process is None:
        return None
    owner = process.owners.get(slot.host_pid)
    if owner is not None and owner.pod_uid == file.pod_uid:
        return slot.host_pid
    pids = process.pod_pids.get(file.pod_uid)
    if pids is None:
        return None
    for container_id, inside in pids.containers.items():
        named = names.get(container_id)
        is_other = named is not None and file.container not in ("", named.container)
        if slot.pid in inside and not is_other:
            return inside[slot.pid]
    return 0 if pids.complete else None


class Accounted(msgspec.Struct, frozen=True, gc=False):
    """What a region accounts for the live processes on one of its devices, in bytes.

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


def account(
    report: RegionReport, position: int, bounds: Bounds
) -> tuple[Accounted | None, list[str]]:
    """Add up what a region claims for its device at ``position``. For each counter

        sum = Σ counter(slot) over live slots, if no slot that may live has an unknown part

    More than the device has is no use. The texts are the numbers of the device that cannot be.
    """
    region, device = report.file.region, report.file.region.devices[position]
    live: list[RegionUse] = []
    dead: list[RegionUse] = []
    unclear: list[RegionUse] = []
    errors = [bounds.limit_error(device.uuid, device.memory_limit_bytes)]
    for slot, pid in zip(region.processes, report.host_pids, strict=True):
        (unclear if pid is None else live if pid else dead).append(slot.used[position])
    sums = None if unclear else _sums(live)
    total = sums[0] if sums else _sum("total", live, unclear)
    phantom = _sum("total", dead, unclear) if dead or unclear else 0
    if error := bounds.use_error(device.uuid, total or 0):
        return None, [*errors, error, unreadable(report.file, position)]
    if phantom and (error := bounds.use_error(device.uuid, phantom)):
        errors.append(f"dead processes have {error}")
        phantom = None
    errors.append(unreadable(report.file, position))
    if sums:
        _, context, module, data = sums
    else:
        context, module = _sum("context", live, unclear), _sum("module", live, unclear)
        data = _sum("data", live, unclear)
    other = None
    if total is not None and context is not None and module is not None and data is not None:
        other = max(0, total - context - module - data)
    busy = None
    if LAYOUTS[region.layout].util is not None and not any(use.sm_util for use in unclear):
        busy = sum([use.sm_util or 0 for use in live]) / 100
    processes = None if total is None else sum([use.total != 0 for use in live])
    accounted = Accounted(context, module, data, other, total, phantom, processes, busy)
    return accounted, errors


def _sums(live: Iterable[RegionUse]) -> tuple[int, int | None, int | None, int | None] | None:
    """All sums of slots that live, in one pass; None if a part is unknown."""
    total = context = module = data = 0
    for use in live:
        if use.total is None or use.context is None or use.module is None or use.data is None:
            return None
        total += use.total
        context += use.context
        module += use.module
        data += use.data
    return total, context, module, data


def _sum(counter: str, counted: Iterable[RegionUse], unclear: Sequence[RegionUse]) -> int | None:
    """The sum of a counter; None if a part is unknown, or may be one of ``unclear``."""
    if unclear and any(getattr(use, counter) != 0 for use in unclear):
        return None
    total = 0
    for use in counted:
        number = getattr(use, counter)
        if number is None:
            return None
        total += number
    return total


def unreadable(file: RegionFile, position: int) -> str:
    """The numbers of the device at ``position`` that cannot be, as text; "" without any."""
    device = file.region.devices[position]
    wrong = ["memory limit"] if device.memory_limit_bytes is None else []
    wrong += ["core limit"] if device.core_limit_percent is None else []
    for slot in file.region.processes:
        use = slot.used[position]
        if None in (use.context, use.module, use.data, use.offset, use.total):
            names = (name for name in COUNTERS if getattr(use, name) is None)
            wrong += (f"{name} of pid {slot.pid}" for name in names)
    return f"{', '.join(wrong)} of {device.uuid}" if wrong else ""
