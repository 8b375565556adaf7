"""What wakes somebody by default: one table. Every other alert is ``info``, for dashboards.

    severity by default =  the table's,  or info if the table does not have the alert
    severity with `all` =  the alert's own (:class:`grafana.promql.Alert`)

An alert is in the table if a user is harmed now, or nobody would learn of such harm, and no program
repairs it: ``critical`` pages at night, ``warning`` waits for the morning. What is only a symptom
of an alert in the table, what ends by itself, and what one user can change alone is not in it.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from grafana.promql import Alert, AlertSeverity

CRITICAL, WARNING, INFO = AlertSeverity.CRITICAL, AlertSeverity.WARNING, AlertSeverity.INFO


class Waking(msgspec.Struct, frozen=True):
    """Why an alert wakes somebody; ``why`` is a sentence about the harm to users."""

    severity: AlertSeverity
    why: str


BY_DEFAULT: Final[Mapping[str, Waking]] = {
    # ------------------------------------------------------------ at night
    "VgpuDriverNotAnswering": Waking(
        CRITICAL, "Programs on every GPU of the node hang or fail until a person drains it."
    ),
    "VgpuGpuMissing": Waking(
        CRITICAL, "Programs on the GPU have stopped, and only a person can bring it back."
    ),
    "VgpuXidCritical": Waking(
        CRITICAL, "Programs on this GPU fail until a person resets or replaces it."
    ),
    "VgpuDoubleBooked": Waking(
        CRITICAL, "Two users hold the same share, and one of them fails when both use it."
    ),
    "VgpuExportersAbsent": Waking(
        CRITICAL, "No GPU of the cluster is monitored: a broken one would wake nobody."
    ),
    "VgpuPluginsAbsent": Waking(
        CRITICAL, "No container with a share of a GPU starts on any node of the cluster."
    ),
    "VgpuSchedulersAbsent": Waking(
        CRITICAL, "No pod with a share of a GPU is placed anywhere in the cluster."
    ),
    "VgpuSchedulersNotReady": Waking(
        CRITICAL, "No pod with a share of a GPU is placed anywhere in the cluster."
    ),
    "VgpuBreakerTripped": Waking(
        CRITICAL, "Many pods need a repair at once, and none is made until a person decides."
    ),
    "VgpuKubeShareControllersAbsent": Waking(
        CRITICAL, "No SharePod starts anywhere in the cluster."
    ),
    "VgpuKubeShareNoLeader": Waking(CRITICAL, "No SharePod starts anywhere in the cluster."),
    "VgpuTokensAbsent": Waking(
        CRITICAL, "Pods with Gemini's hook end on every node, and new ones fail."
    ),
    "VgpuTokensDown": Waking(
        CRITICAL, "Pods with Gemini's hook end on this node, and new ones fail."
    ),
    # ------------------------------------------------------------ in the morning
    "VgpuExporterDown": Waking(
        WARNING, "The GPUs of this node are not monitored: a broken one would wake nobody."
    ),
    "VgpuRowRemapFailed": Waking(
        WARNING, "Memory errors return for each program on this GPU until it is replaced."
    ),
    "VgpuContainerOverLimit": Waking(
        WARNING, "A user takes memory that others were allocated, and their programs fail."
    ),
    "VgpuContainerUncapped": Waking(
        WARNING, "A user can take all of a GPU, and the programs of the others on it fail."
    ),
    "VgpuOvercommitted": Waking(
        WARNING, "More is allocated than the GPU has, and the last user to need it fails."
    ),
    "VgpuAllocationConflict": Waking(
        WARNING, "A user has a GPU that others were allocated, or has none of the allocated one."
    ),
    "VgpuPluginDown": Waking(WARNING, "No container with a share of a GPU starts on this node."),
    "VgpuPluginNotReady": Waking(
        WARNING, "No container with a share of a GPU starts on this node."
    ),
    "VgpuStuckPods": Waking(
        WARNING, "Users have waited an hour for pods that no program has repaired."
    ),
    "VgpuNodeLockStuck": Waking(
        WARNING, "The node accepts no new GPU pod, and its free GPUs stay empty."
    ),
    "VgpuReconcilerAbsent": Waking(
        WARNING, "Nothing is repaired in the cluster, and nobody learns of pods that are stuck."
    ),
}
"""A new alert that wakes somebody is one row more."""


def by_default(alert: Alert) -> AlertSeverity:
    """The severity of ``monitoring.alerts: default``."""
    waking = BY_DEFAULT.get(alert.name)
    return waking.severity if waking else INFO


def when_listed(alert: Alert) -> AlertSeverity:
    """The severity of an alert that a list names, and that would be info without the list."""
    known = (by_default(alert), alert.severity, WARNING)
    return next(severity for severity in known if severity is not INFO)


def severities(alerts: Iterable[Alert]) -> dict[str, dict[str, str]]:
    """Name -> its severities, as the chart reads them."""
    return {
        alert.name: {
            "default": by_default(alert).value,
            "all": alert.severity.value,
            "listed": when_listed(alert).value,
        }
        for alert in alerts
    }
