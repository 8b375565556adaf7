"""Numbers of dashboards where programs restart, are gone, or look at the same thing twice."""

import pytest

from grafana.dashboards.workload import LISTED, SHOWN
from grafana.reading import EVERYTHING, FOLDER, filled, load, of_range, panels
from tests.grafana.promtool import inputs, passes, renamed

VALUES = {**EVERYTHING, **of_range(3600, step=60), "__rate_interval": "5m"}
TARGETS = {
    (uid, panel.title): panel.targets
    for uid in ("vgpu-fleet", "vgpu-node", "vgpu-reconciler", "vgpu-teams", "vgpu-workload")
    for panel in panels(load(FOLDER / f"{uid}.json"))
}
NODE = {"cluster": "north", "job": "vgpu", "instance": "10.0.0.7:9394"}
NAME = inputs({'vgpu_node_info{node="node-0"}': "1x60"}, **NODE)
"""The node's name, which the scrape job does not give."""

JOB = "vgpu-reconciler"


def answer(uid, title, *samples, letter="A"):
    """That a panel's question has just these (labels, value) for an answer after 50 minutes."""
    (expr,) = (target.expr for target in TARGETS[uid, title] if target.letter == letter)
    expected = [{"labels": labels, "value": value} for labels, value in samples]
    return {"expr": filled(expr, VALUES), "eval_time": "50m", "exp_samples": expected}


def shows(folder, series, *answers):
    """Assert that with these series the panels answer so."""
    passes(folder, {"input_series": [*NAME, *series], "promql_expr_test": list(answers)})


# ---------------------------------------------------------------- missing GPUs


def two_pods(before, after):
    """The series of an exporter whose pod was replaced after 30 minutes."""
    return [
        *inputs({name: f"{value}x30 stale" for name, value in before.items()}, **NODE, pod="old"),
        *inputs({name: f"_x30 {value}x30" for name, value in after.items()}, **NODE, pod="new"),
    ]


def missing(count):
    """What three panels say."""
    node = '{cluster="north",node="node-0"}'
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
    rich = {**NODE, "instance": "10.0.0.8:9394"}
    series = [*poor, *inputs({"vgpu_gpus": "5x60", "vgpu_gpus_expected": "4x60"}, **rich)]
    shows(tmp_path, series, answer("vgpu-fleet", "GPUs missing", ("{}", 1)))


# ---------------------------------------------------------------- containers


WHO = 'cluster="north",container="main",namespace="team",node="node-0",uuid="GPU-0"'


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
def test_an_ended_container_is_not_idle(tmp_path, series):
    shows(tmp_path, inputs(series, **NODE), answer("vgpu-workload", "Idle", ("{}", 1)))


def test_a_container_is_idle_whichever_pod_of_the_exporter_measured_it(tmp_path):
    """Without honor_labels the series before and after differ in that pod's name alone."""
    working = {**container("busy", "0.5"), **held("busy", "1"), **container("idle", "0")}
    quiet = {**container("busy", "0"), **held("busy", "1"), **container("idle", "0")}
    before, after = (renamed({**each, **held("idle", "1")}) for each in (working, quiet))
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


def test_a_container_without_allocated_cores_has_no_infinite_ratio(tmp_path):
    series = {
        **container("free", "0.5x60"),
        **container("free", "0x60", metric="core_allocated_ratio"),
        **container("half", "0.25x60"),
        **container("half", "0.5x60", metric="core_allocated_ratio"),
    }
    line = ('{namespace="team",pod="half",container="main"}', 0.5)
    title = "SM utilisation of the allocated cores"
    shows(tmp_path, inputs(series, **NODE), answer("vgpu-workload", title, line))


def many(count):
    """Containers of which each uses more of its limit than the one before, but for the first."""
    series = {}
    for number in range(count):
        used = f"{number}x49 {0 if number else count}x10"
        series |= container(f"p{number}", used, metric="memory_used_bytes")
        series |= container(f"p{number}", f"{count}x60", metric="memory_limit_bytes")
        series |= held(f"p{number}", "1x60")
    return inputs(series, **NODE)


def answers_of(uid, title, number, letter="A"):
    """That a panel's question has so many lines."""
    case = answer(uid, title, ("{}", number), letter=letter)
    return {**case, "expr": f"count({case['expr']})"}


def test_a_graph_has_the_largest_of_now_however_many_containers_there_are(tmp_path):
    """Those that were the largest before are no lines of it."""
    who = 'namespace="team",pod="p0",container="main"'
    lines = answer("vgpu-workload", "Used", (f"{{{who}}}", 300))
    lines["expr"] = f"topk(1, {lines['expr']})"
    shows(tmp_path, many(300), answers_of("vgpu-workload", "Used", SHOWN), lines)


def test_a_table_lists_the_shares_nearest_to_their_limit_and_all_where_they_are_few(tmp_path):
    table = ("vgpu-workload", "Shares, limits and use")
    columns = [answers_of(*table, LISTED, letter=letter) for letter in "ACDF"]
    shows(tmp_path, many(300), *columns, answer("vgpu-workload", "Shares", ("{}", 300)))
    few = [*many(LISTED - 1), *inputs(held("unmeasured", "1x60"), **NODE)]
    shows(tmp_path, few, answers_of(*table, LISTED))


# ---------------------------------------------------------------- namespaces


def of_team(metric, values, namespace="team"):
    labels = f'cluster="north",namespace="{namespace}"'
    return {"series": f"cluster_namespace:{metric}:sum{{{labels}}}", "values": values}


def test_hours_are_those_in_which_something_was_held_also_if_nothing_is_now(tmp_path):
    """Of the last hour; the second namespace has ended after a quarter of an hour."""
    gib = 2**30
    series = [
        of_team("vgpu_gpus_allocated", "2x60"),
        of_team("vgpu_gpus_allocated", "4x14 stale", "gone"),
        of_team("vgpu_container_memory_allocated_bytes", f"{60 * gib}x60"),
        of_team("vgpu_container_memory_unused_bytes", f"{15 * gib}x60"),
        of_team("vgpu_container_memory_used_of_allocated_bytes", f"{45 * gib}x60"),
    ]
    team, gone = '{cluster="north",namespace="team"}', '{cluster="north",namespace="gone"}'
    minutes = 51  # from the first to the one that is asked about
    table = ("vgpu-fleet", "GPU-hours and GiB-hours")
    shows(
        tmp_path,
        series,
        answer(*table, (team, 2 * minutes / 60), (gone, 4 * 15 / 60)),
        answer(*table, (team, 60 * minutes / 60), letter="B"),
        answer(*table, (team, 15 * minutes / 60), letter="C"),
        answer(*table, (team, 0.25), letter="D"),
    )


def info(values, namespace, team):
    labels = f'{{namespace="{namespace}"' + (f',team="{team}"}}' if team else "}")
    return inputs({f"vgpu_reconcile_namespace_info{labels}": values}, **NODE)


def test_hours_are_those_of_the_team_that_a_namespace_had_at_that_time(tmp_path):
    """Namespace "moves" changes its team after half an hour; "none" has no team."""
    gib = 2**30
    series = [
        *info("1x60", "stays", "vision"),
        *info("1x29 stale", "moves", "vision"),
        *info("_x30 1x30", "moves", "nlp"),
        *info("1x60", "none", ""),
        *(of_team("vgpu_gpus_allocated", "2x60", name) for name in ("stays", "moves", "none")),
        of_team("vgpu_container_memory_allocated_bytes", f"{60 * gib}x60", "stays"),
        of_team("vgpu_container_memory_unused_bytes", f"{15 * gib}x60", "stays"),
        of_team("vgpu_container_memory_used_of_allocated_bytes", f"{5 * gib}x60", "stays"),
    ]
    vision, nlp, none = (
        f'{{cluster="north",team="{name}"}}' for name in ("vision", "nlp", "(no team)")
    )
    table = ("vgpu-teams", "GPU-hours and GiB-hours of teams")
    minutes = 51
    shows(
        tmp_path,
        series,
        answer(
            *table,
            (vision, 2 * (minutes + 30) / 60),
            (nlp, 2 * (minutes - 30) / 60),
            (none, 2 * minutes / 60),
        ),
        answer(*table, (vision, 60 * minutes / 60), letter="C"),
        answer(*table, (vision, 15 * minutes / 60), letter="D"),
        answer(*table, (vision, 15 / 20), letter="E"),  # the use of 40 GiB is not measured
        answer("vgpu-teams", "Requested, held, used and idle", (vision, 5 / 20), letter="F"),
        answer(
            "vgpu-fleet",
            "Holders",
            ('{cluster="north",namespace="stays"}', 5 / 20),
            letter="C",
        ),
        answer(
            "vgpu-fleet",
            "GPU-hours and GiB-hours",
            ('{cluster="north",namespace="stays"}', 15 / 20),
            letter="D",
        ),
    )


def test_requested_is_what_a_team_holds_and_what_its_waiting_pods_request(tmp_path):
    waiting = "vgpu_reconcile_waiting_memory_bytes"
    series = [
        *info("1x60", "stays", "vision"),
        *info("1x60", "new", "nlp"),
        *inputs({f'{waiting}{{namespace="stays"}}': "5x60"}, **NODE),
        *inputs({f'{waiting}{{namespace="new"}}': "7x60"}, **NODE),
        of_team("vgpu_container_memory_allocated_bytes", "60x60", "stays"),
    ]
    answers = (
        ('{cluster="north",team="vision"}', 65),
        ('{cluster="north",team="nlp"}', 7),
    )
    shows(tmp_path, series, answer("vgpu-teams", "Requested, held, used and idle", *answers))


def test_quotas_have_their_team_and_an_exceeded_one_is_counted(tmp_path):
    def of_quota(kind, namespace, value):
        labels = f'{{namespace="{namespace}",resource="memory"}}'
        return inputs({f"vgpu_extender_quota_{kind}{labels}": f"{value}x60"}, **NODE)

    series = [
        *info("1x60", "a", "vision"),
        *info("1x60", "b", "nlp"),
        *of_quota("used", "a", 9),
        *of_quota("limit", "a", 8),
        *of_quota("used", "b", 8),
        *of_quota("limit", "b", 8),
    ]
    of_a, of_b = (
        f'{{cluster="north",model="all",namespace="{name}",resource="memory",team="{team}"}}'
        for name, team in (("a", "vision"), ("b", "nlp"))
    )
    shows(
        tmp_path,
        series,
        answer("vgpu-teams", "Exceeded quotas", ("{}", 1)),
        answer("vgpu-teams", "Memory quotas of namespaces", (of_a, 9 / 8), (of_b, 1), letter="C"),
    )


# ---------------------------------------------------------------- alerts and XIDs


def test_alerts_and_xids_are_counted_by_name_and_node(tmp_path):
    firing = 'ALERTS{alertname="VgpuGpuMissing",alertstate="firing",severity="critical"}'
    others = (
        '{alertname="VgpuGpuMissing",alertstate="pending",severity="critical"}',
        '{alertname="VgpuDataStale",alertstate="firing",severity="info"}',
        '{alertname="Other",alertstate="firing",severity="critical"}',
    )
    series = [
        *inputs({firing: "1x60", **{f"ALERTS{each}": "1x60" for each in others}}, **NODE),
        {"series": 'cluster:vgpu_gpus:sum{cluster="north"}', "values": "8x60"},
        *inputs(
            {
                'vgpu_gpu_xid_last_timestamp_seconds{uuid="GPU-0",xid="79"}': "1200x60",
                'vgpu_gpu_xid_last_timestamp_seconds{uuid="GPU-1",xid="79"}': "1200x60",
                'vgpu_gpu_xid_last_timestamp_seconds{uuid="GPU-1",xid="31"}': "-1000x60",
                'vgpu_gpu_xid_watched{uuid="GPU-0"}': "1x60",
            },
            **NODE,
        ),
    ]
    shows(
        tmp_path,
        series,
        answer("vgpu-fleet", "Firing alerts", ("{}", 1)),
        answer(
            "vgpu-fleet",
            "Firing alerts by name",
            ('{alertname="VgpuDataStale",severity="info"}', 1),
            ('{alertname="VgpuGpuMissing",severity="critical"}', 1),
        ),
        answer("vgpu-fleet", "XIDs, 1 h", ("{}", 2)),
        answer("vgpu-fleet", "XIDs of the last hour", ('{node="node-0",xid="79"}', 2)),
    )


def test_without_alerts_and_xids_a_panel_shows_zero_only_where_they_are_watched(tmp_path):
    watched = {'vgpu_gpu_xid_watched{uuid="GPU-0"}': "1x60"}
    rules = {"series": 'cluster:vgpu_gpus:sum{cluster="north"}', "values": "8x60"}
    looked = [
        answer("vgpu-fleet", "Firing alerts", ("{}", 0)),
        answer("vgpu-fleet", "Firing alerts by name", ('{alertname="none fires"}', 0)),
        answer("vgpu-fleet", "XIDs of the last hour", ('{xid="errors: none"}', 0)),
    ]
    shows(tmp_path, [*inputs(watched, **NODE), rules], *looked)
    shows(tmp_path, [], *({**each, "exp_samples": []} for each in looked))


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
