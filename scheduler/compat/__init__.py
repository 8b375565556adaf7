"""The gauges and pages of the original schedulers, so that existing dashboards keep working.

Names, labels and units are the originals', wrong units included. The numbers come from the view by
which the scheduler decides: what bound pods hold, and what is reserved for pods that are being
bound. A node whose view cannot be read has no series.
"""

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Final

from scheduler.compat.hami import hami, hami_legacy
from scheduler.compat.volcano import volcano
from vgpu.metrics.family import FamilyTable


class SchedulerCompat(StrEnum):
    """The values of ``--compat``."""

    VOLCANO = "volcano"
    HAMI = "hami"
    HAMI_LEGACY = "hami-legacy"

    @property
    def system(self) -> str:
        """The name of the sharing system in :mod:`vgpu.schemes.registry`."""
        return "volcano" if self is SchedulerCompat.VOLCANO else "hami"


SETS: Final[dict[SchedulerCompat, Callable[[], tuple[FamilyTable, ...]]]] = {
    SchedulerCompat.VOLCANO: volcano,
    SchedulerCompat.HAMI: hami,
    SchedulerCompat.HAMI_LEGACY: hami_legacy,
}


def tables(sets: Iterable[SchedulerCompat]) -> tuple[FamilyTable, ...]:
    """The tables of the chosen sets, in the order of :class:`SchedulerCompat`."""
    chosen = set(sets)
    return tuple(table for name, make in SETS.items() if name in chosen for table in make())
