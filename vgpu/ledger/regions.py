"""The regions of HAMi-core. Each is read once: for its statement, and for what it accounts. Pure.

A tenant can write its region, so a number that cannot be is unknown, and the kernel decides which
processes live.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Final

import msgspec

from vgpu.ledger.bounds import Bounds
from vgpu.ledger.owners import Place, container_name
from vgpu.ledger.statements import Statement
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


class RegionReport(msgspec.Struct, frozen=True, gc=False):
    """A region with its container.

    Attributes:
        file: the region.
        statement: what it states: devices and limits, without limits that cannot be. None if
            another region of the container counts.
        first: the path of that other region; "" if this one counts.
        host_pids: those of :meth:`Slots.host_pid`, slot by slot.
        limit_errors: why the limit of a device cannot be, "" if it can, device by device.
    """

    file: RegionFile
    statement: Statement | None = None
    first: str = ""
    host_pids: tuple[int | None, ...] = ()
    limit_errors: tuple[str, ...] = ()


class RegionReports(msgspec.Struct, frozen=True):
    """All regions of a node: those that the plugin has created, and those inside of containers."""

    on_node: tuple[RegionReport, ...] = ()
    inside: tuple[RegionReport, ...] = ()

    @property
    def statements(self) -> Iterator[Statement]:
        """The statements of the regions that count."""
        for report in (*self.on_node, *self.inside):
            if report.statement is not None:
                yield report.statement


def region_reports(
    shim: ShimSample | None,
    process: ProcessSample | None,
    names: Mapping[str, ContainerName],
    bounds: Bounds,
) -> RegionReports:
    """Read all regions; of each container the first that the plugin has created counts.

    A region inside counts where there is no such region. A container without a name may be any of
    its pod's, so each of its regions inside counts. ``names`` are by container id.
    """
    slots = Slots(process, names)
    first: dict[Place, RegionFile] = {}
    on_node: list[RegionReport] = []
    for file in shim.files if shim else ():
        counted = first.setdefault((file.pod_uid, file.container), file)
        is_counted = counted is file
        on_node.append(
            region_report(file, slots, bounds)
            if is_counted
            else RegionReport(file, first=counted.path)
        )
    taken = set(first)
    inside: list[RegionReport] = []
    for owner, path, region in process.bare if process else ():
        place = owner.pod_uid, container_name(owner, names)
        if place not in taken:
            inside.append(region_report(RegionFile(path, *place, region), slots, bounds))
        if place[1]:
            taken.add(place)
    return RegionReports(tuple(on_node), tuple(inside))


class Slots:
    """Decides which slots are alive.

    HAMi-core writes two pids into a slot: its own, and the one that NVML names inside the
    container. The second is the host's pid with NVIDIA's proprietary kernel modules. With the open
    ones it is the container's (HAMi-core#54), and it can be missing (HAMi-core#15). So

        slot lives ⟺ host_pid is a process of the pod, or pid is one inside the container

    The pid of a killed process does not exist, or belongs to another pod by now.
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


def region_report(file: RegionFile, slots: Slots, bounds: Bounds) -> RegionReport:
    """Read a region that counts; its statement is alive if a process of its pod is in it."""
    host_pids = tuple([slots.host_pid(slot, file) for slot in file.region.processes])
    errors: list[str] = []
    shares: list[Share] = []
    for device in file.region.devices:
        memory, percent = device.memory_limit_bytes or None, device.core_limit_percent
        error = "" if memory is None else bounds.limit_error(device.uuid, memory)
        # HAMi-core enforces no limit of 100 % of the cores.
        cores = percent * MILLI_PER_PERCENT if percent and percent < WHOLE_DEVICE_PERCENT else None
        errors.append(error)
        shares.append(Share(device.uuid, None if error else memory, cores))
    statement = Statement(
        source=Source.SHIM,
        pod=PodRef(file.pod_uid, "", ""),
        container=file.container,
        shares=tuple(shares),
        scheme=Scheme.VOLCANO,
        alive=any(host_pids),
        where=file.path,
    )
    return RegionReport(file, statement, "", host_pids, tuple(errors))


def account(report: RegionReport, position: int) -> Accounted:
    """Add up what a region claims for its device at ``position``. For each counter

    sum = Σ counter(slot) over live slots, if no slot that may live has an unknown part
    """
    region = report.file.region
    live: list[RegionUse] = []
    dead: list[RegionUse] = []
    unclear: list[RegionUse] = []
    for slot, pid in zip(region.processes, report.host_pids, strict=True):
        (unclear if pid is None else live if pid else dead).append(slot.used[position])
    context, module = _sum(_CONTEXT, live, unclear), _sum(_MODULE, live, unclear)
    data, total = _sum(_DATA, live, unclear), _sum(_TOTAL, live, unclear)
    other = None
    if total is not None and context is not None and module is not None and data is not None:
        other = max(0, total - context - module - data)
    sampled = LAYOUTS[region.layout].util is not None
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


def unreadable(file: RegionFile, position: int) -> str:
    """The numbers of the device at ``position`` that cannot be, as text; "" without any."""
    device = file.region.devices[position]
    wrong = ["memory limit"] if device.memory_limit_bytes is None else []
    wrong += ["core limit"] if device.core_limit_percent is None else []
    for slot in file.region.processes:
        use = slot.used[position]
        counters = use.context, use.module, use.data, use.offset, use.total
        if None in counters:
            wrong += (
                f"{name} of pid {slot.pid}"
                for name, counter in zip(COUNTERS, counters, strict=True)
                if counter is None
            )
    return f"{', '.join(wrong)} of {device.uuid}" if wrong else ""
