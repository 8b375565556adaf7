"""Families of the devices: GPUs and MIG instances, and their XIDs."""

from collections.abc import Callable
from typing import Final

from exporter.details import Detail
from exporter.view import GpuRow
from vgpu.metrics.family import Family, FamilyTable, Labelled, MetricType, Value

GAUGE, COUNTER = MetricType.GAUGE, MetricType.COUNTER


def reading(name: str) -> Callable[[GpuRow], Value]:
    """A device's plain reading."""
    key = (name,)
    return lambda row: row.gpu.readings.get(key)


def readings(name: str) -> Callable[[GpuRow], Labelled]:
    """A device's readings of one name, by their label values."""
    return lambda row: row.gpu.by_name.get(name, {})


def _active_clock_events(row: GpuRow) -> Labelled:
    """The reasons that hold the clocks down."""
    events = row.gpu.by_name.get("clock_event_active", {})
    return {event: value for event, value in events.items() if value}


GPU_INFO_LABELS = (
    "gpu",
    "model",
    "pci_bus_id",
    "driver_version",
    "cuda_version",
    "parent_uuid",
    "mig_profile",
)


def gpu_info(row: GpuRow) -> Labelled:
    """The one sample of the info metric."""
    gpu, info = row.gpu, row.gpu.info
    if not row.answers:
        return {}
    return {
        (
            str(gpu.index),
            info.get("name", ""),
            info.get("pci_bus_id", ""),
            info.get("driver_version", ""),
            info.get("cuda_version", ""),
            gpu.parent,
            info.get("mig_profile", ""),
        ): 1
    }


def _gpu(
    name: str, help_: str, *, unit: str = "", kind: MetricType = GAUGE, detail: bool = False
) -> Family:
    """A device family whose reading has the family's own name, without prefix and ``_total``."""
    value = reading(name.removesuffix("_total"))
    group = Detail.DEVICES if detail else ""
    return Family(f"vgpu_gpu_{name}", kind, help_, value, unit=unit, detail=group)


def _gpu_by(
    name: str,
    extra: tuple[str, ...],
    help_: str,
    *,
    unit: str = "",
    kind: MetricType = GAUGE,
    detail: bool = False,
) -> Family:
    value = readings(name.removesuffix("_total"))
    group = Detail.DEVICES if detail else ""
    return Family(f"vgpu_gpu_{name}", kind, help_, value, extra, unit, group)


GPUS = FamilyTable(
    title="Devices",
    note=(
        "A device is a GPU, or a MIG instance of one (`parent_uuid` in `vgpu_gpu_info`). Memory,"
        " utilization of GPU and memory, temperature, power usage, energy, the SM clock and clock"
        " events are read for each page. All other readings are up to four samples old, temperature"
        " thresholds and highest clocks up to forty."
    ),
    rows=lambda view: view.gpus,
    labels=("uuid",),
    key=lambda row: (row.gpu.uuid,),
    families=(
        Family(
            "vgpu_gpu_info",
            GAUGE,
            "Always 1; what the device is, to join on uuid (NVML, once per driver start).",
            gpu_info,
            GPU_INFO_LABELS,
        ),
        Family(
            "vgpu_gpu_up",
            GAUGE,
            "1 if the device answers, 0 if it was there and is lost (NVML).",
            lambda row: int(row.answers),
        ),
        _gpu("memory_total_bytes", "Memory of the device (nvmlDeviceGetMemoryInfo).", unit="bytes"),
        _gpu(
            "memory_used_bytes",
            "Memory allocated on the device, without the driver's reserve where the driver reports"
            " the two separately (nvmlDeviceGetMemoryInfo_v2).",
            unit="bytes",
        ),
        _gpu(
            "memory_free_bytes",
            "Memory not allocated (nvmlDeviceGetMemoryInfo).",
            unit="bytes",
            detail=True,
        ),
        _gpu(
            "memory_reserved_bytes",
            "Memory reserved by driver and firmware (nvmlDeviceGetMemoryInfo_v2).",
            unit="bytes",
            detail=True,
        ),
        Family(
            "vgpu_gpu_memory_attributed_bytes",
            GAUGE,
            "Memory used by processes whose container is known (NVML process lists joined"
            " through /proc/<pid>/cgroup).",
            lambda row: row.use.attributed_bytes if row.use else None,
            unit="bytes",
        ),
        Family(
            "vgpu_gpu_memory_unattributed_bytes",
            GAUGE,
            "The attribution gap: memory used on the device beyond all containers, such as host"
            " processes and driver contexts. Below 0 if memory was freed between the two readings;"
            " absent where a part of the sum is unknown.",
            lambda row: row.use.unattributed_bytes if row.use else None,
            unit="bytes",
        ),
        Family(
            "vgpu_gpu_unattributed_processes",
            GAUGE,
            "Processes on the device that belong to no container (NVML, /proc/<pid>/cgroup).",
            lambda row: row.use.unattributed_processes if row.use else None,
        ),
        _gpu(
            "bar1_used_bytes",
            "BAR1 memory in use (nvmlDeviceGetBAR1MemoryInfo).",
            unit="bytes",
            detail=True,
        ),
        _gpu(
            "bar1_total_bytes",
            "BAR1 memory (nvmlDeviceGetBAR1MemoryInfo).",
            unit="bytes",
            detail=True,
        ),
        _gpu(
            "utilization_ratio",
            "Share of time in which a kernel ran (nvmlDeviceGetUtilizationRates).",
            unit="ratio",
        ),
        _gpu(
            "memory_utilization_ratio",
            "Share of time in which device memory was read or written"
            " (nvmlDeviceGetUtilizationRates).",
            unit="ratio",
            detail=True,
        ),
        _gpu(
            "encoder_utilization_ratio",
            "Video encoder utilisation (nvmlDeviceGetEncoderUtilization).",
            unit="ratio",
            detail=True,
        ),
        _gpu(
            "decoder_utilization_ratio",
            "Video decoder utilisation (nvmlDeviceGetDecoderUtilization).",
            unit="ratio",
            detail=True,
        ),
        _gpu(
            "temperature_celsius",
            "GPU core temperature (nvmlDeviceGetTemperature).",
            unit="celsius",
        ),
        _gpu_by(
            "temperature_threshold_celsius",
            ("threshold",),
            "Temperature at which the driver acts (nvmlDeviceGetTemperatureThreshold).",
            unit="celsius",
        ),
        _gpu("fan_speed_ratio", "Fan speed (nvmlDeviceGetFanSpeed).", unit="ratio"),
        _gpu(
            "power_usage_watts",
            "Power drawn, a one-second mean on most GPUs; for exact energy rate() the joules"
            " (nvmlDeviceGetPowerUsage).",
            unit="watts",
        ),
        _gpu(
            "power_limit_watts",
            "Enforced power limit (nvmlDeviceGetEnforcedPowerLimit).",
            unit="watts",
        ),
        _gpu(
            "energy_joules_total",
            "Energy used since the driver was loaded (nvmlDeviceGetTotalEnergyConsumption).",
            unit="joules",
            kind=COUNTER,
        ),
        _gpu_by(
            "clock_hertz",
            ("clock",),
            "Current clock (nvmlDeviceGetClockInfo).",
            unit="hertz",
            detail=True,
        ),
        _gpu_by(
            "clock_max_hertz",
            ("clock",),
            "Highest clock (nvmlDeviceGetMaxClockInfo).",
            unit="hertz",
            detail=True,
        ),
        _gpu(
            "performance_state",
            "P-state, 0 is the fastest (nvmlDeviceGetPerformanceState).",
            detail=True,
        ),
        Family(
            "vgpu_gpu_clock_event_active",
            GAUGE,
            "1 while this reason holds the clocks down (nvmlDeviceGetCurrentClocksEventReasons).",
            readings("clock_event_active"),
            ("reason",),
            detail=Detail.STATES,
            briefly=_active_clock_events,
        ),
        _gpu_by(
            "ecc_errors_total",
            ("type", "lifetime"),
            "ECC errors, volatile since the driver was loaded or aggregate over the GPU's life"
            " (nvmlDeviceGetTotalEccErrors).",
            kind=COUNTER,
        ),
        _gpu_by("retired_pages", ("cause",), "Memory pages retired (nvmlDeviceGetRetiredPages)."),
        _gpu(
            "retired_pages_pending",
            "1 if pages wait for a reboot to be retired (nvmlDeviceGetRetiredPagesPendingStatus).",
        ),
        _gpu_by("remapped_rows", ("type",), "Memory rows remapped (nvmlDeviceGetRemappedRows)."),
        _gpu(
            "row_remap_pending",
            "1 if a remap waits for a reset (nvmlDeviceGetRemappedRows).",
        ),
        _gpu("row_remap_failure", "1 if a remap has failed (nvmlDeviceGetRemappedRows)."),
        _gpu(
            "pcie_replays_total",
            "PCIe replays (nvmlDeviceGetPcieReplayCounter).",
            kind=COUNTER,
            detail=True,
        ),
        _gpu(
            "pcie_link_generation",
            "Current PCIe generation (nvmlDeviceGetCurrPcieLinkGeneration).",
            detail=True,
        ),
        _gpu(
            "pcie_link_width", "Current PCIe lanes (nvmlDeviceGetCurrPcieLinkWidth).", detail=True
        ),
        _gpu_by(
            "pcie_throughput_bytes_per_second",
            ("direction",),
            "PCIe throughput; measuring blocks the driver for 20 ms a direction, so it is off"
            " unless --nvml.pcie-throughput is set (nvmlDeviceGetPcieThroughput).",
            unit="bytes per second",
        ),
        _gpu("nvlinks_active", "NVLinks that are up (nvmlDeviceGetNvLinkState)."),
        _gpu("mig_mode", "1 if MIG is enabled (nvmlDeviceGetMigMode).", detail=True),
    ),
)

READ_ANYWAY: Final = frozenset({"mig_mode", "memory_utilization_ratio"})
"""Readings of the group that others need: the process lists, a compatibility set."""

DETAIL_READINGS: Final = frozenset(
    family.name.removeprefix("vgpu_gpu_").removesuffix("_total")
    for family in GPUS.families
    if family.detail == Detail.DEVICES
).difference(READ_ANYWAY)
"""The readings that only the group of details needs."""

XID_WATCH = FamilyTable(
    title="Recording of XID errors",
    note="No XID series means that no XID error happened only while this is 1.",
    rows=lambda view: ((row.gpu, view.xids_watched) for row in view.gpus),
    labels=("uuid",),
    key=lambda pair: (pair[0].uuid,),
    families=(
        Family(
            "vgpu_gpu_xid_watched",
            GAUGE,
            "1 if XID errors of the GPU are being recorded (nvmlDeviceRegisterEvents).",
            lambda pair: None if pair[0].parent else int(pair[0].uuid in pair[1]),
        ),
    ),
)

XIDS = FamilyTable(
    title="XID errors",
    note=(
        "Alert on the timestamp: `increase()` does not see the first event of a series."
        " [XIDs](xids.md) has the meaning and the severity of each XID."
    ),
    rows=lambda view: view.xids,
    labels=("uuid", "xid"),
    key=lambda row: (row.device, str(row.xid)),
    families=(
        Family(
            "vgpu_gpu_xid_errors_total",
            COUNTER,
            "XID errors since the exporter started (nvmlEventSetWait).",
            lambda row: row.count,
        ),
        Family(
            "vgpu_gpu_xid_last_timestamp_seconds",
            GAUGE,
            "When this XID was last reported, in unix time (nvmlEventSetWait).",
            lambda row: row.last_timestamp,
            unit="timestamp",
        ),
    ),
)


REPLICAS = FamilyTable(
    title="Replicas of NVIDIA's device plugin",
    rows=lambda view: tuple(row for row in view.gpus if row.replicas),
    labels=("uuid",),
    key=lambda row: (row.gpu.uuid,),
    families=(
        Family(
            "vgpu_gpu_replicas",
            GAUGE,
            "Replicas of the device (time-slicing or MPS) that NVIDIA's device plugin has"
            " registered as healthy (the kubelet's checkpoint).",
            lambda row: row.replicas,
        ),
    ),
)
