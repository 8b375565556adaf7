"""Samples of an hour become amounts of time, and hours become a day. Pure.

Time has steps of :data:`STEP` seconds. A step has the samples of its own time alone, so what ended
does not go on. A container that was there for L seconds has a number of steps n with

    |n * STEP - L| <= 2 * STEP          for each time that it started and ended

A device without a sample of its own in a step is *not measured* in it, whoever held it.

A GPU with MIG is a device in the steps in which none of its instances is measured; each instance is
one where it is measured. A hole is that of the devices which were measured before it, and ends
where the same GPU is measured as another device or on another node, so that

    hours of the GPU as a whole + hours of an instance <= hours of the GPU
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from vgpucli.bill.measurement import MeasuredShare, Method, ShareMoment, moment
from vgpucli.bill.model import SECOND, DayHead, GpuDay, GpuKey, ShareDay, ShareKey

STEP: Final = 60
"""Seconds."""


class BilledDevice(NamedTuple):
    """A device by its cluster and UUID."""

    cluster: str
    uuid: str


class BilledContainer(NamedTuple):
    """A container as exporters name it; ``container`` is empty for a whole pod."""

    namespace: str
    pod: str
    pod_uid: str
    container: str


Series = Sequence[float | None]
"""A value for each step of an hour, None where there was no sample."""

Values = list[float | None]
"""A series that is read."""


class DeviceHour(msgspec.Struct, frozen=True):
    """A device in an hour: its memory, its replicas and the use outside of containers, by step.

    ``nodes`` are by step where the device changed its node, else empty.
    """

    node: str
    total: Series
    replicas: Series = ()
    outside: Series = ()
    nodes: Sequence[str] = ()


class ShareHour(msgspec.Struct, frozen=True):
    """A share in an hour, by step: bytes, parts of the device's cores, numbers of shares."""

    memory: Series = ()
    cores: Series = ()
    shares: Series = ()
    memory_use: Series = ()
    core_use: Series = ()


class Described(msgspec.Struct, frozen=True):
    """What a device is; ``parent`` is the UUID of a MIG instance's GPU."""

    model: str = ""
    mig_profile: str = ""
    parent: str = ""


class Hour(msgspec.Struct, frozen=True):
    """All samples of an hour. ``teams`` are by cluster and namespace, ``owners`` by pod UID."""

    start: int
    steps: int
    devices: Mapping[BilledDevice, DeviceHour]
    shares: Mapping[BilledDevice, Mapping[BilledContainer, ShareHour]]
    described: Mapping[BilledDevice, Described] = {}
    teams: Mapping[tuple[str, str], str] = {}
    owners: Mapping[str, str] = {}


class _Share:
    """Sums of a share's day, in seconds of the whole device."""

    def __init__(self) -> None:
        self.held = self.used = self.above = self.unknown = 0.0
        self.crowded = self.over = self.unsized = 0
        self.runs = 0
        self.last = -1
        """The last step in which it was there, counted from the day's begin."""


class _Device:
    """Sums of a device's day; steps are counted from the day's begin."""

    def __init__(self) -> None:
        self.first = -1
        self.last = -1
        self.gaps: list[tuple[int, int]] = []
        """Steps without measurement between others, each from a step to the one before another."""
        self.measured = 0
        self.outside = 0.0
        self.described = Described()
        self.shares: dict[ShareKey, _Share] = {}
        self.crowded = False


class DaySum:
    """Adds up the hours of a day, which come in their order."""

    def __init__(self, head: DayHead, method: Method) -> None:
        self._head = head
        self._method = method
        self._devices: dict[tuple[BilledDevice, str], _Device] = {}
        self._gpus: dict[BilledDevice, bytearray] = {}
        """1 for each step in which a GPU was measured, as whichever device."""

    def add(self, hour: Hour) -> None:
        """Count an hour."""
        split: dict[BilledDevice, set[int]] = {}
        for device, samples in hour.devices.items():
            gpu = _gpu(device, hour.described.get(device))
            if gpu != device:
                split.setdefault(gpu, set()).update(_measured(samples.total, hour.steps))
        for device, samples in hour.devices.items():
            self._add_device(device, samples, hour, split.get(device, set()))

    def _add_device(
        self, device: BilledDevice, samples: DeviceHour, hour: Hour, split: set[int]
    ) -> None:
        described = hour.described.get(device)
        of_gpu = self._gpus.setdefault(
            _gpu(device, described), bytearray(-(-(self._head.end - self._head.start) // STEP))
        )
        shares = hour.shares.get(device, {})
        keys = {
            container: ShareKey(
                *container,
                hour.owners.get(container.pod_uid, ""),
                hour.teams.get((device.cluster, container.namespace), ""),
            )
            for container in shares
        }
        begin = (hour.start - self._head.start) // STEP
        known: tuple[dict[BilledContainer, MeasuredShare], ShareMoment] | None = None
        for index in _measured(samples.total, hour.steps):
            if index in split:
                continue
            total = samples.total[index] or 0.0
            node = samples.nodes[index] if samples.nodes else samples.node
            of_day = self._devices.setdefault((device, node), _Device())
            of_day.described = described or of_day.described
            step = begin + index
            of_gpu[step] = 1
            if of_day.first < 0:
                of_day.first = step
            elif of_day.last < step - 1:
                of_day.gaps.append((of_day.last + 1, step))
            of_day.last = step
            of_day.measured += 1
            of_day.outside += max(0.0, _at(samples.outside, index) or 0.0) / total * STEP
            now = dict(_held(shares, index, total, _at(samples.replicas, index)))
            if known is None or known[0] != now:
                known = now, moment(now, self._method)
            of_day.crowded |= known[1].crowded
            for container, part in zip(now, known[1].slices, strict=True):
                share = of_day.shares.setdefault(keys[container], _Share())
                share.runs += share.last != step - 1 or share.last < 0
                share.last = step
                share.held += part.held * STEP
                share.used += part.used * STEP
                share.above += part.above * STEP
                share.unknown += 0.0 if part.known else part.held * STEP
                share.crowded += STEP * known[1].crowded
                share.over += STEP * known[1].over_committed
                share.unsized += STEP * now[container].is_unsized

    def devices(self) -> Iterator[tuple[GpuDay, list[ShareDay]]]:
        """Each device's day with its shares, in the order of their keys."""
        for (device, node), sums in sorted(self._devices.items()):
            key = GpuKey(self._head.day, device.cluster, node, device.uuid)
            of_gpu = self._gpus[_gpu(device, sums.described)]
            ends = [(begin, end, of_gpu.find(1, begin, end)) for begin, end in sums.gaps]
            holes = sum((end if there < 0 else there) - begin for begin, end, there in ends)
            gpu = GpuDay(
                key,
                sums.described.model,
                (sums.measured + holes) * STEP * SECOND,
                holes * STEP * SECOND,
                sums.described.mig_profile,
                outside=round(sums.outside * SECOND),
                first=self._head.start + sums.first * STEP,
                last=self._head.start + (sums.last + 1) * STEP,
                parent=sums.described.parent,
            )
            yield (
                gpu,
                [
                    _share_day(key, share, of_day, _bound(sums, of_day, holes))
                    for share, of_day in sorted(sums.shares.items())
                ],
            )


def _gpu(device: BilledDevice, described: Described | None) -> BilledDevice:
    """The GPU to which a device belongs."""
    parent = described.parent if described else ""
    return BilledDevice(device.cluster, parent) if parent else device


def _measured(total: Series, steps: int) -> Iterator[int]:
    for index, value in enumerate(total[:steps]):
        if value and value > 0:
            yield index


def _bound(device: _Device, share: _Share, holes: int) -> int:
    """Seconds: two steps for each start and end, and the device's holes.

    Where parts were divided by their sum, the starts and ends of the other shares count, too.
    """
    runs = sum(each.runs for each in device.shares.values()) if device.crowded else share.runs
    return (2 * runs + holes) * STEP


def _share_day(key: GpuKey, share: ShareKey, sums: _Share, bound: int) -> ShareDay:
    held = round(sums.held * SECOND)
    used = min(held, round(sums.used * SECOND))
    return ShareDay(
        key,
        share,
        used,
        held - used,
        round(sums.above * SECOND),
        round(sums.unknown * SECOND),
        bound * SECOND,
        sums.crowded,
        sums.over,
        sums.unsized,
    )


def _held(
    shares: Mapping[BilledContainer, ShareHour], index: int, total: float, replicas: float | None
) -> Iterable[tuple[BilledContainer, MeasuredShare]]:
    for container, share in shares.items():
        memory, cores, number = (
            _at(series, index) for series in (share.memory, share.cores, share.shares)
        )
        if memory is None and cores is None and number is None:
            continue
        use = _at(share.memory_use, index)
        yield (
            container,
            MeasuredShare(
                None if memory is None else memory / total,
                cores,
                number / replicas if number is not None and replicas else None,
                None if use is None else use / total,
                _at(share.core_use, index),
            ),
        )


def _at(series: Series, index: int) -> float | None:
    return series[index] if index < len(series) else None
