"""Volcano's scheduler: its claims to each GPU, as this node's ledger has them.

The original adds a GPU's running total again for each pod, and sets everything to 0 at each update
of the node (volcano#4595); here each share counts once. It has no namespace label: pods of one
name in two namespaces are one series, with their sum. Memory is in units of volcano.sh/vgpu-memory.
"""

from collections.abc import Callable, Iterator, Sequence

import msgspec

from exporter.allocations import is_allocation
from exporter.compat.rows import GAUGE
from exporter.view import ExporterView
from vgpu.ledger import Holding, totals
from vgpu.metrics.family import Family, FamilyTable, Value
from vgpu.model import Device, Scheme
from vgpu.units import MIB, percent


class HeldRow(msgspec.Struct, frozen=True, gc=False):
    """The sum of Volcano's pods on a GPU, of all pods or of those named ``pod``.

    ``memory_bytes`` is None if unknown; ``gpu_bytes`` is the GPU's memory to share.
    """

    device: str
    node: str
    pod: str
    unit_bytes: int
    gpu_bytes: int | None
    memory_bytes: int | None
    cores_milli: int
    shares: int


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


def _units(pick: Callable[[HeldRow], int | None]) -> Callable[[HeldRow], Value]:
    def value(row: HeldRow) -> Value:
        size = pick(row)
        return None if size is None else size // row.unit_bytes

    return value


def volcano_scheduler(breakdown: bool = False) -> tuple[FamilyTable, ...]:  # noqa: ARG001  # one shape for all sets
    """The vGPU gauges of Volcano's scheduler, for the GPUs of this node."""
    return (
        FamilyTable(
            title="GPUs",
            note=(
                "A pod's init and app containers run one after another, so of the two the larger"
                " counts, as in `vgpu_gpu_memory_allocated_bytes`."
            ),
            rows=gpus,
            labels=("devID", "NodeName"),
            key=lambda row: (row.device, row.node),
            families=(
                Family(
                    "volcano_vgpu_device_shared_number",
                    GAUGE,
                    "Shares of the GPU that containers hold.",
                    lambda row: row.shares,
                ),
                Family(
                    "volcano_vgpu_device_allocated_memory",
                    GAUGE,
                    "Memory of these shares, in units of --volcano.memory-factor MiB.",
                    _units(lambda row: row.memory_bytes),
                ),
                Family(
                    "volcano_vgpu_device_allocated_cores",
                    GAUGE,
                    "Cores of these shares, in percent of the GPU.",
                    lambda row: percent(row.cores_milli),
                ),
                Family(
                    "volcano_vgpu_device_memory_limit",
                    GAUGE,
                    "Memory of the GPU, in units of --volcano.memory-factor MiB.",
                    _units(lambda row: row.gpu_bytes),
                ),
            ),
        ),
        FamilyTable(
            title="Pods on GPUs",
            note=(
                "There is no namespace label: pods of one name in several namespaces are one series"
                " with their sum. `vgpu_container_memory_allocated_bytes` separates them."
            ),
            rows=pods,
            labels=("devID", "NodeName", "podName"),
            key=lambda row: (row.device, row.node, row.pod),
            families=(
                Family(
                    "volcano_vgpu_device_memory_allocation_for_a_certain_pod",
                    GAUGE,
                    "Memory that the pods of this name hold of the GPU, in units of"
                    " --volcano.memory-factor MiB.",
                    _units(lambda row: row.memory_bytes),
                ),
                Family(
                    "volcano_vgpu_device_core_allocation_for_a_certain_pod",
                    GAUGE,
                    "Cores that the pods of this name hold, in percent of the GPU.",
                    lambda row: percent(row.cores_milli),
                ),
            ),
        ),
    )
