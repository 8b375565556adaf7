"""What the commands answer about the demo's objects: one truth about each of them."""

import json
import os

import pytest
from click.testing import CliRunner

from simulator.apiserver import ALL_KINDS
from simulator.cluster import SimulatedCluster
from simulator.demo_cluster import demo_cluster
from tests.reconciler.samples import NOW
from vgpu.inventory import Units
from vgpu.model.units import GIB
from vgpu.schemes.registry import registry
from vgpucli.explain.evidence import ClusterEvidence
from vgpucli.explain.node import explain_node
from vgpucli.explain.pod import explain_pod
from vgpucli.explain.read import dumped
from vgpucli.main import main


@pytest.fixture(scope="module")
def dump(tmp_path_factory):
    store = SimulatedCluster(demo_cluster(NOW), NOW).store
    items = [
        {"apiVersion": kind.api_version, "kind": kind.name, **item}
        for kind in ALL_KINDS
        for item in store.list(kind).items
    ]
    path = tmp_path_factory.mktemp("demo") / "dump.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    os.utime(path, (NOW, NOW))
    return str(path)


@pytest.fixture(scope="module")
def evidence(dump):
    return ClusterEvidence(dumped([dump]), Units(1024, GIB))


def systems(evidence, name):
    node = evidence.node(name)
    return {row.name for row in registry().rows if row.has_devices(node)}


def test_one_node_is_mixed_and_each_other_has_one_system(evidence):
    assert len(systems(evidence, "gpu-node-1")) > 1
    assert systems(evidence, "gpu-node-2") == {"hami"}
    assert systems(evidence, "gpu-node-3") == {"gpushare"}
    assert systems(evidence, "gpu-node-5") == {"gaia"}


def test_every_entry_of_the_plan_is_in_the_explanation_of_its_object(dump, evidence):
    units = ("--volcano.memory-factor", "1024", "--gpushare.memory-unit", "GiB")
    command = ("reconcile", "plan", "--from", dump, "-o", "json", *units)
    plan = json.loads(CliRunner().invoke(main, command).stdout)
    entries = [*plan["actions"], *plan["skipped"], *plan["findings"]]
    assert len(entries) == 10
    for entry in entries:
        if entry["kind"] == "Node":
            node = evidence.node(entry["name"])
            explained = explain_node(evidence.of_node(node))
        else:
            pod = evidence.pod(entry["namespace"], entry["name"])
            explained = explain_pod(evidence.of_pod(pod))
        reasons = [each for step in explained.steps for each in (*step.reasons, *step.remarks)]
        assert entry["rule"] in {each.rule for each in reasons}, entry["name"]
        assert "runs and has" not in explained.conclusion
        assert "nothing" not in explained.conclusion


def test_a_pod_that_waits_on_a_node_that_is_not_ready_waits_for_the_node(evidence):
    pod = evidence.pod("speech", "captions-59c7d6f8b4-lm5qt")
    explained = explain_pod(evidence.of_pod(pod))
    assert explained.decisive.reasons[0].code == "not_ready"
    assert explained.conclusion.startswith("the pod fails at step admitted: the node is not ready")
