"""vgpu's own metric families, in page order. ``docs/metrics.md`` is generated from them.

To add a metric, add a row to a table: ``devices``, ``node``, ``containers`` or ``health``.
"""

from exporter.families.containers import CONTAINERS, SHARES
from exporter.families.devices import GPUS, XID_WATCH, XIDS
from exporter.families.health import CALLS, COLLECTORS, PROCESS, SELF, WEB
from exporter.families.node import NODE
from vgpu.metrics.family import Table

OWN_TABLES: tuple[Table, ...] = (
    GPUS,
    XID_WATCH,
    XIDS,
    NODE,
    SHARES,
    CONTAINERS,
    COLLECTORS,
    CALLS,
    SELF,
    WEB,
    PROCESS,
)
