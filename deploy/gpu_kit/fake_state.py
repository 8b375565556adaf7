"""The state of a real driver as the fake driver's state file has it, and how their answers differ.

Pure. The format of the file is described in the fake driver's source, ``nvml_fake.c``.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote

import msgspec

from deploy.gpu_kit.answers import (
    UTILIZATION,
    DriverAnswers,
    GpuAnswers,
    ListAnswer,
    QueryAnswer,
    code_name,
)
from vgpu.sources.nvml_calls import Code
from vgpu.sources.nvml_device import COMPUTE

NUMBERS: Final[Mapping[str, tuple[str, str]]] = {
    "nvmlDeviceGetUtilizationRates/gpu": ("gpu_util", "gpu"),
    "nvmlDeviceGetUtilizationRates/memory": ("memory_util", "memory"),
    "nvmlDeviceGetTemperatureV 0": ("temperature", ""),
    "nvmlDeviceGetTemperature 0": ("temperature", ""),
    "nvmlDeviceGetPowerUsage": ("power", ""),
    "nvmlDeviceGetTotalEnergyConsumption": ("energy", ""),
    "nvmlDeviceGetClockInfo 0": ("clock_graphics", ""),
    "nvmlDeviceGetClockInfo 1": ("clock_sm", ""),
    "nvmlDeviceGetClockInfo 2": ("clock_memory", ""),
    "nvmlDeviceGetClockInfo 3": ("clock_video", ""),
    "nvmlDeviceGetMaxClockInfo 0": ("clock_max_graphics", ""),
    "nvmlDeviceGetMaxClockInfo 1": ("clock_max_sm", ""),
    "nvmlDeviceGetMaxClockInfo 2": ("clock_max_memory", ""),
    "nvmlDeviceGetMaxClockInfo 3": ("clock_max_video", ""),
    "nvmlDeviceGetCurrentClocksEventReasons": ("clock_events", ""),
    "nvmlDeviceGetCurrentClocksThrottleReasons": ("clock_events", ""),
    "nvmlDeviceGetMigMode": ("mig", "0"),
    "nvmlDeviceGetEncoderUtilization": ("encoder_util", "0"),
    "nvmlDeviceGetDecoderUtilization": ("decoder_util", "0"),
    "nvmlDeviceGetFanSpeed": ("fan", ""),
    "nvmlDeviceGetEnforcedPowerLimit": ("power_limit", ""),
    "nvmlDeviceGetPerformanceState": ("pstate", ""),
    "nvmlDeviceGetBAR1MemoryInfo/total": ("bar1_total", "bar1Total"),
    "nvmlDeviceGetBAR1MemoryInfo/used": ("bar1_used", "bar1Used"),
    "nvmlDeviceGetTotalEccErrors 0 0": ("ecc_corrected_volatile", ""),
    "nvmlDeviceGetTotalEccErrors 0 1": ("ecc_corrected_aggregate", ""),
    "nvmlDeviceGetTotalEccErrors 1 0": ("ecc_uncorrected_volatile", ""),
    "nvmlDeviceGetTotalEccErrors 1 1": ("ecc_uncorrected_aggregate", ""),
    "nvmlDeviceGetRetiredPages 0": ("retired_single_bit", "len"),
    "nvmlDeviceGetRetiredPages 1": ("retired_double_bit", "len"),
    "nvmlDeviceGetRetiredPagesPendingStatus": ("retired_pending", ""),
    "nvmlDeviceGetRemappedRows/0": ("remapped_correctable", "0"),
    "nvmlDeviceGetRemappedRows/1": ("remapped_uncorrectable", "1"),
    "nvmlDeviceGetRemappedRows/2": ("remap_pending", "2"),
    "nvmlDeviceGetRemappedRows/3": ("remap_failure", "3"),
    "nvmlDeviceGetPcieReplayCounter": ("pcie_replays", ""),
    "nvmlDeviceGetCurrPcieLinkGeneration": ("pcie_generation", ""),
    "nvmlDeviceGetCurrPcieLinkWidth": ("pcie_width", ""),
    "nvmlDeviceGetTemperatureThreshold 0": ("temperature_shutdown", ""),
    "nvmlDeviceGetTemperatureThreshold 1": ("temperature_slowdown", ""),
    "nvmlDeviceGetPcieThroughput 0": ("pcie_tx", ""),
    "nvmlDeviceGetPcieThroughput 1": ("pcie_rx", ""),
}
"""A query, with a part of its answer -> the number of a device's line, and where it is."""

MOVING: Final = frozenset({"nvmlDeviceGetPcieThroughput", "nvmlDeviceGetTotalEnergyConsumption"})
"""Calls whose values are never twice the same: only their shape is compared."""


_OF_THE_LIBRARY: Final = frozenset({Code.FUNCTION_NOT_FOUND})
"""What an older library has not: the fake driver can hide the same functions."""


class Difference(msgspec.Struct, frozen=True):
    """One difference between two drivers: what each answered, and of what sort it is."""

    name: str
    real: Any
    fake: Any
    reason: str


def state_of(answers: DriverAnswers) -> str:
    """The fake driver's state file for what a driver answered."""
    driver = answers.driver
    major, _, minor = driver.get("cuda_version", "13.0").partition(".")
    lines = [
        _line(
            "driver",
            version=driver.get("driver_version", ""),
            nvml=driver.get("nvml_version", ""),
            cuda=1000 * int(major) + 10 * int(minor or 0),
        )
    ]
    lines += [_line("device", **_device(gpu)) for gpu in answers.gpus]
    for gpu in answers.gpus:
        samples = {entry[0]: entry[2] for entry in gpu.entries(UTILIZATION)}
        for pid, used, *instance in gpu.entries(COMPUTE):
            settings = {"device": gpu.uuid, "pid": pid, "used": used}
            settings |= dict(zip(("gi", "ci"), instance[:2], strict=False))
            lines.append(_line("process", **settings, sm=samples.get(pid, "na")))
    return "\n".join(lines) + "\n"


def differences(real: DriverAnswers, fake: DriverAnswers) -> list[Difference]:
    """All differences in shape, error code and unit, in the order of the queries."""
    found: list[Difference] = []
    for ours, theirs in zip(real.gpus, fake.gpus, strict=False):
        found += _texts(ours, theirs)
        answered = {query.key: query for query in theirs.queries}
        for query in ours.queries:
            found += _query(f"{ours.index}/{query.key}", query, answered.get(query.key))
        lists = {answer.call: answer for answer in theirs.lists}
        for answer in ours.lists:
            found += _list(f"{ours.index}/{answer.call}", answer, lists[answer.call])
    return found


def shape(answer: Any) -> Any:
    """An answer without its values: names of fields, lengths of lists, types."""
    if isinstance(answer, Mapping):
        return {name: shape(value) for name, value in answer.items()}
    if isinstance(answer, (list, tuple)):
        return [shape(item) for item in answer]
    return type(answer).__name__


def _query(name: str, real: QueryAnswer, fake: QueryAnswer | None) -> Iterator[Difference]:
    if fake is None:
        yield Difference(name, "asked", "not asked", "shape")
    elif real.error in _OF_THE_LIBRARY:
        return
    elif real.error != fake.error:
        yield Difference(name, code_name(real.error), code_name(fake.error), "error code")
    elif shape(real.answer) != shape(fake.answer):
        yield Difference(name, shape(real.answer), shape(fake.answer), "shape")
    elif real.call not in MOVING and real.readings != fake.readings:
        yield Difference(name, dict(real.readings), dict(fake.readings), "unit or value")


def _list(name: str, real: ListAnswer, fake: ListAnswer) -> Iterator[Difference]:
    """Of samples only pids and the unit of time are compared: a ring has old ones, too."""
    if real.error in _OF_THE_LIBRARY:
        return
    if real.error != fake.error:
        yield Difference(name, code_name(real.error), code_name(fake.error), "error code")
    elif name.endswith(UTILIZATION):
        pairs = [frozenset(entry[0] for entry in answer.entries) - {0} for answer in (real, fake)]
        if pairs[0] != pairs[1]:
            yield Difference(name, sorted(pairs[0]), sorted(pairs[1]), "pids")
        digits = [
            len(str(max(entry[1] for entry in answer.entries)))
            for answer in (real, fake)
            if answer.entries
        ]
        if len(set(digits)) > 1:
            yield Difference(name, digits[0], digits[1], "unit of time")
    elif sorted(real.entries) != sorted(fake.entries):
        yield Difference(name, sorted(real.entries), sorted(fake.entries), "entries")


def _texts(real: GpuAnswers, fake: GpuAnswers) -> Iterator[Difference]:
    for key in real.info.keys() | fake.info.keys():
        pair = real.info.get(key), fake.info.get(key)
        if pair[0] != pair[1]:
            yield Difference(f"{real.index}/{key}", *pair, "shape or value")


def _device(gpu: GpuAnswers) -> dict[str, Any]:
    """The settings of a device's line."""
    info = gpu.info
    settings: dict[str, Any] = {
        "uuid": gpu.uuid,
        "name": info.get("name", ""),
        "bus": info.get("pci_bus_id", ""),
        "serial": info.get("serial", ""),
        "vbios": info.get("vbios", ""),
        "minor": info.get("minor", "na"),
    }
    answers = {query.key: query for query in gpu.queries}
    for place, (setting, part) in NUMBERS.items():
        query = answers.get(place.partition("/")[0])
        if query is not None and (not query.error or setting not in settings):
            settings[setting] = "na" if query.error else _part(query.answer, part)
    settings |= _memory(answers)
    links = answers.get("nvmlDeviceGetNvLinkState")
    settings["nvlinks"] = len(links.answer) if links and not links.error else 0
    settings["nvlinks_active"] = sum(links.answer) if links and not links.error else 0
    return settings


def _memory(answers: Mapping[str, QueryAnswer]) -> dict[str, Any]:
    """Total, used and reserved: only the second version of the call has them apart."""
    for query in answers.values():
        if query.call == "nvmlDeviceGetMemoryInfo" and query.args and not query.error:
            memory = query.answer
            return {key: memory[key] for key in ("total", "used", "reserved")}
    for query in answers.values():
        if query.call == "nvmlDeviceGetMemoryInfo" and not query.error:
            return {key: query.answer[key] for key in ("total", "used")}
    return {}


def _part(answer: Any, part: str) -> Any:
    if part == "len":
        return len(answer)
    if not part:
        return answer
    return answer[int(part)] if part.isdecimal() else answer[part]


def _line(kind: str, **settings: Any) -> str:
    pairs = (f"{key}={quote(str(value))}" for key, value in settings.items() if value != "")
    return " ".join((kind, *pairs))
