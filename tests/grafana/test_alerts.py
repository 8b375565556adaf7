"""Each alert fires when it must, not a minute earlier, says where, and stays quiet otherwise."""

import re

import pytest

from grafana.alerts import GROUPS
from grafana.generate import as_rule
from grafana.promql import Severity
from grafana.templates import TEMPLATE as LABEL
from tests.grafana.alert_cases import CASES, QUIET
from tests.grafana.promtool import OURS, RULES, inputs, passes, promtool, renamed

ALERTS = {rule.name: rule for group in GROUPS for rule in group.rules}
VALUE = re.compile(r"\{\{ \$value \| \w+ \}\}")


def minutes(duration: str) -> int:
    """Of `for`: 10m, 1h or nothing."""
    return int(duration[:-1]) * {"m": 1, "h": 60}[duration[-1]] if duration else 0


def expected(alert, labels, value):
    """What Prometheus sends: templates filled in, every label that they name being there."""

    def fill(text):
        text = LABEL.sub(lambda found: labels[found[1]], text)
        assert value or not VALUE.search(text), "the case tells no value"
        return VALUE.sub(value, text)

    annotations = as_rule(alert)["annotations"]
    return {
        "exp_labels": {"severity": alert.severity.value, **labels},
        "exp_annotations": {name: fill(text) for name, text in annotations.items()},
    }


def firing(case, north, labels):
    """A promtool test: it fires in the north only, and not before its time."""
    alert = ALERTS[case.alert]
    at = case.onset + minutes(alert.pending)
    expectations = [{"eval_time": f"{at}m", "exp_alerts": [expected(alert, labels, case.value)]}]
    if at:
        expectations.append({"eval_time": f"{at - 1}m", "exp_alerts": []})
    south = inputs(case.well, cluster="south", job=case.job, instance="node-1")
    return {
        "input_series": north + south,
        "alert_rule_test": [{"alertname": alert.name, **each} for each in expectations],
    }


def target_labels(case):
    target = {"cluster": "north", "job": case.job, "instance": "node-1"}
    return {name: value for name, value in target.items() if name not in case.lacks}


def ids(cases):
    return [f"{case.alert}-{number}" for number, case in enumerate(cases)]


@pytest.mark.parametrize("case", CASES, ids=ids(CASES))
def test_it_fires_where_something_is_wrong_and_only_there(tmp_path, case):
    north = inputs(case.sick, cluster="north", job=case.job, instance="node-1")
    passes(tmp_path, firing(case, north, {**target_labels(case), **case.labels}))


OF_CONTAINERS = [case for case in CASES if "container" in case.labels]


@pytest.mark.parametrize("case", OF_CONTAINERS, ids=ids(OF_CONTAINERS))
def test_without_honor_labels_it_names_the_container_and_not_the_exporter(tmp_path, case):
    north = inputs(renamed(case.sick), cluster="north", job=case.job, instance="node-1")
    both = {f"exported_{name}": case.labels[name] for name in OURS}
    passes(tmp_path, firing(case, north, {**target_labels(case), **case.labels, **both}))


@pytest.mark.parametrize("quiet", QUIET, ids=[f"{each.alert}: {each.why}" for each in QUIET])
def test_it_stays_quiet(tmp_path, quiet):
    series = inputs(quiet.series, cluster="north", job=quiet.job, instance="node-1")
    until = minutes(ALERTS[quiet.alert].pending) + 30
    times = [{"eval_time": f"{at}m", "alertname": quiet.alert} for at in range(0, until, 5)]
    passes(tmp_path, {"input_series": series, "alert_rule_test": times})


def test_an_alert_of_a_fleet_does_not_lose_its_cluster(tmp_path):
    """The same trouble in two clusters is two alerts."""
    case = next(case for case in CASES if case.alert == "VgpuReconcilerNoLeader")
    alert = ALERTS[case.alert]
    both = [{**target_labels(case), "cluster": name} for name in ("north", "south")]
    series = [one for labels in both for one in inputs(case.sick, instance="node-1", **labels)]
    test = {"eval_time": "30m", "exp_alerts": [expected(alert, labels, "") for labels in both]}
    passes(
        tmp_path,
        {"input_series": series, "alert_rule_test": [{"alertname": alert.name, **test}]},
    )


def test_reconcilers_of_nodes_do_not_hide_that_the_clusters_is_gone(tmp_path):
    case = next(case for case in CASES if case.alert == "VgpuReconcilerAbsent")
    of_node = {"up": "1x120", 'vgpu_reconcile_info{scope="node",mode="plan"}': "1x120"}
    jobs = {case.job: case.sick, f"{case.job}-node": of_node}
    north = [
        one
        for job, series in jobs.items()
        for one in inputs(series, cluster="north", job=job, instance="node-1")
    ]
    passes(tmp_path, firing(case, north, {**target_labels(case), **case.labels}))


def test_one_plugin_of_a_node_does_not_hide_what_another_lacks(tmp_path):
    """A node that two sharing systems share has two plugins under its name."""
    node = {"cluster": "north", "job": "vgpu-device-plugin", "instance": "node-1"}
    idle, refused = ({**node, "pod": f"plugin-{name}"} for name in ("idle", "refused"))
    resource = {"resource": "volcano.sh/vgpu-number"}
    not_ready = {"vgpu_plugin_ready": "0x30", "vgpu_plugin_recovered": "1x30"}
    taken = 'vgpu_plugin_resource_registered{resource="volcano.sh/vgpu-number"}'
    unit = 'vgpu_plugin_resource_smallest_unit_bytes{resource="volcano.sh/vgpu-number"}'
    series = [
        *inputs({**not_ready, unit: "1e6x30"}, **idle),
        *inputs({**not_ready, taken: "0x30"}, **refused),
    ]
    fires = {"VgpuPluginNotReady": idle, "VgpuPluginNotRegistered": {**refused, **resource}}
    tests = [
        {
            "eval_time": "30m",
            "alertname": name,
            "exp_alerts": [expected(ALERTS[name], labels, "")],
        }
        for name, labels in fires.items()
    ]
    passes(tmp_path, {"input_series": series, "alert_rule_test": tests})


# ---------------------------------------------------------------- the table


def test_each_alert_is_tested():
    assert {case.alert for case in CASES} == set(ALERTS)
    assert {quiet.alert for quiet in QUIET} <= set(ALERTS)


def test_no_two_rules_have_one_name():
    assert sum(len(group.rules) for group in GROUPS) == len(ALERTS)


@pytest.mark.parametrize("alert", ALERTS.values(), ids=ALERTS)
def test_it_says_what_is_wrong_in_a_line_and_what_to_do_first(alert):
    assert re.fullmatch(r"Vgpu([A-Z][a-z]+)+", alert.name)
    assert alert.severity in Severity
    assert len(alert.summary) <= 100
    assert alert.summary[-1] != "."
    assert alert.description.count("First: ") == 1
    assert alert.description[-1] in ".?"
    assert not re.search(r"\{\{", LABEL.sub("", VALUE.sub("", alert.summary + alert.description)))


def test_promtool_finds_no_fault_with_the_files():
    done = promtool("check", "rules", *RULES)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FAILED" not in done.stdout + done.stderr


def test_a_wrong_expectation_fails(tmp_path):
    """The promtool of these tests does compare."""
    case = CASES[0]
    north = inputs(case.sick, cluster="north", job=case.job, instance="node-1")
    with pytest.raises(AssertionError, match="FAILED"):
        passes(tmp_path, firing(case, north, {**target_labels(case), "instance": "node-2"}))
