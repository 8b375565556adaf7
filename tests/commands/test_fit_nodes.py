"""`vgpu fit` offers the nodes that kube-scheduler offers, and names what it does not judge."""

import json

import pytest
from click.testing import CliRunner

from tests.commands.conftest import dumped
from tests.support import sample_cluster as sample
from vgpucli.main import main

GIB = 1024**3
NODE_RESOURCES = {"cpu": "16", "memory": "64Gi", "pods": "110"}


def node(name, first, *, labels=None, taints=(), **allocatable):
    made = sample.volcano_node(name, first)
    made["metadata"]["labels"] = labels or {}
    made["spec"]["taints"] = [*taints]
    made["status"]["allocatable"] |= {**NODE_RESOURCES, **allocatable}
    return made


def other(name, on, *, cpu="0", memory="0", phase="Running"):
    """A pod without GPUs."""
    made = sample.pod(name, on, phase=phase)
    made["spec"]["containers"][0]["resources"] = {"requests": {"cpu": cpu, "memory": memory}}
    return made


def manifest(*, cpu="1", memory="1Gi", **spec):
    limits = {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 15000}
    main_container = {
        "name": "main",
        "resources": {"limits": {**limits, "cpu": cpu, "memory": memory}},
    }
    if "ports" in spec:
        main_container["ports"] = spec.pop("ports")
    return json.dumps(
        {
            "kind": "Pod",
            "metadata": {"name": "a", "namespace": "ml"},
            "spec": {"containers": [main_container], **spec},
        }
    )  # fmt: skip


def run(source, *words, **options):
    result = CliRunner().invoke(main, ("fit", *source, *words), **options)
    assert result.exit_code == 0, result.output
    return result.stdout


def fits(source, content, *words):
    document = json.loads(run(source, "-f", "-", "-o", "json", *words, input=content))
    return document, {each["name"]: each["pods"] for each in document["nodes"]}


TAINT = {"key": "dedicated", "value": "vision", "effect": "NoSchedule"}
ITEMS = (
    node("gpu-a", 1, labels={"zone": "a", "gpus": "2"}),
    node("gpu-b", 3, labels={"zone": "b", "gpus": "4"}),
    node("gpu-t", 5, labels={"zone": "a"}, taints=[TAINT]),
    sample.node("cpu-only", cordoned=True),
    other("web", "gpu-a", cpu="12", memory="8Gi"),
    other("done", "gpu-b", cpu="16", phase="Succeeded"),
    sample.volcano_pod("old", "gpu-b", 3, 20000),
)
"""6 pods fit on an idle node by its GPUs, 4 on gpu-b; 4 CPUs are free on gpu-a."""


def in_zone(operator, *values, key="zone"):
    term = {"matchExpressions": [{"key": key, "operator": operator, "values": [*values]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    return {"affinity": {"nodeAffinity": required}}


TAINTED = {"gpu-t": "tainted_node"}
NO_CPU = "insufficient_cpu"


@pytest.mark.parametrize(
    ("spec", "pods", "excluded"),
    [
        ({}, {"gpu-a": 4, "gpu-b": 4}, TAINTED),
        ({"tolerations": [{"operator": "Exists"}]}, {"gpu-a": 4, "gpu-b": 4, "gpu-t": 6}, {}),
        ({"nodeSelector": {"zone": "b"}}, {"gpu-b": 4}, {"gpu-a": "node_selector", **TAINTED}),
        (in_zone("NotIn", "a"), {"gpu-b": 4}, {"gpu-a": "node_affinity", **TAINTED}),
        (in_zone("Gt", "3", key="gpus"), {"gpu-b": 4}, {"gpu-a": "node_affinity", **TAINTED}),
        ({"cpu": "5"}, {"gpu-b": 3}, {"gpu-a": NO_CPU, **TAINTED}),
        ({"memory": "30Gi"}, {"gpu-a": 1, "gpu-b": 2}, TAINTED),
        ({"cpu": "17"}, {}, {"gpu-a": NO_CPU, "gpu-b": NO_CPU, **TAINTED}),
    ],
)  # fmt: skip
def test_nodes_take_what_kube_scheduler_lets_them(source, spec, pods, excluded):
    document, nodes = fits(source, manifest(**spec))
    assert nodes == pods
    own = {name: code for name, code in document["excludedNodes"].items() if name != "cpu-only"}
    assert own == excluded


def test_pods_that_are_placed_one_after_another_take_their_cpu(dump):
    document, nodes = fits(dump, manifest(cpu="3"), "--pods", "9")
    assert nodes == {"gpu-a": 1, "gpu-b": 4}
    assert document["limitedNodes"] == {"gpu-a": "insufficient_cpu"}
    _, nodes = fits(dump, manifest(cpu="3"), "--pods", "5")
    assert sum(nodes.values()) == 5


def test_a_node_with_as_many_pods_as_it_takes_takes_no_more(tmp_path):
    few = node("gpu-a", 1, pods="2")
    source = dumped(tmp_path, (few, other("web", "gpu-a"), other("ended", "gpu-a", phase="Failed")))
    document, nodes = fits(source, manifest())
    assert (nodes, document["limitedNodes"]) == ({"gpu-a": 1}, {"gpu-a": "too_many_pods"})
    text = run(source, "-f", "-", input=manifest())
    assert "1 node: then the node has as many pods as its kubelet takes (2 of 2)" in text


def test_the_text_names_the_reason_of_each_node_with_gpus_alone(dump):
    text = run(dump, "-f", "-", input=manifest(cpu="17"))
    assert "0 pods fit" in text
    assert (
        "2 nodes: the node has too little free CPU for the pod (gpu-a: 17 requested, 4 of 16 free)"
        in text
    )
    assert (
        "1 node: the node has a taint that the pod does not tolerate (dedicated=vision:NoSchedule)"
        in text
    )
    assert "cordoned" not in text  # fmt: skip


def test_a_request_by_flags_tolerates_no_taint_and_needs_a_place_for_the_pod(dump):
    flags = ("--request", "volcano.sh/vgpu-number=1", "--request", "volcano.sh/vgpu-memory=15000")
    document = json.loads(run(dump, *flags, "-o", "json"))
    assert {each["name"]: each["pods"] for each in document["nodes"]} == {"gpu-a": 6, "gpu-b": 4}
    assert document["excludedNodes"]["gpu-t"] == "tainted_node"


def test_units_of_the_system_that_other_pods_request_are_counted_as_by_kube_scheduler(tmp_path):
    one = node("gpu-a", 1, **{"volcano.sh/vgpu-number": "3"})
    source = dumped(tmp_path, (one, sample.volcano_pod("a", "gpu-a", 1, 1000)))
    document, nodes = fits(source, manifest())
    assert (nodes, document["limitedNodes"]) == ({"gpu-a": 2}, {"gpu-a": "insufficient_resource"})


def test_a_node_whose_plugin_is_gone_takes_none_by_the_same_cause_as_elsewhere(tmp_path):
    gone = node("gpu-a", 1, **{"volcano.sh/vgpu-number": "0"})
    source = dumped(tmp_path, (gone,))
    document, nodes = fits(source, manifest())
    assert (nodes, document["excludedNodes"]) == ({}, {"gpu-a": "nothing_allocatable"})
    assert "(0 of 20 volcano.sh/vgpu-number allocatable)" in run(
        source, "-f", "-", input=manifest()
    )


def test_what_is_not_judged_is_named_in_text_and_document(source):
    term = [{"topologyKey": "zone", "labelSelector": {}}]
    spec = {
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term}},
        "topologySpreadConstraints": [
            {"topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
        ],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "c"}}],
        "ports": [{"hostPort": 8080, "containerPort": 80}],
        "runtimeClassName": "nvidia",
    }
    document, _ = fits(source, manifest(**spec))
    parts = ["pod_affinity", "topology_spread", "volumes", "host_ports", "runtime_class"]
    assert list(document["notChecked"]) == parts
    text = run(source, "-f", "-", input=manifest(**spec))
    assert "Not checked: required affinity or anti-affinity to other pods;" in text
    assert "volumes that are bound to nodes or zones (data)" in text
    assert "Not checked" not in run(source, "-f", "-", input=manifest())
    assert fits(source, manifest())[0]["notChecked"] == {}


def test_a_resource_of_another_extender_is_counted_and_named(tmp_path):
    fast = node("gpu-a", 1, **{"rdma/hca": "2"})
    slow = node("gpu-b", 3)
    source = dumped(tmp_path, (fast, slow))
    asked = json.loads(manifest())
    asked["spec"]["containers"][0]["resources"]["limits"]["rdma/hca"] = 1
    document, nodes = fits(source, json.dumps(asked))
    assert nodes == {"gpu-a": 2}
    assert document["excludedNodes"] == {"gpu-b": "insufficient_resource"}
    assert list(document["notChecked"]) == ["other_extenders"]


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("volcano.sh/vgpu-mem", ", the nearest name is volcano.sh/vgpu-memory"),
        ("example.com/widget", ""),
    ],
)
def test_a_resource_that_no_node_has_is_named_with_the_nearest_name(source, name, nearest):
    flags = ("--request", "volcano.sh/vgpu-number=1", "--request", f"{name}=1")
    text = run(source, *flags)
    assert "0 pods fit" in text
    assert f"no node advertises {name}{nearest}" in text
    document = json.loads(run(source, *flags, "-o", "json"))
    assert list(document["refusedNodes"]) == ["missing_resource"]


def test_without_a_node_of_the_system_the_answer_has_a_reason(dump):
    text = run(dump, "--request", "aliyun.com/gpu-mem=1")
    assert "0 pods fit" in text
    assert "no node has GPUs of gpushare" in text


def test_pods_of_a_drained_node_go_where_their_own_node_selector_lets_them(tmp_path):
    def pinned(name, zone):
        made = sample.volcano_pod(name, "gpu-0", 1, 15000)
        made["spec"]["nodeSelector"] = {"zone": zone}
        return made

    items = (
        node("gpu-0", 1, labels={"zone": "a"}),
        node("gpu-a", 3, labels={"zone": "a"}),
        node("gpu-b", 5, labels={"zone": "b"}),
        pinned("a", "a"),
        pinned("c", "c"),
    )
    document, nodes = fits(dumped(tmp_path, items), manifest(), "--drain", "gpu-0")
    assert {each["name"]: each["target"] for each in document["moved"]} == {"a": "gpu-a", "c": ""}
    assert nodes == {"gpu-a": 5, "gpu-b": 6}


def test_evictions_free_the_cpu_of_their_pods(tmp_path):
    owner = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "name": "o",
        "uid": "o",
        "controller": True,
    }
    old = sample.volcano_pod("old", "gpu-a", 1, 40000, owner=owner)
    old["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "16"}
    items = (node("gpu-a", 1), node("gpu-b", 3), other("web", "gpu-b", cpu="8"), old)
    words = ("--pods", "1", "--defragment", "--priority", "1")
    plan = fits(dumped(tmp_path, items), manifest(cpu="12"), *words)[0]["defragmentation"]
    assert plan["fits"]
    assert [each["name"] for each in plan["evictions"]] == ["old"]


GPU_TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
REQUESTED = ("--request", "volcano.sh/vgpu-number=1", "--request", "volcano.sh/vgpu-memory=15000")


def test_taints_that_close_nodes_are_named_with_the_flag_that_tolerates_them(tmp_path):
    sick = {"key": "node.kubernetes.io/disk-pressure", "effect": "NoSchedule"}
    items = (
        node("gpu-a", 1, taints=[GPU_TAINT]),
        node("gpu-b", 3, taints=[GPU_TAINT]),
        node("gpu-c", 5, taints=[sick]),
    )
    source = dumped(tmp_path, items)
    result = CliRunner().invoke(main, ("fit", *source, *REQUESTED))
    text = " ".join(result.output.split())
    assert "0 pods fit" in text
    flag = "--toleration nvidia.com/gpu:NoSchedule"
    tainted = "gpu-a, gpu-b have the taint nvidia.com/gpu=present:NoSchedule"
    assert tainted in text
    assert flag in text
    assert "2 nodes: the node has a taint that the pod does not tolerate (nvidia.com/gpu" in text
    assert "--toleration node.kubernetes.io" not in text

    document = json.loads(run(source, *REQUESTED, "-o", "json"))
    assert document["excludedNodes"] == dict.fromkeys(("gpu-a", "gpu-b", "gpu-c"), "tainted_node")
    assert document["excludedDetails"]["gpu-a"] == "nvidia.com/gpu=present:NoSchedule"
    assert any(tainted in note and flag in note for note in document["notes"])

    for toleration in ("nvidia.com/gpu", "nvidia.com/gpu=present", "nvidia.com/gpu:NoSchedule"):
        words = (*REQUESTED, "--toleration", toleration, "-o", "json")
        document = json.loads(run(source, *words))
        assert {each["name"] for each in document["nodes"]} == {"gpu-a", "gpu-b"}
        assert not any("--toleration" in note for note in document["notes"])
    result = CliRunner().invoke(main, ("fit", *source, *REQUESTED, "--toleration", "a=b:Never"))
    assert result.exit_code == 2
    assert "'a=b:Never' is not KEY[=VALUE][:EFFECT]" in result.output
