"""Errors of components, PodGroups and queues as causes of pods that wait for a scheduler."""

import json
import os

import pytest
from click.testing import CliRunner

from tests.support import sample_cluster as sample
from tests.support.installed import hami_plugin, hami_scheduler
from vgpucli.main import main

HAMI = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 8000}
REGISTER = {"hami.io/node-nvidia-register": "GPU-1,10,40960,100,A100,0,true:"}
STALE = "all nodes are unavailable: 1 Insufficient volcano.sh/vgpu-number."


def hami_node():
    return sample.node("gpu-1", {"nvidia.com/gpu": 10}, REGISTER)


def explained(tmp_path, *items):
    path = tmp_path / "dump.json"
    path.write_text(json.dumps(sample.dump(items)))
    os.utime(path, (sample.NOW, sample.NOW))
    result = CliRunner().invoke(
        main, ["explain", "pod", "ml/waits", "--from", str(path), "-o", "json"]
    )
    document = json.loads(result.stdout)
    (reserved,) = (step for step in document["steps"] if step["step"] == "reserved")
    return document, reserved


def codes(reasons):
    return [each["code"] for each in reasons]


def down(workload):
    status = dict.fromkeys(("readyReplicas", "numberReady"), 0)
    return {**workload, "status": {**workload["status"], **status}}


def volcano_config(*arguments):
    plugins = [{"name": "deviceshare", "arguments": dict.fromkeys(arguments, True)}]
    config = {"actions": "allocate", "tiers": [{"plugins": plugins}]}
    return {
        "kind": "ConfigMap",
        "apiVersion": "v1",
        "metadata": {"name": "volcano", "namespace": "volcano-system"},
        "data": {"volcano-scheduler.conf": json.dumps(config)},
    }


def test_a_scheduler_without_a_ready_pod_is_why_no_scheduler_has_tried_the_pod(tmp_path):
    waits = sample.pod("waits", "", HAMI)
    document, reserved = explained(tmp_path, hami_node(), waits, down(hami_scheduler()))
    assert (reserved["outcome"], codes(reserved["reasons"])) == ("failed", ["none_ready"])
    assert "HAMi scheduler" in document["conclusion"]
    assert "look at the logs" in document["advice"]
    assert document["notes"] == []
    document, reserved = explained(tmp_path, hami_node(), waits, hami_scheduler())
    assert codes(reserved["reasons"]) == ["not_scheduled"]


def test_a_component_of_another_role_is_a_remark(tmp_path):
    items = hami_node(), sample.pod("waits", "", HAMI), down(hami_plugin()), hami_scheduler()
    _, reserved = explained(tmp_path, *items)
    assert codes(reserved["reasons"]) == ["not_scheduled"]
    assert codes(reserved["remarks"]) == ["none_ready"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ((), "vgpu_not_enabled"),
        (("deviceshare.VGPUEnable", "deviceshare.GPUNumberEnable"), "deviceshare_conflict"),
        (("deviceshare.VGPUEnable",), "stale_scheduler"),
    ],
)
def test_volcanos_configuration_is_the_cause_before_its_memory_is(tmp_path, arguments, code):
    waits = sample.pod("waits", "", sample.volcano_limits(8000), unschedulable=STALE)
    items = sample.volcano_node("gpu-1", 1), waits, volcano_config(*arguments)
    _, reserved = explained(tmp_path, *items)
    assert codes(reserved["reasons"]) == [code]


def pod_group(phase="Pending", message=""):
    conditions = [{"type": "Unschedulable", "status": "True", "message": message}]
    return {
        "kind": "PodGroup",
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "metadata": {"name": "job-1", "namespace": "ml"},
        "spec": {"minMember": 4, "queue": "research"},
        "status": {"phase": phase, "running": 2, "conditions": conditions if message else None},
    }


def queue(number="8", state="Open", memory=(), cpu=()):
    capability = {"volcano.sh/vgpu-number": number}
    allocated = {"volcano.sh/vgpu-number": "2"}
    for name, amounts in (("volcano.sh/vgpu-memory", memory), ("cpu", cpu)):
        if amounts:
            capability[name], allocated[name] = amounts
    return {
        "kind": "Queue",
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "metadata": {"name": "research"},
        "spec": {"capability": capability},
        "status": {"state": state, "allocated": allocated},
    }


@pytest.mark.parametrize(
    ("objects", "code", "detail"),
    [
        ((pod_group(), queue()), "pod_group_waits", "phase Pending, 2 of at least 4 pods run"),
        ((pod_group(), queue("2")), "queue_full", "has 2 of 2 volcano.sh/vgpu-number allocated"),
        ((pod_group("Running"), queue("2")), "queue_full", ", and the pod requests 1"),
        (
            (pod_group(), queue("8", memory=("24000", "20000"))),
            "queue_full",
            "has 20000 of 24000 volcano.sh/vgpu-memory allocated, and the pod requests 8000",
        ),
        (
            (pod_group("Running"), queue("8", memory=("24000", "20000"))),
            "not_scheduled",
            "",
        ),
        (
            (pod_group(), queue("8", cpu=("4", "3800m"))),
            "queue_full",
            "has 3.8 of 4 cpu allocated, and the pod requests 0.5",
        ),
        ((pod_group(), queue(state="Closed")), "queue_full", "queue research is Closed"),
        ((pod_group("Running"), queue()), "not_scheduled", ""),
        ((), "not_scheduled", ""),
    ],
)
def test_the_pod_group_of_a_pod_and_its_queue_are_read(tmp_path, objects, code, detail):
    limits = sample.volcano_limits(8000)
    waits = sample.pod("waits", "", limits, {"scheduling.k8s.io/group-name": "job-1"})
    waits["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "500m"}
    document, reserved = explained(tmp_path, sample.volcano_node("gpu-1", 1), waits, *objects)
    assert codes(reserved["reasons"]) == [code]
    assert detail in document["conclusion"]


@pytest.mark.parametrize("groups", [(), ("another",)])
def test_a_pod_group_that_was_not_read_is_not_the_schedulers_fault(tmp_path, groups):
    marks = {"scheduling.k8s.io/group-name": "job-1"}
    waits = sample.pod("waits", "", sample.volcano_limits(8000), marks)
    others = [pod_group() | {"metadata": {"name": name, "namespace": "ml"}} for name in groups]
    items = sample.volcano_node("gpu-1", 1), waits, queue(), *others
    document, reserved = explained(tmp_path, *items)
    assert reserved["outcome"] == "not_checked"
    assert "kubectl get podgroups -n ml" in document["conclusion"]
    assert "schedulerName" not in document["advice"]
    assert any("PodGroup ml/job-1" in text for text in reserved["evidence"])
    assert groups or "there are no PodGroups in the dump" in reserved["evidence"]
    bare, reserved = explained(tmp_path, sample.volcano_node("gpu-1", 1), waits)
    assert "kubectl get podgroups -n ml" in bare["advice"]


def test_without_its_pod_group_the_queue_that_a_pod_names_refuses_it(tmp_path):
    marks = {
        "scheduling.k8s.io/group-name": "job-1",
        "scheduling.volcano.sh/queue-name": "research",
    }
    waits = sample.pod("waits", "", sample.volcano_limits(8000), marks)
    document, reserved = explained(tmp_path, sample.volcano_node("gpu-1", 1), waits, queue("2"))
    assert codes(reserved["reasons"]) == ["queue_full"]
    assert "has 2 of 2 volcano.sh/vgpu-number allocated" in document["conclusion"]


def test_the_queue_has_its_numbers_where_the_message_names_it(tmp_path):
    message = (
        "2/4 tasks in gang unschedulable: pod group is not ready. Origin reason is queue resource"
        " quota insufficient"
    )
    marks = {"scheduling.k8s.io/group-name": "job-1"}
    waits = sample.pod("waits", "", sample.volcano_limits(8000), marks, unschedulable=message)
    items = sample.volcano_node("gpu-1", 1), waits, pod_group(message="too few"), queue("2")
    document, reserved = explained(tmp_path, *items)
    assert codes(reserved["reasons"]) == ["queue_full"]
    assert "has 2 of 2 volcano.sh/vgpu-number allocated" in document["conclusion"]
    assert "Volcano about PodGroup ml/job-1: too few" in reserved["evidence"]
    assert "kubectl describe queue research" in document["advice"]


def test_a_node_that_is_gone_is_the_cause_and_its_pods_findings_are_remarks(tmp_path):
    marks = {
        "hami.io/vgpu-node": "gpu-9",
        "hami.io/vgpu-time": "1",
        "hami.io/bind-phase": "allocating",
        "hami.io/vgpu-devices-to-allocate": "GPU-9,NVIDIA,8000,0:;",
        "hami.io/vgpu-devices-allocated": "GPU-9,NVIDIA,8000,0:;",
    }
    document, _ = explained(tmp_path, hami_node(), sample.pod("waits", "gpu-9", HAMI, marks))
    failed = [each for each in document["steps"] if each["outcome"] == "failed"]
    assert [codes(each["reasons"]) for each in failed] == [["node_gone"]]
    assert "the node of the pod does not exist any more" in document["conclusion"]
    remarks = [code for each in document["steps"] for code in codes(each.get("remarks", ()))]
    assert "runs_unassigned" in remarks
    assert document["system"] == "HAMi"


def test_a_misspelt_resource_is_the_cause_where_it_is_all_that_the_pod_requests(tmp_path):
    waits = sample.pod("waits", "", {"volcano.sh/vgpu-nubmer": 1})
    document, _ = explained(tmp_path, sample.volcano_node("gpu-1", 1), waits)
    (request,) = (each for each in document["steps"] if each["step"] == "request")
    assert (request["outcome"], codes(request["reasons"])) == ("failed", ["missing_resource"])
    assert "the nearest name is volcano.sh/vgpu-number" in document["conclusion"]
    assert "correct the name of the resource" in document["advice"]


@pytest.mark.parametrize(
    ("spec", "code", "named"),
    [
        (
            {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}, {"name": "a.example/b"}]},
            "gated",
            ("kueue.x-k8s.io/admission, which Kueue sets and removes", "a.example/b"),
        ),
        ({"schedulerName": "volcanoo"}, "not_scheduled", ("the pod's schedulerName is volcanoo",)),
    ],
)
def test_the_closing_sentence_names_the_gates_and_the_scheduler(tmp_path, spec, code, named):
    waits = sample.pod("waits", "", sample.volcano_limits(8000))
    waits["spec"] |= spec
    document, reserved = explained(tmp_path, sample.volcano_node("gpu-1", 1), waits)
    assert codes(reserved["reasons"]) == [code]
    assert all(name in document["conclusion"] for name in named)
