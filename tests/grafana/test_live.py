"""Every expression is asked of a real Prometheus that scrapes the real programs."""

import re

import pytest

from grafana import alerts, recording
from tests.grafana.promtool import OURS
from tests.grafana.promtool import RULES as FILES
from tests.grafana.sick_cluster import SickCluster
from tests.support.bed.monitoring import Prometheus
from tests.support.live import LiveExporter
from vgpu.simulator.demo import demo

pytestmark = pytest.mark.slow

ALERTS = {rule.name: rule for group in alerts.GROUPS for rule in group.rules}
RECORDS = [rule.name for group in recording.GROUPS for rule in group.rules]

EMPTY = {
    "VgpuExportersAbsent": "there are targets",
    "VgpuDataStale": "an exporter that serves and does not sample is one with a defect",
    "VgpuExporterDefect": "no defect is known",
    "VgpuDoubleBooked": "no simulated pods hold the same slice",
    "VgpuOvercommitPressure": "no simulated card is oversold in memory",
    "VgpuAllocationConflict": "nobody simulated is on a card that is not theirs",
    "VgpuPluginsAbsent": "there are targets",
    "VgpuReconcilerAbsent": "there are targets",
    "VgpuReconcilerStalled": "it would take half an hour",
    "VgpuReconcileActionsFailing": "these reconcilers only tell",
}
"""Alerts whose expression has rightly no answer here; promtool's tests make them fire."""

ABSENT = {
    "vgpu_gpu_retired_pages_pending": "cards of today remap rows",
    "vgpu_reconcile_actions_total": "these reconcilers only tell",
}
"""Metrics in expressions that nobody tells here."""


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory):
    with SickCluster(tmp_path_factory.mktemp("sick")) as server:
        yield server


@pytest.mark.parametrize("name", sorted(set(ALERTS) - set(EMPTY)))
def test_the_expression_of_an_alert_finds_what_is_wrong(prometheus, name):
    assert prometheus.wait_for(ALERTS[name].expr)


@pytest.mark.parametrize("name", RECORDS)
def test_a_recording_rule_has_recorded(prometheus, name):
    found = prometheus.wait_for(name)
    assert all("cluster" in labels for labels, _ in found)


@pytest.mark.parametrize("name", sorted(EMPTY))
def test_what_is_not_wrong_is_not_found(prometheus, name):
    prometheus.wait_for("vgpu_gpus and on () vgpu_reconcile_findings")
    assert prometheus.query(ALERTS[name].expr) == [], EMPTY[name]


@pytest.mark.parametrize("name", ALERTS)
def test_each_metric_of_an_expression_is_told(prometheus, name):
    for metric in set(re.findall(r"(?<![\w:])vgpu_\w+", ALERTS[name].expr)) - set(ABSENT):
        assert prometheus.wait_for(metric)


@pytest.mark.parametrize("metric", ABSENT)
def test_a_metric_that_nobody_tells_is_not_told(prometheus, metric):
    assert prometheus.query(metric) == [], ABSENT[metric]


def test_annotations_of_what_fires_are_whole(prometheus):
    """Those without a delay have fired by now."""
    fired = prometheus.wait_for_alert("VgpuXidCritical", cluster="north", xid="79")
    assert fired["annotations"]["summary"].startswith("XID 79 on GPU-")
    for state, alert in prometheus.told_alerts():
        text = " ".join(alert["annotations"].values())
        assert "<no value>" not in text, state
        assert "error expanding" not in text


def is_about_finetune(answers):
    """The demo's container that is over its limit, by its own names."""
    return [(labels["namespace"], labels["pod"], labels["container"]) for labels, _ in answers] == [
        ("research", "finetune-0", "trainer")
    ]


def test_an_alert_of_a_container_names_it(prometheus):
    assert is_about_finetune(prometheus.wait_for(ALERTS["VgpuContainerOverLimit"].expr))


def test_it_does_so_without_honor_labels(tmp_path):
    """As with Kubernetes' service discovery; promtool's tests rename as this Prometheus does."""
    with LiveExporter(tmp_path / "node", demo(), "--sample.interval=500ms") as node:
        static = [{"targets": [f"127.0.0.1:{node.port}"], "labels": OURS}]
        with Prometheus(
            tmp_path / "prometheus", rules=FILES, honor_labels=False, static_configs=static
        ) as server:
            over = server.wait_for(ALERTS["VgpuContainerOverLimit"].expr)
            sums = server.wait_for("cluster_namespace:vgpu_container_memory_used_bytes:sum")
            plain = server.wait_for('vgpu_container_info{exported_pod="finetune-0"}')
    assert is_about_finetune(over)
    assert {labels["namespace"] for labels, _ in sums} == {
        pod.ref.namespace for pod in demo().pods if pod.running
    }
    assert plain[0][0].items() >= OURS.items()
