"""Families of the ledger: what is allocated, whether it is used or not, and what disagrees."""

from exporter.allocations import conflict_counts
from exporter.families.containers import CONTAINER_LABELS
from exporter.view import ExporterView
from vgpu.ledger import PRECEDENCE
from vgpu.metrics.family import Family, FamilyTable, Labelled, MetricType, Value
from vgpu.units import WHOLE_DEVICE_MILLI

GAUGE = MetricType.GAUGE

DEVICE_ALLOCATIONS = FamilyTable(
    title="Allocations of the devices",
    note=(
        "What the ledger has allocated, used or not, as the scheduler and the kubelet see it:"
        " promised shares (phase `assumed`) are in it. A pod's init and app containers run one"
        " after another, so of the two the larger counts."
    ),
    rows=lambda view: view.books.devices if view.books else (),
    labels=("uuid",),
    key=lambda row: (row.device.name,),
    families=(
        Family(
            "vgpu_gpu_memory_allocated_bytes",
            GAUGE,
            "Memory given to containers (the ledger). Absent while the size of a share is unknown.",
            lambda row: row.memory_bytes,
            unit="bytes",
        ),
        Family(
            "vgpu_gpu_core_allocated_ratio",
            GAUGE,
            "Cores given to containers, 1 is the whole device; shares without promised cores count"
            " as none (the ledger).",
            lambda row: _ratio(row.cores_milli),
            unit="ratio",
        ),
        Family(
            "vgpu_gpu_shares_allocated",
            GAUGE,
            "Shares of the device that containers hold (the ledger).",
            lambda row: row.shares,
        ),
    ),
)

CONTAINER_ALLOCATIONS = FamilyTable(
    title="Allocations of the containers",
    note=(
        "What a container was given of a device; what is enforced is its limit, above. `container`"
        " is empty where a share is the whole pod's, `uuid` where the device is unknown."
    ),
    rows=lambda view: view.books.holdings if view.books else (),
    labels=(*CONTAINER_LABELS, "uuid"),
    key=lambda row: (
        row.pod.namespace,
        row.pod.name,
        row.container,
        row.pod.uid,
        row.share.device,
    ),
    families=(
        Family(
            "vgpu_container_memory_allocated_bytes",
            GAUGE,
            "Memory of the device that the container was given (the ledger). Absent if unknown.",
            lambda row: row.share.memory_bytes,
            unit="bytes",
        ),
        Family(
            "vgpu_container_core_allocated_ratio",
            GAUGE,
            "Cores of the device that it was given, 1 is the whole device (the ledger). Absent if"
            " none are promised.",
            lambda row: _ratio(row.share.cores_milli),
            unit="ratio",
        ),
        Family(
            "vgpu_container_shares_allocated",
            GAUGE,
            "Shares of the device that it holds (the ledger).",
            lambda row: row.slots,
        ),
    ),
)


def _ratio(cores_milli: int | None) -> Value:
    return None if cores_milli is None else cores_milli / WHOLE_DEVICE_MILLI


def _conflicts(view: ExporterView) -> Labelled:
    """Every type, so that a rule on one of them never meets an absent series."""
    if view.books is None:
        return {}
    return {(kind.value,): count for kind, count in conflict_counts(view.books.ledger).items()}


def _sources(view: ExporterView) -> Labelled:
    if view.books is None:
        return {}
    read = view.books.ledger.read
    return {(source.value,): int(source in read) for source in PRECEDENCE}


LEDGER = FamilyTable(
    title="The ledger",
    note="Of each conflict the status page says whose it is and which sources disagree.",
    rows=lambda view: (view,),
    labels=(),
    key=lambda _: (),
    families=(
        Family(
            "vgpu_allocation_conflicts",
            GAUGE,
            "Disagreements between the sources, or with what can be, by type; 0 is told.",
            _conflicts,
            ("type",),
        ),
        Family(
            "vgpu_allocation_source_read",
            GAUGE,
            "1 if the ledger was made with this source, 0 if it is off, failed or stale. What only"
            " an absent source would show is no conflict.",
            _sources,
            ("source",),
        ),
    ),
)
