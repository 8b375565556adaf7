"""Families of the node as a whole: numbers of GPUs, regions and pods."""

from collections.abc import Sized

from exporter.units import fitting
from exporter.view import ExporterView
from vgpu.metrics.family import Family, FamilyTable, Labelled, MetricType, Number, Value

GAUGE = MetricType.GAUGE


def gpus_that_answer(view: ExporterView) -> Value:
    """Number of GPUs that answer; None if there is no data of the driver."""
    if view.driver is None or not has_worked(view, "nvml"):
        return None
    return sum(row.answers and not row.gpu.parent for row in view.gpus)


def length(rows: Sized | None) -> Value:
    """Number of rows; None if it is unknown."""
    return None if rows is None else len(rows)


def has_worked(view: ExporterView, collector: str) -> bool:
    """Whether the collector's last pass has read data."""
    return any(row.name == collector and row.success for row in view.collectors)


def pods_by_phase(view: ExporterView) -> Labelled:
    """Number of GPU pods by phase and reason."""
    counts: dict[tuple[str, ...], Number] = {}
    for status in view.statuses or ():
        if status.wants_gpu:
            key = (status.phase, status.reason)
            counts[key] = counts.get(key, 0) + 1
    return counts


NODE = FamilyTable(
    title="The node",
    rows=lambda view: (view,),
    labels=(),
    key=lambda _: (),
    families=(
        Family(
            "vgpu_node_info",
            GAUGE,
            "Always 1; the node's name (--node-name), whatever the scrape job calls its target.",
            lambda view: {(view.node,): 1},
            ("node",),
        ),
        Family(
            "vgpu_gpus",
            GAUGE,
            "GPUs that answer, MIG instances not counted.",
            gpus_that_answer,
        ),
        Family(
            "vgpu_gpus_expected",
            GAUGE,
            "--nvml.expected-gpus, else the most GPUs that the driver has counted since the"
            " exporter started, whether they answer or not (nvmlDeviceGetCount).",
            lambda view: view.gpus_expected,
        ),
        Family(
            "vgpu_orphaned_regions",
            GAUGE,
            "Shim regions whose pod is gone from this node (cgroups and log folders).",
            lambda view: length(view.usage.orphans),
        ),
        Family(
            "vgpu_released_regions",
            GAUGE,
            "Shim regions of pods that have ended but still exist, and of init containers that are"
            " known to be done; their series are withdrawn.",
            lambda view: length(view.usage.released),
        ),
        Family(
            "vgpu_library_writers",
            GAUGE,
            "Containers that can change the node's file of a library that limits, by library: its"
            " folder is mounted into them to write (/proc/<pid>/maps and mountinfo, with"
            " --collector.bare).",
            lambda view: {
                (library,): len(found)
                for library, found in (view.usage.library_writers or {}).items()
            },
            ("library",),
        ),
        Family(
            "vgpu_pods",
            GAUGE,
            "Pods of this node that ask for a shared GPU, by phase and reason (--collector.api or"
            " --pods).",
            pods_by_phase,
            ("phase", "reason"),
        ),
    ),
)

UNITS = FamilyTable(
    title="Units of memory",
    rows=lambda view: view.units,
    labels=("scheme",),
    key=lambda row: (row.scheme,),
    families=(
        Family(
            "vgpu_memory_unit_bytes",
            GAUGE,
            "Size of one unit of the scheme's memory resource, as set (--volcano.memory-factor,"
            " --gpushare.memory-unit).",
            lambda row: row.unit_bytes,
            unit="bytes",
        ),
        Family(
            "vgpu_memory_unit_confirmed",
            GAUGE,
            "0 if data of the node contradicts this unit, so that all sizes of the scheme may be"
            " wrong by the same factor: a share below 64 MiB, or what the Node object registers and"
            " advertises (--collector.api).",
            lambda row: int(row.doubt is None),
        ),
        Family(
            "vgpu_memory_unit_fitting_bytes",
            GAUGE,
            "The least and the most that the unit can be by this data, where it is not confirmed.",
            fitting,
            ("bound",),
            unit="bytes",
        ),
    ),
    note="Only of schemes whose unit is set.",
)
