"""Tencent's gpu-manager, which serves its metrics on /metric."""

from collections.abc import Callable, Iterator

import msgspec

from exporter.compat.monitors import GAUGE
from exporter.view import ExporterView
from vgpu.ledger.container_usage import ContainerUsage, ShareUsage
from vgpu.metrics.family import Family, FamilyTable, Labelled, Number, Value
from vgpu.model.names import Scheme
from vgpu.model.units import MIB


class GaiaRow(msgspec.Struct, frozen=True, gc=False):
    """A container of the gpu-manager scheme; ``indexes`` are its GPUs' numbers, by share."""

    container: ContainerUsage
    gpu_bytes: Number | None
    indexes: tuple[int | None, ...]
    node: str


def gaia_rows(view: ExporterView) -> Iterator[GaiaRow]:
    """Containers of the gpu-manager scheme, idle ones included."""
    gpus = {row.gpu.uuid: row.gpu for row in view.gpus if row.answers}
    for container in view.usage.containers:
        if container.scheme is Scheme.GAIA and container.pod.name:
            own = [gpus.get(device) for device in container.shares]
            sizes = [gpu.readings.get(("memory_total_bytes",)) if gpu else None for gpu in own]
            known = [size for size in sizes if size is not None]
            total = sum(known) if len(known) == len(sizes) else None
            indexes = tuple(gpu.index if gpu else None for gpu in own)
            yield GaiaRow(container, total, indexes, view.node)


def gaia_key(row: GaiaRow) -> tuple[str, ...]:
    """(pod_name, namespace, node, container_name)."""
    container = row.container
    return (container.pod.name, container.pod.namespace, row.node, container.container)


def by_gpu(pick: Callable[[ShareUsage], Value]) -> Callable[[GaiaRow], Labelled]:
    """One number for each GPU under ``gpu<index>``, and their ``total``."""

    def values(row: GaiaRow) -> Labelled:
        numbers: dict[tuple[str, ...], Number] = {}
        for share, index in zip(row.container.shares.values(), row.indexes, strict=True):
            value = pick(share)
            if value is None or index is None:
                return {}
            numbers[(f"gpu{index}",)] = value
        return {**numbers, ("total",): sum(numbers.values())} if numbers else {}

    return values


def gaia_request_cores(row: GaiaRow) -> Labelled:
    """The requested fraction of a GPU, summed."""
    cores = [share.core_request_percent for share in row.container.shares.values()]
    known = [core for core in cores if core is not None]
    return {("total",): sum(known) / 100} if known and len(known) == len(cores) else {}


def gaia_request_memory(row: GaiaRow) -> Labelled:
    """The requested memory in MiB; no request means the whole GPU, as the original has it."""
    shares = row.container.shares
    asked = sum(share.limit_bytes or 0 for share in shares.values()) or row.gpu_bytes
    return {("total",): int(asked) // MIB} if shares and asked else {}


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


def _sm_percent(share: ShareUsage) -> Value:
    return None if share.sm_utilization is None else round(share.sm_utilization * 100, 6)
