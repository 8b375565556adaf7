"""The tables of the metric sets; slow to import."""

from collections.abc import Callable, Iterable

from exporter.compat import Compat
from exporter.compat.gaia import gaia
from exporter.compat.monitors import hami, hami_legacy, volcano
from exporter.compat.scheduler import volcano_scheduler
from vgpu.ledger.container_usage import NodeUsage
from vgpu.metrics.family import FamilyTable
from vgpu.model.names import Scheme

SETS: dict[Compat, Callable[[bool], tuple[FamilyTable, ...]]] = {
    Compat.VOLCANO: volcano,
    Compat.VOLCANO_SCHEDULER: volcano_scheduler,
    Compat.HAMI_LEGACY: hami_legacy,
    Compat.HAMI: hami,
    Compat.GAIA: gaia,
}


def tables(sets: Iterable[Compat], breakdown: bool = False) -> tuple[FamilyTable, ...]:
    """The tables of the chosen sets, in the order of :class:`Compat`."""
    chosen = set(sets)
    return tuple(t for name, make in SETS.items() if name in chosen for t in make(breakdown))


def nameless(usage: NodeUsage, sets: Iterable[Compat]) -> int:
    """Number of rows that the chosen sets leave out because the pod's name is unknown."""
    chosen = set(sets)
    count = 0
    if chosen & {Compat.VOLCANO, Compat.HAMI_LEGACY, Compat.HAMI}:
        count += sum(s.accounted is not None and not s.pod.name for s in usage.shares)
    if Compat.GAIA in chosen:
        count += sum(c.scheme is Scheme.GAIA and not c.pod.name for c in usage.containers)
    return count
