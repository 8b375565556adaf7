"""The alerts of the GPUs themselves: errors, repairs, heat, and memory outside containers."""

from typing import Final

from grafana.promql import Alert, AlertSeverity, RuleGroup, any_of, gained
from grafana.settings import (
    ECC_WINDOW,
    FLAPS,
    GAP_RATIO,
    POWER_BRAKE,
    THERMAL,
    XID_SECONDS,
    XIDS_CRITICAL,
    XIDS_KNOWN,
    XIDS_WARNING,
)
from grafana.templates import COUNT, RATIO, THE_GPU, THE_NODE, TIME

CRITICAL, WARNING, INFO = AlertSeverity.CRITICAL, AlertSeverity.WARNING, AlertSeverity.INFO

ECC_ERRORS: Final = 'vgpu_gpu_ecc_errors_total{type="uncorrected", lifetime="volatile"}'

DEVICES: Final = RuleGroup(
    "vgpu-devices",
    (
        Alert(
            "VgpuGpuMissing",
            CRITICAL,
            "instance:vgpu_gpus_missing:max > 0",
            "5m",
            f"A GPU is missing on {THE_NODE}",
            f"{COUNT} GPUs do not answer. First: cordon the node, see which GPU is gone in"
            " vgpu_gpu_up and why in dmesg (XID 79: it fell off the bus).",
        ),
        Alert(
            "VgpuXidCritical",
            CRITICAL,
            "time() - vgpu_gpu_xid_last_timestamp_seconds"
            f'{{xid=~"{any_of(XIDS_CRITICAL)}"}} < {XID_SECONDS}',
            "",
            f"XID {{{{ $labels.xid }}}} on {THE_GPU}",
            f"Reported {TIME} ago: the GPU is broken until it is reset or replaced. First: cordon"
            " the node and see which containers use the GPU in vgpu_container_memory_used_bytes.",
        ),
        Alert(
            "VgpuXidWarning",
            WARNING,
            "time() - vgpu_gpu_xid_last_timestamp_seconds"
            f'{{xid=~"{any_of(XIDS_WARNING)}"}} < {XID_SECONDS}',
            "",
            f"XID {{{{ $labels.xid }}}} on {THE_GPU}",
            f"Reported {TIME} ago: the GPU works on, or the XID alone does not show how severe the"
            " error is. First: find this XID in the runbook's table, and what the kernel's log has"
            " beside it.",
        ),
        Alert(
            "VgpuXidUnknown",
            INFO,
            "time() - vgpu_gpu_xid_last_timestamp_seconds"
            f'{{xid!~"{any_of(XIDS_KNOWN)}"}} < {XID_SECONDS}',
            "",
            f"XID {{{{ $labels.xid }}}}, which is not known, on {THE_GPU}",
            f"Reported {TIME} ago: no other alert knows this XID. First: look it up in NVIDIA's XID"
            " catalog, and see in the kernel's log what was reported beside it.",
        ),
        Alert(
            "VgpuXidsUnheard",
            INFO,
            "vgpu_gpu_xid_watched == 0",
            "15m",
            f"XID errors of {THE_GPU} are not recorded",
            "The absence of XID series means nothing for this GPU. First: check whether the"
            " collector xid is switched off; else the exporter's log has the driver's reason.",
        ),
        Alert(
            "VgpuEccUncorrected",
            WARNING,
            f"{gained(ECC_ERRORS, ECC_WINDOW)} > 0",
            "",
            f"Uncorrected memory errors on {THE_GPU}",
            f"{COUNT} within a day; affected programs have failed or computed wrong results."
            " First: look for XIDs 48, 94 and 95, then reset the GPU when it is free.",
        ),
        Alert(
            "VgpuRowRemapFailed",
            CRITICAL,
            "vgpu_gpu_row_remap_failure == 1",
            "",
            f"The memory of {THE_GPU} can no longer be repaired",
            "A remapping of memory rows has failed: no spare rows are left. First: cordon the node,"
            " and have the GPU replaced.",
        ),
        Alert(
            "VgpuResetDue",
            WARNING,
            "vgpu_gpu_row_remap_pending == 1 or vgpu_gpu_retired_pages_pending == 1",
            "1h",
            f"{THE_GPU} waits for a reset",
            "Broken memory is retired only when the GPU is reset. First: drain the node at a"
            " suitable time, and run nvidia-smi --gpu-reset or reboot.",
        ),
        Alert(
            "VgpuThermalSlowdown",
            WARNING,
            f'vgpu_gpu_clock_event_active{{reason=~"{any_of(THERMAL)}"}} == 1',
            "5m",
            f"{THE_GPU} is too hot",
            "The driver slows it down ({{ $labels.reason }}). First: compare its temperature with"
            " its neighbours', then look at fans, airflow and the room.",
            keep=FLAPS,
        ),
        Alert(
            "VgpuPowerBrake",
            WARNING,
            f'vgpu_gpu_clock_event_active{{reason=~"{any_of(POWER_BRAKE)}"}} == 1',
            "5m",
            f"{THE_GPU} is held down by its power supply",
            "The machine asserts the external power brake. First: look at the power supplies and"
            " the power cap of chassis and rack.",
            keep=FLAPS,
        ),
        Alert(
            "VgpuAttributionGap",
            WARNING,
            f"vgpu_gpu_memory_unattributed_bytes / vgpu_gpu_memory_total_bytes > {GAP_RATIO}",
            "15m",
            f"Memory of {THE_GPU} is used outside containers",
            f"{RATIO} of it is used, and no scheduler counts it. First: run vgpu top on the node,"
            " or nvidia-smi, and find the owners of the processes.",
            keep=FLAPS,
        ),
    ),
)
