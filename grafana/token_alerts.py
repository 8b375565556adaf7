"""The alerts of `vgpu tokens`, which shares the time of a node's GPUs among pods."""

from typing import Final

from grafana.promql import NODE, Alert, AlertSeverity, RuleGroup, of_pods
from grafana.settings import (
    ABSENT_REMEMBERED,
    FLAPS,
    TOKEN_LAG_SECONDS,
    TOKEN_OVERRUN_RATIO,
    TOKEN_SHARE_MISSED,
    TOKEN_WAIT_RATIO,
    TOKENS,
)
from grafana.templates import COUNT, RATIO, THE_NODE, TIME

CRITICAL, WARNING = AlertSeverity.CRITICAL, AlertSeverity.WARNING

THE_POD: Final = "{{ $labels.namespace }}/{{ $labels.pod }}"

POD_OF_GPU: Final = f"{NODE}, container, uuid"
"""Labels of the alerts of a pod, beside its own."""


def _below_request(by: str, which: str) -> str:
    request, share = (
        f"max by ({by}) (vgpu_token_{name}_ratio{{{which}}})"
        for name in ("request", "window_share")
    )
    waiting = f"avg by ({by}) (avg_over_time(vgpu_token_waiting{{{which}}}[5m]))"
    return f"({request} - {share} > {TOKEN_SHARE_MISSED}) and {waiting} > {TOKEN_WAIT_RATIO}"


def _overrun(by: str, which: str) -> str:
    overrun, used = (
        f"sum by ({by}) (rate(vgpu_token_{name}_seconds_total{{{which}}}[15m]))"
        for name in ("overrun", "used")
    )
    return f"{overrun} / {used} > {TOKEN_OVERRUN_RATIO}"


BELOW_REQUEST: Final = of_pods(_below_request, POD_OF_GPU)
"""What pods miss of their requests although they wait for the token most of the time."""

OVERRUN: Final = of_pods(_overrun, POD_OF_GPU)
LAG: Final = "histogram_quantile(0.99, rate(vgpu_token_loop_lag_seconds_bucket[15m]))"

TOKEN_DAEMONS: Final = RuleGroup(
    "vgpu-tokens",
    (
        Alert(
            "VgpuTokensDown",
            CRITICAL,
            f"up{{{TOKENS}}} == 0",
            "5m",
            f"The token daemon on {THE_NODE} cannot be scraped",
            "If it does not run, pods with Gemini's hook end there, and new ones fail after 50 s."
            " First: kubectl get pods -o wide of the DaemonSet, and read the end of its log.",
        ),
        Alert(
            "VgpuTokensAbsent",
            WARNING,
            f"last_over_time(cluster:vgpu_token_daemons:count[{ABSENT_REMEMBERED}])"
            f" unless on (cluster) up{{{TOKENS}}}",
            "15m",
            "Prometheus scrapes no token daemon",
            f"{COUNT} ran within the last week. First: look for the DaemonSet, and for the scrape"
            " job and its ServiceMonitor or PodMonitor.",
        ),
        Alert(
            "VgpuTokensRestarted",
            WARNING,
            "resets(vgpu_token_loop_lag_seconds_count[15m]) > 0",
            "",
            f"The token daemon on {THE_NODE} ended without a hand-over",
            "Connections were closed: pods with Gemini 1.0 end at their next message, and memory of"
            " the others is not counted. First: kubectl describe of its pod shows why it ended"
            " (OOMKilled, Error).",
        ),
        Alert(
            "VgpuTokensNotReady",
            WARNING,
            "vgpu_token_ready == 0",
            "10m",
            f"The token daemon on {THE_NODE} does not serve all pods",
            "A file of shares cannot be used, or a port of a pod cannot be opened. First:"
            " /-/ready of its port 9402 names the file or the port.",
        ),
        Alert(
            "VgpuTokenShareMissed",
            WARNING,
            BELOW_REQUEST,
            "5m",
            f"{THE_POD} misses GPU time on {THE_NODE}",
            f"It gets {RATIO} of the GPU's time less than it requests, and waits. First: look for a"
            " pod of this GPU that overruns its quotas, and whether the requests of its pods are"
            " more than 1 in sum.",
            keep=FLAPS,
        ),
        Alert(
            "VgpuTokenOverruns",
            WARNING,
            OVERRUN,
            "15m",
            f"{THE_POD} overruns its quotas on {THE_NODE}",
            f"{RATIO} of the time for which it uses the GPU is beyond its quotas. Its bursts of"
            " kernels are longer than a token, and run beside those of other pods. First: let it"
            " synchronise with the GPU more often, or raise --quota and --max-quota.",
            keep=FLAPS,
        ),
        Alert(
            "VgpuTokensLate",
            WARNING,
            f"{LAG} > {TOKEN_LAG_SECONDS}",
            "15m",
            f"The token daemon on {THE_NODE} is late",
            f"One of 100 of its timers passes {TIME} late or more, so GPUs stay idle between"
            " tokens. First: is the node out of CPU time? Raise the CPU request of the daemon.",
        ),
    ),
)
