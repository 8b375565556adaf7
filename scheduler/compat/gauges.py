"""The gauges of the original schedulers, so that existing dashboards keep working; pure.

Names, labels and units are the originals', wrong units included: those of Volcano's scheduler, and
of HAMi's with its names since 2.9 and with those before. The numbers come from the view by which
the scheduler decides: what bound pods hold, and what is reserved for pods that are being bound. A
node whose view cannot be read has no series.

Not here: MIG instances, whose mode our scheduler does not place for, and resource quotas, which
have gauges of our own (``vgpu_extender_quota_used`` and ``…_limit``).
"""

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from typing import Any, Final

import msgspec

from scheduler.compat.rows import ContainerShare, NodeHoldings
from vgpu.metrics.family import Family, FamilyTable, MetricType, Value
from vgpu.metrics.volcano_scheduler import HeldRow, volcano_scheduler_tables
from vgpu.model.allocation import Share
from vgpu.model.units import MIB
from vgpu.placement.candidate import UsedGpu
from vgpu.schemes.volcano.key_set import HAMI
from vgpu.schemes.volcano.node import registrations


class SchedulerCompat(StrEnum):
    """The values of ``--compat``."""

    VOLCANO = "volcano"
    HAMI = "hami"
    HAMI_LEGACY = "hami-legacy"

    @property
    def system(self) -> str:
        """The name of the sharing system in :mod:`vgpu.schemes.registry`."""
        return "volcano" if self is SchedulerCompat.VOLCANO else "hami"


GAUGE: Final = MetricType.GAUGE

ZONE: Final = "vGPU"
"""The constant label ``zone`` of all gauges of HAMi."""

WHOLE: Final = 100
"""The cores of a GPU, in percent, whatever it registers."""


class HamiNames(msgspec.Struct, frozen=True):
    """The names of a version of HAMi: gauges of a GPU, of a container's share, and their labels.

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


HAMI_NAMES: Final = HamiNames(
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
HAMI_LEGACY_NAMES: Final = HamiNames(
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
    """The gauges of HAMi's scheduler since 2.9."""
    return _hami_tables(HAMI_NAMES)


def hami_legacy() -> tuple[FamilyTable, ...]:
    """The gauges of HAMi's scheduler before 2.9; later ones need ``--legacy-metrics``."""
    return _hami_tables(HAMI_LEGACY_NAMES)


def _hami_gpus(view: Any) -> Iterator[GpuOfNode]:
    """Every GPU, idle ones included, with what is reserved."""
    for node in view.held.hami:
        known = registrations(node.node, HAMI) if node.gpus else ()
        types = {each.uuid: each.type for each in known}
        for gpu in node.gpus:
            yield GpuOfNode(node.node.name, gpu, types.get(gpu.device.uuid, ""))


def _hami_shares(view: Any) -> Iterator[ShareOfNode]:
    """Every share of a container of a bound pod."""
    for node in view.held.hami:
        total = {gpu.device.name: gpu.device.cores_milli for gpu in node.gpus}
        for _, holding in node.pods:
            for held in holding.containers:
                if held.share.device in total:
                    yield ShareOfNode(node.node.name, held, total[held.share.device])


def _cores(used_milli: int, total_milli: int, *, is_percent: bool) -> int:
    """Cores as this version of HAMi counts them, rounded up."""
    if not is_percent:
        return -(-used_milli // 10)
    return -(-used_milli * WHOLE // total_milli) if total_milli else 0


def _hami_tables(names: HamiNames) -> tuple[FamilyTable, ...]:
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
            _hami_gpus,
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
            _hami_gpus,
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
            _hami_gpus,
            (*gpu_labels, names.cores_label),
            key_with_cores,
            (gauge(names.memory, "Memory of these shares, in bytes.", used),),
        ),
        FamilyTable(
            "Overview of GPUs",
            _hami_gpus,
            (*gpu_labels, names.cores_label, names.size_label),
            overview_key,
            (gauge(names.overview, "Memory of these shares, in bytes.", used),),
        ),
        FamilyTable(
            "Shares of containers",
            _hami_shares,
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


def volcano() -> tuple[FamilyTable, ...]:
    """The vGPU gauges of Volcano's scheduler."""
    return volcano_scheduler_tables(_volcano_gpus, _volcano_pods)


def _volcano_gpus(view: Any) -> Iterator[HeldRow]:
    """Every GPU, idle ones included, with what is reserved."""
    for node in view.held.volcano:
        for gpu in node.gpus:
            yield HeldRow(
                gpu.device.name,
                node.node.name,
                "",
                node.unit_bytes,
                gpu.device.memory_bytes,
                gpu.memory_bytes,
                gpu.cores_milli,
                gpu.users,
            )


def _volcano_pods(view: Any) -> Iterator[HeldRow]:
    """A row for each pod name on each GPU."""
    for node in view.held.volcano:
        sizes = {gpu.device.name: gpu.device.memory_bytes for gpu in node.gpus}
        for (device, pod), shares in _shares_by_name(node).items():
            if device in sizes:
                memory = [share.memory_bytes for share in shares]
                yield HeldRow(
                    device,
                    node.node.name,
                    pod,
                    node.unit_bytes,
                    sizes[device],
                    None if None in memory else sum(filter(None, memory)),
                    sum(share.cores_milli or 0 for share in shares),
                    len(shares),
                )


def _shares_by_name(node: NodeHoldings) -> dict[tuple[str, str], list[Share]]:
    shares: dict[tuple[str, str], list[Share]] = {}
    for ref, holding in node.pods:
        for share in holding.peak:
            shares.setdefault((share.device, ref.name), []).append(share)
    return shares


SETS: Final[dict[SchedulerCompat, Callable[[], tuple[FamilyTable, ...]]]] = {
    SchedulerCompat.VOLCANO: volcano,
    SchedulerCompat.HAMI: hami,
    SchedulerCompat.HAMI_LEGACY: hami_legacy,
}


def tables(sets: Iterable[SchedulerCompat]) -> tuple[FamilyTable, ...]:
    """The tables of the chosen sets, in the order of :class:`SchedulerCompat`."""
    chosen = set(sets)
    return tuple(table for name, make in SETS.items() if name in chosen for table in make())
