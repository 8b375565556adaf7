"""The dashboards, as tables of panels and the JSON that Grafana imports.

``model.py`` defines panels, ``build.py`` draws them, ``selecting.py`` has their common PromQL;
each of ``fleet``, ``node``, ``workload``, ``teams``, ``plugin``, ``reconciler`` and ``scheduler``
is a page. ``grafana/generate.py`` writes the JSON files beside them.
"""

from typing import Final

from grafana.dashboards.fleet import FLEET
from grafana.dashboards.model import Dashboard
from grafana.dashboards.node import BY_NODE
from grafana.dashboards.plugin import SERVING
from grafana.dashboards.reconciler import REPAIRING
from grafana.dashboards.scheduler import PLACING
from grafana.dashboards.teams import TEAMS
from grafana.dashboards.workload import WORKLOAD

DASHBOARDS: Final[tuple[Dashboard, ...]] = (
    FLEET,
    BY_NODE,
    WORKLOAD,
    TEAMS,
    SERVING,
    REPAIRING,
    PLACING,
)
