"""`vgpu explain` as a person calls it: on dumps, at an API server, and with wrong flags."""

import json

import msgspec
import pytest
import yaml
from click.testing import CliRunner

from exporter.flags import DEFAULT_PORT
from tests.commands.conftest import dumped
from tests.support import sample_cluster as sample
from tests.support.environment import ROOT
from vgpu.program.exporter_pod import LABELS, NAMESPACE, PORT, port_forward
from vgpucli.explain import read as explain_read
from vgpucli.explain.document import ExplanationDocument
from vgpucli.main import main

ITEMS = [
    sample.volcano_node("gpu-1", 1),
    sample.volcano_node("gpu-2", 3, ready=False),
    sample.volcano_pod("train-0", "gpu-1", 1, 40000, 50),
    sample.volcano_pod("train-1", "gpu-1", 2, 40000, 50),
    sample.pod("waits", limits=sample.volcano_limits(32000), unschedulable="no room", age=90),
    sample.pod("wrong", limits={"volcano.sh/vgpu-number": 1, "aliyun.com/gpu-mem": 1}),
    sample.volcano_node("gpu-3", 5, ready=False),
    sample.volcano_pod("train-2", "gpu-3", 5, 1000, 10),
    sample.volcano_pod("alone", "gpu-3", 6, 1000, 10, namespace="free"),
    sample.volcano_pod("orphan", "gpu-9", 9, 1000, 10, namespace="free"),
    {
        "kind": "Namespace",
        "apiVersion": "v1",
        "metadata": {"name": "ml", "annotations": {"vgpu.dev/quota-memory": "500Gi"}},
    },
]
CLOSED = [
    sample.volcano_node("gpu-1", 1),
    sample.volcano_pod("train-0", "gpu-1", 1, 40000, 50),
    sample.volcano_pod("train-1", "gpu-1", 2, 40000, 50),
    sample.pod("waits", limits=sample.volcano_limits(32000), unschedulable="no room", age=90),
]


def run(*words, **options):
    return CliRunner().invoke(main, ("explain", *words), **options)


def document(result):
    assert result.exit_code == 0, result.output
    return msgspec.json.decode(result.stdout.encode(), type=ExplanationDocument)


def steps(result):
    return {
        step.step: (step.outcome, [each.code for each in step.reasons])
        for step in document(result).steps
    }


def test_a_pod_that_runs(source):
    result = run("pod", "ml/train-0", *source, "-o", "json")
    assert {outcome for outcome, _ in steps(result).values()} == {"passed"}
    quota = next(step for step in document(result).steps if step.step == "quota")
    assert "memory: 79.1 GiB" in quota.evidence[0]  # of all pods of the namespace


def test_a_pod_whose_node_is_gone(source):
    result = run("pod", "free/orphan", *source, "-o", "json")
    assert steps(result)["use"] == ("failed", ["node_gone"])
    assert "does not exist any more" in document(result).conclusion


NVIDIAS = [
    sample.node("sliced", {"nvidia.com/gpu": 20}),
    sample.pod("a", "sliced", {"nvidia.com/gpu": 2}),
    sample.pod("b", "", {"nvidia.com/gpu": 1}, unschedulable="Insufficient nvidia.com/gpu"),
    sample.resource_quota("q", {"nvidia.com/gpu": 8}, {"nvidia.com/gpu": 3}),
]


def test_a_pod_and_a_node_of_nvidias_own_plugin(tmp_path):
    dump = dumped(tmp_path, NVIDIAS)
    text = " ".join(run("pod", "ml/a", *dump).stdout.split())
    assert "NVIDIA's device plugin, which vgpu only observes: 2 nvidia.com/gpu" in text
    assert "ResourceQuota ml/q: Kubernetes counts 3 of 8 requests.nvidia.com/gpu" in text
    assert "the API server does not have its GPU" in text
    waits = steps(run("pod", "ml/b", *dump, "-o", "json"))
    assert [waits[step][0] for step in ("request", "nodes", "reserved")] == [
        "passed", "passed", "failed",
    ]  # fmt: skip
    text = " ".join(run("pod", "ml/b", *dump).stdout.split())
    assert "kube-scheduler: Insufficient nvidia.com/gpu" in text
    node = run("node", "sliced", *dump, "-o", "json")
    assert {outcome for outcome, _ in steps(node).values()} == {"passed", "not_checked"}


def test_a_pod_that_waits_for_a_node_that_is_not_ready(source):
    result = run("pod", "ml/waits", *source, "-o", "json")
    assert steps(result)["nodes"] == ("failed", ["nodes_closed"])
    assert [group.nodes for group in document(result).nodes] == [["gpu-2", "gpu-3"], ["gpu-1"]]


def test_a_pod_and_nodes_with_a_taint(tmp_path):
    """A node that does not take the pod is not reported to have room for it."""
    waits, tainted, absent = CLOSED[-1], sample.volcano_node("gpu-4", 7), ITEMS[1]
    tainted["spec"]["taints"] = [{"key": "gpu", "value": "a100", "effect": "NoSchedule"}]
    result = run("pod", "ml/waits", *dumped(tmp_path, [waits, tainted, absent]), terminal_width=100)
    text = " ".join(result.output.split())
    for part in (
        "nodes failed nodes_closed: each node with room is closed to the pod for another reason",
        "GPUs have room on 2 of 2 nodes: gpu-2, gpu-4",
        "1 node (gpu-2): the node is not ready",
        "1 node (gpu-4): the node has a taint that the pod does not tolerate (gpu=a100:NoSchedule)",
    ):
        assert part in text, result.output
    tolerates = {**waits, "spec": {**waits["spec"], "tolerations": [{"operator": "Exists"}]}}
    dump = dumped(tmp_path, [tolerates, tainted, absent])
    groups = document(run("pod", "ml/waits", *dump, "-o", "json")).nodes
    assert [(group.reason, group.nodes) for group in groups] == [
        (None, ["gpu-4"]),
        ("not_ready", ["gpu-2"]),
    ]
    assert groups[0].explanation == "has room for the pod"


def test_a_pod_with_an_invalid_request(source):
    result = run("pod", "ml/wrong", *source, "-o", "json")
    assert steps(result)["request"] == ("failed", ["several_systems"])
    assert steps(result)["nodes"] == ("waiting", [])


def test_a_node_and_a_gpu(source):
    assert steps(run("node", "gpu-2", *source, "-o", "json"))["ready"] == ("failed", ["not_ready"])
    result = run("gpu", "gpu-1/0", *source, "-o", "json")
    assert document(result).object_kind == "GPU"
    assert ["ml/train-0/main" in line for line in document(result).lines] == [True]


def test_flags_may_stand_before_the_kind_and_a_pod_needs_no_kind(source):
    asked = document(run("pod", "ml/waits", *source, "-o", "json")).steps
    for words in (
        (*source, "pod", "ml/waits", "-o", "json"),
        (*source, "-ojson", "--output=json", "pod", "ml/waits"),
        ("ml/waits", *source, "-o", "json"),
        (*source, "ml/waits", "-o", "json"),
    ):
        assert document(run(*words)).steps == asked
    assert "GPU gpu-1/GPU-" in run(*source, "gpu", "gpu-1/0").output
    assert "No such command 'waits'" in run(*source, "waits").output


@pytest.mark.parametrize("change", [str, str.upper, lambda text: f"{text}…"])
def test_a_gpu_by_the_beginning_of_its_uuid_with_and_without_prefix(source, change):
    uuid = sample.uuid(1)
    answer = document(run("gpu", f"gpu-1/{uuid}", *source, "-o", "json"))
    for name in (uuid[:12], uuid[:12].removeprefix("GPU-")):
        again = document(run("gpu", f"gpu-1/{change(name)}", *source, "-o", "json"))
        assert (again.name, again.steps) == (answer.name, answer.steps)


def test_a_node_has_the_line_that_opens_its_exporters_page(source):
    shown = run("node", "gpu-1", *source)
    assert shown.output.endswith(f"\n  {port_forward('gpu-1')}\n")
    msgspec.json.decode(run("node", "gpu-1", *source, "-o", "json").stdout)  # nothing behind it
    manifest = (ROOT / "deploy" / "manifests" / "exporter.yaml").read_text()
    (daemon_set,) = (
        each for each in yaml.safe_load_all(manifest) if each and each["kind"] == "DaemonSet"
    )
    labels = daemon_set["spec"]["template"]["metadata"]["labels"]
    assert dict(pair.split("=") for pair in LABELS.split(",")).items() <= labels.items()
    assert (daemon_set["metadata"]["namespace"], DEFAULT_PORT) == (NAMESPACE, PORT)


def test_the_text_for_people(tmp_path):
    result = run("pod", "ml/waits", *dumped(tmp_path, CLOSED), terminal_width=100)
    assert result.exit_code == 0
    text = " ".join(result.output.split())
    for part in (
        "Pod ml/waits request passed Volcano: main: 1 GPU with 31.2 GiB",
        "nodes failed memory: no GPU has enough free memory",
        "1 node (gpu-1): no GPU has enough free memory (2 GPUs memory;",
        "The pod fails at step nodes: no GPU has enough free memory.",
        "What to do: end or move other pods",
        "started waiting not reached",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("pod", "waits"), "'waits' is not NAMESPACE/NAME, such as default/waits"),
        (("pod", "ml/"), "'ml/' is not NAMESPACE/NAME"),
        (("pod", "a/b/c"), "'a/b/c' is not NAMESPACE/NAME"),
        (("gpu", "gpu-1"), "'gpu-1' is not NODE/GPU"),
        (("pod", "ml/waits", "--context", "x"), "--from asks no cluster: drop --context"),
        (("pod", "ml/waits", "--from", "-", "--from", "-"), "--from - can be read once only"),
    ],
)
def test_wrong_flags_have_one_line(dump, words, problem):
    result = run(*words, *dump)
    assert result.exit_code == 2
    assert problem in " ".join(result.output.split())


def test_an_object_that_does_not_exist(source):
    is_dump = source[0] == "--from"
    gone = "there is no node 'gpu-9'. Is it gpu-"
    if is_dump:
        gone = "there is no node 'gpu-9' any more, and pod free/orphan with shares of GPUs is still"
    for words, problem in (
        (("pod", "ml/train-9"), "ml/train-9" if is_dump else "NotFound"),
        (("node", "gpu-9"), gone),
        (("gpu", "gpu-1/7"), "node gpu-1 has no single GPU '7'. It has: GPU-"),
        (("gpu", "gpu-9/0"), gone),
        (("node", "gpu-12"), "there is no node 'gpu-12'. Is it gpu-"),
    ):
        result = run(*words, *source)
        assert result.exit_code == 1
        assert problem in result.output


# ---------------------------------------------------------------- requests


ALL_NODES, ALL_PODS = "/api/v1/nodes", "/api/v1/pods"
SHARE_PODS = "/apis/kubeshare.nthu/v1/sharepods"
QUOTAS = ("/api/v1/namespaces/{}", "/api/v1/namespaces/{}/resourcequotas")


NAMES_OF_RESOURCES = (
    "/api/v1/configmaps app.kubernetes.io/component=hami-scheduler",
    "/api/v1/namespaces/kube-system/configmaps/volcano-vgpu-device-config",
)
"""Where the schedulers' ConfigMaps may give resources other names: each is read once."""


def without_names(asked):
    assert all(asked.count(each) <= 1 for each in NAMES_OF_RESOURCES)
    return [each for each in asked if each not in NAMES_OF_RESOURCES]


def of_quota(namespace):
    return [each.format(namespace) for each in QUOTAS]


def of_node(name):
    return [
        f"/api/v1/nodes/{name}",
        f"{ALL_PODS} spec.nodeName={name}",
        f"{ALL_PODS} spec.nodeName=",
        SHARE_PODS,
    ]


def test_a_pod_that_waits_costs_one_list_of_each_kind(cluster, requests):
    assert run("pod", "ml/waits", *cluster).exit_code == 0
    pod = "/api/v1/namespaces/ml/pods/waits"
    components = "/apis/apps/v1/daemonsets", "/apis/apps/v1/deployments"
    lists = ALL_NODES, ALL_PODS, SHARE_PODS
    assert without_names(requests) == [pod, *lists, *of_quota("ml"), *components]


def test_a_bound_pod_costs_its_node_and_with_a_quota_its_namespace(cluster, requests):
    assert run("pod", "ml/train-0", *cluster).exit_code == 0
    pod = "/api/v1/namespaces/ml/pods/train-0"
    pods = "/api/v1/namespaces/ml/pods"
    other_node = "/api/v1/nodes/gpu-3"
    assert without_names(requests) == [pod, *of_node("gpu-1"), *of_quota("ml"), pods, other_node]


def test_a_bound_pod_without_a_quota_costs_its_node_alone(cluster, requests):
    assert run("pod", "free/alone", *cluster).exit_code == 0
    pod = "/api/v1/namespaces/free/pods/alone"
    assert without_names(requests) == [pod, *of_node("gpu-3"), *of_quota("free")]


def test_a_node_and_a_gpu_cost_the_node(cluster, requests):
    for words in (("node", "gpu-1"), ("gpu", "gpu-1/0")):
        requests.clear()
        assert run(*words, *cluster).exit_code == 0
        assert without_names(requests) == of_node("gpu-1")


def test_the_nodes_of_a_wide_namespace_are_one_list(cluster, requests, monkeypatch):
    monkeypatch.setattr(explain_read, "MOST_NODES", 0)
    assert run("pod", "ml/train-0", *cluster).exit_code == 0
    assert requests[-1] == ALL_NODES


def having_cpu(node, cpu, **labels):
    """A node with so many allocatable CPUs, and these labels."""
    allocatable = {**node["status"]["allocatable"], "cpu": cpu, "memory": "64Gi", "pods": "110"}
    metadata = {**node["metadata"], "labels": labels}
    return {**node, "metadata": metadata, "status": {**node["status"], "allocatable": allocatable}}


@pytest.mark.parametrize(
    ("spec", "code", "advice"),
    [
        ({}, "insufficient_cpu", "end or move pods of a node with free GPUs, or request less CPU"),
        ({"nodeSelector": {"zone": "b"}}, "node_selector", "correct the pod's nodeSelector"),
    ],
)
def test_a_pod_for_which_only_closed_nodes_have_room_has_the_check_as_its_reason(
    tmp_path, spec, code, advice
):
    """The message of kube-scheduler may be old or cut: what was read decides."""
    limits = sample.volcano_limits(20000)
    waits = sample.pod("waits", "", {**limits, "cpu": "20"}, unschedulable="0/1 nodes available")
    waits["spec"] |= spec
    busy = sample.pod("web", "gpu-1", {"cpu": "50"})
    source = dumped(tmp_path, [waits, having_cpu(sample.volcano_node("gpu-1", 1), "64"), busy])
    document = json.loads(run("pod", "ml/waits", *source, "-o", "json").output)
    assert document["nodes"][0]["reason"] == code
    assert document["conclusion"].startswith("the pod fails at step nodes: each node with room")
    assert "gpu-1: the node " in document["conclusion"]
    assert advice in document["advice"]
    fit = CliRunner().invoke(main, ["fit", "--pod", "ml/waits", "-o", "json", *source]).output
    assert json.loads(fit)["excludedNodes"] == {"gpu-1": code}
