"""One snapshot as rows for the family tables and the status page. Values only."""

from collections.abc import Mapping

import msgspec

from exporter.allocations import AllocationTotals
from exporter.units import UnitRow
from vgpu.ledger.container_usage import ShareUsage
from vgpu.ledger.usage import Usage, is_over
from vgpu.model.facts import CallCost, Gpu, GpuSample, PodSummary, TokenClient, XidCount
from vgpu.model.names import Phase, Scheme, Source
from vgpu.model.reasons import Rejection
from vgpu.sources.samples import CollectorRow


class ShareRow(ShareUsage, gc=False, kw_only=True):
    """One container on one device: its limits and use there, and what labels need beside them.

    ``namespace`` and ``pod`` are "" where the pod's name is unknown; ``container`` is "" where
    only the pod is known. ``last_kernel_time`` is that of the container's region.
    """

    pod_uid: str
    container: str
    namespace: str = ""
    pod: str = ""
    scheme: Scheme = Scheme.NONE
    device_index: int | None = None
    last_kernel_time: int | None = None
    mig: Mapping[str, str] | None = None

    @property
    def is_over_limit(self) -> bool:
        """Whether the container exceeds its limit, by the tolerance of :func:`is_over`."""
        used, limit = self.used_bytes, self.limit_bytes
        return bool(used and limit and is_over(used, limit))


class ContainerRow(msgspec.Struct, gc=False):
    """One container, with the source that reports it."""

    pod_uid: str
    container: str
    namespace: str = ""
    pod: str = ""
    scheme: Scheme = Scheme.NONE
    source: Source = Source.PROCESS
    layout: str = ""
    phase: Phase = Phase.ASSIGNED
    blocked: bool | None = None
    priority: int | None = None
    last_kernel_time: int | None = None


class GpuRow(msgspec.Struct, frozen=True):
    """One device; ``unattributed_bytes`` is the memory that is used on it outside all containers.

    ``replicas`` are those that NVIDIA's device plugin has registered, None if it has none.

    ``answers`` is False for a device that was there and no longer answers (then ``gpu`` has its
    last known identity, without readings).
    """

    gpu: Gpu
    answers: bool = True
    unattributed_bytes: int | None = None
    unattributed_processes: int | None = None
    attributed_bytes: int | None = None
    replicas: int | None = None


class TokenRow(msgspec.Struct, frozen=True, gc=False):
    """A pod that shares the time of a GPU by tokens; all its containers have one token.

    ``container`` is the only one that has a share of the GPU, "" if several have.
    """

    pod_uid: str
    container: str
    tenant: TokenClient


class Orphan(msgspec.Struct, frozen=True, gc=False):
    """A region whose pod has no container on this node; ``pod`` is "" if its name is unknown."""

    path: str
    pod_uid: str
    container: str
    namespace: str
    pod: str


class Attribution(msgspec.Struct, frozen=True):
    """The join of all sources: which container holds and uses what.

    ``orphans`` and ``released`` are None where the live pods, or the pods' names, are unknown.
    ``rejected`` are the refusals by the join, each with the collector that read the data.
    ``driver`` has the processes, ``usages`` the container of each that is in one. ``tokens`` are
    the pods of the token daemon that have a share.
    """

    gpus: tuple[GpuRow, ...] = ()
    containers: tuple[ContainerRow, ...] = ()
    shares: tuple[ShareRow, ...] = ()
    orphans: tuple[Orphan, ...] | None = None
    released: tuple[Orphan, ...] | None = None
    statuses: tuple[PodSummary, ...] | None = None
    rejected: tuple[tuple[str, Rejection], ...] = ()
    driver: GpuSample | None = None
    usages: tuple[Usage, ...] = ()
    tokens: tuple[TokenRow, ...] = ()


class ExporterView(msgspec.Struct, frozen=True):
    """The data of one rendered page.

    ``own`` are metrics of this process, by the name of their family. ``allocations`` is None before
    the first sample. ``units`` are the units of memory that are set. ``volcano_unit_bytes`` is the
    size of a unit of volcano.sh/vgpu-memory, None if unknown. ``is_withdrawn`` is whether the
    sample has failed: then there is no data of the node.
    """

    timestamp: float
    node: str
    interval: float
    attribution: Attribution
    collectors: tuple[CollectorRow, ...]
    calls: Mapping[str, CallCost]
    xids: tuple[XidCount, ...]
    build: Mapping[str, str]
    own: Mapping[str, float]
    xids_watched: frozenset[str] = frozenset()
    skipped_series: int = 0
    gpus_expected: int | None = None
    allocations: AllocationTotals | None = None
    volcano_unit_bytes: int | None = None
    units: tuple[UnitRow, ...] = ()
    is_withdrawn: bool = False
