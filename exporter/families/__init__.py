"""vgpu's own metric families, in page order. ``docs/metrics.md`` is generated from them.

To add a metric, add a row to a table: ``devices``, ``node``, ``containers``,
``allocations`` or ``health``.
"""

from exporter.families.allocations import CONTAINER_ALLOCATIONS, DEVICE_ALLOCATIONS, LEDGER
from exporter.families.containers import CONTAINERS, SHARES
from exporter.families.devices import GPUS, XID_WATCH, XIDS
from exporter.families.health import CALLS, COLLECTORS, SELF
from exporter.families.node import NODE
from vgpu.metrics.family import FamilyTable
from vgpu.metrics.own import PROCESS, WEB

OWN_TABLES: tuple[FamilyTable, ...] = (
    GPUS,
    XID_WATCH,
    XIDS,
    DEVICE_ALLOCATIONS,
    NODE,
    SHARES,
    CONTAINERS,
    CONTAINER_ALLOCATIONS,
    LEDGER,
    COLLECTORS,
    CALLS,
    SELF,
    WEB,
    PROCESS,
)
