"""`vgpu fit` of NVIDIA's own device plugin: allocatable units minus those that pods request."""

import json

import pytest
from click.testing import CliRunner

from tests.commands.conftest import dumped
from tests.support import sample_cluster as sample
from tests.support.dra import published, resource_slice
from vgpucli.main import main

GPU, SHARED, MIG = "nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb"
ITEMS = (
    sample.node("whole", {GPU: 8}),
    sample.node("part", {GPU: 8}, allocatable={GPU: "3"}),
    sample.node("gone", {GPU: 8}, allocatable={GPU: "0"}),
    sample.node("away", {GPU: 8}, ready=False),
    sample.node("slices", {MIG: 7}),
    sample.node("shared", {SHARED: 4}),
    sample.node("cpu-only"),
    sample.pod("a", "whole", {GPU: 5}),
    sample.pod("ended", "whole", {GPU: 3}, state=sample.FINISHED),
    sample.pod("b", "part", {GPU: 1}),
    sample.pod("c", "slices", {MIG: 2}),
    sample.pod("waits", "", {GPU: 4}, unschedulable="no GPU"),
    sample.resource_quota("q", {MIG: 4}, {MIG: 2}, namespace="ml"),
)


def run(source, *words):
    result = CliRunner().invoke(main, ("fit", *source, *words))
    assert result.exit_code == 0, result.output
    return result.stdout


def fits(source, *words):
    document = json.loads(run(source, *words, "-o", "json"))
    return document, {each["name"]: each["pods"] for each in document["nodes"]}


@pytest.mark.parametrize(
    ("request_", "pods"),
    [
        (f"{GPU}=1", {"whole": 3, "part": 2}),
        (f"{GPU}=2", {"whole": 1, "part": 1}),
        (f"{GPU}=3", {"whole": 1}),
        (f"{GPU}=9", {}),
        (f"{SHARED}=1", {"shared": 4}),
        (f"{MIG}=2", {"slices": 2}),
    ],
)
def test_as_many_pods_fit_as_units_are_free(source, request_, pods):
    document, nodes = fits(source, "--request", request_)
    assert (nodes, document["pods"]) == (pods, sum(pods.values()))
    assert (document["scheme"], document["complete"]) == ("nvidia", True)


def test_each_0_has_its_reason(source):
    document, _ = fits(source, "--request", f"{GPU}=9")
    excluded = document["excludedNodes"]
    assert excluded["gone"] == "nothing_allocatable"
    assert excluded["away"] == "not_ready"
    assert excluded["whole"] == excluded["part"] == "insufficient_resource"
    text = run(source, "--request", f"{GPU}=9")
    assert "0 pods fit (9 nvidia.com/gpu)" in text
    assert "none of them is allocatable (0 of 8 nvidia.com/gpu allocatable)" in text
    assert "1 node: the node is not ready" in text
    assert "2 nodes: the node has too few free units" in text
    assert "(part: 9 of nvidia.com/gpu requested, 2 of 3 free)" in text


def test_the_text_has_the_free_units_of_each_node(dump):
    lines = run(dump, "--request", f"{GPU}=1").splitlines()
    assert lines[0] == "5 pods fit (1 nvidia.com/gpu)"
    assert "whole  3     3 of 8 nvidia.com/gpu" in lines
    node = fits(dump, "--request", f"{GPU}=1")[0]["nodes"][1]
    assert node["units"] == [{"resource": GPU, "free": 3, "allocatable": 8}]


def test_a_pod_like_one_that_waits(source):
    document, nodes = fits(source, "--pod", "ml/waits")
    assert (document["demand"], nodes) == ("4 nvidia.com/gpu", {})


def test_a_number_of_pods_is_placed_on_the_nodes_with_most_room(dump):
    document, nodes = fits(dump, "--request", f"{GPU}=1", "--pods", "4")
    assert (nodes, document["complete"]) == ({"whole": 3, "part": 1}, False)
    document, nodes = fits(dump, "--request", f"{GPU}=1", "--pods", "9")
    assert (document["pods"], document["complete"]) == (5, True)


def test_a_quota_of_units_is_the_bound(source):
    document, nodes = fits(source, "--request", f"{MIG}=1", "--namespace", "ml")
    assert nodes == {"slices": 2}
    assert "nvidia.com/mig-1g.10gb: 4 of 4 used, 1 requested" in document["rejection"]
    _, nodes = fits(source, "--request", f"{MIG}=1", "--namespace", "ml", "--no-quotas")
    assert nodes == {"slices": 5}


def test_pods_of_a_drained_node_go_to_nodes_with_units(dump):
    document, nodes = fits(dump, "--request", f"{GPU}=1", "--drain", "part")
    assert [(each["name"], each["target"]) for each in document["moved"]] == [("b", "whole")]
    assert nodes == {"whole": 2}


def test_a_node_more_has_its_units_free(dump):
    _, nodes = fits(dump, "--request", f"{GPU}=1", "--add-node", "whole")
    assert nodes == {"whole": 3, "part": 2, "whole+1": 8}


def test_cpu_is_a_bound_too(tmp_path):
    busy = sample.pod("busy", "whole")
    busy["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "62"}}
    manifest = tmp_path / "pod.json"
    limits = {GPU: 1, "cpu": "1"}
    containers = [{"name": "main", "resources": {"limits": limits}}]
    manifest.write_text(json.dumps({"kind": "Pod", "spec": {"containers": containers}}))
    source = dumped(tmp_path, (sample.node("whole", {GPU: 8}), busy))
    document, nodes = fits(source, "-f", str(manifest))
    assert (nodes, document["limitedNodes"]) == ({"whole": 2}, {"whole": "insufficient_cpu"})


def test_no_node_has_the_resource(dump):
    text = run(dump, "--request", "nvidia.com/mig-2g.10gb=1")
    assert "no node advertises nvidia.com/mig-2g.10gb, the nearest name is nvidia.com/mig-" in text


def test_beside_hami_gpus_units_of_other_names_are_still_nvidias(tmp_path):
    hamis = sample.node("hami", {GPU: 10}, {"hami.io/node-nvidia-register": "[]"})
    source = dumped(tmp_path, (hamis, sample.node("shared", {SHARED: 4})))
    assert fits(source, "--request", f"{SHARED}=1")[1] == {"shared": 4}


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--request", f"{GPU}=1", "--pods", "1", "--defragment"), "the kubelet chooses the GPUs"),
        (("--request", "cpu=1"), "the pod requests no GPU"),
    ],
)
def test_a_question_without_an_answer_has_one_clear_line(dump, words, complaint):
    result = CliRunner().invoke(main, ("fit", *dump, *words))
    assert (result.exit_code, complaint in result.output) == (1, True), result.output


def test_the_explanation_names_the_nodes_with_free_units_that_are_closed_to_the_pod(tmp_path):
    closed = sample.node("whole", {GPU: 8})
    closed["spec"]["taints"] = [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]
    message = "0/1 nodes are available: 1 node(s) had untolerated taint {gpu: yes}."
    source = dumped(tmp_path, (closed, sample.pod("w", "", {GPU: 1}, unschedulable=message)))
    result = CliRunner().invoke(main, ("explain", "pod", "ml/w", *source, "-o", "json"))
    texts = [text for step in json.loads(result.stdout)["steps"] for text in step["evidence"]]
    assert "nodes with free units, all closed to the pod: whole" in texts
    assert not any(text.endswith("free units: none") for text in texts)


def test_that_a_dra_driver_may_supply_a_resource_is_not_checked(tmp_path):
    items = (sample.node("gpu-1"), resource_slice(published("gpu-0", sample.uuid(7))))
    document, _ = fits(dumped(tmp_path, items), "--request", f"{GPU}=1")
    assert document["pods"] == 0
    text = document["notChecked"]["resource_claims"]
    assert f"{GPU}, which a DRA driver may supply" in text
    document, _ = fits(
        dumped(tmp_path, (sample.node("gpu-1", {GPU: 1}), *items[1:])), "--request", f"{GPU}=1"
    )
    assert (document["pods"], document["notChecked"]) == (1, {})
