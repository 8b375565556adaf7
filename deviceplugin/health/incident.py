"""The incident of one device: when it begins and when it is over. Pure.

An **incident** begins with the first bad event or reading. It is over when the device has answered
for long enough without another one: each further incident of a day takes twice as long as the one
before. A loss is over with the first complete answers, unless it is one of several; the driver's
silence is no incident of the device. Times are in seconds of a monotonic clock.
"""

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from deviceplugin.health.rules import HealthRules
from vgpu.model.facts import Gpu
from vgpu.model.reasons import Explained
from vgpu.sources.nvml_queries import (
    ECC_UNCORRECTED,
    MEMORY_TOTAL,
    RETIRED_PAGES_PENDING,
    ROW_REMAP_FAILURE,
    ROW_REMAP_PENDING,
)

DAY: Final = 86400.0
LONGEST_RECOVERY: Final = 3600.0
PROOF_SAMPLES: Final = 2
"""Number of complete answers in a row before a device is trusted again."""

_MOST_INCIDENTS: Final = 16  # with more, the doubled recovery is beyond LONGEST_RECOVERY


class UnhealthyReason(Explained):
    """The label ``reason`` of an unhealthy device; ``explanation`` is the text for people."""

    XID = "xid", "the driver reported an XID that is not to be ignored"
    ECC = "ecc_uncorrected", "there were new uncorrected memory errors"
    ROW_REMAP_PENDING = "row_remap_pending", "memory rows are to be replaced: it needs a reset"
    ROW_REMAP_FAILURE = "row_remap_failure", "a bad memory row could not be replaced"
    PAGES_PENDING = "retired_pages_pending", "memory pages are to be retired: it needs a reset"
    LOST = "lost", "it does not answer any more, or is no longer listed"
    DRIVER_SILENT = "driver_silent", "the driver as a whole does not answer"


Reasons = Mapping[UnhealthyReason, str]
"""Why a device is unhealthy: each reason with the evidence for people."""

_READINGS: Final[Mapping[tuple[str, ...], UnhealthyReason]] = {
    ROW_REMAP_PENDING: UnhealthyReason.ROW_REMAP_PENDING,
    ROW_REMAP_FAILURE: UnhealthyReason.ROW_REMAP_FAILURE,
    RETIRED_PAGES_PENDING: UnhealthyReason.PAGES_PENDING,
}
"""Readings that make a device unhealthy while they are not 0."""


class Incident(msgspec.Struct, frozen=True, gc=False):
    """The present incident of one device; empty for a device that was never unhealthy.

    Attributes:
        reasons: all reasons of the present incident; empty if the device is healthy.
        standing: the reasons that the last sample still showed.
        bad_at: when the last bad event or reading was seen.
        good: number of complete answers since.
        incidents: when the incidents of the last day began.
        uncorrected: number of uncorrected memory errors of the last sample; None if never reported.
    """

    reasons: Reasons = {}
    standing: Reasons = {}
    bad_at: float = 0.0
    good: int = 0
    incidents: tuple[float, ...] = ()
    uncorrected: float | None = None


def worse(case: Incident, found: Reasons, now: float) -> Incident:
    """The incident after these bad events or readings."""
    incidents = case.incidents
    if _is_of_device(found) and not _is_of_device(case.reasons):
        recent = tuple(began for began in incidents if now - began < DAY)
        incidents = (*recent, now)[-_MOST_INCIDENTS:]
    reasons = {**case.reasons, **found}
    return replace(case, reasons=reasons, bad_at=now, good=0, incidents=incidents)


def lost(case: Incident, detail: str, now: float) -> tuple[Incident, frozenset[UnhealthyReason]]:
    """The incident after a sample without the device, and the reasons that are new."""
    standing = {UnhealthyReason.LOST: detail}
    fresh = frozenset(standing.keys() - case.standing.keys())
    return worse(replace(case, standing=standing), standing, now), fresh


def answered(
    case: Incident, gpu: Gpu, now: float, rules: HealthRules
) -> tuple[Incident, frozenset[UnhealthyReason]]:
    """The incident after a sample with the device, and the reasons that are new."""
    standing = _shown(case, gpu) if rules.memory_errors else {}
    risen = _risen(case, gpu) if rules.memory_errors else {}
    fresh = frozenset((standing.keys() - case.standing.keys()) | risen.keys())
    uncorrected = gpu.readings.get(ECC_UNCORRECTED, case.uncorrected)
    case = replace(case, standing=standing, uncorrected=uncorrected)
    if standing or risen:
        return worse(case, {**standing, **risen}, now), fresh
    if MEMORY_TOTAL not in gpu.readings:  # the GPU is there, and cannot report even its memory
        return replace(case, good=0), fresh
    good = case.good + 1
    proven = good >= PROOF_SAMPLES and now - case.bad_at >= _recovery(case, rules)
    return replace(case, good=good, reasons={} if proven else case.reasons), fresh


def _shown(case: Incident, gpu: Gpu) -> Reasons:
    """The reasons in the readings; a missing reading keeps its last reason."""
    shown = {}
    for key, reason in _READINGS.items():
        value = gpu.readings.get(key)
        if value:
            shown[reason] = reason.explanation
        elif value is None and reason in case.standing:
            shown[reason] = case.standing[reason]
    return shown


def _risen(case: Incident, gpu: Gpu) -> Reasons:
    """New uncorrected errors since the last sample; a new driver counts from 0 again."""
    before, count = case.uncorrected, gpu.readings.get(ECC_UNCORRECTED)
    if before is None or count is None or count <= before:
        return {}
    return {UnhealthyReason.ECC: f"uncorrected memory errors rose from {before:.0f} to {count:.0f}"}


def _recovery(case: Incident, rules: HealthRules) -> float:
    """Seconds without a bad event or reading after which the present incident is over."""
    repeats = len(case.incidents) - 1
    if case.reasons.keys() <= {UnhealthyReason.LOST, UnhealthyReason.DRIVER_SILENT}:
        repeats -= 1
    if repeats < 0 or not _is_of_device(case.reasons):
        return 0.0
    return min(rules.recovery * 2.0**repeats, max(rules.recovery, LONGEST_RECOVERY))


def _is_of_device(reasons: Reasons) -> bool:
    """Whether any reason is the device's own, and not the driver's."""
    return bool(reasons.keys() - {UnhealthyReason.DRIVER_SILENT})
