"""The token daemon, as a row of a node's dashboard."""

from typing import Final

from grafana.dashboards import links
from grafana.dashboards.model import (
    NONE_IS_BETTER,
    Colour,
    Column,
    GrafanaUnit,
    PanelQuery,
    PanelRow,
    TablePanel,
    graph,
    stat,
)
from grafana.dashboards.selecting import NODE, or_zero
from grafana.promql import GPU, of_pods
from grafana.settings import TOKEN_LAG_SECONDS, TOKEN_OVERRUN_RATIO, TOKEN_SHARE_MISSED

NO_DAEMON: Final = "no token daemon is scraped on this node"
NO_TENANT: Final = f"{NO_DAEMON}, or no pod has tokens"

READY: Final = f"vgpu_token_ready{{{NODE}}}"
"""A series of every daemon."""


def _of_pod(metric: str, offset: str = "") -> str:
    """One series for each pod and GPU."""
    return of_pods(lambda by, which: f"max by ({by}) ({metric}{{{NODE}, {which}}}{offset})", GPU)


def _rate(counter: str) -> str:
    return f"rate({counter}{{{NODE}}}[$__rate_interval])"


def _rate_of_pod(counter: str, by: str = GPU) -> str:
    def summed(by: str, which: str) -> str:
        return f"sum by ({by}) (rate({counter}{{{NODE}, {which}}}[$__rate_interval]))"

    return of_pods(summed, by)


def _by_pod(expr: str) -> str:
    return f"sum by (namespace, pod) ({expr})"


def _gained(counter: str) -> str:
    """The growth of a counter in an hour, of all pods together.

    The next daemon goes on with the counters of the last one.
    """
    now, before = (_of_pod(counter, offset) for offset in ("", " offset 1h"))
    return or_zero(f"sum(({now} - {before} >= 0) or {now})", READY)


MISSED: Final = (
    f"{_of_pod('vgpu_token_request_ratio')} - {_of_pod('vgpu_token_window_share_ratio')}"
)
"""What each pod gets less than its request, whether it wants more or not."""

WAITED: Final = of_pods(
    lambda by, which: f"avg by ({by}) (avg_over_time(vgpu_token_waiting{{{NODE}, {which}}}[5m]))",
    GPU,
)
OVERRUN: Final = (
    f"{_rate_of_pod('vgpu_token_overrun_seconds_total')}"
    f" / ({_rate_of_pod('vgpu_token_used_seconds_total')} > 0)"
)


def _quantile(share: float, buckets: str, *by: str) -> str:
    """The time that this share of all times did not exceed; nothing where there were none."""
    labels = ", ".join((*by, "le"))
    return f"histogram_quantile({share}, sum by ({labels}) ({buckets})) >= 0"


LAG: Final = _quantile(0.99, _rate("vgpu_token_loop_lag_seconds_bucket"))
HANDOVERS: Final = _rate("vgpu_token_handover_seconds_bucket")
WAITS: Final = _rate_of_pod("vgpu_token_wait_seconds_bucket", f"{GPU}, le")

POD_NAME: Final = "{{namespace}}/{{pod}}"

TOKENS: Final = PanelRow(
    "Token daemon",
    (
        stat(
            "Token daemon",
            "Whether vgpu tokens can use all files of shares, and has opened the port of each pod.",
            GrafanaUnit.COUNT,
            f"min({READY})",
            NO_DAEMON,
            steps=((None, Colour.BAD), (1, Colour.GOOD)),
            value_texts={0: "NOT READY", 1: "ready"},
            link=links.runbook("VgpuTokensNotReady"),
        ),
        stat(
            "Pods below their request",
            "Pods that wait for the token and get less of the GPU's time than they request.",
            GrafanaUnit.COUNT,
            or_zero(f"count(({MISSED} > {TOKEN_SHARE_MISSED}) and ({WAITED} > 0.5))", READY),
            NO_DAEMON,
            steps=NONE_IS_BETTER,
            link=links.runbook("VgpuTokenShareMissed"),
        ),
        stat(
            "Tokens not returned, 1 h",
            "Tokens whose holder became idle, or ran on, until quota and grace had passed, while"
            " another pod waited.",
            GrafanaUnit.COUNT,
            _gained("vgpu_token_unreturned_total"),
            NO_DAEMON,
            link=links.runbook("VgpuTokenOverruns"),
        ),
        stat(
            "Memory refused, 1 h",
            "Bookings above the limit of their pod: its program gets an error, out of memory.",
            GrafanaUnit.COUNT,
            _gained("vgpu_token_memory_refused_total"),
            NO_DAEMON,
        ),
        stat(
            "Broken messages, 1 h",
            "Messages that do not follow Gemini's protocol. Gemini 1.1 sends its burst in a wrong"
            " place, which is repaired and counted, too.",
            GrafanaUnit.COUNT,
            _gained("vgpu_token_malformed_total"),
            NO_DAEMON,
        ),
        stat(
            "Delay of timers",
            "Time by which the daemon is late at the end of tokens that were not returned: 99 % of"
            " the timers are less late. The GPU is idle then.",
            GrafanaUnit.SECONDS,
            or_zero(f"max({LAG})", READY),
            NO_DAEMON,
            steps=((None, Colour.GOOD), (TOKEN_LAG_SECONDS, Colour.BAD)),
            link=links.runbook("VgpuTokensLate"),
        ),
        TablePanel(
            "Pods with tokens",
            'One line for each pod and GPU. "Share" is the part of the last window for which the'
            ' pod had the token, "waits" the part of 5 minutes in which one of its processes'
            " waited. A pod that waits should have at least its request, and none more than its"
            " limit.",
            {"namespace": "Namespace", "pod": "Pod", "uuid": "UUID"},
            (
                Column("Request", _of_pod("vgpu_token_request_ratio"), GrafanaUnit.RATIO),
                Column("Limit", _of_pod("vgpu_token_limit_ratio"), GrafanaUnit.RATIO),
                Column(
                    "Share", _of_pod("vgpu_token_window_share_ratio"), GrafanaUnit.RATIO, bar=True
                ),
                Column("Waits", WAITED, GrafanaUnit.RATIO),
                Column(
                    "Memory booked", _of_pod("vgpu_token_memory_booked_bytes"), GrafanaUnit.BYTES
                ),
                Column("Memory limit", _of_pod("vgpu_token_memory_limit_bytes"), GrafanaUnit.BYTES),
                Column("Connections", _of_pod("vgpu_token_connections")),
                Column(
                    "Not returned",
                    _of_pod("vgpu_token_unreturned_total"),
                    steps=NONE_IS_BETTER,
                ),
                Column("Memory refused", _of_pod("vgpu_token_memory_refused_total")),
            ),
            "Share",
            NO_TENANT,
            links={"Pod": links.POD},
            height=8,
        ),
        graph(
            "Share of GPU time, by pod",
            "The part of the last window for which each pod had the token, over all its GPUs.",
            GrafanaUnit.RATIO,
            (PanelQuery(_by_pod(_of_pod("vgpu_token_window_share_ratio")), POD_NAME),),
            NO_TENANT,
            stacked=True,
            link=links.runbook("VgpuTokenShareMissed"),
        ),
        graph(
            "Below request, by pod",
            "What each pod gets less than it requests. It is of no account for a pod that does not"
            " wait: it does not need more.",
            GrafanaUnit.RATIO,
            (PanelQuery(_by_pod(MISSED), POD_NAME),),
            NO_TENANT,
            link=links.runbook("VgpuTokenShareMissed"),
        ),
        graph(
            "Waiting for the token, by pod",
            "Time for which the pod waited for tokens that it got, by time.",
            GrafanaUnit.RATIO,
            (PanelQuery(_by_pod(_rate_of_pod("vgpu_token_wait_seconds_sum")), POD_NAME),),
            NO_TENANT,
            link=links.runbook("VgpuTokenShareMissed"),
        ),
        graph(
            "Long waits for a token, by pod",
            "How long the pod waited for a token: 99 % of its tokens came sooner. A wait of seconds"
            " is one at the pod's limit, or behind a pod that does not return its tokens.",
            GrafanaUnit.SECONDS,
            (PanelQuery(_quantile(0.99, WAITS, "namespace", "pod"), POD_NAME),),
            f"{NO_DAEMON}, or no pod got a token",
            link=links.runbook("VgpuTokenShareMissed"),
        ),
        graph(
            "Time of a hand-over",
            "From the message or timer at which a token can be granted to the answer that grants"
            " it. The GPU is idle meanwhile, unless its last kernels still run.",
            GrafanaUnit.SECONDS,
            (
                PanelQuery(_quantile(0.5, HANDOVERS), "median"),
                PanelQuery(_quantile(0.99, HANDOVERS), "99 %"),
            ),
            f"{NO_DAEMON}, or no pod got a token",
            link=links.runbook("VgpuTokensLate"),
        ),
        graph(
            "Overrun, by pod",
            f"Time beyond its quotas for which the pod used the GPU, as a part of all. Above"
            f" {TOKEN_OVERRUN_RATIO:.0%} it disturbs others.".replace("%", " %"),
            GrafanaUnit.RATIO,
            (PanelQuery(_by_pod(OVERRUN), POD_NAME),),
            f"{NO_DAEMON}, or no pod got a token",
            link=links.runbook("VgpuTokenOverruns"),
        ),
    ),
)
