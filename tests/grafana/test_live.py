"""Every expression is asked of a real Prometheus that scrapes the real programs."""

import re

import pytest

from grafana import alerts, recording
from tests.grafana.asking import first_answers
from tests.grafana.sick_cluster import SickCluster
from tests.support.defects import no_defects

pytestmark = pytest.mark.slow

ALERTS = {rule.name: rule for group in alerts.GROUPS for rule in group.rules}
RECORDS = [rule.name for group in recording.GROUPS for rule in group.rules]

UNRECORDED = {
    f"{recording.QUEUE_LEVEL}:vgpu_reconcile_queue_quota:max": "there are no queues",
    **{rule.name: "there are no prices" for rule in recording.COSTS},
}
"""Rules that rightly record nothing here; the dashboards' cluster has queues and prices."""

EMPTY = {
    "VgpuExportersAbsent": "there are targets",
    "VgpuDataStale": "an exporter that serves and does not sample is one with a defect",
    "VgpuExporterDefect": "no defect is known",
    "VgpuDoubleBooked": "no simulated pods hold the same slice",
    "VgpuOvercommitPressure": "no simulated GPU is oversold in memory",
    "VgpuFairShareExceeded": "no container uses more than its part of a full GPU",
    "VgpuResourceClaimExceeded": "the simulated node has no ResourceClaims",
    "VgpuSharedResourceClaimExceeded": "the simulated node has no ResourceClaims",
    "VgpuAllocationConflict": "nobody simulated is on a GPU that is not theirs",
    "VgpuQuotaNearLimit": "a quota is exceeded, and no other is near",
    "VgpuMemoryUnused": "no simulated namespace wastes that much",
    "VgpuIdleWhileOthersWait": "there is no kube-state-metrics",
    "VgpuPluginsAbsent": "there are targets",
    "VgpuReconcilerAbsent": "there are targets",
    "VgpuSchedulersAbsent": "there are targets",
    "VgpuKubeShareControllersAbsent": "there are targets",
    "VgpuTokensAbsent": "there are targets",
    "VgpuTokensRestarted": "nobody starts it again",
    "VgpuReconcilerStalled": "it would take half an hour",
    "VgpuReconcileActionsFailing": "these reconcilers report only",
}
"""Alerts whose expression has rightly no answer here; promtool's tests make them fire."""

ABSENT = {
    "vgpu_gpu_retired_pages_pending": "GPUs of today remap rows",
    "vgpu_reconcile_actions_total": "these reconcilers report only",
    "vgpu_container_resource_claim_info": "no simulated container has a ResourceClaim",
}
"""Metrics in expressions that nothing exports here."""


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory, well_nodes):
    with SickCluster(tmp_path_factory.mktemp("sick"), well_nodes) as server:
        yield server


def test_the_expression_of_each_alert_finds_what_is_wrong(prometheus):
    first_answers(prometheus, {name: ALERTS[name].expr for name in ALERTS.keys() - EMPTY.keys()})


@no_defects
def test_each_recording_rule_has_recorded(prometheus):
    wanted = {name: name for name in RECORDS if name not in UNRECORDED}
    assert len(wanted) == len(RECORDS) - len(UNRECORDED)
    for name, answer in first_answers(prometheus, wanted).items():
        for labels, _ in answer:
            if "cluster" not in labels:
                yield f"{name}: of no cluster: {labels}"


@no_defects
def test_what_is_not_wrong_is_not_found(prometheus):
    prometheus.wait_for("vgpu_gpus and on () vgpu_reconcile_findings")
    for name, why in EMPTY.items():
        if found := prometheus.query(ALERTS[name].expr):
            yield f"{name}, although {why}: {found}"


def test_each_metric_of_an_expression_is_exported(prometheus):
    texts = " ".join(alert.expr for alert in ALERTS.values())
    metrics = set(re.findall(r"(?<![\w:])vgpu_\w+", texts)) - ABSENT.keys()
    first_answers(prometheus, {metric: metric for metric in metrics})


@no_defects
def test_metrics_that_are_listed_as_absent_are_not_exported(prometheus):
    for metric, why in ABSENT.items():
        if found := prometheus.query(metric):
            yield f"{metric}, although {why}: {found}"


def test_annotations_of_what_fires_are_whole(prometheus):
    """Those without a delay have fired by now."""
    fired = prometheus.wait_for_alert("VgpuXidCritical", cluster="north", xid="79")
    assert fired["annotations"]["summary"].startswith("XID 79 on GPU-")
    for state, alert in prometheus.reported_alerts():
        text = " ".join(alert["annotations"].values())
        assert "<no value>" not in text, state
        assert "error expanding" not in text


def test_an_alert_of_a_container_names_it(prometheus):
    """The demo's container that is over its limit, by its own names."""
    over = prometheus.wait_for(ALERTS["VgpuContainerOverLimit"].expr)
    named = [(labels["namespace"], labels["pod"], labels["container"]) for labels, _ in over]
    assert named == [("research", "finetune-0", "trainer")]
