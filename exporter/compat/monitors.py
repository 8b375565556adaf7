"""The monitors of Volcano and HAMi: HAMi's before 2.9 has Volcano's names with other labels."""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec

from exporter.view import ExporterView, GpuRow
from vgpu.ledger.container_usage import ContainerUsage, ShareUsage
from vgpu.metrics.family import Family, FamilyTable, Labelled, MetricType, Value

GAUGE = MetricType.GAUGE

ZONE = "vGPU"
"""The constant label zone of HAMi's and Volcano's monitors."""


class HostRow(msgspec.Struct, frozen=True, gc=False):
    """A GPU, for the host families."""

    gpu: GpuRow
    node: str

    @property
    def device_type(self) -> str:
        """As HAMi's monitor spells it."""
        return "NVIDIA-" + self.gpu.gpu.info.get("name", "")


class VDeviceRow(msgspec.Struct, frozen=True, gc=False):
    """A device of a region whose pod is known by name.

    ``last_kernel_time`` is its container's, ``now`` the time of the sample, both only where a time
    is needed. ``mig`` is what the driver reports of a MIG instance.
    """

    share: ShareUsage
    last_kernel_time: int | None = None
    now: float = 0.0
    mig: Mapping[str, str] | None = None


def hosts(view: ExporterView) -> Iterator[HostRow]:
    """GPUs that answer, without MIG instances."""
    for row in view.gpus:
        if row.answers and not row.gpu.parent:
            yield HostRow(row, view.node)


def _regions(view: ExporterView) -> Iterator[tuple[ContainerUsage, ShareUsage]]:
    """Devices of regions: the original monitors know containers only by their regions."""
    for container in view.usage.containers:
        if container.pod.name:
            for share in container.shares.values():
                if share.accounted is not None:
                    yield container, share


def vdevices(view: ExporterView) -> Iterator[VDeviceRow]:
    """The rows of these devices."""
    return (VDeviceRow(share) for _, share in _regions(view))


def timed_vdevices(view: ExporterView) -> Iterator[VDeviceRow]:
    """The same with the time: their numbers change although nothing happens."""
    for container, share in _regions(view):
        yield VDeviceRow(share, container.last_kernel_time, view.timestamp)


def host_key(row: HostRow) -> tuple[str, ...]:
    """(index, uuid), which every host family has."""
    gpu = row.gpu.gpu
    return (str(gpu.index), gpu.uuid)


def vdevice_key(row: VDeviceRow) -> tuple[str, ...]:
    """The labels of every container family, and the zone."""
    share = row.share
    index = str(share.vdevice)
    return (share.pod.namespace, share.pod.name, share.container, index, share.device, ZONE)


def host_used(row: HostRow) -> Value:
    """Memory in use as nvmlDeviceGetMemoryInfo version 1 has it: the reserve counts as used."""
    readings = row.gpu.gpu.readings
    used = readings.get(("memory_used_bytes",))
    return None if used is None else used + readings.get(("memory_reserved_bytes",), 0)


def percent(name: str) -> Callable[[HostRow], Value]:
    """A ratio reading as 0-100."""

    def pick(row: HostRow) -> Value:
        ratio = row.gpu.gpu.readings.get((name,))
        return None if ratio is None else round(ratio * 100, 6)

    return pick


def reported(field: str) -> Callable[[VDeviceRow], Value]:
    """A field of the region's accounted memory."""

    def pick(row: VDeviceRow) -> Value:
        value: Value = getattr(row.share.accounted, field)
        return value

    return pick


def limit(row: VDeviceRow) -> Value:
    """The region's limit, 0 for none, as the originals have it; None if it is unknown."""
    share = row.share
    return 0 if share.unlimited else share.limit_bytes


def utilization(row: VDeviceRow) -> Value:
    """Percent, summed over processes; can pass 100."""
    ratio = row.share.accounted.sm_utilization if row.share.accounted else None
    return None if ratio is None else round(ratio * 100, 6)


def last_kernel(row: VDeviceRow) -> Value:
    """Seconds since the container last launched a kernel."""
    then = row.last_kernel_time
    return max(0, int(row.now) - then) if then else None


def offset_breakdown(row: VDeviceRow) -> Labelled:
    """The total with its parts as labels, as the originals have it."""
    use = row.share.accounted
    if use is None or use.total is None or use.other is None:
        return {}
    return {(str(use.context), str(use.module), str(use.data), str(use.other)): use.total}


def mig_vdevices(view: ExporterView) -> Iterator[VDeviceRow]:
    """The vdevices that are MIG instances."""
    mig = {row.gpu.uuid: row.gpu.info for row in view.gpus if row.gpu.parent}
    for row in vdevices(view):
        if mig.get(row.share.device):
            yield msgspec.structs.replace(row, mig=mig[row.share.device])


def one(_: object) -> Value:
    """The value of an info metric."""
    return 1


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
