"""The vGPU gauges of Volcano's scheduler."""

from collections.abc import Iterator
from typing import Any

from scheduler.compat.rows import NodeHoldings
from vgpu.metrics.family import FamilyTable
from vgpu.metrics.volcano_scheduler import HeldRow, volcano_scheduler_tables
from vgpu.model.allocation import Share


def volcano() -> tuple[FamilyTable, ...]:
    """The tables."""
    return volcano_scheduler_tables(gpus, pods)


def gpus(view: Any) -> Iterator[HeldRow]:
    """Every GPU, idle ones included, with what is reserved."""
    for node in view.held.volcano:
        for gpu in node.gpus:
            yield HeldRow(
                gpu.device.name,
                node.node.name,
                "",
                node.unit_bytes,
                gpu.device.memory_bytes,
                gpu.memory_bytes,
                gpu.cores_milli,
                gpu.users,
            )


def pods(view: Any) -> Iterator[HeldRow]:
    """A row for each pod name on each GPU."""
    for node in view.held.volcano:
        sizes = {gpu.device.name: gpu.device.memory_bytes for gpu in node.gpus}
        for (device, pod), shares in _by_name(node).items():
            if device in sizes:
                memory = [share.memory_bytes for share in shares]
                yield HeldRow(
                    device,
                    node.node.name,
                    pod,
                    node.unit_bytes,
                    sizes[device],
                    None if None in memory else sum(filter(None, memory)),
                    sum(share.cores_milli or 0 for share in shares),
                    len(shares),
                )


def _by_name(node: NodeHoldings) -> dict[tuple[str, str], list[Share]]:
    found: dict[tuple[str, str], list[Share]] = {}
    for ref, holding in node.pods:
        for share in holding.peak:
            found.setdefault((share.device, ref.name), []).append(share)
    return found
