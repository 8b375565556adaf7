"""One sample as a value, for the family tables and the status page.

What containers hold and use are the ledger's own values: nothing is copied or joined here.
"""

from collections.abc import Iterator, Mapping

import msgspec

from exporter.allocations import AllocationTotals
from exporter.units import UnitRow
from vgpu.ledger.container_usage import NodeUsage, TokenUse
from vgpu.ledger.usage import DeviceUsage
from vgpu.model.facts import CallCost, Gpu, GpuSample, PodSummary, XidCount
from vgpu.sources.samples import CollectorRow


class GpuRow(msgspec.Struct, frozen=True):
    """One device; ``use`` is None where it is not known of all processes on it.

    ``replicas`` are those that NVIDIA's device plugin has registered, None if it has none.

    ``answers`` is False for a device that was there and no longer answers (then ``gpu`` has its
    last known identity, without readings).
    """

    gpu: Gpu
    answers: bool = True
    use: DeviceUsage | None = None
    replicas: int | None = None


def gpu_rows(gpu: GpuSample, usage: NodeUsage) -> Iterator[GpuRow]:
    """A row for each device that answers, and then for each that is lost."""
    for device in gpu.gpus:
        uuid = device.uuid
        yield GpuRow(device, use=usage.devices.get(uuid), replicas=usage.replicas.get(uuid))
    for uuid in gpu.lost:
        yield GpuRow(Gpu(uuid, -1, {}, {}), answers=False)


class ExporterView(msgspec.Struct, frozen=True):
    """The data of one rendered page.

    Attributes:
        timestamp: the time of the sample, in unix seconds.
        interval: the time between two samples, in seconds.
        calls: the driver's calls by name.
        xids: those that the driver has reported, of the devices in ``xids_watched``.
        own: metrics of this process, by the name of their family.
        driver: the sample of the driver; None if there is none.
        statuses: the pods' phases; None if they are unknown.
        tokens: the pods of the token daemon that have a share.
        skipped_series: number of series without a pod's name that a compatible set leaves out.
        gpus_expected: number of GPUs that should be there; None if unknown.
        allocations: the sums of the ledger; None before the first sample.
        volcano_unit_bytes: the size of a unit of volcano.sh/vgpu-memory; None if unknown.
        units: the units of memory that are set.
        is_withdrawn: whether the sample has failed: then there is no data of the node.
    """

    timestamp: float
    node: str
    interval: float
    usage: NodeUsage
    collectors: tuple[CollectorRow, ...]
    calls: Mapping[str, CallCost]
    xids: tuple[XidCount, ...]
    build: Mapping[str, str]
    own: Mapping[str, float]
    driver: GpuSample | None = None
    gpus: tuple[GpuRow, ...] = ()
    statuses: tuple[PodSummary, ...] | None = None
    tokens: tuple[TokenUse, ...] = ()
    xids_watched: frozenset[str] = frozenset()
    skipped_series: int = 0
    gpus_expected: int | None = None
    allocations: AllocationTotals | None = None
    volcano_unit_bytes: int | None = None
    units: tuple[UnitRow, ...] = ()
    is_withdrawn: bool = False
