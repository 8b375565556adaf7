"""The vGPU gauges of Volcano's scheduler as tables, over rows that a program brings.

The original adds a GPU's running total again for each pod, and sets everything to 0 at each update
of the node (volcano#4595); here each share counts once. It has no namespace label: pods of one
name in two namespaces are one series, with their sum. Memory is in units of volcano.sh/vgpu-memory.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from vgpu.metrics.family import Family, FamilyTable, MetricType, Value
from vgpu.model.units import percent

GAUGE: Final = MetricType.GAUGE


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


HeldRows = Callable[[Any], Iterable[HeldRow]]
"""Rows out of a program's view."""


def _units(pick: Callable[[HeldRow], int | None]) -> Callable[[HeldRow], Value]:
    def value(row: HeldRow) -> Value:
        size = pick(row)
        return None if size is None else size // row.unit_bytes

    return value


def volcano_scheduler_tables(gpus: HeldRows, pods: HeldRows) -> tuple[FamilyTable, ...]:
    """The tables: ``gpus`` has a row for each GPU, ``pods`` one for each pod name on each GPU."""
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
