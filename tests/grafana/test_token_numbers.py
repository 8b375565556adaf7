"""Panels and alerts of pods with tokens, while the token daemon's own pod is being replaced.

Without ``honor_labels`` the series of both daemons differ by the daemons' pods alone. A range then
has both, and an instant too while one takes over from the other.
"""

import pytest

from grafana.reading import EVERYTHING, FOLDER, filled, load, of_range, panels
from tests.grafana.promtool import EXPRESSIONS, inputs, passes, renamed

VALUES = {**EVERYTHING, **of_range(3600, step=60), "__rate_interval": "5m"}
ROW = {panel.title: panel.targets for panel in panels(load(FOLDER / "vgpu-node.json"))}
NODE = {"cluster": "north", "job": "vgpu-tokens", "instance": "10.0.0.7:9402"}
WHO = 'uuid="GPU-0",namespace="team",pod="train-0"'

RATE = "Waiting for the token, by pod"
"""What both daemons count at once is in the sum of two rates twice."""

GAUGES = {"request_ratio": 0.5, "limit_ratio": 0.8, "window_share_ratio": 0.25, "waiting": 1}
COUNTERS = {
    "wait_seconds_sum": 30,
    "wait_seconds_count": 60,
    'wait_seconds_bucket{le="1"}': 60,
    'wait_seconds_bucket{le="+Inf"}': 60,
    "overrun_seconds_total": 6,
    "used_seconds_total": 24,
    "unreturned_total": 2,
    "memory_refused_total": 0,
    "malformed_total": 1,
}
"""What each counter grows by in a minute."""

BY_PANEL = {
    "Pods below their request": 1,
    "Tokens not returned, 1 h": 120,
    "Memory refused, 1 h": 0,
    "Broken messages, 1 h": 60,
    "Share of GPU time, by pod": 0.25,
    "Below request, by pod": 0.25,
    RATE: 0.5,
    "Long waits for a token, by pod": 0.99,
    "Overrun, by pod": 0.25,
}
"""What a panel shows 100 minutes after the first daemon began."""

BY_COLUMN = {"A": 0.5, "B": 0.8, "C": 0.25, "D": 1}
"""Of the table: request, limit, share, waits."""


def of_pod(gauge, counter):
    """The series of the pod."""
    values = {name: gauge(value) for name, value in GAUGES.items()}
    values |= {name: counter(by) for name, by in COUNTERS.items()}
    ready = {"vgpu_token_ready": gauge(1)}
    return ready | {series(name): samples for name, samples in values.items()}


def series(name):
    name, _, more = name.rstrip("}").partition("{")
    return f"vgpu_token_{name}{{{','.join(filter(None, [WHO, more]))}}}"


FIRST = of_pod("{}x97 stale".format, "0+{}x97 stale".format)
NEXT = of_pod("_x98 {}x20".format, lambda by: f"_x98 {98 * by}+{by}x20")
BESIDE = of_pod("_x94 {}x20".format, lambda by: f"_x94 {94 * by}+{by}x20")
"""The next daemon, and one that Prometheus has found beside the first one for a while."""

ALONE = of_pod("{}x120".format, "0+{}x120".format)

REPLACED = {"after": (FIRST, NEXT), "beside": (FIRST, BESIDE)}


def stored(*daemons):
    """As a scrape without ``honor_labels`` stores the series of daemons of several pods."""
    return [
        each
        for number, daemon in enumerate(daemons)
        for each in inputs(
            {
                name.replace("vgpu-x7k2p", f"vgpu-{number}"): it
                for name, it in renamed(daemon).items()
            },
            **NODE,
        )
    ]


def one(expr, value):
    """That an expression has one answer, with this value."""
    expr = f"sum(round({filled(expr, VALUES)}, 0.01)) / (count({filled(expr, VALUES)}) == 1)"
    return {"expr": expr, "eval_time": "100m", "exp_samples": [{"labels": "{}", "value": value}]}


def asked(*skipped):
    """Every panel with a number of pods, and every alert of a pod."""
    for title, value in BY_PANEL.items():
        if title in skipped:
            continue
        (target,) = ROW[title]
        yield one(target.expr, value)
    table = {target.letter: target.expr for target in ROW["Pods with tokens"]}
    for letter, value in BY_COLUMN.items():
        yield one(table[letter], value)
    yield one(EXPRESSIONS["VgpuTokenOverruns"], 0.25)
    yield one(EXPRESSIONS["VgpuTokenShareMissed"], 0.25)


def test_a_daemon_that_is_not_replaced_has_these_numbers(tmp_path):
    case = {"input_series": inputs(ALONE, **NODE), "promql_expr_test": [*asked()]}
    passes(tmp_path, case)


@pytest.mark.parametrize("when", REPLACED)
def test_a_replaced_daemon_changes_no_number_of_its_pods(tmp_path, when):
    answers = [*asked(RATE)] if when == "beside" else [*asked()]
    passes(tmp_path, {"input_series": stored(*REPLACED[when]), "promql_expr_test": answers})
