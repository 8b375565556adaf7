"""The alerts of the scheduler, of which a cluster has several replicas without a leader."""

from typing import Final

from grafana.promql import TARGET, Alert, AlertSeverity, RuleGroup, any_of, failed_part, gained
from grafana.settings import (
    ABSENT_REMEMBERED,
    API_ERROR_RATIO,
    API_ERRORS,
    BIND_FAILURES,
    FAILED_BINDS,
    REQUEST_ERROR_RATIO,
    REQUEST_SECONDS,
    SCHEDULER,
    VIEW_SECONDS,
)
from grafana.templates import COUNT, RATIO, THE_NODE, TIME
from scheduler.metrics import Outcome, Verb

CRITICAL, WARNING, INFO = AlertSeverity.CRITICAL, AlertSeverity.WARNING, AlertSeverity.INFO

REQUESTS: Final = "vgpu_extender_requests_total"
SECONDS: Final = "vgpu_extender_request_duration_seconds_sum"
_ERRORS: Final = f'{{result="{Outcome.ERROR}"}}'


def _rate(metric: str, which: str = "") -> str:
    return f"sum without (result) (rate({metric}{which}[15m]))"


_FAILED: Final = gained(
    f'vgpu_extender_bind_failures_total{{reason=~"{any_of(BIND_FAILURES)}"}}', "1h"
)
_BINDS: Final = f'rate({REQUESTS}{{verb="{Verb.BIND}"}}[15m]) > 0'

SCHEDULERS: Final = RuleGroup(
    "vgpu-schedulers",
    (
        Alert(
            "VgpuSchedulerDown",
            WARNING,
            f"up{{{SCHEDULER}}} == 0",
            "10m",
            f"The scheduler {THE_NODE} cannot be scraped",
            "If no other replica answers, no pod with a share of a GPU is bound. First: check"
            " whether its pod runs, and read the end of its log.",
        ),
        Alert(
            "VgpuSchedulersAbsent",
            CRITICAL,
            f"last_over_time(cluster:vgpu_extenders:count[{ABSENT_REMEMBERED}])"
            f" unless on (cluster) up{{{SCHEDULER}}}",
            "15m",
            "Prometheus scrapes no scheduler",
            f"{COUNT} ran within the last week. First: look for the Deployment, and for the scrape"
            " job and its ServiceMonitor or PodMonitor.",
        ),
        Alert(
            "VgpuSchedulersNotReady",
            CRITICAL,
            "max by (cluster, job) (vgpu_extender_ready) == 0",
            "5m",
            "No scheduler is ready: no pod gets a GPU",
            "Every answer to kube-scheduler is an error. First: the log of any replica has the"
            " reason; look at the API server, and for a missing permission.",
        ),
        Alert(
            "VgpuSchedulerNotReady",
            WARNING,
            "vgpu_extender_ready == 0",
            "10m",
            f"The scheduler {THE_NODE} is not ready",
            "It has not read the cluster, or the API server is silent; its answers are errors."
            " First: its log has the reason; compare with the other replicas.",
        ),
        Alert(
            "VgpuSchedulerViewOld",
            WARNING,
            f"vgpu_extender_view_age_seconds > {VIEW_SECONDS}",
            "5m",
            f"The scheduler {THE_NODE} hears nothing about {{{{ $labels.kind }}}}",
            f"The last event came {TIME} ago. First: its log has the error of the watch; look for"
            " a missing permission, or for a proxy that cuts long requests.",
        ),
        Alert(
            "VgpuSchedulerErrors",
            WARNING,
            f"{_rate(REQUESTS, _ERRORS)} / {_rate(REQUESTS)} > {REQUEST_ERROR_RATIO}",
            "10m",
            f"The scheduler {THE_NODE} answers with errors: {{{{ $labels.verb }}}}",
            f"{RATIO} of these requests; the pods wait. First: the events of a pending pod have"
            " the error; see vgpu_extender_bind_failures_total by reason.",
        ),
        Alert(
            "VgpuSchedulerBindsFail",
            WARNING,
            f"{_FAILED} > {FAILED_BINDS}",
            "",
            f"Pods cannot be bound by the scheduler {THE_NODE}: {{{{ $labels.reason }}}}",
            f"{COUNT} within an hour. First: the events of these pods have the error of the API"
            " server, or the name of the Lease that cannot be read.",
        ),
        Alert(
            "VgpuSchedulerSlow",
            WARNING,
            f"{_rate(SECONDS)} / {_rate(REQUESTS)} > {REQUEST_SECONDS}",
            "10m",
            f"The scheduler {THE_NODE} is slow: {{{{ $labels.verb }}}}",
            f"An answer takes {TIME} on average; kube-scheduler waits for it. First: look at the"
            " CPU that the scheduler gets, and for bind at the API server.",
        ),
        Alert(
            "VgpuSchedulerReservationsStay",
            WARNING,
            f"vgpu_extender_reservations > 0 unless on ({TARGET}) ({_BINDS})",
            "15m",
            f"The scheduler {THE_NODE} keeps GPUs reserved and binds no pod",
            f"{COUNT} reservations, and no binding for 15 minutes: GPUs are held for nothing."
            " First: its log has the reason why reservations cannot end.",
        ),
        Alert(
            "VgpuSchedulerApiErrors",
            WARNING,
            f"{failed_part('vgpu_extender_api_requests_total', API_ERRORS)} > {API_ERROR_RATIO}",
            "15m",
            f"Requests of the scheduler {THE_NODE} fail",
            f"{RATIO} of its requests to the API server. First: by code: 0 is the network, 401 and"
            " 403 are rights, 5xx the API server itself.",
        ),
        Alert(
            "VgpuPodsWaitForGpus",
            INFO,
            "max by (cluster, job) (vgpu_extender_rejected_pods) > 0",
            "1h",
            "Pods wait for GPUs",
            f"For an hour no node has taken {COUNT} pods. First: kubectl get events"
            " --field-selector reason=VgpuNotPlaced shows what is missing.",
        ),
    ),
)
