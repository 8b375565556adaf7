"""Decides from the driver's reports which devices new containers may use. Pure.

Promises: a device is unhealthy from the first bad event or reading on, and stays unhealthy while a
bad reading lasts; it recovers in bounded time after the last bad event or reading; an incident of
one GPU affects no other; an event of an unknown device is counted for no device. A driver that does
not answer makes no device unhealthy until it has been silent for a while.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Self

import msgspec
from msgspec.structs import replace

from deviceplugin.health.incident import Incident, Reasons, UnhealthyReason, answered, lost, worse
from deviceplugin.health.rules import HealthRules
from vgpu.model.facts import Gpu, GpuSample, XidCount
from vgpu.model.reasons import Reason
from vgpu.model.units import count
from vgpu.sources.nvml_queries import MEMORY_TOTAL

UNKNOWN_DEVICE: Final = ""

Events = Mapping[tuple[str, UnhealthyReason], int]
"""Number of health events, by device (UNKNOWN_DEVICE if not named) and reason."""


class HealthVerdict(msgspec.Struct, frozen=True, gc=False):
    """Whether new containers may use a device, and why not."""

    reasons: Reasons = {}

    @property
    def healthy(self) -> bool:
        """Whether there is no reason against the device."""
        return not self.reasons

    @property
    def detail(self) -> str:
        """The evidence for people; "" if the device is healthy."""
        return "; ".join(f"{reason}: {detail}" for reason, detail in self.reasons.items())


class Change(msgspec.Struct, frozen=True, gc=False):
    """A change of a device's health, with the evidence for people."""

    uuid: str
    healthy: bool
    detail: str


class Health(msgspec.Struct, frozen=True):
    """All that is known of a node's devices. Begins with :meth:`at_start`.

    Attributes:
        gpus: every device that has ever answered, by UUID, with its last answer and its first
            index.
        cases: incidents by UUID.
        xids: number of reports so far, by device and XID.
        events: see :data:`Events`.
        misses: number of times in a row that the driver has not answered.
    """

    gpus: Mapping[str, Gpu]
    cases: Mapping[str, Incident]
    xids: Mapping[tuple[str, int], int]
    events: Events
    misses: int

    @classmethod
    def at_start(cls, xids: Iterable[XidCount] = ()) -> Self:
        """Nothing is known yet; earlier XIDs make no device unhealthy."""
        return cls(
            {}, {}, {(reported.device, reported.xid): reported.count for reported in xids}, {}, 0
        )

    @property
    def devices(self) -> tuple[Gpu, ...]:
        """All devices by index, each GPU before its MIG instances."""

        def place(gpu: Gpu) -> tuple[int, str, bool, int, str]:
            whole = self.gpus.get(gpu.parent, gpu)
            return whole.index, whole.uuid, bool(gpu.parent), gpu.index, gpu.uuid

        return tuple(sorted(self.gpus.values(), key=place))

    @property
    def verdicts(self) -> Mapping[str, HealthVerdict]:
        """The verdict of every device, by UUID."""
        return {uuid: self.verdict(uuid) for uuid in self.gpus}

    def verdict(self, uuid: str) -> HealthVerdict:
        """The verdict of a device that has answered; an incident of a GPU counts for its MIG
        instances too.
        """
        gpu = self.gpus.get(uuid)
        cases = (self.cases.get(gpu.parent) if gpu else None, self.cases.get(uuid))
        return HealthVerdict(
            {key: text for case in cases if case for key, text in case.reasons.items()}
        )


def heard(health: Health, xids: Iterable[XidCount], now: float, rules: HealthRules) -> Health:
    """The health after events: ``xids`` are the counts of all so far."""
    counts, cases, events = dict(health.xids), dict(health.cases), dict(health.events)
    for reported in xids:
        fresh = reported.count - counts.get((reported.device, reported.xid), 0)
        if fresh <= 0:
            continue
        counts[reported.device, reported.xid] = reported.count
        if not rules.counts(reported.xid):
            continue
        _count(events, reported.device, UnhealthyReason.XID, fresh)
        if reported.device != UNKNOWN_DEVICE:
            evidence = {
                UnhealthyReason.XID: f"XID {reported.xid}"
                + (f", {fresh} times" if fresh > 1 else "")
            }
            cases[reported.device] = worse(cases.get(reported.device, Incident()), evidence, now)
    return replace(health, xids=counts, cases=cases, events=events)


def seen(health: Health, sample: GpuSample, now: float, rules: HealthRules) -> Health:
    """The health after an answer of the driver."""
    numbered = _numbered(sample.gpus, health.gpus)
    there = {gpu.uuid: gpu for gpu in numbered if not _is_out_of_reach(gpu, health)}
    gpus, cases, events = {**health.gpus, **there}, dict(health.cases), dict(health.events)
    for uuid, gpu in gpus.items():
        case, fresh = cases.get(uuid, Incident()), frozenset[UnhealthyReason]()
        if uuid in there:
            case, fresh = answered(case, gpu, now, rules)
        elif detail := _loss(gpu, there, sample):
            case, fresh = lost(case, detail, now)
        cases[uuid] = case
        for reason in fresh:
            _count(events, uuid, reason)
    return replace(health, gpus=gpus, cases=cases, events=events, misses=0)


def missed(health: Health, detail: str, now: float, rules: HealthRules) -> Health:
    """The health after no answer of the driver; ``detail`` is its error, or that it hangs."""
    misses = health.misses + 1
    if misses < rules.patience:
        return replace(health, misses=misses)
    cases, events = dict(health.cases), dict(health.events)
    evidence = {
        UnhealthyReason.DRIVER_SILENT: f"no answer {count(misses, 'time')} in a row: {detail}"
    }
    for uuid in health.gpus:
        case = cases.get(uuid, Incident())
        if UnhealthyReason.DRIVER_SILENT not in case.reasons:
            _count(events, uuid, UnhealthyReason.DRIVER_SILENT)
        cases[uuid] = worse(case, evidence, now)
    return replace(health, cases=cases, events=events, misses=misses)


def changes(before: Health, after: Health) -> tuple[Change, ...]:
    """Changes that matter to users of devices: new, better or worse devices, and other sizes."""
    changed = []
    for gpu in after.devices:
        old = before.gpus.get(gpu.uuid)
        was, now = before.verdict(gpu.uuid), after.verdict(gpu.uuid)
        if old is None:
            detail = now.detail or f"found: {_described(gpu)}"
        elif now.reasons.keys() - was.reasons.keys():
            detail = now.detail
        elif now.healthy and not was.healthy:
            detail = f"it answers, and nothing bad was seen for long enough; it was {was.detail}"
        elif _described(old) != _described(gpu):
            detail = f"it is {_described(gpu)}, and was {_described(old)}"
        else:
            continue
        changed.append(Change(gpu.uuid, now.healthy, detail))
    return tuple(changed)


def _numbered(gpus: Iterable[Gpu], known: Mapping[str, Gpu]) -> Iterator[Gpu]:
    """Each GPU with the index that it had first; a new one comes after all that are known.

    The driver renumbers the others when a GPU is lost, and pods have reservations by number.
    """
    last = max((gpu.index for gpu in known.values() if not gpu.parent), default=-1)
    for gpu in sorted(gpus, key=lambda gpu: gpu.index):
        if gpu.parent:
            yield gpu
        elif gpu.uuid in known:
            yield replace(gpu, index=known[gpu.uuid].index)
        else:
            last = max(gpu.index, last + 1)
            yield replace(gpu, index=last)


def _is_out_of_reach(gpu: Gpu, health: Health) -> bool:
    """Whether the GPU has reported its memory before and does not now: it is out of reach."""
    known = health.gpus.get(gpu.uuid)
    return known is not None and MEMORY_TOTAL in known.readings and MEMORY_TOTAL not in gpu.readings


def _loss(gpu: Gpu, there: Mapping[str, Gpu], sample: GpuSample) -> str:
    """Why a device that is not ``there`` is lost; "" if that is not certain."""
    if any(gpu.uuid == other.uuid for other in sample.gpus):
        return "the GPU no longer reports its memory"
    # Only the impossible number is rejected: the GPU's other readings are still valid.
    failed = (error for error in sample.rejections if error.reason is not Reason.IMPLAUSIBLE)
    refused = {rejection.object_name: rejection for rejection in failed}
    if gpu.uuid in sample.lost or gpu.parent in sample.lost:
        rejection = refused.get(gpu.uuid) or refused.get(gpu.parent)
        return (rejection and rejection.detail) or UnhealthyReason.LOST.explanation
    asked = sample.complete and (not gpu.parent or gpu.parent in there)
    return "no longer listed" if asked and gpu.parent not in refused else ""


def _described(gpu: Gpu) -> str:
    total = gpu.readings.get(MEMORY_TOTAL)
    size = "unknown size" if total is None else f"{total:.0f} bytes"
    return f"{gpu.info.get('name', 'a device')} of {size} at index {gpu.index}"


def _count(
    events: dict[tuple[str, UnhealthyReason], int],
    uuid: str,
    reason: UnhealthyReason,
    times: int = 1,
) -> None:
    events[uuid, reason] = events.get((uuid, reason), 0) + times
