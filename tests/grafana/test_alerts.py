"""Each alert fires when it must, not a minute earlier, names the place, and is quiet otherwise."""

import re

import pytest

from grafana.alerts import GROUPS
from grafana.generate import as_rule
from grafana.promql import AlertSeverity
from grafana.runbooks import PUBLISHED
from grafana.severities import by_default
from grafana.templates import TEMPLATE as LABEL
from tests.grafana.alert_cases import CASES, DEVICE, QUIET, UUID
from tests.grafana.promtool import OURS, RULES, failures, inputs, passes, promtool, renamed
from tests.support.defects import no_defects

ALERTS = {rule.name: rule for group in GROUPS for rule in group.rules}
VALUE = re.compile(r"\{\{ \$value \| \w+ \}\}")


def minutes(duration: str) -> int:
    """Of `for`: 10m, 1h or nothing."""
    return int(duration[:-1]) * {"m": 1, "h": 60}[duration[-1]] if duration else 0


def expected(alert, labels, value):
    """What Prometheus sends: templates filled in, every label that they name being there."""

    def fill(text):
        text = LABEL.sub(lambda found: labels[found[1]], text)
        assert value or not VALUE.search(text), "the case has no value"
        return VALUE.sub(value, text)

    annotations = as_rule(alert, PUBLISHED)["annotations"]
    return {
        "exp_labels": {"severity": by_default(alert).value, **labels},
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


def numbered(cases):
    """By a name of its own: an alert may have several cases."""
    return {f"{case.alert} {number}": case for number, case in enumerate(cases)}


@pytest.mark.slow
@no_defects
def test_each_alert_fires_where_something_is_wrong_and_only_there(tmp_path):
    def tested(case):
        north = inputs(case.sick, cluster="north", job=case.job, instance="node-1")
        return firing(case, north, {**target_labels(case), **case.labels})

    cases = numbered(CASES)
    return failures(tmp_path, {name: tested(case) for name, case in cases.items()})


@no_defects
def test_without_honor_labels_they_name_the_container_and_not_the_exporter(tmp_path):
    def tested(case):
        north = inputs(renamed(case.sick), cluster="north", job=case.job, instance="node-1")
        kept = () if "instance" in case.lacks else OURS  # an aggregation keeps what it names
        both = {f"exported_{name}": case.labels[name] for name in kept if name in case.labels}
        return firing(case, north, {**target_labels(case), **OURS, **case.labels, **both})

    cases = numbered(case for case in CASES if "pod" in case.labels)
    assert cases
    return failures(tmp_path, {name: tested(case) for name, case in cases.items()})


@pytest.mark.slow
@no_defects
def test_no_quiet_case_fires_an_alert(tmp_path):
    def tested(quiet):
        until = minutes(ALERTS[quiet.alert].pending) + 30
        return {
            "input_series": inputs(quiet.series, cluster="north", job=quiet.job, instance="node-1"),
            "alert_rule_test": [
                {"eval_time": f"{at}m", "alertname": quiet.alert} for at in range(0, until, 5)
            ],
        }

    cases = {f"{quiet.alert}: {quiet.why}": tested(quiet) for quiet in QUIET}
    assert len(cases) == len(QUIET)
    return failures(tmp_path, cases)


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


@no_defects
def test_each_alert_has_a_summary_of_one_line_and_a_first_step():
    for alert in ALERTS.values():
        left = LABEL.sub("", VALUE.sub("", alert.summary + alert.description))
        rules = {
            "not a name": re.fullmatch(r"Vgpu([A-Z][a-z]+)+", alert.name),
            "not a severity": alert.severity in AlertSeverity,
            "a summary longer than a line": len(alert.summary) <= 100,
            "a summary with a full stop": alert.summary[-1] != ".",
            "not once what comes first": alert.description.count("First: ") == 1,
            "a description without an end": alert.description[-1] in ".?",
            "a template that nobody fills in": "{{" not in left,
        }
        for defect, kept in rules.items():
            if not kept:
                yield f"{alert.name}: {defect}"


def test_promtool_finds_no_fault_with_the_files():
    done = promtool("check", "rules", *RULES)
    assert done.returncode == 0, done.stdout
    assert "FAILED" not in done.stdout


def test_a_wrong_expectation_fails_by_its_name(tmp_path):
    """The promtool of these tests does compare, what follows the wrong one too."""
    case = CASES[0]
    north = inputs(case.sick, cluster="north", job=case.job, instance="node-1")
    right = firing(case, north, target_labels(case))
    wrong = firing(case, north, {**target_labels(case), "instance": "node-2"})
    unreadable = {"promql_expr_test": [{"expr": "sum(", "eval_time": "0m"}]}
    failed = failures(tmp_path, {"1": right, "2": wrong, "3": right, "4": unreadable})
    assert [each.partition(":")[0] for each in failed] == ["2", "4"]
    assert "node-2" in failed[0]
    assert "parse error" in failed[1]


HOUR, DAY = 60, 24 * 60
"""In minutes, as promtool's series have a sample a minute."""


def at(alert, minute, firing_=()):
    return {"eval_time": f"{minute}m", "alertname": alert, "exp_alerts": list(firing_)}


def north(case):
    return inputs(case, cluster="north", job="vgpu", instance="node-1")


def test_a_memory_error_is_no_alert_for_ever(tmp_path):
    """An error of the first hour is reported for a day, and one of the third day again."""
    series = f'vgpu_gpu_ecc_errors_total{{{UUID},type="uncorrected",lifetime="volatile"}}'
    alert = ALERTS["VgpuEccUncorrected"]
    labels = {"cluster": "north", "job": "vgpu", "instance": "node-1", **DEVICE}
    labels |= {"type": "uncorrected", "lifetime": "volatile"}
    once, twice = (expected(alert, labels, value) for value in ("2", "1"))
    minutes_of_series = f"0x{HOUR} 2x{3 * DAY} 3x{DAY}"
    begun, again = HOUR + 1, HOUR + 3 * DAY + 2
    passes(
        tmp_path,
        {
            "input_series": north({series: minutes_of_series}),
            "alert_rule_test": [
                at(alert.name, HOUR),
                at(alert.name, begun, [once]),
                at(alert.name, begun + DAY - 1, [once]),
                at(alert.name, begun + DAY),
                at(alert.name, again, [twice]),
            ],
        },
    )


@pytest.mark.slow
def test_an_outage_of_three_days_is_still_one(tmp_path):
    """The alert ended by itself after a day."""
    alert = ALERTS["VgpuExportersAbsent"]
    still = expected(alert, {"cluster": "north"}, "2")
    series = north({"up": "1x10 stale", "vgpu_gpus": "2x10 stale"})
    passes(
        tmp_path,
        {
            "input_series": series,
            "alert_rule_test": [at(alert.name, 3 * DAY, [still]), at(alert.name, 8 * DAY)],
        },
        every="5m",
    )


def test_a_value_around_its_threshold_is_one_alert(tmp_path):
    alert = ALERTS["VgpuThermalSlowdown"]
    assert alert.keep == "15m"
    reason = "hw_thermal_slowdown"
    labels = {"cluster": "north", "job": "vgpu", "instance": "node-1", **DEVICE, "reason": reason}
    hot = expected(alert, labels, "")
    series = f'vgpu_gpu_clock_event_active{{{UUID},reason="{reason}"}}'
    passes(
        tmp_path,
        {
            "input_series": north({series: "1x10 0x10 1x5 0x60"}),
            "alert_rule_test": [
                at(alert.name, 8, [hot]),
                at(alert.name, 15, [hot]),
                at(alert.name, 24, [hot]),
                at(alert.name, 60),
            ],
        },
    )
