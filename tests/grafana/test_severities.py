"""Which alerts wake somebody: by default few, each with its reason; with `all` those of before."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from grafana.alerts import ALERTS
from grafana.alerts_page import TEN, page, with_severity
from grafana.generate import dashboard_files
from grafana.inhibition import INHIBITIONS
from grafana.promql import AlertSeverity
from grafana.runbooks import PUBLISHED, charted
from grafana.severities import BY_DEFAULT, by_default, severities, when_listed
from tests.grafana.promtool import RULES
from tests.support.defects import no_defects
from tests.support.environment import ROOT, required_tool

BY_NAME = {alert.name: alert for alert in ALERTS}
BEFORE = yaml.safe_load((Path(__file__).parent / "severities_all.yaml").read_text())
RANK = list(AlertSeverity)
"""The most severe first."""

SENTENCE = re.compile(r"[A-Z][^.]*\.")
NAMED = re.compile(r"\bVgpu[A-Z]\w+")
EVENTS = {"VgpuNotPlaced"}
"""Reasons of events, which are named like alerts."""


def in_file(text):
    """Name -> severity of the alerts of a rule file."""
    return {
        rule["alert"]: rule["labels"]["severity"]
        for group in yaml.safe_load(text)["groups"]
        for rule in group["rules"]
    }


@no_defects
def test_each_alert_that_wakes_somebody_exists_and_has_its_sentence():
    for name, waking in BY_DEFAULT.items():
        if name not in BY_NAME:
            yield f"{name}: there is no such alert"
        if waking.severity is AlertSeverity.INFO:
            yield f"{name}: info wakes nobody"
        if not SENTENCE.fullmatch(waking.why) or len(waking.why) > 100:
            yield f"{name}: not one sentence of a line: {waking.why}"


def test_one_person_can_know_all_alerts_that_wake_somebody():
    assert 15 <= len(BY_DEFAULT) <= 25


def test_every_other_alert_is_info_by_default():
    default = {name: row["default"] for name, row in severities(ALERTS).items()}
    woken = {name: severity for name, severity in default.items() if severity != "info"}
    assert woken == {name: row.severity.value for name, row in BY_DEFAULT.items()}
    assert default.keys() == BY_NAME.keys()


def test_all_keeps_the_severity_that_each_alert_had():
    kept = {name: row["all"] for name, row in severities(ALERTS).items() if name in BEFORE}
    assert kept == BEFORE


@no_defects
def test_no_cause_that_wakes_less_silences_what_wakes_more():
    """Alertmanager sends no effect while its cause fires: a page would get lost in an info."""
    for rule in INHIBITIONS:
        cause = by_default(BY_NAME[rule.cause])
        for effect in rule.effects:
            if RANK.index(by_default(BY_NAME[effect])) < RANK.index(cause):
                yield f"{rule.cause} is {cause} and silences {effect}"


def test_a_listed_alert_is_never_info():
    assert all(when_listed(alert) is not AlertSeverity.INFO for alert in ALERTS)
    assert when_listed(BY_NAME["VgpuXidUnknown"]) is AlertSeverity.WARNING
    assert when_listed(BY_NAME["VgpuRowRemapFailed"]) is AlertSeverity.WARNING
    assert when_listed(BY_NAME["VgpuTokensAbsent"]) is AlertSeverity.CRITICAL


# ---------------------------------------------------------------- files and pages

(RULE_FILE,) = (path for path in RULES if path.name == "vgpu-alerts.yaml")
PAGE = page([])


def test_the_rule_file_has_the_severities_by_default():
    assert in_file(RULE_FILE.read_text()) == {a.name: by_default(a).value for a in ALERTS}


def test_the_command_of_the_page_puts_the_severities_of_all_in_place():
    command = re.search(r"^\$ (sed .*) > vgpu-alerts\.yaml$", PAGE, re.MULTILINE)[1]
    ran = subprocess.run(shlex.split(command), cwd=ROOT, capture_output=True, text=True, check=True)
    assert in_file(ran.stdout) == {alert.name: alert.severity.value for alert in ALERTS}
    assert "# all:" not in ran.stdout


def test_the_example_pages_for_ten_alerts():
    assert len(set(TEN)) == 10
    assert set(TEN) <= BY_NAME.keys()
    for name in TEN:
        assert f"    - {name}\n" in PAGE


def test_the_route_of_the_page_sends_info_to_nobody(tmp_path):
    blocks = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (route,) = (yaml.safe_load(block) for block in blocks if "route:" in block)
    receivers = {"receivers": [{"name": "on-call"}, {"name": "nobody"}]}
    (tmp_path / "alertmanager.yml").write_text(yaml.safe_dump(route | receivers))

    def receiver(*labels):
        amtool = required_tool("amtool", "prometheus-alertmanager")
        config = f"--config.file={tmp_path}/alertmanager.yml"
        command = [amtool, "config", "routes", "test", config, *labels]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    assert receiver("alertname=VgpuXidWarning", "severity=info") == "nobody"
    assert receiver("alertname=VgpuDoubleBooked", "severity=critical") == "on-call"
    assert receiver("alertname=InfoOfOthers", "severity=info") == "on-call"


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("VgpuXidWarning", "Severity: info by default, warning with [`all`]"),
        ("VgpuRowRemapFailed", "Severity: warning by default, critical with [`all`]"),
        ("VgpuDoubleBooked", "Severity: critical by default and with [`all`]"),
    ],
)
def test_a_runbook_begins_with_both_severities_and_the_reason(name, head):
    text = with_severity(
        f"# {name}\n\nSeverity: none.\n\n## Meaning\n\nIt is broken.\n", BY_NAME[name]
    )
    assert text.startswith(f"# {name}\n\n{head}")
    assert text.endswith("\n\n## Meaning\n\nIt is broken.\n")
    assert "Severity: none." not in text
    woken = BY_DEFAULT.get(name)
    assert ("Why it wakes somebody: " in text) is bool(woken)
    assert not woken or f"Why it wakes somebody: {woken.why}\n" in text


@no_defects
def test_no_dashboard_names_an_alert_that_does_not_exist():
    """With links, which only dashboards of an address have."""
    files = dashboard_files(charted(PUBLISHED))
    found = {name: {*NAMED.findall(text)} - EVENTS for name, text in files.items()}
    assert "VgpuGpuMissing" in found["vgpu-fleet.json"]
    for name, alerts in found.items():
        for alert in sorted(alerts - BY_NAME.keys()):
            yield f"{name}: {alert}"
