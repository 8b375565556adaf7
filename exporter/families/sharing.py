"""Families of NVIDIA's own sharing: replicas, and how a container shares its device."""

from exporter.families.containers import CONTAINER_LABELS, share_labels
from vgpu.metrics.family import Family, FamilyTable, MetricType, Value

GAUGE = MetricType.GAUGE

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


def _ratio(percent: int | None) -> Value:
    return None if percent is None else percent / 100
