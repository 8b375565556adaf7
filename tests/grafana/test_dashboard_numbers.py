"""Numbers of dashboards where programs restart, are gone, or look at the same thing twice."""

import pytest

from grafana.reading import EVERYTHING, FOLDER, filled, load, panels
from tests.grafana.promtool import inputs, passes, renamed

VALUES = {**EVERYTHING, "__rate_interval": "5m"}
TARGETS = {
    (uid, panel.title): panel.targets
    for uid in ("vgpu-fleet", "vgpu-node", "vgpu-reconciler", "vgpu-workload")
    for panel in panels(load(FOLDER / f"{uid}.json"))
}
NODE = {"cluster": "north", "job": "vgpu", "instance": "node-0"}
JOB = "vgpu-reconciler"


def answer(uid, title, *samples, letter="A"):
    """That a panel's question has just these (labels, value) for an answer after 50 minutes."""
    (expr,) = (target.expr for target in TARGETS[uid, title] if target.letter == letter)
    told = [{"labels": labels, "value": value} for labels, value in samples]
    return {"expr": filled(expr, VALUES), "eval_time": "50m", "exp_samples": told}


def shows(folder, series, *answers):
    """Assert that with these series the panels answer so."""
    passes(folder, {"input_series": series, "promql_expr_test": list(answers)})


# ---------------------------------------------------------------- missing GPUs


def two_pods(before, after):
    """The series of an exporter whose pod was replaced after 30 minutes."""
    return [
        *inputs({name: f"{value}x30 stale" for name, value in before.items()}, **NODE, pod="old"),
        *inputs({name: f"_x30 {value}x30" for name, value in after.items()}, **NODE, pod="new"),
    ]


def missing(count):
    """What three panels say."""
    node = '{cluster="north",instance="node-0"}'
    return (
        answer("vgpu-fleet", "GPUs missing", ("{}", count)),
        answer("vgpu-fleet", "Nodes", (node, count), letter="B"),
        answer("vgpu-node", "GPUs missing", ("{}", count)),
    )


def test_no_gpu_is_missing_after_the_exporters_pod_was_replaced(tmp_path):
    there = {"vgpu_gpus": "8", "vgpu_gpus_expected": "8"}
    shows(tmp_path, two_pods(there, there), *missing(0))


def test_a_gpu_that_the_exporter_before_has_seen_is_missing(tmp_path):
    before = {"vgpu_gpus": "8", "vgpu_gpus_expected": "8"}
    after = {"vgpu_gpus": "7", "vgpu_gpus_expected": "7"}
    shows(tmp_path, two_pods(before, after), *missing(1))


def test_a_node_with_more_gpus_than_expected_hides_no_missing_one(tmp_path):
    poor = inputs({"vgpu_gpus": "7x60", "vgpu_gpus_expected": "8x60"}, **NODE)
    rich = {**NODE, "instance": "node-1"}
    series = [*poor, *inputs({"vgpu_gpus": "5x60", "vgpu_gpus_expected": "4x60"}, **rich)]
    shows(tmp_path, series, answer("vgpu-fleet", "GPUs missing", ("{}", 1)))


# ---------------------------------------------------------------- containers


WHO = 'cluster="north",container="main",instance="node-0",namespace="team",uuid="GPU-0"'


def container(pod, values, *, metric="sm_utilization_ratio"):
    who = f'namespace="team",pod="{pod}",container="main",pod_uid="{pod}",uuid="GPU-0"'
    return {f"vgpu_container_{metric}{{{who}}}": values}


def held(pod, values):
    return container(pod, values, metric="shares_allocated")


IDLE_AND_BUSY = {
    **container("idle", "0x60"),
    **held("idle", "1x60"),
    **container("busy", "0.5x20 0x40"),
    **held("busy", "1x60"),
    **container("ended", "0x20 stale"),
    **held("ended", "1x20 stale"),
}


@pytest.mark.parametrize("series", [IDLE_AND_BUSY, renamed(IDLE_AND_BUSY)])
def test_who_has_ended_is_not_idle(tmp_path, series):
    shows(tmp_path, inputs(series, **NODE), answer("vgpu-workload", "Idle", ("{}", 1)))


def test_who_is_idle_is_so_whichever_pod_of_the_exporter_measured_it(tmp_path):
    """Without honor_labels the series before and after differ in that pod's name alone."""
    told = {**container("busy", "0.5"), **held("busy", "1"), **container("idle", "0")}
    quiet = {**container("busy", "0"), **held("busy", "1"), **container("idle", "0")}
    before, after = (renamed({**each, **held("idle", "1")}) for each in (told, quiet))
    series = [
        {**each, "series": each["series"].replace(',pod="vgpu-x7k2p"', "")}
        for each in two_pods(before, after)
    ]
    busiest = [
        (f'{{{WHO},pod="busy",pod_uid="busy"}}', 0.5),
        (f'{{{WHO},pod="idle",pod_uid="idle"}}', 0),
    ]
    shows(
        tmp_path,
        series,
        answer("vgpu-workload", "Idle", ("{}", 1)),
        answer("vgpu-workload", "Shares, limits and use", *busiest, letter="I"),
    )


def test_a_share_of_unknown_size_is_a_share_and_has_a_line(tmp_path):
    series = {
        **held("known", "1x60"),
        **container("known", "9x60", metric="memory_allocated_bytes"),
    }
    series |= container("known", "5x60", metric="memory_used_bytes") | held("unknown", "1x60")
    lines = [(f'{{{WHO},pod="{pod}",pod_uid="{pod}"}}', 1) for pod in ("known", "unknown")]
    shows(
        tmp_path,
        inputs(series, **NODE),
        answer("vgpu-workload", "Shares", ("{}", 2)),
        answer("vgpu-workload", "Not measured", ("{}", 1)),
        answer("vgpu-workload", "Shares, limits and use", *lines),
    )


# ---------------------------------------------------------------- reconcilers


def reconciler(instance, scope, success="", ends="x60", **findings):
    """A process that had its newest good cycle at second ``success``, and is up until it ends."""
    series = {"up": f"1{ends}", f'vgpu_reconcile_info{{scope="{scope}",mode="plan"}}': f"1{ends}"}
    if success:
        series["vgpu_reconcile_last_success_timestamp_seconds"] = f"{success}{ends}"
    for rule, count in findings.items():
        series[f'vgpu_reconcile_findings{{rule="{rule}"}}'] = f"{count}{ends}"
    return inputs(series, cluster="north", job=JOB, instance=instance, pod=f"of-{instance}")


def last_good(seconds):
    return answer("vgpu-reconciler", "Since the last good cycle", ("{}", seconds))


@pytest.mark.parametrize("ends", ["x60", "x20 stale"], ids=["blind", "gone"])
def test_a_living_reconciler_of_a_node_hides_no_dead_one_of_the_cluster(tmp_path, ends):
    dead, living = reconciler("a", "cluster", 600, ends), reconciler("node-0", "node", 2940)
    shows(tmp_path, [*dead, *living], last_good(2400))


def test_a_node_that_is_no_target_any_more_is_not_waited_for(tmp_path):
    gone, living = reconciler("node-1", "node", 600, "x20 stale"), reconciler("a", "cluster", 2940)
    shows(tmp_path, [*gone, *living], last_good(60))


def test_of_several_for_a_cluster_the_one_that_works_is_enough(tmp_path):
    leads, stands_by = reconciler("a", "cluster", 2940), reconciler("b", "cluster", 600)
    shows(tmp_path, [*leads, *stands_by], last_good(60))


FOUND = [
    *reconciler("a", "cluster", lost_device=2, stale_lock=1),
    *reconciler("node-0", "node", lost_device=1, orphan_shim_dir=4),
    *reconciler("node-1", "node", lost_device=1, orphan_shim_dir=0),
]


def test_what_both_scopes_find_counts_once(tmp_path):
    rules = {"lost_device": 2, "stale_lock": 1, "orphan_shim_dir": 4}
    samples = [(f'{{rule="{rule}"}}', count) for rule, count in rules.items()]
    pages = ("vgpu-fleet", "vgpu-reconciler")
    numbers = (answer(uid, "Findings", ("{}", 7)) for uid in pages)
    shows(tmp_path, FOUND, *numbers, *(answer(uid, "Findings by rule", *samples) for uid in pages))
