"""What people read of the chart: notes after an installation, links, and values on pages."""

import json
import re
import shutil
import textwrap
from collections import Counter

import pytest
import yaml

from deploy.generate import CHART
from deploy.project import Project
from grafana.dashboards import DASHBOARDS
from grafana.generate import dashboard_files, rule_files
from grafana.runbooks import charted, published
from reconciler.config.settings import parse as configuration
from scheduler.check_config.traps import config_findings
from tests.cluster.extending import RESOURCES
from tests.support.deploy_objects import containers, kinds, parse
from tests.support.environment import ROOT


def test_an_alert_can_be_changed_and_left_out(sets):
    (rule,) = kinds(sets["everything"], "PrometheusRule")
    alerts = {
        each["alert"]: each
        for group in rule["spec"]["groups"]
        for each in group["rules"]
        if "alert" in each
    }
    assert "VgpuDataStale" not in alerts
    down = alerts["VgpuExporterDown"]
    assert (down["for"], down["labels"]) == ("1h", {"severity": "info", "team": "sre"})
    page = "https://example.com/runbooks/alerts/VgpuExporterDown.md"
    assert down["annotations"]["runbook_url"] == page


def test_links_of_dashboards_begin_where_those_of_alerts_do(sets):
    files = {
        name: text
        for each in kinds(sets["everything"], "ConfigMap")
        for name, text in each.get("data", {}).items()
        if name.endswith(".json")
    }
    assert len(files) == len(DASHBOARDS)
    for text in files.values():
        variables = json.loads(text)["templating"]["list"]
        (runbooks,) = (each["query"] for each in variables if each["name"] == "runbooks")
        assert runbooks == "https://example.com/runbooks"


RELATIVE = re.compile(r"docs/|\.md\b|\.invalid|\$\{runbooks\}/")


def test_without_an_address_nothing_has_a_link_that_leads_nowhere(chart, tmp_path):
    copy, nowhere = shutil.copytree(CHART, tmp_path / "vgpu"), published(Project())
    for name, text in rule_files(nowhere).items():
        (copy / "files" / "rules" / name).write_text(text)
    for name, text in dashboard_files(charted(nowhere)).items():
        (copy / "files" / "dashboards" / name).write_text(text)
    values = {"rules": {"enabled": True}, "dashboards": {"enabled": True}}
    documents = chart.rendered(values, folder=copy)
    text = re.sub(r'"runbook": "Vgpu\w+\.md"', "", json.dumps(documents))
    assert "runbook_url" not in text
    assert RELATIVE.findall(text) == []
    dashboards = [
        json.loads(text)
        for each in kinds(documents, "ConfigMap")
        for name, text in each["data"].items()
        if name.endswith(".json")
    ]
    assert len(dashboards) == len(DASHBOARDS)


NOTES = '{{ include "vgpu/templates/NOTES.txt" . | dict "notes" | toJson }}'
"""Helm prints them only to who installs."""


@pytest.fixture
def notes(chart, tmp_path):
    """What helm prints to who installs the chart with values."""
    copy = shutil.copytree(CHART, tmp_path / "vgpu")
    (copy / "templates" / "shown.yaml").write_text(NOTES)

    def printed(values, *flags):
        (shown,) = chart.rendered(values, "--show-only=templates/shown.yaml", *flags, folder=copy)
        return shown["notes"]

    return printed


@pytest.mark.parametrize("kind", ["CronJob", "Deployment"])
@pytest.mark.parametrize("part", ["rules", "dashboards", ""])
def test_the_notes_name_a_reconciler_without_metrics(notes, kind, part):
    values = {"reconciler": {"kind": kind}} | ({part: {"enabled": True}} if part else {})
    assert ("A CronJob serves no metrics" in notes(values)) is (kind == "CronJob" and part != "")


@pytest.mark.parametrize(
    ("alerts", "enabled", "unused"),
    [("default", False, False), (["VgpuPluginDown"], False, True), ("all", True, False)],
)
def test_the_notes_name_a_choice_of_alerts_without_effect(notes, alerts, enabled, unused):
    values = {"monitoring": {"alerts": alerts}, "rules": {"enabled": enabled}}
    assert ("monitoring.alerts has no effect: set rules.enabled" in notes(values)) is unused


URLS = {
    "name": ({"allowAnonymous": True}, "http://vgpu-scheduler.default.svc:9398"),
    "address": (
        {"allowAnonymous": True, "service": {"clusterIP": "fd00::7"}},
        "http://[fd00::7]:9398",
    ),
    "TLS": (
        {"tlsSecret": "tls", "clientSans": ["kube-scheduler"]},
        "https://vgpu-scheduler.default.svc:9398",
    ),
}


@pytest.mark.parametrize(("values", "url"), URLS.values(), ids=URLS)
def test_the_part_of_kube_schedulers_configuration_that_is_printed_has_no_trap(notes, values, url):
    text = notes({"scheduler": {"enabled": True} | values})
    block = re.search(r"^apiVersion:.*?(?=\n\n|\Z)", text, re.MULTILINE | re.DOTALL).group()
    document = yaml.safe_load(block)
    assert config_findings(document, "NOTES.txt") == []
    (extender,) = document["extenders"]
    assert extender["urlPrefix"] == url
    assert sorted(extender["managedResources"], key=json.dumps) == sorted(RESOURCES, key=json.dumps)
    assert "apiVersion: kubescheduler" not in notes({})


@pytest.mark.parametrize("named", [False, True])
def test_an_upgrade_warns_that_every_certificate_may_bind_pods(chart, notes, named):
    """For one version; an installation needs the name, see the values that are refused."""
    sans = {"clientSans": ["kube-scheduler"]} if named else {}
    values = {"scheduler": {"enabled": True, "tlsSecret": "tls", **sans}}
    warning = "WARNING: every client certificate of that CA can bind pods"
    assert (warning in notes(values, "--is-upgrade")) is not named
    (deployment,) = [
        each
        for each in kinds(chart.rendered(values, "--is-upgrade"), "Deployment")
        if each["metadata"]["name"] == "vgpu-scheduler"
    ]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert ("--extender.client-san=kube-scheduler" in container["args"]) is named


BLOCK = re.compile(r"^( *)```yaml\n(.*?)^\1```", re.MULTILINE | re.DOTALL)

KNOWN = yaml.safe_load((CHART / "values.yaml").read_text()).keys()


def examples():
    """(page, values of the chart that stand on it)."""
    for page in sorted((ROOT / "docs").rglob("*.md")):
        for _, text in BLOCK.findall(page.read_text()):
            example = yaml.safe_load(textwrap.dedent(text))
            rbac = isinstance(example, dict) and isinstance(example.get("rules"), list)
            if isinstance(example, dict) and example.keys() <= KNOWN and not rbac:
                yield page.stem, example


EXAMPLES = list(examples())


@pytest.mark.parametrize(("page", "example"), EXAMPLES)
def test_values_on_a_page_are_taken(chart, page, example):
    rendered = chart.rendered(example)
    for _, _, container in containers(rendered):
        parse(container["args"])
    for each in kinds(rendered, "ConfigMap"):
        if "reconcile.yaml" in each["data"]:
            assert configuration(each["data"]["reconcile.yaml"], page).every == 120


def test_there_is_an_example_for_each_system_and_platform():
    pages = Counter(page for page, _ in EXAMPLES)
    assert (pages["install"], pages["platforms"]) == (12, 2)
