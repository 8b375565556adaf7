"""Volcano's monitor, and HAMi's before 2.9: the same names with different labels."""

from collections.abc import Callable
from typing import Final

from exporter.compat.rows import (
    GAUGE,
    ZONE,
    HostRow,
    host_key,
    host_used,
    hosts,
    last_kernel,
    limit,
    mig_vdevices,
    offset_breakdown,
    one,
    percent,
    reported,
    timed_vdevices,
    utilization,
    vdevice_key,
    vdevices,
)
from vgpu.metrics.family import Family, FamilyTable

LEGACY_VDEVICE_LABELS = ("podnamespace", "podname", "ctrname", "vdeviceid", "deviceuuid", "zone")


def _legacy_hosts(
    labels: tuple[str, ...], key: Callable[[HostRow], tuple[str, ...]]
) -> FamilyTable:
    return FamilyTable(
        title="GPUs",
        rows=hosts,
        labels=labels,
        key=key,
        families=(
            Family("HostGPUMemoryUsage", GAUGE, "GPU device memory usage in bytes.", host_used),
            Family(
                "HostCoreUtilization",
                GAUGE,
                "GPU core utilization, 0-100.",
                percent("utilization_ratio"),
            ),
        ),
    )


def _legacy_vdevices(breakdown: bool) -> FamilyTable:
    description = "Container device memory as the shim accounts it, in bytes."
    memory = (
        Family(
            "Device_memory_desc_of_container",
            GAUGE,
            description,
            offset_breakdown,
            ("context", "module", "data", "offset"),
        )
        if breakdown
        else Family("Device_memory_desc_of_container", GAUGE, description, reported("total"))
    )
    return FamilyTable(
        title="Containers",
        rows=vdevices,
        labels=LEGACY_VDEVICE_LABELS,
        key=vdevice_key,
        families=(
            Family(
                "vGPU_device_memory_usage_in_bytes",
                GAUGE,
                "vGPU device memory usage as the shim accounts it, in bytes.",
                reported("total"),
            ),
            Family(
                "vGPU_device_memory_limit_in_bytes",
                GAUGE,
                "vGPU device memory limit in bytes, 0 is none.",
                limit,
            ),
            memory,
            Family(
                "Device_utilization_desc_of_container",
                GAUGE,
                "Container device utilization, 0-100 summed over processes.",
                utilization,
            ),
        ),
    )


LAST_KERNELS: Final = FamilyTable(
    title="Last kernels of the containers",
    rows=timed_vdevices,
    labels=LEGACY_VDEVICE_LABELS,
    key=vdevice_key,
    families=(
        Family(
            "Device_last_kernel_of_container",
            GAUGE,
            "Seconds since the container last launched a kernel.",
            last_kernel,
        ),
    ),
)


def volcano(breakdown: bool = False) -> tuple[FamilyTable, ...]:
    """The set of volcano-vgpu-device-plugin's monitor."""
    labels = ("deviceidx", "deviceuuid", "zone")
    return (
        _legacy_hosts(labels, lambda row: (*host_key(row), ZONE)),
        _legacy_vdevices(breakdown),
        LAST_KERNELS,
    )


def hami_legacy(breakdown: bool = False) -> tuple[FamilyTable, ...]:
    """The set of HAMi's vGPUmonitor before 2.9, or with --legacy-metrics."""
    labels = ("nodeid", "deviceidx", "deviceuuid", "devicetype", "zone")
    mig = FamilyTable(
        title="MIG instances",
        rows=mig_vdevices,
        labels=(*LEGACY_VDEVICE_LABELS, "instanceid"),
        key=lambda row: (*vdevice_key(row), (row.mig or {}).get("gpu_instance_id", "")),
        families=(Family("MigInfo", GAUGE, "Always 1; a MIG instance in a container.", one),),
    )
    return (
        _legacy_hosts(labels, lambda row: (row.node, *host_key(row), row.device_type, ZONE)),
        _legacy_vdevices(breakdown),
        LAST_KERNELS,
        mig,
    )
