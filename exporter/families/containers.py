"""Families of the containers: limits, memory, how NVIDIA's means share a device, and tokens."""

from collections.abc import Callable

from exporter.details import Detail
from vgpu.ledger.container_usage import ShareUsage
from vgpu.metrics.family import Family, FamilyTable, Labelled, MetricType, Value

GAUGE = MetricType.GAUGE


def accounted(field: str) -> Callable[[ShareUsage], Value]:
    """A field of the shim's accounted memory."""

    def pick(row: ShareUsage) -> Value:
        if row.accounted is None:
            return None
        value: Value = getattr(row.accounted, field)
        return value

    return pick


def breakdown(row: ShareUsage) -> Labelled:
    """The shim's accounted memory by kind, where known; all kinds add up to the total."""
    accounted = row.accounted
    if accounted is None:
        return {}
    kinds = {
        ("context",): accounted.context,
        ("module",): accounted.module,
        ("data",): accounted.data,
        ("other",): accounted.other,
    }
    return {kind: value for kind, value in kinds.items() if value is not None}


CONTAINER_LABELS = ("namespace", "pod", "container", "pod_uid")


def share_labels(row: ShareUsage) -> tuple[str, ...]:
    """The values of ``CONTAINER_LABELS`` and ``uuid``."""
    pod = row.pod
    return pod.namespace, pod.name, row.container, pod.uid, row.device


SHARES = FamilyTable(
    title="Shares: a container on a device",
    note=(
        "`used` is reported by the driver for each process, for every scheme; `accounted` is"
        " reported by the sharing library. A container that holds a share and runs nothing has an"
        " explicit 0."
    ),
    rows=lambda view: view.usage.shares,
    labels=(*CONTAINER_LABELS, "uuid"),
    key=share_labels,
    families=(
        Family(
            "vgpu_container_memory_limit_bytes",
            GAUGE,
            "Memory limit that the sharing system enforces or reports (shim region, vcuda.config,"
            " KubeShare's config, the kubelet's checkpoint). Absent if unlimited or unknown.",
            lambda row: row.limit_bytes,
            unit="bytes",
        ),
        Family(
            "vgpu_container_memory_unlimited",
            GAUGE,
            "1 if the sharing system sets no memory limit, 0 if it does.",
            lambda row: int(row.unlimited) if row.unlimited or row.limit_bytes else None,
            detail=Detail.STATES,
            briefly=lambda row: 1 if row.unlimited else None,
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
            "Device memory that the shim accounts for live processes (shim region). Absent if it is"
            " unknown which processes live, as without the host's PIDs.",
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
            detail=Detail.ACCOUNTING,
        ),
        Family(
            "vgpu_container_memory_phantom_bytes",
            GAUGE,
            "Memory that slots of dead or killed processes still claim (shim region). Absent if"
            " the sum is more than the device has, or it is unknown which processes live.",
            accounted("phantom"),
            unit="bytes",
            detail=Detail.ACCOUNTING,
        ),
        Family(
            "vgpu_container_processes",
            GAUGE,
            "Processes of the container on the device (NVML process lists).",
            lambda row: row.processes,
            detail=Detail.PROCESSES,
        ),
        Family(
            "vgpu_container_accounted_processes",
            GAUGE,
            "Live processes that the shim accounts memory for (shim region).",
            accounted("processes"),
            detail=Detail.PROCESSES,
        ),
        Family(
            "vgpu_container_core_limit_ratio",
            GAUGE,
            "Core limit, 1 is a whole device. Absent if there is none or it is unknown.",
            lambda row: _ratio(row.core_limit_percent),
            unit="ratio",
            detail=Detail.LIMITS,
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
            detail=Detail.ACCOUNTING,
        ),
    ),
)


def _ratio(percent: int | None) -> Value:
    return None if percent is None else percent / 100


CONTAINERS = FamilyTable(
    title="Containers",
    rows=lambda view: view.usage.containers,
    labels=CONTAINER_LABELS,
    key=lambda row: (row.pod.namespace, row.pod.name, row.container, row.pod.uid),
    families=(
        Family(
            "vgpu_container_info",
            GAUGE,
            "Always 1; the sharing scheme, the source that reported the container, the layout of"
            " its region, its phase, the reason of its limit's state.",
            lambda row: {
                (
                    row.scheme.value,
                    row.source.value,
                    row.layout,
                    row.phase.value,
                    row.limit_reason.value if row.limit_reason else "",
                ): 1
            },
            ("scheme", "source", "layout", "phase", "limit_reason"),
        ),
        Family(
            "vgpu_container_limit_state",
            GAUGE,
            "Always 1; whether the container is limited: `in_place`, `missing`, `different`,"
            " `exceeded`, `none_by_design` or `unknown` (maps, regions, the kubelet's checkpoint,"
            " NVML). The reason is the label `limit_reason` of `vgpu_container_info`.",
            lambda row: {(row.limit_reason.state.value,): 1} if row.limit_reason else {},
            ("state",),
        ),
        Family(
            "vgpu_container_blocked",
            GAUGE,
            "1 while the shim holds the container's kernels back for a higher priority (shim"
            " region, recent_kernel).",
            lambda row: None if row.blocked is None else int(row.blocked),
            detail=Detail.STATES,
            briefly=lambda row: 1 if row.blocked else None,
        ),
        Family(
            "vgpu_container_priority",
            GAUGE,
            "Task priority, 0 is high (shim region). Absent if it is below 0.",
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


SHARING = FamilyTable(
    title="Sharing by NVIDIA's own means",
    note=(
        "Of containers with devices of NVIDIA's device plugin. `sharing` is `exclusive`,"
        " `time-slicing`, `mps`, `mig`, `mig-time-slicing` or `unknown`. A replica is a turn and"
        " no amount of memory: `vgpu_container_shares_allocated` has their number, and no limit"
        " is exported that was not read."
    ),
    rows=lambda view: tuple(row for row in view.usage.shares if row.sharing),
    labels=(*CONTAINER_LABELS, "uuid"),
    key=share_labels,
    families=(
        Family(
            "vgpu_container_sharing_info",
            GAUGE,
            "Always 1; how the device is shared (the kubelet's checkpoint).",
            lambda row: {(row.sharing.value,): 1},
            ("sharing",),
        ),
        Family(
            "vgpu_container_memory_fair_share_bytes",
            GAUGE,
            "The device's memory, divided by its replicas and multiplied by those that the"
            " container holds. Nothing enforces this number.",
            lambda row: row.fair_share_bytes,
            unit="bytes",
        ),
        Family(
            "vgpu_container_process_memory_limit_bytes",
            GAUGE,
            "Memory of the device that MPS lets each process of the container have (control.log of"
            " the MPS daemon, with --collector.bare also the processes' environment). A container"
            " with several processes may have more.",
            lambda row: row.process_limit_bytes,
            unit="bytes",
        ),
        Family(
            "vgpu_container_process_core_limit_ratio",
            GAUGE,
            "Part of the device's threads that MPS lets each process of the container use, 1 is the"
            " whole device (control.log of the MPS daemon, with --collector.bare also the"
            " processes' environment).",
            lambda row: _ratio(row.process_core_limit_percent),
            unit="ratio",
        ),
    ),
)


TOKENS = FamilyTable(
    title="Tokens: the time of a GPU that pods share",
    note=(
        "Only with --collector.tokens, of pods with a share of KubeShare. A pod has one token for"
        " all its containers: `container` is empty if several of them have a share of the GPU. What"
        " the driver reports of them is `vgpu_container_sm_utilization_ratio`."
    ),
    rows=lambda view: view.tokens,
    labels=(*CONTAINER_LABELS, "uuid"),
    key=lambda row: (
        row.tenant.namespace,
        row.tenant.pod,
        row.container,
        row.pod_uid,
        row.tenant.device,
    ),
    families=(
        Family(
            "vgpu_container_token_request_ratio",
            GAUGE,
            "The part of the GPU's time that the pod requests (token daemon).",
            lambda row: row.tenant.request_ratio,
            unit="ratio",
        ),
        Family(
            "vgpu_container_token_limit_ratio",
            GAUGE,
            "The part of the GPU's time that the pod gets at most (token daemon).",
            lambda row: row.tenant.limit_ratio,
            unit="ratio",
        ),
        Family(
            "vgpu_container_token_window_share_ratio",
            GAUGE,
            "The part of the daemon's last window for which the pod had the token (token daemon).",
            lambda row: row.tenant.window_share_ratio,
            unit="ratio",
        ),
        Family(
            "vgpu_container_token_wait_seconds_total",
            MetricType.COUNTER,
            "Time for which the pod waited for tokens that it got (token daemon).",
            lambda row: row.tenant.wait_seconds,
            unit="seconds",
        ),
    ),
)
