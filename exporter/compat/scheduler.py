"""Volcano's scheduler: its claims to each GPU, as this node's ledger has them."""

from collections.abc import Iterator, Sequence

from exporter.allocations import is_allocation
from exporter.view import ExporterView
from vgpu.ledger import Holding, totals
from vgpu.metrics.family import FamilyTable
from vgpu.metrics.volcano_scheduler import HeldRow, volcano_scheduler_tables
from vgpu.model.allocation import Device
from vgpu.model.names import Scheme
from vgpu.model.units import MIB


def gpus(view: ExporterView) -> Iterator[HeldRow]:
    """Every GPU, idle ones included."""
    return (held_row(view, device, "", held) for device, held in held_by_gpu(view))


def pods(view: ExporterView) -> Iterator[HeldRow]:
    """A row for each pod name on each GPU; pods of unknown name are left out."""
    for device, held in held_by_gpu(view):
        by_name: dict[str, list[Holding]] = {}
        for holding in held:
            by_name.setdefault(holding.pod.name, []).append(holding)
        by_name.pop("", None)
        for name, holdings in by_name.items():
            yield held_row(view, device, name, holdings)


def held_by_gpu(view: ExporterView) -> list[tuple[Device, list[Holding]]]:
    """The holdings of Volcano's pods on each GPU; holdings of a MIG instance count for its GPU."""
    if view.allocations is None:
        return []
    devices = {allocated.device.name: allocated.device for allocated in view.allocations.devices}
    held: dict[str, list[Holding]] = {
        name: [] for name, device in devices.items() if not device.parent
    }
    for holding in filter(is_allocation, view.allocations.ledger.holdings):
        device = devices.get(holding.share.device)
        gpu_name = device and (device.parent or device.name)
        if holding.scheme is Scheme.VOLCANO and gpu_name in held:
            held[gpu_name].append(holding)
    return [(devices[name], holdings) for name, holdings in held.items()]


def held_row(view: ExporterView, gpu: Device, pod: str, held: Sequence[Holding]) -> HeldRow:
    """The sum of these holdings, with each pod at its peak."""
    total = totals.held(held)
    unknown = any(holding.share.memory_bytes is None for holding in held)
    return HeldRow(
        gpu.name,
        view.node,
        pod,
        view.volcano_unit_bytes or MIB,
        gpu.memory_bytes,
        None if unknown else total.memory_bytes,
        total.cores_milli,
        total.slots,
    )


def volcano_scheduler(breakdown: bool = False) -> tuple[FamilyTable, ...]:  # noqa: ARG001  # one shape for all sets
    """The vGPU gauges of Volcano's scheduler, for the GPUs of this node."""
    return volcano_scheduler_tables(gpus, pods)
