"""HAMi's monitor since 2.9."""

from exporter.compat.rows import (
    GAUGE,
    ZONE,
    VDeviceRow,
    host_key,
    host_used,
    hosts,
    last_kernel,
    limit,
    mig_vdevices,
    one,
    percent,
    reported,
    timed_vdevices,
    utilization,
    vdevice_key,
    vdevices,
)
from vgpu.metrics.family import Family, FamilyTable, Labelled

HAMI_VDEVICE_LABELS = ("namespace", "pod", "container", "vdevice_index", "device_uuid", "zone")


def _mig_labels(row: VDeviceRow) -> Labelled:
    info = row.mig or {}
    names = ("mig_profile", "gpu_instance_id", "compute_instance_id")
    return {(row.share.device, *(info.get(name, "") for name in names)): 1}


def hami(breakdown: bool = False) -> tuple[FamilyTable, ...]:  # noqa: ARG001  # one shape for all sets
    """The set of HAMi's vGPUmonitor since 2.9. Its ``_ratio`` families are 0-100."""
    labels = ("node", "device_index", "device_uuid", "device_type", "zone")
    return (
        FamilyTable(
            title="GPUs",
            rows=hosts,
            labels=labels,
            key=lambda row: (row.node, *host_key(row), row.device_type, ZONE),
            families=(
                Family(
                    "hami_host_gpu_memory_used_bytes",
                    GAUGE,
                    "GPU device memory usage in bytes.",
                    host_used,
                ),
                Family(
                    "hami_host_gpu_utilization_ratio",
                    GAUGE,
                    "GPU utilization, 0-100 despite its name.",
                    percent("utilization_ratio"),
                ),
            ),
        ),
        FamilyTable(
            title="GPUs, without the node label",
            rows=hosts,
            labels=labels[1:],
            key=lambda row: (*host_key(row), row.device_type, ZONE),
            families=(
                Family(
                    "hami_host_gpu_memory_controller_utilization_ratio",
                    GAUGE,
                    "GPU memory controller utilization, 0-100 despite its name.",
                    percent("memory_utilization_ratio"),
                ),
            ),
        ),
        FamilyTable(
            title="Containers",
            rows=vdevices,
            labels=HAMI_VDEVICE_LABELS,
            key=vdevice_key,
            families=(
                Family(
                    "hami_vgpu_memory_used_bytes",
                    GAUGE,
                    "vGPU memory usage as the shim accounts it, in bytes.",
                    reported("total"),
                ),
                Family(
                    "hami_vgpu_memory_limit_bytes",
                    GAUGE,
                    "vGPU memory limit in bytes, 0 is none.",
                    limit,
                ),
                Family(
                    "hami_container_device_memory_bytes",
                    GAUGE,
                    "The same as hami_vgpu_memory_used_bytes.",
                    reported("total"),
                ),
                Family(
                    "hami_vgpu_memory_context_bytes",
                    GAUGE,
                    "vGPU memory of contexts in bytes.",
                    reported("context"),
                ),
                Family(
                    "hami_vgpu_memory_module_bytes",
                    GAUGE,
                    "vGPU memory of modules in bytes.",
                    reported("module"),
                ),
                Family(
                    "hami_vgpu_memory_buffer_bytes",
                    GAUGE,
                    "vGPU memory of buffers in bytes.",
                    reported("data"),
                ),
                Family(
                    "hami_container_device_utilization_ratio",
                    GAUGE,
                    "Container device utilization, 0-100 summed over processes.",
                    utilization,
                ),
            ),
        ),
        FamilyTable(
            title="Last kernels of the containers",
            rows=timed_vdevices,
            labels=HAMI_VDEVICE_LABELS,
            key=vdevice_key,
            families=(
                Family(
                    "hami_container_last_kernel_elapsed_seconds",
                    GAUGE,
                    "Seconds since the container last launched a kernel.",
                    last_kernel,
                ),
            ),
        ),
        FamilyTable(
            title="MIG instances",
            rows=mig_vdevices,
            labels=HAMI_VDEVICE_LABELS,
            key=vdevice_key,
            families=(
                Family(
                    "hami_mig_device_info",
                    GAUGE,
                    "Always 1; a MIG instance in a container.",
                    _mig_labels,
                    ("mig_uuid", "profile", "gpu_instance_id", "compute_instance_id"),
                ),
            ),
        ),
        FamilyTable(
            title="Build",
            rows=lambda view: (view.build,),
            labels=("version", "revision", "build_date", "go_version", "compiler", "platform"),
            key=lambda build: (
                build.get("version", ""),
                build.get("revision", ""),
                "",
                "",
                "python" + build.get("python_version", ""),
                build.get("platform", ""),
            ),
            families=(
                Family("hami_build_info", GAUGE, "Always 1; vgpu's build in HAMi's place.", one),
            ),
        ),
    )
