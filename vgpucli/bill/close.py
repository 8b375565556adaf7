"""A day is closed: its hours are measured, and what earlier files lack of it is corrected. Pure.

A device that was measured before and after a hole was there in between: the hole is *not measured*,
on each of its days. Days that are closed already get it as a correction.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final
from zoneinfo import ZoneInfo

import msgspec
from msgspec import structs

from vgpucli.bill.days import bounds, days_between
from vgpucli.bill.model import SECOND, ClosedDay, DayHead, GpuDay, GpuKey, ShareDay
from vgpucli.bill.timeline import DaySum

Device = tuple[str, str, str]
"""A device by its cluster, node and UUID."""


class LastSeen(msgspec.Struct, frozen=True):
    """Where an earlier file leaves a device: the end of its last measurement.

    ``spans`` are the first and the last measurement of each day.
    """

    gpu: GpuDay
    last: int
    spans: tuple[tuple[int, int], ...] = ()


def last_seen(earlier: Iterable[ClosedDay]) -> dict[Device, LastSeen]:
    """The last measurement of each device in files from the oldest to the newest."""
    seen: dict[Device, LastSeen] = {}
    for file in earlier:
        _see(seen, file.gpus)
    return seen


def _see(seen: dict[Device, LastSeen], rows: Iterable[GpuDay]) -> None:
    """Take rows into account: days, and days that were measured again."""
    for gpu in rows:
        if gpu.last:
            known = seen.get(_device(gpu.key))
            spans = (*(known.spans if known else ()), (gpu.first, gpu.last))
            if known is not None and gpu.key.day < known.gpu.key.day:
                gpu = known.gpu  # noqa: PLW2901  # a later day decides where it was last
            seen[_device(gpu.key)] = LastSeen(gpu, gpu.last, spans)


def _device(key: GpuKey) -> Device:
    return key.cluster, key.node, key.uuid


def _gpu(row: GpuDay) -> tuple[str, str]:
    """The GPU to which a device belongs."""
    return row.key.cluster, row.parent or row.key.uuid


def closed(
    head: DayHead,
    measured: DaySum,
    before: Mapping[Device, LastSeen],
    labels: Mapping[str, Mapping[str, str]],
    corrected: Sequence[GpuDay | ShareDay] = (),
) -> ClosedDay:
    """The file of a day.

    ``labels`` are those of each node that prices may ask for, ``corrected`` are rows about earlier
    days that were measured again.
    """
    gpus: list[GpuDay] = []
    shares: list[ShareDay] = []
    earlier = dict(before)
    _see(earlier, (row for row in corrected if isinstance(row, GpuDay)))
    now = [*measured.devices()]
    together = dict(earlier)
    _see(together, (gpu for gpu, _ in now))
    of_gpu: dict[tuple[str, str], list[LastSeen]] = {}
    for each in together.values():
        of_gpu.setdefault(_gpu(each.gpu), []).append(each)
    for gpu, of_device in now:
        described = structs.replace(gpu, labels=dict(labels.get(gpu.key.node, {})))
        seen = earlier.get(_device(gpu.key))
        if seen is not None and seen.last < gpu.first:
            until = min(
                max(first, seen.last)
                for each in of_gpu[_gpu(gpu)]
                for first, last in each.spans
                if last > seen.last
            )
            filled, missing = _filled(described, seen, until, head)
            gpus += (filled, *missing)
        else:
            gpus.append(described)
        shares += of_device
    gpus += (row for row in corrected if isinstance(row, GpuDay))
    shares += (row for row in corrected if isinstance(row, ShareDay))
    days = {row.key.day for row in gpus} - {head.day}
    return ClosedDay(structs.replace(head, corrects=(*sorted(days),)), (*gpus,), (*shares,))


def _filled(gpu: GpuDay, seen: LastSeen, until: int, head: DayHead) -> tuple[GpuDay, list[GpuDay]]:
    """The day from its begin on, and what earlier days lack of the hole.

    ``until`` is its end: the device's first measurement, or that of its GPU as another device.
    """
    lost = max(0, until - max(head.start, seen.last)) * SECOND
    filled = structs.replace(
        gpu, total=gpu.total + lost, not_measured=gpu.not_measured + lost, filled=lost
    )
    missing = []
    zone = ZoneInfo(head.timezone)
    for day in days_between(seen.gpu.key.day, head.day):
        begin, end = bounds(day, zone)
        time = (min(end, until) - max(begin, seen.last)) * SECOND
        if time > 0:
            missing.append(
                structs.replace(
                    seen.gpu,
                    key=structs.replace(seen.gpu.key, day=day),
                    total=time,
                    not_measured=time,
                    outside=0,
                    first=0,
                    last=0,
                    correction=head.day,
                    filled=time,
                )
            )
    return filled, missing


def _holes(before: Sequence[GpuDay], now: GpuDay) -> int:
    """What the files fill of the day's begin and end, around what is measured now."""
    known = [row for row in before if row.last]
    fills = [row for row in before if row.filled]
    if not known:  # a hole for the whole day
        return max(0, sum(row.filled for row in fills) - now.total)
    return sum(max(0, row.filled + _moved(row, known, now) * SECOND) for row in fills)


def _moved(fill: GpuDay, known: Sequence[GpuDay], now: GpuDay) -> int:
    """Seconds by which a hole is longer than when it was written."""
    if not fill.correction:
        return now.first - fill.first
    then = max(
        (row for row in known if row.correction <= fill.correction),
        key=lambda row: row.correction,
        default=known[0],
    )
    return then.last - now.last


def unseen(old: ClosedDay, new: DaySum) -> list[str]:
    """The UUIDs of a closed day's devices of which there are no samples any more."""
    there = {(gpu.key.cluster, gpu.key.uuid) for gpu, _ in new.devices()}
    keys = {(gpu.key.cluster, gpu.key.uuid) for gpu in old.gpus if gpu.last}
    return [uuid for _, uuid in sorted(keys - there)]


def begins_later(old: ClosedDay, new: DaySum) -> int:
    """Where the samples of a closed day begin now, 0 if nothing is missing before it."""
    then = min((gpu.first for gpu in old.gpus if gpu.last), default=0)
    now = min((gpu.first for gpu, _ in new.devices()), default=0)
    return now if now > then > 0 else 0


def differences(old: ClosedDay, new: DaySum, correction: str) -> list[GpuDay | ShareDay]:
    """Rows that, added to a closed day, make it what was measured again.

    ``old`` has the rows of its day alone, earlier corrections included. Holes that other days have
    filled stay filled. A device without any sample now is left as it is: that its samples are gone
    does not show that it was not there.
    """
    rows: list[GpuDay | ShareDay] = []
    now = {gpu.key: (gpu, shares) for gpu, shares in new.devices()}
    there = {(key.cluster, key.uuid) for key in now}
    gpus: dict[GpuKey, list[GpuDay]] = {key: [] for key in now}
    for gpu in old.gpus:
        gpus.setdefault(gpu.key, []).append(gpu)
    shares: dict[GpuKey, list[ShareDay]] = {}
    for share in old.shares:
        shares.setdefault(share.gpu, []).append(share)
    labels = {gpu.key.node: gpu.labels for gpu in reversed(old.gpus)}
    for key, before in sorted(gpus.items()):
        if (key.cluster, key.uuid) not in there:
            continue
        measured, of_device = now.get(key, (None, ()))
        holes = _holes(before, measured) if measured else 0
        total = (measured.total if measured else 0) + holes - sum(gpu.total for gpu in before)
        lost = (measured.not_measured if measured else 0) + holes
        lost -= sum(gpu.not_measured for gpu in before)
        if total or lost:
            rows.append(
                structs.replace(
                    measured or before[-1],
                    total=total,
                    not_measured=lost,
                    outside=0,
                    labels=before[0].labels if before else labels.get(key.node, {}),
                    correction=correction,
                    filled=0,
                    **({} if measured else {"first": 0, "last": 0}),
                )
            )
        rows += _of_shares(key, shares.get(key, ()), of_device, correction)
    return rows


_SHARE_SUMS: Final = tuple(
    field for field in ShareDay.__struct_fields__ if field not in ("gpu", "share", "correction")
)
"""Fields of which a correction has the difference."""


def _of_shares(
    key: GpuKey, before: Sequence[ShareDay], now: Sequence[ShareDay], correction: str
) -> Iterator[ShareDay]:
    current = {row.share: row for row in now}
    for name in sorted(current.keys() | {row.share for row in before}):
        of_name = [row for row in before if row.share == name]
        row = current.get(name, ShareDay(key, name, 0, 0))
        changes = {
            field: getattr(row, field) - sum(getattr(each, field) for each in of_name)
            for field in _SHARE_SUMS
        }
        if any(changes.values()):
            yield ShareDay(key, name, **changes, correction=correction)
