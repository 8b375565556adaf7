"""The alerts of the reconcilers, and of what they find and cannot repair."""

from typing import Final

from grafana.promql import Alert, AlertSeverity, RuleGroup, any_of, failed_part, gained
from grafana.settings import (
    ABSENT_REMEMBERED,
    API_ERROR_RATIO,
    API_ERRORS,
    CLUSTER_RECONCILER,
    CYCLE_SECONDS,
    FAILURES,
    LOCKS,
    MISSED_CYCLES,
    OTHER_RULES,
    RECONCILER,
    SHARED_RESOURCES,
    STUCK_PODS,
)
from grafana.templates import COUNT, RATIO, THE_NODE, TIME

CRITICAL, WARNING, INFO = AlertSeverity.CRITICAL, AlertSeverity.WARNING, AlertSeverity.INFO

FAILED_ACTIONS: Final = f'vgpu_reconcile_actions_total{{outcome=~"{any_of(FAILURES)}"}}'

_POD: Final = "cluster, namespace, pod"
WAITING_PODS: Final = (
    f"sum by (cluster) (max by ({_POD}) (kube_pod_status_unschedulable) * on ({_POD})"
    f" group by ({_POD}) (kube_pod_container_resource_requests"
    f'{{resource=~"{any_of(SHARED_RESOURCES)}"}} > 0))'
)
"""Pods that ask for a share of a GPU and fit nowhere, by kube-state-metrics."""


def _found(*rules: str) -> str:
    return f'vgpu_reconcile_findings{{rule=~"{any_of(rules)}"}} > 0'


def _cycles(*results: str) -> str:
    matcher = f'{{result=~"{any_of(results)}"}}'
    return f"sum without (result) (increase(vgpu_reconcile_cycles_total{matcher}[30m])) > 0"


RECONCILERS: Final = RuleGroup(
    "vgpu-reconcilers",
    (
        Alert(
            "VgpuStuckPods",
            WARNING,
            _found(*STUCK_PODS),
            "1h",
            "Pods that request a GPU are stuck: {{ $labels.rule }}",
            f"{COUNT} pods have failed or waited for an hour and were not repaired. First: vgpu"
            " reconcile plan names them, and the reason why each is skipped.",
        ),
        Alert(
            "VgpuNodeLockStuck",
            WARNING,
            _found(*LOCKS),
            "15m",
            "A GPU node is locked and no pod needs the lock",
            f"{COUNT} nodes accept no new GPU pod. First: vgpu reconcile plan names the node, the"
            " lock's owner, and why the lock is kept.",
        ),
        Alert(
            "VgpuFindingsPersist",
            INFO,
            _found(*OTHER_RULES),
            "1h",
            "Findings of the rule {{ $labels.rule }} persist",
            f"{COUNT} objects, for an hour. First: vgpu reconcile plan shows what would be done,"
            " and why it is not done; the rule may be set to plan only.",
        ),
        Alert(
            "VgpuIdleWhileOthersWait",
            WARNING,
            'sum by (cluster) (vgpu_reconcile_findings{rule="idle_holder"}) > 0'
            f" and on (cluster) {WAITING_PODS} > 0",
            "30m",
            "Containers hold shares of GPUs idle while other pods wait",
            f"{COUNT} containers have launched no kernel for --idle-after, and pods that ask for a"
            " share fit nowhere. First: vgpu reconcile plan --scope node on the nodes names them.",
        ),
        Alert(
            "VgpuReconcilerDown",
            WARNING,
            f"up{{{RECONCILER}}} == 0",
            "10m",
            f"The reconciler {THE_NODE} cannot be scraped",
            "A node's reconciler repairs nothing there now; a cluster's repairs nothing unless"
            " another one is the leader. First: check whether its pod runs, and read the end of"
            " its log.",
        ),
        Alert(
            "VgpuReconcilerAbsent",
            WARNING,
            f"last_over_time(cluster:vgpu_reconcilers:count[{ABSENT_REMEMBERED}])"
            f" unless on (cluster) up{{{CLUSTER_RECONCILER}}}",
            "15m",
            "No reconciler of the cluster is scraped",
            f"{COUNT} ran within the last week. First: look for its Deployment and its scrape job.",
        ),
        Alert(
            "VgpuReconcilerStalled",
            WARNING,
            f"time() - vgpu_reconcile_last_cycle_timestamp_seconds > {CYCLE_SECONDS}",
            "5m",
            f"The reconciler {THE_NODE} starts no cycles",
            f"Its newest cycle began {TIME} ago. First: compare with its schedule (--every,"
            " --cron); else see /-/healthy and the log, and restart it.",
        ),
        Alert(
            "VgpuReconcileFailing",
            WARNING,
            f"{_cycles('blind', 'untold')} unless {_cycles('planned', 'applied', 'partly')}",
            "10m",
            f"The reconciler {THE_NODE} fails in every cycle",
            "For half an hour it could not read the cluster or not write its audit. First: its log"
            " has the API server's error; look for a missing permission or a full disk.",
        ),
        Alert(
            "VgpuReconcileCyclesMissed",
            WARNING,
            f"increase(vgpu_reconcile_missed_cycles_total[1h]) > {MISSED_CYCLES}",
            "",
            f"The reconciler {THE_NODE} misses cycles: {{{{ $labels.reason }}}}",
            f"{COUNT} in an hour. First: the reason failed is a defect, with details in the log;"
            " else compare vgpu_reconcile_stage_duration_seconds with --every.",
        ),
        Alert(
            "VgpuReconcileActionsFailing",
            WARNING,
            f"{gained(FAILED_ACTIONS, '1h')} > 0",
            "15m",
            "Repairs end as {{ $labels.outcome }}",
            f"{COUNT} actions of rule {{{{ $labels.rule }}}} in an hour. First: the log's lines"
            " msg=action have the objects and the API server's error.",
        ),
        Alert(
            "VgpuBreakerTripped",
            CRITICAL,
            "vgpu_reconcile_breaker_tripped == 1",
            "10m",
            "The circuit breaker has tripped: the reconciler does nothing",
            "More pods need an action than the circuit breaker allows. First: find the common"
            " cause in vgpu reconcile report; a person has to decide.",
        ),
        Alert(
            "VgpuReconcilerNoLeader",
            WARNING,
            "max by (cluster, namespace, job) (vgpu_reconcile_leader) == 0",
            "10m",
            "No reconciler is the leader",
            "All of {{ $labels.job }} wait for a leader, and nothing is repaired. First: kubectl"
            " get lease vgpu-reconciler -o yaml shows the holder.",
        ),
        Alert(
            "VgpuReconcilerApiErrors",
            WARNING,
            f"{failed_part('vgpu_reconcile_api_requests_total', API_ERRORS)} > {API_ERROR_RATIO}",
            "15m",
            f"Requests of the reconciler {THE_NODE} fail",
            f"{RATIO} of its requests to the API server. First: by code: 0 is the network, 401 and"
            " 403 are rights, 5xx the API server itself.",
        ),
    ),
)
