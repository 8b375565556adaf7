"""The alerts. Each description begins with the first step, and each alert has a runbook of its
name.

Alerts find an event by its timestamp or by a level that stays: `increase()` does not see the
first event of a series. No sum drops a label that names the place of the problem.
"""

from typing import Final

from grafana.allocation_alerts import ALLOCATIONS, CONTAINERS
from grafana.exporter_alerts import EXPORTERS
from grafana.feedback_alerts import FEEDBACKS
from grafana.gpu_alerts import DEVICES
from grafana.kubeshare_alerts import KUBESHARE_CONTROL
from grafana.plugin_alerts import DEVICE_PLUGINS
from grafana.promql import Alert
from grafana.reconciler_alerts import RECONCILERS
from grafana.scheduler_alerts import SCHEDULERS
from grafana.team_alerts import TEAMS
from grafana.token_alerts import TOKEN_DAEMONS

GROUPS: Final = (
    EXPORTERS,
    DEVICES,
    CONTAINERS,
    ALLOCATIONS,
    DEVICE_PLUGINS,
    RECONCILERS,
    SCHEDULERS,
    KUBESHARE_CONTROL,
    FEEDBACKS,
    TEAMS,
    TOKEN_DAEMONS,
)

ALERTS: Final = tuple(rule for group in GROUPS for rule in group.rules if isinstance(rule, Alert))
