"""Timelines whose truth is known: devices and containers that start and end at any second."""

import math
from collections.abc import Iterator, Mapping
from itertools import pairwise
from random import Random
from typing import NamedTuple

from vgpucli.bill.measurement import MeasuredShare, Method, moment
from vgpucli.bill.timeline import (
    STEP,
    BilledContainer,
    BilledDevice,
    Described,
    DeviceHour,
    Hour,
    ShareHour,
    Values,
)

GIB = 2**30
TOTAL = 80 * GIB
Interval = tuple[int, int]


class Tenant(NamedTuple):
    """A container that holds a share of a device in some intervals: it is started again."""

    name: BilledContainer
    device: BilledDevice
    memory: float | None
    cores: float | None
    memory_use: float
    core_use: float
    runs: tuple[Interval, ...]


class Timeline(NamedTuple):
    """What was true; ``gaps`` are the times in which a device's exporter did not answer.

    ``instances`` are MIG instances and their GPUs, which are split in the second half.
    """

    start: int
    end: int
    tenants: tuple[Tenant, ...]
    devices: Mapping[BilledDevice, str]
    gaps: Mapping[BilledDevice, tuple[Interval, ...]]
    instances: Mapping[BilledDevice, BilledDevice] = {}

    @property
    def middle(self) -> int:
        """When everything changes that changes in it."""
        return (self.start + self.end) // 2

    def exporting(self, device: BilledDevice, at: int) -> bool:
        """Whether an exporter reports the device: of a split GPU it goes on to do so."""
        if device in self.instances and at < self.middle:
            return False
        return not alive(self.gaps.get(device, ()), at)


def generated(seed: int, start: int, end: int, pods: int, gpus: int) -> Timeline:
    """A timeline in which pods come and go, some of them on GPUs that are oversold."""
    random = Random(seed)
    devices = {BilledDevice("", f"GPU-{number}"): f"node-{number // 2}" for number in range(gpus)}
    split = BilledDevice("", f"GPU-{gpus - 1}")
    instances = {BilledDevice("", "MIG-0"): split} if gpus > 1 else {}
    devices |= {instance: devices[gpu] for instance, gpu in instances.items()}
    tenants = []
    for number in range(pods):
        device = random.choice([*devices])
        runs = []
        at = start + random.randrange(-3600, (end - start) // 3)
        while at < end and len(runs) < 8:
            stop = at + random.choice((20, 300, 4000, (end - start) // 2)) + random.randrange(200)
            runs.append((max(start, at), min(end, stop)))
            at = stop + random.choice((70, 500, 5000)) + random.randrange(200)
        kind = random.randrange(4)
        tenants.append(
            Tenant(
                BilledContainer(f"team-{number % 3}", f"pod-{number}", f"uid-{number}", "main"),
                device,
                None if kind == 0 else random.choice((0.1, 0.25, 0.5)),
                None if kind == 1 else random.choice((0.1, 0.25, 1.0)),
                random.choice((0.0, 0.05, 0.3)),
                random.choice((0.0, 0.2, 0.9)),
                tuple(run for run in runs if run[0] < run[1]),
            )
        )
    gaps: dict[BilledDevice, tuple[Interval, ...]] = {}
    for device in devices:
        if random.random() < 0.4:
            at = start + random.randrange(end - start)
            gaps[device] = ((at, min(end, at + random.choice((90, 1000, (end - start) // 3)))),)
    gaps |= {instance: gaps.get(gpu, ()) for instance, gpu in instances.items()}
    return Timeline(start, end, tuple(tenants), devices, gaps, instances)


def alive(intervals: tuple[Interval, ...], moment_: float) -> bool:
    """Whether a moment is in one of the intervals."""
    return any(begin <= moment_ < end for begin, end in intervals)


def true_seconds(
    timeline: Timeline, begin: int, end: int, method: Method
) -> dict[tuple[BilledDevice, BilledContainer], tuple[float, float]]:
    """Seconds of the whole device that each container held and used, from event to event."""
    truth: dict[tuple[BilledDevice, BilledContainer], tuple[float, float]] = {}
    for device in timeline.devices:
        tenants = [tenant for tenant in timeline.tenants if tenant.device == device]
        edges = {begin, end}
        for tenant in tenants:
            edges |= {edge for run in tenant.runs for edge in run if begin < edge < end}
        ordered = sorted(edges)
        for left, right in pairwise(ordered):
            there = [tenant for tenant in tenants if alive(tenant.runs, left)]
            shares = {
                tenant.name: MeasuredShare(
                    tenant.memory, tenant.cores, 1.0, tenant.memory_use, tenant.core_use
                )
                for tenant in there
            }
            for tenant, part in zip(there, moment(shares, method).slices, strict=True):
                key = device, tenant.name
                held, used = truth.get(key, (0.0, 0.0))
                truth[key] = (
                    held + part.held * (right - left),
                    used + part.used * (right - left),
                )
    return truth


def sample_times(begin: int, end: int, phase: int) -> Iterator[int]:
    """The scrapes from ``begin`` to ``end``, each a step after the other."""
    first = math.ceil((begin - phase) / STEP) * STEP + phase
    yield from range(first, end, STEP)


def hours(timeline: Timeline, begin: int, end: int, phase: int) -> Iterator[Hour]:
    """What a Prometheus that scrapes each minute has of the timeline, by hour."""
    for start in range(begin, end, 3600):
        steps = (min(end, start + 3600) - start) // STEP
        moments = {
            math.ceil((at - start) / STEP) - 1: at
            for at in sample_times(start + 1, start + steps * STEP + 1, phase)
        }
        devices: dict[BilledDevice, DeviceHour] = {}
        shares: dict[BilledDevice, dict[BilledContainer, ShareHour]] = {}
        for device, node in timeline.devices.items():
            answered = {
                index: at
                for index, at in moments.items()
                if 0 <= index < steps and timeline.exporting(device, at)
            }
            total: Values = [TOTAL if index in answered else None for index in range(steps)]
            devices[device] = DeviceHour(node, total)
            for tenant in timeline.tenants:
                if tenant.device != device:
                    continue
                there = [
                    index in answered and alive(tenant.runs, answered[index])
                    for index in range(steps)
                ]
                if any(there):
                    shares.setdefault(device, {})[tenant.name] = ShareHour(
                        _where(there, tenant.memory and tenant.memory * TOTAL),
                        _where(there, tenant.cores),
                        _where(there, 1.0),
                        _where(there, tenant.memory_use * TOTAL),
                        _where(there, tenant.core_use),
                    )
        described = {
            device: Described("A100", "1g.10gb", gpu.uuid)
            for device, gpu in timeline.instances.items()
        }
        yield Hour(start, steps, devices, shares, described)


def _where(there: list[bool], value: float | None) -> Values:
    return [value if is_there else None for is_there in there]
