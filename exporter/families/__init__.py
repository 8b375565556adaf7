"""vgpu's own metric families, in page order. ``docs/metrics.md`` is generated from them.

To add a metric, add a row to a table: ``devices``, ``node``, ``containers``, ``allocations`` or
``health``.
"""

from collections.abc import Collection
from typing import Final

from exporter.details import Detail
from exporter.families.allocations import (
    CONTAINER_ALLOCATIONS,
    DEVICE_ALLOCATIONS,
    LEDGER,
    RESOURCE_CLAIMS,
)
from exporter.families.containers import CONTAINERS, SHARES, SHARING, TOKENS
from exporter.families.devices import GPUS, REPLICAS, XID_WATCH, XIDS
from exporter.families.health import CALLS, COLLECTORS, SELF
from exporter.families.node import NODE, UNITS
from vgpu.metrics.family import FamilyTable
from vgpu.metrics.process_families import PROCESS, WEB

__all__ = ["OWN_TABLES", "process_tables"]

OWN_TABLES: Final[tuple[FamilyTable, ...]] = (
    GPUS,
    XID_WATCH,
    XIDS,
    DEVICE_ALLOCATIONS,
    NODE,
    UNITS,
    REPLICAS,
    SHARES,
    SHARING,
    TOKENS,
    CONTAINERS,
    CONTAINER_ALLOCATIONS,
    RESOURCE_CLAIMS,
    LEDGER,
    COLLECTORS,
    CALLS,
    SELF,
    WEB,
    PROCESS,
)
"""With all details."""


def process_tables(details: Collection[Detail]) -> tuple[FamilyTable, ...]:
    """The tables with only these groups of details."""
    return tuple(table.within(details) for table in OWN_TABLES)
