"""The scheduler: requests of kube-scheduler, pods that no node takes, failed bindings, its view."""

from typing import Final

from grafana.dashboards import choices, links
from grafana.dashboards.api_requests import api_requests
from grafana.dashboards.kubeshare_row import KUBESHARE
from grafana.dashboards.model import (
    NONE_IS_BETTER,
    Colour,
    Column,
    Dashboard,
    GrafanaUnit,
    PanelQuery,
    PanelRow,
    TablePanel,
    bars,
    graph,
    stat,
)
from grafana.dashboards.selecting import SCHEDULER, or_zero
from grafana.promql import any_of, gained
from grafana.settings import BIND_FAILURES, REQUEST_SECONDS, VIEW_SECONDS

NO_SCHEDULER: Final = "no scheduler is scraped"
NOT_ASKED: Final = "no scheduler is scraped, or kube-scheduler has not asked yet"

EACH_REPLICA: Final = "Each replica knows all: of several replicas the largest number."


def of_it(metric: str, more: str = "") -> str:
    """The metric's series of the selected schedulers."""
    return f"{metric}{{{SCHEDULER}{more}}}"


def of_cluster(metric: str) -> str:
    """A number that each replica of a cluster has: the sum of the clusters."""
    return f"sum(max by (cluster) ({of_it(metric)}))"


def per_second(metric: str, by: str) -> str:
    """The rate of a counter, by label."""
    return f"sum by ({by}) (rate({of_it(metric)}[$__rate_interval]))"


NODES: Final = of_it("vgpu_extender_nodes")
"""A series of every scheduler."""


def quantile(share: float) -> str:
    """The duration of a request that this share of all requests did not exceed, by verb."""
    return (
        f"histogram_quantile({share},"
        f" {per_second('vgpu_extender_request_duration_seconds_bucket', 'verb, le')})"
    )


SERIOUS: Final = f', reason=~"{any_of(BIND_FAILURES)}"'
FAILED: Final = gained(of_it("vgpu_extender_bind_failures_total", SERIOUS), "1h")
REJECTED: Final = gained(of_it("vgpu_extender_rejections_total"), "1h")

SUMMARY: Final = PanelRow(
    "Summary",
    (
        stat(
            "Ready replicas",
            "A replica is ready when it has read the cluster and events arrive. Without a ready"
            " one, no pod with a share of a GPU is bound.",
            GrafanaUnit.COUNT,
            f"sum({of_it('vgpu_extender_ready')})",
            NO_SCHEDULER,
            steps=((None, Colour.BAD), (1, Colour.GOOD)),
            link=links.runbook("VgpuSchedulersNotReady"),
        ),
        stat(
            "Age of the view",
            "Time since the last event about pods, nodes or unhealthy GPUs, the oldest of all"
            " replicas. A bookmark comes every minute.",
            GrafanaUnit.SECONDS,
            f"max({of_it('vgpu_extender_view_age_seconds')})",
            "no scheduler is scraped, or none has read the cluster yet",
            steps=((None, Colour.GOOD), (VIEW_SECONDS, Colour.BAD)),
            link=links.runbook("VgpuSchedulerViewOld"),
        ),
        stat(
            "Waiting pods",
            f"Pods that no node took when kube-scheduler last asked. {EACH_REPLICA}",
            GrafanaUnit.COUNT,
            of_cluster("vgpu_extender_rejected_pods"),
            NO_SCHEDULER,
            steps=NONE_IS_BETTER,
            link=links.runbook("VgpuPodsWaitForGpus"),
        ),
        stat(
            "Reservations",
            "Pods with reserved GPUs whose binding the API server has not shown yet."
            f" {EACH_REPLICA}",
            GrafanaUnit.COUNT,
            of_cluster("vgpu_extender_reservations"),
            NO_SCHEDULER,
            link=links.runbook("VgpuSchedulerReservationsStay"),
        ),
        stat(
            "Failed bindings, 1 h",
            "Bindings that failed for a reason that needs a person if it repeats. Counted from"
            " the first: `increase()` would not see it.",
            GrafanaUnit.COUNT,
            or_zero(f"sum({FAILED})", NODES),
            NO_SCHEDULER,
            steps=NONE_IS_BETTER,
            link=links.runbook("VgpuSchedulerBindsFail"),
        ),
        stat(
            "Nodes with GPUs",
            f"Nodes with GPUs of a sharing system. {EACH_REPLICA}",
            GrafanaUnit.COUNT,
            of_cluster("vgpu_extender_nodes"),
            NO_SCHEDULER,
        ),
    ),
)

WHICH: Final = PanelRow(
    "Replicas",
    (
        TablePanel(
            "Replicas",
            "One line for each replica. There is no leader: any replica answers any request.",
            {"cluster": "Cluster", "instance": "Scheduler"},
            (
                Column(
                    "State",
                    of_it("vgpu_extender_ready"),
                    steps=((None, Colour.BAD), (1, Colour.GOOD)),
                    value_texts={0: "NOT READY", 1: "ready"},
                ),
                Column(
                    "Age of its view",
                    of_it("vgpu_extender_view_age_seconds"),
                    GrafanaUnit.SECONDS,
                    steps=((None, Colour.GOOD), (VIEW_SECONDS, Colour.BAD)),
                ),
                Column("Nodes", of_it("vgpu_extender_nodes")),
                Column("Pods", of_it("vgpu_extender_pods")),
                Column("Waiting", of_it("vgpu_extender_rejected_pods"), steps=NONE_IS_BETTER),
                Column("Reservations", of_it("vgpu_extender_reservations")),
                Column("Woken", of_it("vgpu_extender_woken_pods_total")),
            ),
            "Waiting",
            NO_SCHEDULER,
            height=5,
        ),
    ),
)

REQUESTS: Final = PanelRow(
    "Requests of kube-scheduler",
    (
        graph(
            "Requests",
            "By verb and result. An error makes kube-scheduler try the pod again; that no node"
            " takes a pod is no error.",
            GrafanaUnit.PER_SECOND,
            (
                PanelQuery(
                    per_second("vgpu_extender_requests_total", "verb, result"),
                    "{{verb}} {{result}}",
                ),
            ),
            NOT_ASKED,
            stacked=True,
            link=links.runbook("VgpuSchedulerErrors"),
        ),
        graph(
            "Duration of an answer",
            "The median of each verb, and the time that one of a hundred requests exceeds."
            " kube-scheduler waits for a filter before it goes on with the next pod; from a mean of"
            f" {REQUEST_SECONDS} s on an alert fires.",
            GrafanaUnit.SECONDS,
            (
                PanelQuery(quantile(0.5), "{{verb}} median"),
                PanelQuery(quantile(0.99), "{{verb}} 99 %"),
            ),
            NOT_ASKED,
            link=links.runbook("VgpuSchedulerSlow"),
        ),
    ),
)

REJECTIONS: Final = PanelRow(
    "Pods that wait",
    (
        bars(
            "Rejections by reason, 1 h",
            "Requests for a pod that no node takes, by the reason of most nodes. A pod that waits"
            " is asked for again and again. `/explain/<namespace>/<pod>` has every GPU.",
            GrafanaUnit.COUNT,
            (
                PanelQuery(
                    or_zero(
                        f"sort_desc(sum by (reason) ({REJECTED}) > 0)",
                        NODES,
                        reason="none rejected",
                    ),
                    "{{reason}}",
                ),
            ),
            NO_SCHEDULER,
            width=12,
            steps=NONE_IS_BETTER,
        ),
        bars(
            "Failed bindings by reason, 1 h",
            "`gone` and `bound_elsewhere` are races with deletions and with other schedulers, and"
            " the reasons of a placement are races of two pods for one GPU.",
            GrafanaUnit.COUNT,
            (
                PanelQuery(
                    or_zero(
                        "sort_desc(sum by (reason)"
                        f" ({gained(of_it('vgpu_extender_bind_failures_total'), '1h')}) > 0)",
                        NODES,
                        reason="none failed",
                    ),
                    "{{reason}}",
                ),
            ),
            NO_SCHEDULER,
            width=12,
            steps=NONE_IS_BETTER,
            link=links.runbook("VgpuSchedulerBindsFail"),
        ),
        graph(
            "Waiting pods and reservations",
            f"{EACH_REPLICA} Reservations come and go; those that stay hold GPUs for nothing.",
            GrafanaUnit.COUNT,
            (
                PanelQuery(of_cluster("vgpu_extender_rejected_pods"), "waiting pods"),
                PanelQuery(of_cluster("vgpu_extender_reservations"), "reservations"),
            ),
            NO_SCHEDULER,
            link=links.runbook("VgpuSchedulerReservationsStay"),
        ),
        api_requests(
            of_it("vgpu_extender_api_requests_total"),
            "scheduler",
            "VgpuSchedulerApiErrors",
        ),
    ),
)

PLACING: Final = Dashboard(
    "vgpu-scheduler",
    "vgpu / Scheduler",
    "The scheduler: requests of kube-scheduler, pods that wait, failed bindings; KubeShare's"
    " controllers.",
    (choices.CLUSTER, choices.SCHEDULER),
    (SUMMARY, WHICH, REQUESTS, REJECTIONS, KUBESHARE),
    "6h",
)
