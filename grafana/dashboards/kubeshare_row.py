"""KubeShare's controllers, as a row of the scheduler's dashboard."""

from typing import Final

from grafana.dashboards import links
from grafana.dashboards.model import (
    NONE_IS_BETTER,
    NONE_IS_GOOD,
    Colour,
    GrafanaUnit,
    PanelQuery,
    PanelRow,
    graph,
    stat,
)
from grafana.dashboards.selecting import CLUSTER, or_zero
from grafana.promql import gained
from kubeshare.metrics import SharePodState, StepOutcome, VirtualGpuPhase

NO_CONTROLLER: Final = "no controller of KubeShare is scraped"

LEADER: Final = f"vgpu_kubeshare_leader{{{CLUSTER}}}"
"""A series of every controller."""

FAILED: Final = gained(
    f'vgpu_kubeshare_steps_total{{{CLUSTER}, result="{StepOutcome.ERROR}"}}', "1h"
)


def _alike(metric: str, by: str, *, each: str = "", which: str = "") -> str:
    """What each replica of a cluster knows alike, as the sum of the clusters by label."""
    labels = ", ".join(filter(None, ("cluster", each, by)))
    return f"sum by ({by}) (max by ({labels}) ({metric}{{{CLUSTER}{which}}}))"


def _gpus(phase: VirtualGpuPhase) -> str:
    """The virtual GPUs in a state."""
    which = f', state="{phase}"'
    return _alike("vgpu_kubeshare_virtual_gpus", "state", each="node", which=which)


def _mean(seconds: str, count: str) -> str:
    """The mean time of what a counter counts, in the last interval."""
    took, counted = (
        f"sum(rate({name}{{{CLUSTER}}}[$__rate_interval]))" for name in (seconds, count)
    )
    return f"{took} / ({counted} > 0)"


WAITING: Final = f', state="{SharePodState.WAITING}"'

KUBESHARE: Final = PanelRow(
    "KubeShare's controllers",
    (
        stat(
            "Leading controllers",
            "Controllers of KubeShare that hold the Lease and write, one of each cluster. Without"
            " it no SharePod starts.",
            GrafanaUnit.COUNT,
            f"sum({LEADER})",
            NO_CONTROLLER,
            steps=((None, Colour.BAD), (1, Colour.GOOD)),
            link=links.runbook("VgpuKubeShareNoLeader"),
        ),
        stat(
            "Waiting SharePods",
            "SharePods that have no node yet.",
            GrafanaUnit.COUNT,
            _alike("vgpu_kubeshare_sharepods", "state", which=WAITING),
            NO_CONTROLLER,
            steps=NONE_IS_BETTER,
            link=links.runbook("VgpuSharePodsWait"),
        ),
        stat(
            "Virtual GPUs without a GPU",
            "Virtual GPUs whose holder pod has no GPU, or whose GPU is not reported yet.",
            GrafanaUnit.COUNT,
            or_zero(_gpus(VirtualGpuPhase.PENDING), LEADER),
            NO_CONTROLLER,
            steps=NONE_IS_BETTER,
            link=links.runbook("VgpuKubeShareHolderPending"),
        ),
        stat(
            "Virtual GPUs in conflict",
            "Virtual GPUs whose pods use another GPU than their holder pod holds.",
            GrafanaUnit.COUNT,
            or_zero(_gpus(VirtualGpuPhase.CONFLICT), LEADER),
            NO_CONTROLLER,
            steps=NONE_IS_GOOD,
            link=links.runbook("VgpuKubeShareGpuConflict"),
        ),
        stat(
            "Silent nodes",
            "Nodes whose node component does not report the GPUs that it should report.",
            GrafanaUnit.COUNT,
            or_zero(
                f"count(max by (cluster, node) (vgpu_kubeshare_node_connected{{{CLUSTER}}}) == 0)",
                LEADER,
            ),
            NO_CONTROLLER,
            steps=NONE_IS_GOOD,
            link=links.runbook("VgpuKubeShareNodeSilent"),
        ),
        stat(
            "Failed writes, 1 h",
            "Writes of the controllers that failed; conflicts are repeated and do not count.",
            GrafanaUnit.COUNT,
            or_zero(f"sum({FAILED})", LEADER),
            NO_CONTROLLER,
            steps=NONE_IS_BETTER,
            link=links.runbook("VgpuKubeShareStepsFail"),
        ),
        graph(
            "SharePods",
            "By how far they have come: waiting for a node, placed on a virtual GPU, bound to its"
            " GPU, ready, finished; invalid ones have annotations that cannot be used.",
            GrafanaUnit.COUNT,
            (PanelQuery(_alike("vgpu_kubeshare_sharepods", "state"), "{{state}}"),),
            NO_CONTROLLER,
            stacked=True,
            link=links.runbook("VgpuSharePodsWait"),
        ),
        graph(
            "Virtual GPUs",
            "Of all nodes: active, idle, pending (its GPU is unknown), or in conflict.",
            GrafanaUnit.COUNT,
            (PanelQuery(_alike("vgpu_kubeshare_virtual_gpus", "state", each="node"), "{{state}}"),),
            f"{NO_CONTROLLER}, or there is no virtual GPU",
            stacked=True,
            link=links.runbook("VgpuKubeShareHolderPending"),
        ),
        graph(
            "SharePods that no node takes",
            "By the reason of most nodes; only the leader knows it.",
            GrafanaUnit.COUNT,
            (
                PanelQuery(
                    or_zero(
                        _alike("vgpu_kubeshare_unschedulable", "reason"),
                        LEADER,
                        reason="none waits",
                    ),
                    "{{reason}}",
                ),
            ),
            NO_CONTROLLER,
            link=links.runbook("VgpuSharePodsWait"),
        ),
        graph(
            "Duration of placements and holder starts",
            "Mean time of a placement with its write, and from the creation of a holder pod until"
            " its GPU is known.",
            GrafanaUnit.SECONDS,
            (
                PanelQuery(
                    _mean(
                        "vgpu_kubeshare_placement_seconds_total", "vgpu_kubeshare_placements_total"
                    ),
                    "placement",
                ),
                PanelQuery(
                    _mean(
                        "vgpu_kubeshare_holder_start_seconds_total",
                        "vgpu_kubeshare_holder_starts_total",
                    ),
                    "holder start",
                ),
            ),
            f"{NO_CONTROLLER}, or nothing was placed",
            link=links.runbook("VgpuKubeShareHolderPending"),
        ),
    ),
)
