"""A day is closed: its hours are measured, and what earlier files lack of it is corrected. Pure.

A device that was measured before and after a hole was there in between: the hole is *not measured*,
on each of its days. Days that are closed already get it as a correction.
"""

from collections.abc import Iterable, Mapping, Sequence
from zoneinfo import ZoneInfo

import msgspec

from vgpucli.bill.days import bounds, days_between
from vgpucli.bill.model import SECOND, ClosedDay, DayHead, GpuDay, GpuKey, ShareDay
from vgpucli.bill.timeline import DaySum


class LastSeen(msgspec.Struct, frozen=True):
    """Where an earlier file leaves a device: the end of its last measurement."""

    gpu: GpuDay
    last: int


def last_seen(earlier: Iterable[ClosedDay]) -> dict[tuple[str, str, str], LastSeen]:
    """The last measurement of each device in files from the oldest to the newest."""
    seen: dict[tuple[str, str, str], LastSeen] = {}
    for closed in earlier:
        for gpu in closed.gpus:
            if gpu.last and gpu.key.day == closed.head.day:
                seen[_device(gpu.key)] = LastSeen(gpu, gpu.last)
    return seen


def _device(key: GpuKey) -> tuple[str, str, str]:
    return key.cluster, key.node, key.uuid


def closed(
    head: DayHead,
    measured: DaySum,
    before: Mapping[tuple[str, str, str], LastSeen],
    labels: Mapping[str, Mapping[str, str]],
    corrected: Sequence[GpuDay | ShareDay] = (),
) -> ClosedDay:
    """The file of a day.

    ``labels`` are those of each node that prices may ask for, ``corrected`` are rows about earlier
    days that were measured again.
    """
    gpus: list[GpuDay] = []
    shares: list[ShareDay] = []
    for gpu, of_gpu in measured.devices():
        described = msgspec.structs.replace(gpu, labels=dict(labels.get(gpu.key.node, {})))
        seen = before.get(_device(gpu.key))
        if seen is not None and seen.last < gpu.first:
            filled, missing = _filled(described, seen, head)
            gpus += (filled, *missing)
        else:
            gpus.append(described)
        shares += of_gpu
    gpus += (row for row in corrected if isinstance(row, GpuDay))
    shares += (row for row in corrected if isinstance(row, ShareDay))
    days = {row.key.day for row in gpus} - {head.day}
    return ClosedDay(msgspec.structs.replace(head, corrects=(*sorted(days),)), (*gpus,), (*shares,))


def _filled(gpu: GpuDay, seen: LastSeen, head: DayHead) -> tuple[GpuDay, list[GpuDay]]:
    """The day from its begin on, and what earlier days lack of the hole."""
    lost = (gpu.first - max(head.start, seen.last)) * SECOND
    filled = msgspec.structs.replace(
        gpu, total=gpu.total + lost, not_measured=gpu.not_measured + lost
    )
    missing = []
    zone = ZoneInfo(head.timezone)
    for day in days_between(seen.gpu.key.day, head.day):
        begin, end = bounds(day, zone)
        time = (end - max(begin, seen.last)) * SECOND
        if time > 0:
            missing.append(
                msgspec.structs.replace(
                    seen.gpu,
                    key=msgspec.structs.replace(seen.gpu.key, day=day),
                    total=time,
                    not_measured=time,
                    outside=0,
                    first=0,
                    last=0,
                    correction=head.day,
                )
            )
    return filled, missing


def differences(old: ClosedDay, new: DaySum, correction: str) -> list[GpuDay | ShareDay]:
    """Rows that, added to a closed day, make it what was measured again.

    ``old`` has the rows of its day alone, earlier corrections included.
    """
    rows: list[GpuDay | ShareDay] = []
    gpus = {gpu.key: (gpu, shares) for gpu, shares in new.devices()}
    keys = {gpu.key for gpu in old.gpus} | gpus.keys()
    for key in sorted(keys):
        before = [gpu for gpu in old.gpus if gpu.key == key]
        described = gpus[key][0] if key in gpus else before[-1]
        total = (gpus[key][0].total if key in gpus else 0) - sum(gpu.total for gpu in before)
        lost = (gpus[key][0].not_measured if key in gpus else 0) - sum(
            gpu.not_measured for gpu in before
        )
        if total or lost:
            rows.append(
                msgspec.structs.replace(
                    described,
                    total=total,
                    not_measured=lost,
                    outside=0,
                    first=0,
                    last=0,
                    labels=before[0].labels if before else {},
                    correction=correction,
                )
            )
        now = {share.share: share for share in (gpus[key][1] if key in gpus else ())}
        then = [share for share in old.shares if share.gpu == key]
        for name in sorted(now.keys() | {share.share for share in then}):
            of_name = [share for share in then if share.share == name]
            share = now.get(name)
            used = (share.used if share else 0) - sum(each.used for each in of_name)
            idle = (share.idle if share else 0) - sum(each.idle for each in of_name)
            if used or idle:
                rows.append(ShareDay(key, name, used, idle, correction=correction))
    return rows
