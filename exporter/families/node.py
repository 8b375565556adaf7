"""Families of the node as a whole: how many cards, regions and pods."""

from exporter.view import View
from vgpu.metrics.family import Family, Kind, Labelled, Number, Table, Value

GAUGE = Kind.GAUGE


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


NODE = Table(
    title="The node",
    rows=lambda view: (view,),
    labels=(),
    key=lambda _: (),
    families=(
        Family(
            "vgpu_gpus",
            GAUGE,
            "Cards that answer, MIG instances not counted (nvmlDeviceGetCount).",
            gpus_that_answer,
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
            pods_by_phase,
            ("phase", "reason"),
        ),
    ),
)
