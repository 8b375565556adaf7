"""The gauges of HAMi's scheduler, with its names since 2.9 and with those before.

Not here: MIG instances, whose mode our scheduler does not place for, and resource quotas, which
have gauges of our own (``vgpu_extender_quota_used`` and ``…_limit``).
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from scheduler.compat.rows import ContainerShare
from vgpu.metrics.family import Family, FamilyTable, MetricType, Value
from vgpu.model.units import MIB
from vgpu.placement.candidate import UsedGpu
from vgpu.schemes.volcano.key_set import HAMI
from vgpu.schemes.volcano.node import registrations

GAUGE: Final = MetricType.GAUGE

ZONE: Final = "vGPU"
"""The constant label ``zone`` of all these gauges."""

WHOLE: Final = 100
"""The cores of a GPU, in percent, whatever it registers."""


class HamiNames(msgspec.Struct, frozen=True):
    """The names of a version: gauges of a GPU, of a container's share, and their labels.

    ``is_percent`` is whether cores are percent of what the GPU registers, or its units;
    ``ratio_labels`` is how many of the GPU's labels ``ratio`` has.
    """

    memory_limit: str
    core_limit: str
    shared: str
    cores: str
    memory: str
    ratio: str
    overview: str
    share_memory: str
    share_cores: str
    gpu_labels: tuple[str, str, str, str]
    cores_label: str
    size_label: str
    share_labels: tuple[str, str, str, str, str]
    ratio_labels: int
    is_percent: bool


CURRENT: Final = HamiNames(
    "hami_gpu_memory_limit_bytes",
    "hami_gpu_core_limit_ratio",
    "hami_gpu_shared_count",
    "hami_gpu_core_allocated_ratio",
    "hami_gpu_memory_allocated_bytes",
    "hami_node_gpu_memory_allocated_ratio",
    "hami_node_gpu_overview",
    "hami_vgpu_memory_allocated_bytes",
    "hami_vgpu_core_allocated_ratio",
    ("node", "device_uuid", "device_index", "device_type"),
    "device_cores",
    "device_memory_limit",
    ("namespace", "node", "pod", "container_index", "device_uuid"),
    ratio_labels=4,
    is_percent=True,
)
LEGACY: Final = HamiNames(
    "GPUDeviceMemoryLimit",
    "GPUDeviceCoreLimit",
    "GPUDeviceSharedNum",
    "GPUDeviceCoreAllocated",
    "GPUDeviceMemoryAllocated",
    "nodeGPUMemoryPercentage",
    "nodeGPUOverview",
    "vGPUMemoryAllocated",
    "vGPUCoreAllocated",
    ("nodeid", "deviceuuid", "deviceidx", "devicetype"),
    "devicecores",
    "devicememorylimit",
    ("podnamespace", "nodename", "podname", "containeridx", "deviceuuid"),
    ratio_labels=3,
    is_percent=False,
)


class GpuOfNode(msgspec.Struct, frozen=True):
    """A GPU with what is in use of it, its node, and its type as the plugin registers it."""

    node: str
    gpu: UsedGpu
    type: str


class ShareOfNode(msgspec.Struct, frozen=True):
    """A container's share, its node, and the cores of its GPU."""

    node: str
    held: ContainerShare
    total_milli: int


def hami() -> tuple[FamilyTable, ...]:
    """The gauges since HAMi 2.9."""
    return _tables(CURRENT)


def hami_legacy() -> tuple[FamilyTable, ...]:
    """The gauges before HAMi 2.9, which later versions have with ``--legacy-metrics``."""
    return _tables(LEGACY)


def gpus(view: Any) -> Iterator[GpuOfNode]:
    """Every GPU, idle ones included, with what is reserved."""
    for node in view.held.hami:
        known = registrations(node.node, HAMI) if node.gpus else ()
        types = {each.uuid: each.type for each in known}
        for gpu in node.gpus:
            yield GpuOfNode(node.node.name, gpu, types.get(gpu.device.uuid, ""))


def shares(view: Any) -> Iterator[ShareOfNode]:
    """Every share of a container of a bound pod."""
    for node in view.held.hami:
        total = {gpu.device.name: gpu.device.cores_milli for gpu in node.gpus}
        for _, holding in node.pods:
            for held in holding.containers:
                if held.share.device in total:
                    yield ShareOfNode(node.node.name, held, total[held.share.device])


def _cores(used_milli: int, total_milli: int, *, is_percent: bool) -> int:
    """Cores as the version counts them, rounded up."""
    if not is_percent:
        return -(-used_milli // 10)
    return -(-used_milli * WHOLE // total_milli) if total_milli else 0


def _tables(names: HamiNames) -> tuple[FamilyTable, ...]:
    def gpu_key(row: GpuOfNode) -> tuple[str, ...]:
        device = row.gpu.device
        return (row.node, device.uuid, str(device.index), row.type, ZONE)

    def key_with_cores(row: GpuOfNode) -> tuple[str, ...]:
        return (*gpu_key(row), str(row.gpu.device.cores_milli // 10))

    def overview_key(row: GpuOfNode) -> tuple[str, ...]:
        return (*key_with_cores(row), str(row.gpu.capacity_bytes // MIB))

    def share_key(row: ShareOfNode) -> tuple[str, ...]:
        ref = row.held.pod
        return (
            ref.namespace,
            row.node,
            ref.name,
            str(row.held.number),
            row.held.share.device,
            ZONE,
        )

    def used(row: GpuOfNode) -> Value:
        return row.gpu.memory_bytes

    def gauge(name: str, about: str, value: Callable[[Any], Value]) -> Family:
        return Family(name, GAUGE, about, value)

    gpu_labels = (*names.gpu_labels, "zone")
    percent = "percent of the GPU" if names.is_percent else "percent of a GPU without scaling"
    return (
        FamilyTable(
            "GPUs",
            gpus,
            gpu_labels,
            gpu_key,
            (
                gauge(
                    names.memory_limit,
                    "Memory of the GPU, in bytes.",
                    lambda row: row.gpu.capacity_bytes,
                ),
                gauge(
                    names.core_limit,
                    f"Cores of the GPU, in {percent}.",
                    lambda row: WHOLE if names.is_percent else row.gpu.device.cores_milli // 10,
                ),
                gauge(names.shared, "Shares of the GPU that are held.", lambda row: row.gpu.users),
                gauge(
                    names.cores,
                    f"Cores of these shares, in {percent}.",
                    lambda row: _cores(
                        row.gpu.cores_milli,
                        row.gpu.device.cores_milli,
                        is_percent=names.is_percent,
                    ),
                ),
            ),
        ),
        FamilyTable(
            "Used part of GPUs",
            gpus,
            (*names.gpu_labels[: names.ratio_labels], "zone"),
            lambda row: (*gpu_key(row)[: names.ratio_labels], ZONE),
            (
                gauge(
                    names.ratio,
                    "Memory of these shares, as a part of the GPU's.",
                    lambda row: (
                        row.gpu.memory_bytes / row.gpu.capacity_bytes
                        if row.gpu.capacity_bytes
                        else None
                    ),
                ),
            ),
        ),
        FamilyTable(
            "Memory of GPUs",
            gpus,
            (*gpu_labels, names.cores_label),
            key_with_cores,
            (gauge(names.memory, "Memory of these shares, in bytes.", used),),
        ),
        FamilyTable(
            "Overview of GPUs",
            gpus,
            (*gpu_labels, names.cores_label, names.size_label),
            overview_key,
            (gauge(names.overview, "Memory of these shares, in bytes.", used),),
        ),
        FamilyTable(
            "Shares of containers",
            shares,
            (*names.share_labels, "zone"),
            share_key,
            (
                gauge(
                    names.share_memory,
                    "Memory of the container's share, in bytes.",
                    lambda row: row.held.share.memory_bytes,
                ),
                gauge(
                    names.share_cores,
                    f"Cores of the container's share, in {percent}.",
                    lambda row: _cores(
                        row.held.share.cores_milli or 0,
                        row.total_milli,
                        is_percent=names.is_percent,
                    ),
                ),
            ),
        ),
    )
