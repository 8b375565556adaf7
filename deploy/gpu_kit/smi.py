"""What ``nvidia-smi`` prints, beside the readings of our table. Pure.

Names of fields are those of ``nvidia-smi --help-query-gpu``, in which older and newer names stand
side by side; only those that the installed program lists are asked for.
"""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from deploy.gpu_kit.answers import GpuAnswers
from deploy.gpu_kit.result import Number, Result, equal, near, not_run

MIB: Final = 1024 * 1024

_ABSENT: Final = re.compile(r"\[?(N/A|Not Supported|Unknown Error|Requested .*)\]?", re.IGNORECASE)
_WORDS: Final = {"disabled": 0.0, "enabled": 1.0, "no": 0.0, "yes": 1.0}
_FIELD: Final = re.compile(r'^"([a-z0-9_.]+)"(?: or "([a-z0-9_.]+)")?', re.MULTILINE)


class Field(msgspec.Struct, frozen=True):
    """How a reading is called there.

    Attributes:
        names: of the field, newer ones first.
        scale: our base units in one of nvidia-smi's.
        tolerance: maximum distance in base units, beside the rounding of what is printed.
        part: the same as a part of the value.
    """

    names: tuple[str, ...]
    scale: float = 1
    tolerance: float = 0
    part: float = 0


def _clock(name: str) -> Field:
    return Field((f"clocks.current.{name}", f"clocks.{name}"), 1e6, 30e6, 0.05)


FIELDS: Final[Mapping[str, Field]] = {
    "memory_total_bytes": Field(("memory.total",), MIB, MIB),
    "memory_used_bytes": Field(("memory.used",), MIB, 64 * MIB),
    "memory_free_bytes": Field(("memory.free",), MIB, 64 * MIB),
    "memory_reserved_bytes": Field(("memory.reserved",), MIB, MIB),
    "utilization_ratio": Field(("utilization.gpu",), 0.01, 0.15),
    "memory_utilization_ratio": Field(("utilization.memory",), 0.01, 0.15),
    "encoder_utilization_ratio": Field(("utilization.encoder",), 0.01, 0.1),
    "decoder_utilization_ratio": Field(("utilization.decoder",), 0.01, 0.1),
    "temperature_celsius": Field(("temperature.gpu",), 1, 2),
    "power_usage_watts": Field(("power.draw",), 1, 5, 0.15),
    "power_limit_watts": Field(("enforced.power.limit",), 1, 0.01),
    "clock_hertz graphics": _clock("graphics"),
    "clock_hertz sm": _clock("sm"),
    "clock_hertz memory": _clock("memory"),
    "clock_hertz video": _clock("video"),
    "clock_max_hertz graphics": Field(("clocks.max.graphics",), 1e6),
    "clock_max_hertz sm": Field(("clocks.max.sm",), 1e6),
    "clock_max_hertz memory": Field(("clocks.max.memory",), 1e6),
    "mig_mode": Field(("mig.mode.current",)),
    "fan_speed_ratio": Field(("fan.speed",), 0.01, 0.03),
    "performance_state": Field(("pstate",), 1, 8),
    "ecc_errors corrected volatile": Field(("ecc.errors.corrected.volatile.total",)),
    "ecc_errors corrected aggregate": Field(("ecc.errors.corrected.aggregate.total",)),
    "ecc_errors uncorrected volatile": Field(("ecc.errors.uncorrected.volatile.total",)),
    "ecc_errors uncorrected aggregate": Field(("ecc.errors.uncorrected.aggregate.total",)),
    "retired_pages single_bit": Field(("retired_pages.single_bit_ecc.count",)),
    "retired_pages double_bit": Field(("retired_pages.double_bit.count",)),
    "retired_pages_pending": Field(("retired_pages.pending",)),
    "remapped_rows correctable": Field(("remapped_rows.correctable",)),
    "remapped_rows uncorrectable": Field(("remapped_rows.uncorrectable",)),
    "row_remap_pending": Field(("remapped_rows.pending",)),
    "row_remap_failure": Field(("remapped_rows.failure",)),
    "pcie_link_generation": Field(("pcie.link.gen.gpucurrent", "pcie.link.gen.current"), 1, 4),
    "pcie_link_width": Field(("pcie.link.width.current",), 1),
    **{
        f"clock_event_active {name}": Field(
            (f"clocks_event_reasons.{smi}", f"clocks_throttle_reasons.{smi}"), 1, changes
        )
        for name, smi, changes in (
            ("gpu_idle", "gpu_idle", 1),
            ("applications_clocks_setting", "applications_clocks_setting", 0),
            ("sw_power_cap", "sw_power_cap", 1),
            ("hw_slowdown", "hw_slowdown", 0),
            ("sync_boost", "sync_boost", 0),
            ("sw_thermal_slowdown", "sw_thermal_slowdown", 0),
            ("hw_thermal_slowdown", "hw_thermal_slowdown", 0),
            ("hw_power_brake_slowdown", "hw_power_brake_slowdown", 0),
        )
    },
}
"""By the name of a reading. What is not here nvidia-smi does not print as a field."""

TEXTS: Final[Mapping[str, str]] = {
    "name": "name",
    "pci_bus_id": "pci.bus_id",
    "serial": "serial",
    "vbios": "vbios_version",
    "driver_version": "driver_version",
}


def known_fields(help_text: str) -> frozenset[str]:
    """The fields that ``nvidia-smi --help-query-gpu`` lists."""
    return frozenset(name for match in _FIELD.findall(help_text) for name in match if name)


def wanted(known: frozenset[str]) -> tuple[str, ...]:
    """The fields to ask for, the UUID first."""
    candidates = (
        *(next((name for name in field.names if name in known), "") for field in FIELDS.values()),
        *(name for name in TEXTS.values() if name in known),
    )
    return ("uuid", *dict.fromkeys(filter(None, candidates)))


def query(fields: Sequence[str]) -> list[str]:
    """The command line."""
    return ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]


def parse(fields: Sequence[str], printed: str) -> dict[str, dict[str, str]]:
    """UUID -> field -> text; lines of another length are no GPU."""
    rows = csv.reader(io.StringIO(printed), skipinitialspace=True)
    found = (dict(zip(fields, row, strict=True)) for row in rows if len(row) == len(fields))
    return {row["uuid"]: row for row in found}


def number(text: str) -> float | None:
    """A printed number in nvidia-smi's unit; None for what it calls absent."""
    text = text.strip()
    if not text or _ABSENT.fullmatch(text):
        return None
    lower = text.lower()
    if lower in _WORDS:
        return _WORDS[lower]
    if lower in ("active", "not active"):
        return float(lower == "active")
    if lower.startswith("0x"):
        return float(int(lower, 16))
    try:
        return float(lower.removeprefix("p"))
    except ValueError:
        return None


def compare(gpu: GpuAnswers, driver: Mapping[str, str], row: Mapping[str, str]) -> list[Result]:
    """Each reading beside what nvidia-smi printed between two readings of ours.

    ``driver`` are the versions of the driver.
    """
    results = []
    first = gpu.readings()
    for name in _names(gpu):
        title = f"queries/{gpu.index}/{name}"
        field = FIELDS.get(name)
        column = next((known for known in field.names if known in row), None) if field else None
        if field is None or column is None:
            results.append(not_run(title, "nvidia-smi has no such field", first.get(name)))
            continue
        theirs = number(row[column])
        ours = first.get(name)
        if theirs is None or ours is None:
            absent = "absent"
            results.append(
                equal(
                    title,
                    absent if theirs is None else theirs,
                    absent if ours is None else ours,
                )
            )
            continue
        results.append(_beside(title, field, theirs, ours, gpu.again.get(name, ours)))
    texts = {**driver, **gpu.info}
    for key, field_name in TEXTS.items():
        if field_name in row and key in texts:
            theirs_text = row[field_name].strip()
            if not _ABSENT.fullmatch(theirs_text):
                title = f"queries/{gpu.index}/{key}"
                results.append(equal(title, theirs_text.lower(), texts[key].lower()))
    return results


def _beside(title: str, field: Field, theirs: float, before: Number, after: Number) -> Result:
    """Passed if what nvidia-smi printed lies between our two readings, with room for rounding."""
    value = theirs * field.scale
    rounding = field.scale if field.scale != 1 else 0.5 if field.tolerance else 0.0
    tolerance = field.tolerance + field.part * abs(value) + rounding
    low, high = sorted((before, after))
    nearest = min(max(value, low), high)
    return near(title, value, nearest, tolerance)


def _names(gpu: GpuAnswers) -> list[str]:
    return list(dict.fromkeys((*FIELDS, *gpu.readings())))
