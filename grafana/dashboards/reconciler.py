"""The reconciler: findings, actions, skipped objects and reasons, its own health."""

from typing import Final

from grafana import settings
from grafana.dashboards import choices, links
from grafana.dashboards.api_requests import api_requests
from grafana.dashboards.model import (
    NONE_IS_BETTER,
    NONE_IS_GOOD,
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
from grafana.dashboards.selecting import BOTH_SCOPES, PROCESS, RECONCILER, findings, or_zero
from grafana.promql import any_of, gained

NO_RECONCILER: Final = "no reconciler is scraped"
NO_PLAN: Final = "no reconciler is scraped, or none of them has a plan"


def of_it(metric: str, more: str = "") -> str:
    """The metric's series of the selected reconcilers."""
    return f"{metric}{{{RECONCILER}{more}}}"


def growth(metric: str, by: str) -> str:
    """The growth of a counter that exists from the start of its process, by label."""
    return f"sum by ({by}) (increase({of_it(metric)}[$__rate_interval]))"


def last_good(scope: str, by: str) -> str:
    """Time of the last good cycle of a scope's reconcilers, for a day also of those gone."""
    return (
        f"max by ({by}) (max_over_time("
        f"{of_it('vgpu_reconcile_last_success_timestamp_seconds')}[1d])"
        f' and on ({PROCESS}) last_over_time(vgpu_reconcile_info{{scope="{scope}"}}[1d]))'
    )


FOUND: Final = findings(RECONCILER)

FAILED: Final = of_it("vgpu_reconcile_actions_total", f', outcome=~"{any_of(settings.FAILURES)}"')

SUMMARY: Final = PanelRow(
    "Summary",
    (
        stat(
            "Since the last good cycle",
            "The longest time among all clusters, and all nodes that have a reconciler. A cycle is"
            " good if it had a plan and could write its audit.",
            GrafanaUnit.SECONDS,
            f"time() - min({last_good('cluster', 'cluster')}"
            f" or ({last_good('node', 'cluster, instance')}"
            f" and on (cluster, instance) up{{{settings.RECONCILER}}}))",
            "no reconciler is scraped, or none has ended a cycle well",
            steps=((None, Colour.GOOD), (settings.CYCLE_SECONDS, Colour.BAD)),
            link=links.runbook("VgpuReconcilerStalled"),
        ),
        stat(
            "Circuit breaker",
            "The breaker trips, and nothing is done, if more objects need an action than are"
            " allowed at once.",
            GrafanaUnit.COUNT,
            f"max({of_it('vgpu_reconcile_breaker_tripped')})",
            NO_PLAN,
            steps=NONE_IS_GOOD,
            value_texts={0: "closed", 1: "TRIPPED"},
            link=links.runbook("VgpuBreakerTripped"),
        ),
        stat(
            "Findings",
            f"Objects with a finding. {BOTH_SCOPES}",
            GrafanaUnit.COUNT,
            f"sum({FOUND})",
            NO_PLAN,
            steps=NONE_IS_BETTER,
        ),
        stat(
            "To be acted on",
            "Objects for which the newest plan of a process has an action.",
            GrafanaUnit.COUNT,
            or_zero(f"sum({of_it('vgpu_reconcile_planned_actions')})", FOUND),
            NO_PLAN,
        ),
        stat(
            "Skipped",
            "Objects that are not touched although a rule would act; the reasons are further down."
            " What only a node's own sources show, the cluster's reconciler leaves to the node's.",
            GrafanaUnit.COUNT,
            f"sum({of_it('vgpu_reconcile_skipped')})",
            NO_PLAN,
        ),
        stat(
            "Actions that failed, 1 h",
            "Actions whose outcome needs a person if it repeats. Counted from the"
            " first: `increase()` would not see it.",
            GrafanaUnit.COUNT,
            or_zero(
                f"sum({gained(FAILED, '1h')})",
                of_it("vgpu_reconcile_cycles_total"),
            ),
            NO_RECONCILER,
            steps=NONE_IS_GOOD,
            link=links.runbook("VgpuReconcileActionsFailing"),
        ),
    ),
)

WHICH: Final = PanelRow(
    "Reconcilers",
    (
        TablePanel(
            "Reconcilers",
            "One line for each process. Of several for a cluster one is the leader; the others"
            " have no plan. In mode plan the process reports only.",
            {"cluster": "Cluster", "instance": "Reconciler"},
            (
                Column(
                    "Runs",
                    of_it("vgpu_reconcile_info"),
                    more={"scope": "Scope", "mode": "Mode"},
                    value_texts={1: "yes"},
                ),
                Column(
                    "Leads",
                    of_it("vgpu_reconcile_leader"),
                    value_texts={0: "stands by", 1: "leads"},
                ),
                Column(
                    "Last cycle",
                    f"{of_it('vgpu_reconcile_last_cycle_timestamp_seconds')} * 1000",
                    GrafanaUnit.AGO,
                ),
                Column(
                    "Last good one",
                    f"{of_it('vgpu_reconcile_last_success_timestamp_seconds')} * 1000",
                    GrafanaUnit.AGO,
                ),
                Column("Took", of_it("vgpu_reconcile_cycle_duration_seconds"), GrafanaUnit.SECONDS),
                Column("Need an action", of_it("vgpu_reconcile_breaker_wanted_actions")),
                Column("Allowed at once", of_it("vgpu_reconcile_breaker_allowed_actions")),
            ),
            "Need an action",
            NO_RECONCILER,
            height=5,
        ),
    ),
)

FINDINGS: Final = PanelRow(
    "Findings and actions",
    (
        bars(
            "Findings by rule",
            "For a process each object counts once, under the first rule that reports it. A click"
            f" opens the rule's runbook. {BOTH_SCOPES}",
            GrafanaUnit.COUNT,
            (
                PanelQuery(
                    or_zero(f"sort_desc(sum by (rule) ({FOUND}) > 0)", FOUND, rule="nothing found"),
                    "{{rule}}",
                ),
            ),
            NO_PLAN,
            steps=NONE_IS_BETTER,
            link=links.RULE,
            width=12,
            height=7,
        ),
        bars(
            "Planned and skipped",
            "What happens to the objects with a finding: the effect of the planned action and its"
            " rule, or the first reason for which the object is skipped. Recovery gives a failed"
            " workload another chance, tidying removes what has been replaced, repair corrects"
            " allocation records. `vgpu reconcile plan` names the objects.",
            GrafanaUnit.COUNT,
            (
                PanelQuery(
                    or_zero(
                        f"sum by (rule, effect) ({of_it('vgpu_reconcile_planned_actions')})",
                        FOUND,
                        rule="no action is planned",
                    ),
                    "{{effect}} {{rule}}",
                ),
                PanelQuery(
                    or_zero(
                        f"sort_desc(sum by (reason) ({of_it('vgpu_reconcile_skipped')}) > 0)",
                        of_it("vgpu_reconcile_skipped"),
                        reason="none",
                    ),
                    "skipped: {{reason}}",
                ),
            ),
            NO_PLAN,
            width=12,
            height=7,
        ),
        graph(
            "Findings over time",
            f"A line that does not fall is not repaired. {BOTH_SCOPES}",
            GrafanaUnit.COUNT,
            (
                PanelQuery(
                    or_zero(f"sum by (rule) ({FOUND}) > 0", FOUND, rule="nothing found"),
                    "{{rule}}",
                ),
            ),
            NO_PLAN,
            stacked=True,
        ),
        graph(
            "Actions tried since it started",
            "By outcome. The level, since a rate would not see the first of each.",
            GrafanaUnit.COUNT,
            (
                PanelQuery(
                    or_zero(
                        f"sum by (outcome) ({of_it('vgpu_reconcile_actions_total')})",
                        of_it("vgpu_reconcile_cycles_total"),
                        outcome="none tried",
                    ),
                    "{{outcome}}",
                ),
            ),
            NO_RECONCILER,
            stacked=True,
        ),
    ),
)

CYCLES: Final = PanelRow(
    "Reconciler health",
    (
        graph(
            "Cycles",
            "By result: blind cycles could not read all pods and decided nothing, untold cycles"
            " could not write the audit. Missed cycles were due and were skipped or not finished.",
            GrafanaUnit.COUNT,
            (
                PanelQuery(growth("vgpu_reconcile_cycles_total", "result"), "{{result}}"),
                PanelQuery(
                    growth("vgpu_reconcile_missed_cycles_total", "reason"), "missed: {{reason}}"
                ),
            ),
            NO_RECONCILER,
            stacked=True,
            link=links.runbook("VgpuReconcileCyclesMissed"),
            width=8,
        ),
        graph(
            "Duration of a cycle",
            "The newest cycle of each reconciler, by stage.",
            GrafanaUnit.SECONDS,
            (
                PanelQuery(
                    f"max by (stage) ({of_it('vgpu_reconcile_stage_duration_seconds')})",
                    "{{stage}}",
                ),
            ),
            "no reconciler is scraped, or none has begun a cycle",
            stacked=True,
            width=8,
        ),
        api_requests(
            of_it("vgpu_reconcile_api_requests_total"),
            "reconciler",
            "VgpuReconcilerApiErrors",
            width=8,
        ),
    ),
)

REPAIRING: Final = Dashboard(
    "vgpu-reconciler",
    "vgpu / Reconciler",
    "The reconciler: findings, actions, skipped objects and reasons.",
    (choices.CLUSTER, choices.RECONCILER),
    (SUMMARY, WHICH, FINDINGS, CYCLES),
    "6h",
)
