"""Tencent's gpu-manager, which serves its metrics on /metric."""

from collections.abc import Callable, Iterator

import msgspec

from exporter.compat.rows import GAUGE
from exporter.view import ContainerRow, ExporterView, ShareRow
from vgpu.metrics.family import Family, FamilyTable, Labelled, Number, Value
from vgpu.model.names import Scheme
from vgpu.model.units import MIB


class GaiaRow(msgspec.Struct, frozen=True, gc=False):
    """A container of the gpu-manager scheme with its shares."""

    container: ContainerRow
    shares: tuple[ShareRow, ...]
    gpu_bytes: Number | None
    node: str


def gaia_rows(view: ExporterView) -> Iterator[GaiaRow]:
    """Containers of the gpu-manager scheme, idle ones included."""
    shares: dict[tuple[str, str], list[ShareRow]] = {}
    for share in view.attribution.shares:
        shares.setdefault((share.pod_uid, share.container), []).append(share)
    memory = {
        row.gpu.uuid: row.gpu.readings.get(("memory_total_bytes",)) for row in view.attribution.gpus
    }
    for row in view.attribution.containers:
        if row.scheme is Scheme.GAIA and row.pod:
            own = tuple(shares.get((row.pod_uid, row.container), ()))
            sizes = [memory.get(share.device) for share in own]
            known = [size for size in sizes if size is not None]
            total = sum(known) if len(known) == len(sizes) else None
            yield GaiaRow(row, own, total, view.node)


def gaia_key(row: GaiaRow) -> tuple[str, ...]:
    """(pod_name, namespace, node, container_name)."""
    container = row.container
    return (container.pod, container.namespace, row.node, container.container)


def by_gpu(pick: Callable[[ShareRow], Value]) -> Callable[[GaiaRow], Labelled]:
    """One number for each GPU under ``gpu<index>``, and their ``total``."""

    def values(row: GaiaRow) -> Labelled:
        numbers: dict[tuple[str, ...], Number] = {}
        for share in row.shares:
            value = pick(share)
            if value is None or share.device_index is None:
                return {}
            numbers[(f"gpu{share.device_index}",)] = value
        return {**numbers, ("total",): sum(numbers.values())} if numbers else {}

    return values


def gaia_request_cores(row: GaiaRow) -> Labelled:
    """The requested fraction of a GPU, summed."""
    cores = [share.core_request_percent for share in row.shares]
    known = [core for core in cores if core is not None]
    return {("total",): sum(known) / 100} if known and len(known) == len(cores) else {}


def gaia_request_memory(row: GaiaRow) -> Labelled:
    """The requested memory in MiB; no request means the whole GPU, as the original has it."""
    asked = sum(share.limit_bytes or 0 for share in row.shares) or row.gpu_bytes
    return {("total",): int(asked) // MIB} if row.shares and asked else {}


def gaia(breakdown: bool = False) -> tuple[FamilyTable, ...]:  # noqa: ARG001  # one shape for all sets
    """The set of gpu-manager, which it serves on /metric."""
    return (
        FamilyTable(
            title="Containers",
            rows=gaia_rows,
            labels=("pod_name", "namespace", "node", "container_name"),
            key=gaia_key,
            families=(
                Family(
                    "container_gpu_utilization",
                    GAUGE,
                    "GPU utilization, 0-100.",
                    by_gpu(_sm_percent),
                    ("gpu",),
                ),
                Family(
                    "container_gpu_memory_total",
                    GAUGE,
                    "GPU memory usage in MiB.",
                    by_gpu(lambda s: None if s.used_bytes is None else s.used_bytes // MIB),
                    ("gpu_memory",),
                ),
                Family(
                    "container_request_gpu_utilization",
                    GAUGE,
                    "Requested share of a GPU, 1 is a whole GPU.",
                    gaia_request_cores,
                    ("req_of_gpu",),
                ),
                Family(
                    "container_request_gpu_memory",
                    GAUGE,
                    "Requested GPU memory in MiB.",
                    gaia_request_memory,
                    ("req_of_gpu_memory",),
                ),
            ),
        ),
    )


def _sm_percent(share: ShareRow) -> Value:
    return None if share.sm_utilization is None else round(share.sm_utilization * 100, 6)
