"""The queries of a device: driver calls, and the readings in each answer, as a table.

Pure, nothing is called here. Numbers are scaled to base units (bytes, watts, joules, hertz,
ratios); NVML's "not available" (all bits set) and percentages that cannot be true are no reading.
Calls bear the names of nvidia-ml-py, arguments the values of NVIDIA's ``nvml.h``, whose
constants are named beside them.
"""

from collections.abc import Callable, Collection, Mapping
from math import inf
from operator import attrgetter, itemgetter
from typing import Any

import msgspec

from vgpu.model.units import MOST_DEVICE_MEMORY

Number = float | int
Key = tuple[str, ...]
Parts = Mapping[Key, Callable[[Any], Number | None]]
"""A reading's name and label values -> its number in an answer, None if it is not there."""

NOT_AVAILABLE = (0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)  # NVML_VALUE_NOT_AVAILABLE, 32 and 64 bits


MOST: Mapping[str, Number] = {
    "memory_total_bytes": MOST_DEVICE_MEMORY,
    "memory_used_bytes": MOST_DEVICE_MEMORY,
    "memory_free_bytes": MOST_DEVICE_MEMORY,
    "memory_reserved_bytes": MOST_DEVICE_MEMORY,
    "bar1_total_bytes": MOST_DEVICE_MEMORY,
    "bar1_used_bytes": MOST_DEVICE_MEMORY,
    "temperature_celsius": 1_000,
    "temperature_threshold_celsius": 1_000,
    "fan_speed_ratio": 10,  # of the fan's nominal speed, which it may pass
    "power_usage_watts": 100_000,
    "power_limit_watts": 100_000,
    "energy_joules": 10**14,  # 30 kW for a century
    "clock_hertz": 10**12,
    "clock_max_hertz": 10**12,
    "ecc_errors": 10**15,
    "retired_pages": 10**9,
    "remapped_rows": 10**9,
    "pcie_replays": 10**9,
    "mig_mode": 1,
    "retired_pages_pending": 1,
    "row_remap_pending": 1,
    "row_remap_failure": 1,
    "pcie_link_generation": 100,
    "pcie_link_width": 1_000,
    "pcie_throughput_bytes_per_second": 10**14,
}
"""Maximum plausible values, far above any device: a larger value was not measured."""

PART_OF: Mapping[str, Key] = {
    "memory_used_bytes": ("memory_total_bytes",),
    "memory_free_bytes": ("memory_total_bytes",),
    "memory_reserved_bytes": ("memory_total_bytes",),
    "bar1_used_bytes": ("bar1_total_bytes",),
}
"""Readings that cannot be more than another one of the same answer."""

NEVER_ZERO: Collection[str] = frozenset(
    {
        "memory_total_bytes",
        "bar1_total_bytes",
        "power_limit_watts",
        "clock_max_hertz",
        "temperature_threshold_celsius",
        "pcie_link_generation",
        "pcie_link_width",
    }
)
"""Sizes and limits of a device: some drivers answer with success and 0 for one that the device does
not have. A GPU that shares the memory of its host (GB10) has no memory size of its own."""


def measured(readings: Mapping[Key, Number]) -> dict[Key, Number]:
    """The readings of one answer without a size or limit of 0, and without the parts of it."""
    absent = {key for key, value in readings.items() if not value and key[0] in NEVER_ZERO}
    return {
        key: value
        for key, value in readings.items()
        if key not in absent and PART_OF.get(key[0]) not in absent
    }


def implausible(readings: Mapping[Key, Number]) -> Mapping[Key, str]:
    """The readings of one answer that cannot be true, each with a sentence why."""
    wrong: dict[Key, str] = {}
    for key, value in readings.items():
        most, whole = MOST.get(key[0], inf), PART_OF.get(key[0])
        if whole is not None:
            most = min(most, readings.get(whole, inf))
        if value > most:
            wrong[key] = f"{' '.join(key)} {value:.0f}, of at most {most:.0f}"
    return wrong


class Query(msgspec.Struct, frozen=True):
    """One driver call, and the readings in its answer.

    Attributes:
        call: the function's name in nvidia-ml-py.
        parts: the readings in the answer.
        args: the arguments after the device's handle.
        each: values of one more argument; called for each until the driver refuses one, and the
            answer is the list of answers.
        otherwise: the query for devices that do not support this call.
    """

    call: str
    parts: Parts
    args: tuple[int, ...] = ()
    each: range | None = None
    otherwise: "Query | None" = None


def _itself(answer: Any) -> Any:
    return answer


def _number(
    pick: Callable[[Any], int] = _itself, *, times: int = 1, per: int = 1, most: float = inf
) -> Callable[[Any], Number | None]:
    """The picked number in its base unit; none if it is not available or above ``most``."""

    def read(answer: Any) -> Number | None:
        value = pick(answer)
        if value in NOT_AVAILABLE or value > most:
            return None
        return value * times if per == 1 else value / per  # a quotient is exact: 57 / 100

    return read


def _percent(pick: Callable[[Any], int] = _itself) -> Callable[[Any], Number | None]:
    return _number(pick, per=100, most=100)


def _bit(mask: int) -> Callable[[int], int]:
    return lambda reasons: int(bool(reasons & mask))


def _query(
    name: str, call: str, *args: int, labels: Key = (), times: int = 1, per: int = 1
) -> Query:
    """A call that answers with one number."""
    return Query(call, {(name, *labels): _number(times=times, per=per)}, args)


CLOCKS = {"graphics": 0, "sm": 1, "memory": 2, "video": 3}  # NVML_CLOCK_*


def _clock(name: str) -> Query:
    number = CLOCKS[name]
    labels = (name,)
    return _query("clock_hertz", "nvmlDeviceGetClockInfo", number, labels=labels, times=1_000_000)


CLOCK_EVENTS = {  # nvmlClocksEventReason*
    "gpu_idle": 0x1,
    "applications_clocks_setting": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
    "display_clock_setting": 0x100,
}

_CLOCK_EVENTS: Parts = {
    ("clock_event_active", name): _bit(mask) for name, mask in CLOCK_EVENTS.items()
}

MIG_MODE = ("mig_mode",)
MEMORY_TOTAL = ("memory_total_bytes",)

# Version 1 counts the driver's reserve as used; version 2, where it exists, reports it apart.
_MEMORY_PARTS: Parts = {
    MEMORY_TOTAL: _number(attrgetter("total")),
    ("memory_used_bytes",): _number(attrgetter("used")),
    ("memory_free_bytes",): _number(attrgetter("free")),
}
_MEMORY = Query(
    "nvmlDeviceGetMemoryInfo",
    {**_MEMORY_PARTS, ("memory_reserved_bytes",): _number(attrgetter("reserved"))},
    (0x02000028,),  # nvmlMemory_v2
    otherwise=Query("nvmlDeviceGetMemoryInfo", _MEMORY_PARTS),
)

_MIG = Query("nvmlDeviceGetMigMode", {MIG_MODE: itemgetter(0)})

FAST: tuple[Query, ...] = (
    _MEMORY,
    Query(
        "nvmlDeviceGetUtilizationRates",
        {
            ("utilization_ratio",): _percent(attrgetter("gpu")),
            ("memory_utilization_ratio",): _percent(attrgetter("memory")),
        },
    ),
    Query(
        "nvmlDeviceGetTemperatureV",
        {("temperature_celsius",): _number()},
        (0,),  # NVML_TEMPERATURE_GPU
        otherwise=_query("temperature_celsius", "nvmlDeviceGetTemperature", 0),
    ),
    _query("power_usage_watts", "nvmlDeviceGetPowerUsage", per=1000),
    _query("energy_joules", "nvmlDeviceGetTotalEnergyConsumption", per=1000),
    _clock("sm"),
    Query(
        "nvmlDeviceGetCurrentClocksEventReasons",
        _CLOCK_EVENTS,
        otherwise=Query("nvmlDeviceGetCurrentClocksThrottleReasons", _CLOCK_EVENTS),
    ),
    _MIG,
)
"""Asked at each sample: what changes by the second."""

ECC_UNCORRECTED = ("ecc_errors", "uncorrected", "volatile")
RETIRED_PAGES_PENDING = ("retired_pages_pending",)
ROW_REMAP_PENDING = ("row_remap_pending",)
ROW_REMAP_FAILURE = ("row_remap_failure",)

_RETIRED_PENDING = Query(
    "nvmlDeviceGetRetiredPagesPendingStatus", {RETIRED_PAGES_PENDING: _number()}
)
_REMAPPED_ROWS = Query(
    "nvmlDeviceGetRemappedRows",
    {
        ("remapped_rows", "correctable"): itemgetter(0),
        ("remapped_rows", "uncorrectable"): itemgetter(1),
        ROW_REMAP_PENDING: itemgetter(2),
        ROW_REMAP_FAILURE: itemgetter(3),
    },
)

SLOW: tuple[Query, ...] = (
    Query(
        "nvmlDeviceGetEncoderUtilization",
        {("encoder_utilization_ratio",): _percent(itemgetter(0))},
    ),
    Query(
        "nvmlDeviceGetDecoderUtilization",
        {("decoder_utilization_ratio",): _percent(itemgetter(0))},
    ),
    _query("fan_speed_ratio", "nvmlDeviceGetFanSpeed", per=100),
    _query("power_limit_watts", "nvmlDeviceGetEnforcedPowerLimit", per=1000),
    *(_clock(name) for name in CLOCKS if name != "sm"),
    Query(
        "nvmlDeviceGetPerformanceState",
        {("performance_state",): _number(most=15)},  # NVML_PSTATE_UNKNOWN is 32
    ),
    Query(
        "nvmlDeviceGetBAR1MemoryInfo",
        {
            ("bar1_total_bytes",): _number(attrgetter("bar1Total")),
            ("bar1_used_bytes",): _number(attrgetter("bar1Used")),
        },
    ),
    *(
        _query(
            "ecc_errors", "nvmlDeviceGetTotalEccErrors", kind, life, labels=(kind_name, life_name)
        )
        for kind_name, kind in {
            "corrected": 0,
            "uncorrected": 1,
        }.items()  # NVML_MEMORY_ERROR_TYPE_*
        for life_name, life in {"volatile": 0, "aggregate": 1}.items()  # NVML_*_ECC
    ),
    *(
        Query("nvmlDeviceGetRetiredPages", {("retired_pages", name): len}, (cause,))
        for name, cause in {
            "single_bit": 0,
            "double_bit": 1,
        }.items()  # NVML_PAGE_RETIREMENT_CAUSE_*
    ),
    _RETIRED_PENDING,
    _REMAPPED_ROWS,
    _query("pcie_replays", "nvmlDeviceGetPcieReplayCounter"),
    _query("pcie_link_generation", "nvmlDeviceGetCurrPcieLinkGeneration"),
    _query("pcie_link_width", "nvmlDeviceGetCurrPcieLinkWidth"),
    Query("nvmlDeviceGetNvLinkState", {("nvlinks_active",): sum}, each=range(36)),  # MAX_LINKS
)
"""Asked at every n-th sample: what hardly changes, or costs the driver more."""

RARE: tuple[Query, ...] = (
    *(
        _query(
            "temperature_threshold_celsius",
            "nvmlDeviceGetTemperatureThreshold",
            threshold,
            labels=(name,),
        )
        for name, threshold in {
            "shutdown": 0,
            "slowdown": 1,
        }.items()  # NVML_TEMPERATURE_THRESHOLD_*
    ),
    *(
        _query(
            "clock_max_hertz", "nvmlDeviceGetMaxClockInfo", clock, labels=(name,), times=1_000_000
        )
        for name, clock in CLOCKS.items()
    ),
)
"""Asked rarely: what is the same as long as the driver runs."""

PCIE_THROUGHPUT: tuple[Query, ...] = tuple(
    _query(
        "pcie_throughput_bytes_per_second",
        "nvmlDeviceGetPcieThroughput",
        counter,
        labels=(direction,),
        times=1000,
    )
    for direction, counter in {"tx": 0, "rx": 1}.items()  # NVML_PCIE_UTIL_*_BYTES
)
"""Asked only on request: each call holds the driver for 20 ms."""

Info = Mapping[str, tuple[str, Callable[[Any], str]]]
"""Key in ``Gpu.info`` -> the call, and how to read its answer; "" is no entry."""

GPU_INFO: Info = {
    "name": ("nvmlDeviceGetName", str),
    "pci_bus_id": ("nvmlDeviceGetPciInfo", attrgetter("busId")),
    "serial": ("nvmlDeviceGetSerial", str),
    "minor": ("nvmlDeviceGetMinorNumber", str),
    "vbios": ("nvmlDeviceGetVbiosVersion", str),
}

INSTANCE_INFO: Info = {
    "name": ("nvmlDeviceGetName", str),
    # "NVIDIA H100 80GB HBM3 MIG 1g.10gb"
    "mig_profile": ("nvmlDeviceGetName", lambda name: name.partition(" MIG ")[2]),
    "gpu_instance_id": ("nvmlDeviceGetGpuInstanceId", str),
    "compute_instance_id": ("nvmlDeviceGetComputeInstanceId", str),
}

DRIVER_INFO: Info = {
    "driver_version": ("nvmlSystemGetDriverVersion", str),
    "nvml_version": ("nvmlSystemGetNVMLVersion", str),
    "cuda_version": (
        "nvmlSystemGetCudaDriverVersion_v2",
        lambda version: f"{version // 1000}.{version % 1000 // 10}",  # 12080 is 12.8
    ),
}
"""The driver's versions, the same for all GPUs."""


class Tables(msgspec.Struct, frozen=True):
    """The queries of a device: at each sample, at every n-th, rarely, once; and of processes."""

    fast: tuple[Query, ...]
    slow: tuple[Query, ...]
    rare: tuple[Query, ...]
    info: Info
    processes: bool = True

    def without(self, readings: Collection[str]) -> "Tables":
        """The tables without queries that bring nothing but these readings."""

        def needed(queries: tuple[Query, ...]) -> tuple[Query, ...]:
            return tuple(
                query for query in queries if not all(key[0] in readings for key in query.parts)
            )

        return msgspec.structs.replace(
            self, fast=needed(self.fast), slow=needed(self.slow), rare=needed(self.rare)
        )


GPU = Tables(FAST, SLOW, RARE, GPU_INFO)
GPU_WITH_PCIE_THROUGHPUT = Tables(FAST, SLOW + PCIE_THROUGHPUT, RARE, GPU_INFO)
GPU_HEALTH = Tables(
    (
        _MEMORY,
        Query("nvmlDeviceGetTotalEccErrors", {ECC_UNCORRECTED: _number()}, (1, 0)),
        _RETIRED_PENDING,
        _REMAPPED_ROWS,
        _MIG,
    ),
    (),
    (),
    GPU_INFO,
    processes=False,
)
"""Only what there is to share, and the health of the GPU."""
INSTANCE = Tables((_MEMORY,), (), (), INSTANCE_INFO)  # the rest belongs to its GPU
