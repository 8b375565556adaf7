"""Inhibition rules: of alerts that exist, by labels that they have; Alertmanager takes them."""

import subprocess

import pytest
import yaml

from grafana.alerts import GROUPS
from grafana.inhibition import INHIBITIONS, inhibition_file
from tests.grafana.alert_cases import CASES
from tests.support.environment import required_tool

ALERTS = {rule.name for group in GROUPS for rule in group.rules}


def labels_of(alert):
    """The labels that every case of the alert has."""
    own = [
        ({"cluster", "job", "instance"} - set(case.lacks)) | set(case.labels)
        for case in CASES
        if case.alert == alert
    ]
    return set.intersection(*own) if own else set()


@pytest.mark.parametrize("rule", INHIBITIONS, ids=lambda rule: rule.cause)
def test_cause_and_effects_exist_and_have_the_labels(rule):
    for name in (rule.cause, *rule.effects):
        assert name in ALERTS
        assert set(rule.equal) <= labels_of(name), name
    assert rule.cause not in rule.effects


def test_no_two_alerts_silence_each_other():
    pairs = {(rule.cause, effect) for rule in INHIBITIONS for effect in rule.effects}
    assert not {(cause, effect) for cause, effect in pairs if (effect, cause) in pairs}


def test_a_dead_gpu_pages_once():
    """Missing, with its XID and what holds it: the cause is the missing GPU."""
    silenced = {
        effect
        for rule in INHIBITIONS
        if rule.cause in ("VgpuGpuMissing", "VgpuXidCritical")
        for effect in rule.effects
    }
    assert silenced >= {"VgpuXidCritical", "VgpuEccUncorrected", "VgpuPluginCardUnhealthy"}


def test_alertmanager_takes_them(tmp_path):
    config = {"route": {"receiver": "none"}, "receivers": [{"name": "none"}]}
    file = tmp_path / "alertmanager.yml"
    file.write_text(yaml.safe_dump(config | yaml.safe_load(inhibition_file())))
    tool = required_tool("amtool", "prometheus-alertmanager")
    done = subprocess.run([tool, "check-config", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(INHIBITIONS)} inhibit rules" in done.stdout
