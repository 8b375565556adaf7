"""vgpu's own metric families: one table each for devices, shares, containers and our own health.

To add a metric, add a row. ``docs/metrics.md`` is generated from these tables.
"""

from collections.abc import Callable, Mapping
from typing import Any

from exporter.view import CollectorRow, ContainerRow, GpuRow, ShareRow, View
from vgpu.facts import CallCost, XidCount
from vgpu.metrics.family import Family, Kind, Labelled, Number, Table, Value

GAUGE, COUNTER = Kind.GAUGE, Kind.COUNTER


# ---------------------------------------------------------------- devices


def reading(name: str) -> Callable[[GpuRow], Value]:
    """A device's plain reading."""
    key = (name,)
    return lambda row: row.gpu.readings.get(key)


def readings(name: str) -> Callable[[GpuRow], Labelled]:
    """A device's readings of one name, by their label values."""

    def pick(row: GpuRow) -> Labelled:
        return {key[1:]: value for key, value in row.gpu.readings.items() if key[0] == name}

    return pick


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


def _gpu(name: str, help_: str, *, unit: str = "", kind: Kind = GAUGE, source: str = "") -> Family:
    """A device family whose reading has the family's own name, without prefix and ``_total``."""
    value = reading(source or name.removesuffix("_total"))
    return Family(f"vgpu_gpu_{name}", kind, help_, value, unit=unit)


def _gpu_by(
    name: str, extra: tuple[str, ...], help_: str, *, unit: str = "", kind: Kind = GAUGE
) -> Family:
    value = readings(name.removesuffix("_total"))
    return Family(f"vgpu_gpu_{name}", kind, help_, value, extra, unit)


GPUS = Table(
    title="Devices",
    note="A device is a card, or a MIG instance of one (`parent_uuid` in `vgpu_gpu_info`).",
    rows=lambda view: view.attribution.gpus,
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
            "Memory allocated on the device, without the driver's reserve where the driver tells"
            " them apart (nvmlDeviceGetMemoryInfo_v2).",
            unit="bytes",
        ),
        _gpu("memory_free_bytes", "Memory not allocated (nvmlDeviceGetMemoryInfo).", unit="bytes"),
        _gpu(
            "memory_reserved_bytes",
            "Memory reserved by driver and firmware (nvmlDeviceGetMemoryInfo_v2).",
            unit="bytes",
        ),
        Family(
            "vgpu_gpu_memory_attributed_bytes",
            GAUGE,
            "Memory used by processes whose container is known (NVML process lists joined"
            " through /proc/<pid>/cgroup).",
            lambda row: row.attributed_bytes,
            unit="bytes",
        ),
        Family(
            "vgpu_gpu_memory_unattributed_bytes",
            GAUGE,
            "The attribution gap: memory used on the device beyond all containers, such as host"
            " processes and driver contexts. Absent where a part of the sum is unknown.",
            lambda row: row.unattributed_bytes,
            unit="bytes",
        ),
        Family(
            "vgpu_gpu_unattributed_processes",
            GAUGE,
            "Processes on the device that belong to no container (NVML, /proc/<pid>/cgroup).",
            lambda row: row.unattributed_processes,
        ),
        _gpu("bar1_used_bytes", "BAR1 memory in use (nvmlDeviceGetBAR1MemoryInfo).", unit="bytes"),
        _gpu("bar1_total_bytes", "BAR1 memory (nvmlDeviceGetBAR1MemoryInfo).", unit="bytes"),
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
        ),
        _gpu(
            "encoder_utilization_ratio",
            "Video encoder utilisation (nvmlDeviceGetEncoderUtilization).",
            unit="ratio",
        ),
        _gpu(
            "decoder_utilization_ratio",
            "Video decoder utilisation (nvmlDeviceGetDecoderUtilization).",
            unit="ratio",
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
            "Power drawn, a one-second mean on most cards; for exact energy rate() the joules"
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
        _gpu_by("clock_hertz", ("clock",), "Current clock (nvmlDeviceGetClockInfo).", unit="hertz"),
        _gpu_by(
            "clock_max_hertz",
            ("clock",),
            "Highest clock (nvmlDeviceGetMaxClockInfo).",
            unit="hertz",
        ),
        _gpu("performance_state", "P-state, 0 is the fastest (nvmlDeviceGetPerformanceState)."),
        _gpu_by(
            "clock_event_active",
            ("reason",),
            "1 while this reason holds the clocks down (nvmlDeviceGetCurrentClocksEventReasons).",
        ),
        _gpu_by(
            "ecc_errors_total",
            ("type", "lifetime"),
            "ECC errors, volatile since the driver was loaded or aggregate over the card's life"
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
        _gpu("pcie_replays_total", "PCIe replays (nvmlDeviceGetPcieReplayCounter).", kind=COUNTER),
        _gpu(
            "pcie_link_generation", "Current PCIe generation (nvmlDeviceGetCurrPcieLinkGeneration)."
        ),
        _gpu("pcie_link_width", "Current PCIe lanes (nvmlDeviceGetCurrPcieLinkWidth)."),
        _gpu_by(
            "pcie_throughput_bytes_per_second",
            ("direction",),
            "PCIe throughput; the driver blocks 20 ms a direction for it, so it is off unless"
            " --nvml.pcie-throughput is given (nvmlDeviceGetPcieThroughput).",
            unit="bytes per second",
        ),
        _gpu("nvlinks_active", "NVLinks that are up (nvmlDeviceGetNvLinkState)."),
        _gpu("mig_mode", "1 if MIG is enabled (nvmlDeviceGetMigMode)."),
    ),
)

XIDS = Table(
    title="XID errors",
    note="Alert on the timestamp: `increase()` does not see the first event of a series.",
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

NODE = Table(
    title="The node",
    rows=lambda view: (view,),
    labels=(),
    key=lambda view: (),
    families=(
        Family(
            "vgpu_gpus",
            GAUGE,
            "Cards that answer, MIG instances not counted (nvmlDeviceGetCount).",
            lambda view: gpus_that_answer(view),
        ),
        Family(
            "vgpu_gpus_expected",
            GAUGE,
            "The most cards seen since the exporter started, or --nvml.expected-gpus.",
            lambda view: view.gpus_expected,
        ),
        Family(
            "vgpu_orphaned_regions",
            GAUGE,
            "Shim regions whose pod is gone from this node (cgroups and log folders).",
            lambda view: len(view.attribution.orphans) if has_shim(view) else None,
        ),
        Family(
            "vgpu_released_regions",
            GAUGE,
            "Shim regions of pods that have ended but still exist; their series are withdrawn.",
            lambda view: len(view.attribution.released) if has_shim(view) else None,
        ),
        Family(
            "vgpu_pods",
            GAUGE,
            "Pods of this node that ask for a shared GPU, by phase and reason (--pods).",
            lambda view: pods_by_phase(view),
            ("phase", "reason"),
        ),
    ),
)


def gpus_that_answer(view: View) -> Value:
    """None if the driver as a whole does not answer."""
    rows = view.attribution.gpus
    return sum(row.answers and not row.gpu.parent for row in rows) if rows else None


def has_shim(view: View) -> bool:
    """Whether the regions were read at all."""
    return any(row.name == "shim" and row.success for row in view.collectors)


def pods_by_phase(view: View) -> Labelled:
    """How many GPU pods are in each phase, with the reason."""
    counts: dict[tuple[str, ...], Number] = {}
    for status in view.attribution.statuses or ():
        if status.wants_gpu:
            key = (status.phase, status.reason)
            counts[key] = counts.get(key, 0) + 1
    return counts


# ---------------------------------------------------------------- containers


def accounted(field: str) -> Callable[[ShareRow], Value]:
    """A field of what the shim accounts."""

    def pick(row: ShareRow) -> Value:
        if row.accounted is None:
            return None
        value: Value = getattr(row.accounted, field)
        return value

    return pick


def breakdown(row: ShareRow) -> Labelled:
    """What the shim accounts, by kind; the kinds add up to the total."""
    told = row.accounted
    if told is None:
        return {}
    return {
        ("context",): told.context,
        ("module",): told.module,
        ("data",): told.data,
        ("other",): told.other,
    }


CONTAINER_LABELS = ("namespace", "pod", "container", "pod_uid")

SHARES = Table(
    title="Shares: a container on a device",
    note=(
        "`used` is the driver's truth by process, for every scheme; `accounted` is what the shim"
        " says of itself. A container that holds a share and runs nothing has an explicit 0."
    ),
    rows=lambda view: view.attribution.shares,
    labels=(*CONTAINER_LABELS, "uuid"),
    key=lambda row: (row.namespace, row.pod, row.container, row.pod_uid, row.device),
    families=(
        Family(
            "vgpu_container_memory_limit_bytes",
            GAUGE,
            "Memory limit as the sharing system enforces or tells it (shim region, vcuda.config,"
            " KubeShare's config, the kubelet's checkpoint). Absent if unlimited or unknown.",
            lambda row: row.limit_bytes,
            unit="bytes",
        ),
        Family(
            "vgpu_container_memory_unlimited",
            GAUGE,
            "1 if the sharing system sets no memory limit, 0 if it does.",
            lambda row: int(row.unlimited) if row.unlimited or row.limit_bytes else None,
        ),
        Family(
            "vgpu_container_memory_used_bytes",
            GAUGE,
            "Device memory of the container's processes (NVML process lists joined through"
            " /proc/<pid>/cgroup).",
            lambda row: row.used_bytes,
            unit="bytes",
        ),
        Family(
            "vgpu_container_memory_accounted_bytes",
            GAUGE,
            "Device memory that the shim accounts for live processes (shim region).",
            accounted("total"),
            unit="bytes",
        ),
        Family(
            "vgpu_container_memory_accounted_kind_bytes",
            GAUGE,
            "The same by kind: context, module, data, other (shim region).",
            breakdown,
            ("kind",),
            unit="bytes",
        ),
        Family(
            "vgpu_container_memory_phantom_bytes",
            GAUGE,
            "Memory that slots of dead or killed processes still claim (shim region).",
            accounted("phantom"),
            unit="bytes",
        ),
        Family(
            "vgpu_container_processes",
            GAUGE,
            "Processes of the container on the device (NVML process lists).",
            lambda row: row.processes,
        ),
        Family(
            "vgpu_container_accounted_processes",
            GAUGE,
            "Live processes that the shim accounts memory for (shim region).",
            accounted("processes"),
        ),
        Family(
            "vgpu_container_core_limit_ratio",
            GAUGE,
            "Core limit, 1 is a whole device. Absent if there is none or it is unknown.",
            lambda row: _ratio(row.core_limit_percent),
            unit="ratio",
        ),
        Family(
            "vgpu_container_sm_utilization_ratio",
            GAUGE,
            "SM utilisation of the container's processes (nvmlDeviceGetProcessUtilization).",
            lambda row: row.sm_utilization,
            unit="ratio",
        ),
        Family(
            "vgpu_container_accounted_sm_utilization_ratio",
            GAUGE,
            "SM utilisation as the shim last sampled it, summed over processes; it can pass 1"
            " and can stick (shim region).",
            accounted("sm_utilization"),
            unit="ratio",
        ),
    ),
)


def _ratio(percent: int | None) -> Value:
    return None if percent is None else percent / 100


CONTAINERS = Table(
    title="Containers",
    rows=lambda view: view.attribution.containers,
    labels=CONTAINER_LABELS,
    key=lambda row: (row.namespace, row.pod, row.container, row.pod_uid),
    families=(
        Family(
            "vgpu_container_info",
            GAUGE,
            "Always 1; the sharing scheme, the source that told us of the container, the layout"
            " of its region, its phase.",
            lambda row: {(row.scheme.value, row.source.value, row.layout, row.phase.value): 1},
            ("scheme", "source", "layout", "phase"),
        ),
        Family(
            "vgpu_container_blocked",
            GAUGE,
            "1 while the shim holds the container's kernels back for a higher priority (shim"
            " region, recent_kernel).",
            lambda row: None if row.blocked is None else int(row.blocked),
        ),
        Family(
            "vgpu_container_priority",
            GAUGE,
            "Task priority, 0 is high (shim region).",
            lambda row: row.priority,
        ),
        Family(
            "vgpu_container_last_kernel_timestamp_seconds",
            GAUGE,
            "When the container last launched a kernel, in unix time; before the first launch,"
            " when it started (shim region).",
            lambda row: row.last_kernel_time or None,
            unit="timestamp",
        ),
    ),
)


# ---------------------------------------------------------------- our own health


def by_reason(field: str) -> Callable[[CollectorRow], Labelled]:
    """A collector's counts by reason."""

    def pick(row: CollectorRow) -> Labelled:
        counts: Mapping[Any, int] = getattr(row, field)
        return {(reason.value,): count for reason, count in counts.items()}

    return pick


COLLECTORS = Table(
    title="Health of the collectors",
    rows=lambda view: view.collectors,
    labels=("collector",),
    key=lambda row: (row.name,),
    families=(
        Family(
            "vgpu_collector_success",
            GAUGE,
            "1 if the collector's last pass was finished in time and brought data.",
            lambda row: int(row.success),
        ),
        Family(
            "vgpu_collector_duration_seconds",
            GAUGE,
            "How long the last finished pass took.",
            lambda row: row.duration,
            unit="seconds",
        ),
        Family(
            "vgpu_collector_last_success_timestamp_seconds",
            GAUGE,
            "When the collector last succeeded, in unix time.",
            lambda row: row.last_success,
            unit="timestamp",
        ),
        Family(
            "vgpu_collector_failures_total",
            COUNTER,
            "Passes that brought no data, by reason.",
            by_reason("failures"),
            ("reason",),
        ),
        Family(
            "vgpu_collector_rejected",
            GAUGE,
            "Inputs refused in the last pass, by reason; the rest of the data stands.",
            by_reason("rejected"),
            ("reason",),
        ),
        Family(
            "vgpu_collector_rejections_total",
            COUNTER,
            "Inputs refused since start, counted once a pass, by reason.",
            by_reason("rejections"),
            ("reason",),
        ),
    ),
)

CALLS = Table(
    title="Cost of the driver calls",
    note="What we ask of the driver's lock, by NVML call.",
    rows=lambda view: view.calls.items(),
    labels=("call",),
    key=lambda item: (item[0],),
    families=(
        Family(
            "vgpu_nvml_calls_total",
            COUNTER,
            "NVML calls made.",
            lambda item: _cost(item).count,
        ),
        Family(
            "vgpu_nvml_call_seconds_total",
            COUNTER,
            "Seconds spent inside NVML calls.",
            lambda item: _cost(item).seconds,
            unit="seconds",
        ),
    ),
)


def _cost(item: tuple[str, CallCost]) -> CallCost:
    return item[1]


BUILD_LABELS = ("version", "revision", "python_version")

SELF = Table(
    title="The exporter itself",
    rows=lambda view: (view,),
    labels=(),
    key=lambda view: (),
    families=(
        Family(
            "vgpu_build_info",
            GAUGE,
            "Always 1; what is running.",
            lambda view: {tuple(view.build.get(name, "") for name in BUILD_LABELS): 1},
            BUILD_LABELS,
        ),
        Family(
            "vgpu_snapshot_timestamp_seconds",
            GAUGE,
            "When the data on this page was sampled, in unix time; its age is time() minus this.",
            lambda view: view.timestamp,
            unit="timestamp",
        ),
        Family(
            "vgpu_sample_interval_seconds",
            GAUGE,
            "The configured interval between samples (--sample.interval).",
            lambda view: view.interval,
            unit="seconds",
        ),
        Family(
            "vgpu_driver_call_stuck_seconds",
            GAUGE,
            "How long the driver call under way has been past its deadline, 0 if none is.",
            lambda view: next(
                (row.stuck_seconds for row in view.collectors if row.name == "nvml"), None
            ),
            unit="seconds",
        ),
        Family(
            "vgpu_compat_skipped_series",
            GAUGE,
            "Series of the compatibility sets left out because the pod's name is unknown.",
            lambda view: view.skipped_series,
        ),
    ),
)


def _process(name: str, help_: str, kind: Kind = GAUGE, unit: str = "") -> Family:
    return Family(name, kind, help_, lambda view: view.process.get(name), unit=unit)


PROCESS = Table(
    title="The exporter's process",
    note="As every Prometheus client has them (prometheus_client's ProcessCollector).",
    rows=lambda view: (view,),
    labels=(),
    key=lambda view: (),
    families=(
        _process(
            "process_cpu_seconds_total", "CPU time used (/proc/self/stat).", COUNTER, "seconds"
        ),
        _process("process_open_fds", "Open file descriptors (/proc/self/fd)."),
        _process("process_max_fds", "The most file descriptors allowed (/proc/self/limits)."),
        _process("process_virtual_memory_bytes", "Virtual memory (/proc/self/stat).", unit="bytes"),
        _process(
            "process_resident_memory_bytes", "Resident memory (/proc/self/stat).", unit="bytes"
        ),
        _process(
            "process_start_time_seconds",
            "When the process started, in unix time (/proc/self/stat).",
            unit="seconds",
        ),
    ),
)

OWN_TABLES: tuple[Table, ...] = (
    GPUS,
    XIDS,
    NODE,
    SHARES,
    CONTAINERS,
    COLLECTORS,
    CALLS,
    SELF,
    PROCESS,
)
"""Every family with a name of our own, in page order."""

__all__ = ["OWN_TABLES", "ContainerRow", "XidCount"]
