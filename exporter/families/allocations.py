"""Families of the ledger: allocations, used or not, and conflicts."""

from collections.abc import Iterable, Iterator

from exporter.families.containers import CONTAINER_LABELS
from exporter.view import ExporterView
from vgpu.ledger import PRECEDENCE, Holding
from vgpu.ledger.statements import UNCOMMON
from vgpu.metrics.family import Family, FamilyTable, Labelled, MetricType, Value
from vgpu.model.units import WHOLE_DEVICE_MILLI

GAUGE = MetricType.GAUGE

DEVICE_ALLOCATIONS = FamilyTable(
    title="Allocations of the devices",
    note=(
        "Allocations in the ledger, used or not, as the scheduler and the kubelet see them: shares"
        " that a scheduler has only reserved (phase `assumed`) are included. A pod's init and app"
        " containers run one after another, so the larger of the two counts."
    ),
    rows=lambda view: view.allocations.devices if view.allocations else (),
    labels=("uuid",),
    key=lambda row: (row.device.name,),
    families=(
        Family(
            "vgpu_gpu_memory_allocated_bytes",
            GAUGE,
            "Memory allocated to containers (the ledger). Absent while the size of a share is"
            " unknown.",
            lambda row: row.memory_bytes,
            unit="bytes",
        ),
        Family(
            "vgpu_gpu_core_allocated_ratio",
            GAUGE,
            "Cores allocated to containers, 1 is the whole device; shares without a core limit"
            " count as none (the ledger).",
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
        "What was allocated to a container of a device; the enforced limit is above. `container`"
        " is empty where a share belongs to the whole pod, `uuid` where the device is unknown."
    ),
    rows=lambda view: view.allocations.holdings if view.allocations else (),
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
            "Memory of the device that is allocated to the container (the ledger). Absent if"
            " unknown.",
            lambda row: row.share.memory_bytes,
            unit="bytes",
        ),
        Family(
            "vgpu_container_core_allocated_ratio",
            GAUGE,
            "Cores of the device that are allocated to the container, 1 is the whole device (the"
            " ledger). Absent if there is no core limit.",
            lambda row: _ratio(row.share.cores_milli),
            unit="ratio",
        ),
        Family(
            "vgpu_container_shares_allocated",
            GAUGE,
            "Shares of the device that the container holds (the ledger).",
            lambda row: row.slots,
        ),
    ),
)


RESOURCE_CLAIMS = FamilyTable(
    title="ResourceClaims of the containers",
    note=(
        "Dynamic resource allocation: one series for each device of a ResourceClaim and container"
        " that uses it. The ResourceClaim is in the pod's namespace. Join the series with the"
        " allocations on `pod_uid`, `container` and `uuid`. A node without ResourceClaims has no"
        " series."
    ),
    rows=lambda view: _resource_claim_rows(view.allocations.holdings) if view.allocations else (),
    labels=(
        *CONTAINER_LABELS,
        "uuid",
        "resource_claim",
        "request",
        "driver",
        "pool",
        "device",
        "share_id",
    ),
    key=lambda row: row,
    families=(
        Family(
            "vgpu_container_resource_claim_info",
            GAUGE,
            "1 for a device of a ResourceClaim that the container uses. `uuid` is empty where the"
            " device's UUID is unknown.",
            lambda _: 1,
        ),
    ),
)


def _resource_claim_rows(holdings: Iterable[Holding]) -> Iterator[tuple[str, ...]]:
    """The labels of each device of a ResourceClaim, by container."""
    for holding in holdings:
        pod, uuid = holding.pod, holding.share.device
        for device in (part.resource_claim_device for part in holding.resource_claim_shares):
            yield (
                pod.namespace,
                pod.name,
                holding.container,
                pod.uid,
                "" if uuid == device.name else uuid,
                device.resource_claim,
                ",".join(device.requests),
                device.driver,
                device.pool,
                device.device,
                device.share_id,
            )


def _ratio(cores_milli: int | None) -> Value:
    return None if cores_milli is None else cores_milli / WHOLE_DEVICE_MILLI


def _conflicts(view: ExporterView) -> Labelled:
    """Number of conflicts of every type, so that no series of a rule is absent."""
    if view.allocations is None:
        return {}
    return {(kind.value,): count for kind, count in view.allocations.conflicts.items()}


def _sources(view: ExporterView) -> Labelled:
    if view.allocations is None:
        return {}
    read = view.allocations.ledger.read
    return {
        (source.value,): int(source in read)
        for source in PRECEDENCE
        if source in read or source not in UNCOMMON
    }


LEDGER = FamilyTable(
    title="The ledger",
    note="The status page names the pod of each conflict and the sources that disagree.",
    rows=lambda view: (view,),
    labels=(),
    key=lambda _: (),
    families=(
        Family(
            "vgpu_allocation_conflicts",
            GAUGE,
            "Disagreements between the sources, or impossible values, by type; 0 is exported."
            " Types about ResourceClaims are exported only while the node has ResourceClaims.",
            _conflicts,
            ("type",),
        ),
        Family(
            "vgpu_allocation_source_read",
            GAUGE,
            "1 if the ledger was built with this source, 0 if the source is off, failed or stale."
            " What only an absent source would show is no conflict. `dra-manager-state` is exported"
            " only while the node has ResourceClaims.",
            _sources,
            ("source",),
        ),
    ),
)
