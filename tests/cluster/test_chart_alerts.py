"""Which alerts of the chart's PrometheusRule wake somebody, by `monitoring.alerts`."""

import re
import textwrap

import pytest
import yaml

from grafana.alerts import ALERTS
from grafana.alerts_page import TEN, page
from grafana.severities import by_default
from tests.support.deploy_objects import kinds

INFO = {alert.name: "info" for alert in ALERTS}
DEFAULT = {alert.name: by_default(alert).value for alert in ALERTS}
ALL = {alert.name: alert.severity.value for alert in ALERTS}


@pytest.fixture
def severities(chart):
    """What the chart makes of `monitoring.alerts`, and of more values: name -> severity."""

    def rendered(alerts, **values):
        values = {"rules": {"enabled": True}, **values, "monitoring": {"alerts": alerts}}
        (rule,) = kinds(
            chart.rendered(values, "--show-only=templates/monitoring/rules.yaml"), "PrometheusRule"
        )
        rules = [each for group in rule["spec"]["groups"] for each in group["rules"]]
        assert any("record" in each for each in rules)
        return {each["alert"]: each["labels"]["severity"] for each in rules if "alert" in each}

    return rendered


@pytest.mark.parametrize(
    ("alerts", "expected"),
    [
        ("default", DEFAULT),
        (None, DEFAULT),
        ("all", ALL),
        ("none", {}),
        ([], INFO),
        (["VgpuTokensAbsent"], INFO | {"VgpuTokensAbsent": "critical"}),
        ("VgpuTokensAbsent", INFO | {"VgpuTokensAbsent": "critical"}),
        (
            ["VgpuXidUnknown", "VgpuXidWarning"],
            INFO | {"VgpuXidUnknown": "warning", "VgpuXidWarning": "warning"},
        ),
        (
            ["default", "VgpuXidWarning", "VgpuDoubleBooked", "-VgpuOvercommitted"],
            DEFAULT | {"VgpuXidWarning": "warning", "VgpuOvercommitted": "info"},
        ),
        (["VgpuRowRemapFailed", "all", "-VgpuXidWarning"], ALL | {"VgpuXidWarning": "info"}),
        (["none", "VgpuDoubleBooked"], {"VgpuDoubleBooked": "critical"}),
    ],
    ids=str,
)
def test_a_word_or_a_list_decides(severities, alerts, expected):
    assert severities(alerts) == expected


def test_one_alert_is_changed_whatever_the_list_has(severities):
    alerts = {"VgpuXidWarning": {"severity": "critical"}, "VgpuDataStale": {"enabled": False}}
    found = severities(["VgpuDoubleBooked"], rules={"enabled": True, "alerts": alerts})
    woken = {"VgpuXidWarning": "critical", "VgpuDoubleBooked": "critical"}
    assert found == {name: each for name, each in (INFO | woken).items() if name != "VgpuDataStale"}


def test_the_example_of_the_page_pages_for_ten_alerts_and_no_others(severities):
    text = re.search(r"these ten:\n\n```yaml\n(.*?)^```", page([]), re.MULTILINE | re.DOTALL)[1]
    example = yaml.safe_load(textwrap.dedent(text))
    found = severities(example["monitoring"]["alerts"], rules=example["rules"])
    assert found == INFO | dict.fromkeys(TEN, "critical")
