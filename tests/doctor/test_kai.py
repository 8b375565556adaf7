"""What `vgpu doctor` finds of KAI Scheduler, on the objects that its own operator wrote."""

import copy
import json

import pytest

from tests.support import kai_player
from tests.support.doctor_facts import facts_of
from tests.support.installed import workload
from vgpucli.doctor.answer import cluster_findings

INSTALLED = "a_node_with_gpus_joins"
LIMITED = "shares_have_limits"
ISOLATOR = "docker.io/projecthami/kai-resource-isolator:1.1.0"


def objects(step=INSTALLED):
    kept = {"Deployment", "Node", "Pod"}
    record = kai_player.HAMICORE if step == LIMITED else kai_player.STORY
    written = kai_player.after(step, record=record)
    return [copy.deepcopy(each) for each in written if each["kind"] in kept]


def isolator():
    """Its workloads (``chart/kai-resource-isolator`` 1.1.0)."""
    return [
        workload("Deployment", "kai-resource-isolator-webhook", ("webhook", ISOLATOR)),
        workload("DaemonSet", "kai-resource-isolator-libsync", ("libsync", ISOLATOR, "/bin/sh")),
        workload("DaemonSet", "kai-resource-isolator-monitor", ("monitor", ISOLATOR, "/monitor")),
    ]


NO_ISOLATOR = workload("DaemonSet", "any", ("any", "any"))
"""Without a DaemonSet in the dump, it is not known that none is the isolator's."""


def found(*items):
    """The codes of the findings about KAI, with their objects and texts."""
    findings = cluster_findings(facts_of(*items))
    return {
        str(each.reason): (each.about, " ".join(each.evidence))
        for each in findings
        if str(each.reason).startswith("kai_")
    }


def codes(*items):
    return set(found(*items)) - {"kai_queue_label", "kai_sharing"}


def component(items, name):
    (own,) = (
        each for each in items if (each["kind"], each["metadata"]["name"]) == ("Deployment", name)
    )
    return own["spec"]["template"]["spec"]["containers"][0]


def test_each_component_is_named_with_its_version():
    findings = cluster_findings(facts_of(*objects()))
    installed = {
        each.about: each.evidence[0] for each in findings if str(each.reason) == "installed"
    }
    assert {
        about.rpartition("/")[2]: text.partition(",")[0] for about, text in installed.items()
    } == {
        "kai-scheduler-default": "KAI scheduler v0.17.0-d5bc503a",
        "binder": "KAI binder v0.17.0-d5bc503a",
        "admission": "KAI webhook v0.17.0-d5bc503a",
        "pod-grouper": "KAI pod grouper v0.17.0-d5bc503a",
        "podgroup-controller": "KAI controllers v0.17.0-d5bc503a",
        "queue-controller": "KAI controllers v0.17.0-d5bc503a",
        "kai-operator": "KAI operator v0.17.0-d5bc503a",
    }


def test_components_of_several_versions_are_reported():
    items = objects()
    own = component(items, "binder")
    own["image"] = own["image"].rpartition(":")[0] + ":v0.16.2"
    findings = cluster_findings(facts_of(*items))
    (several,) = (each for each in findings if str(each.reason) == "several_versions")
    assert any("KAI binder v0.16.2" in text for text in several.evidence)


def test_an_image_of_such_a_name_elsewhere_is_not_kais():
    other = workload("Deployment", "scheduler", ("scheduler", "example.com/team/scheduler:1"))
    assert found(other) == {}


def test_gpu_sharing_is_on_by_the_flag_of_the_webhook():
    items = objects()
    assert found(*items)["kai_sharing"][0] == "Deployment kai-scheduler/admission"
    own = component(items, "admission")
    own["args"] = [each for each in own["args"] if "gpu-sharing-enabled" not in each]
    assert "kai_sharing_off" in found(*items)
    own["args"].append("--gpu-sharing-enabled=false")
    assert "kai_sharing_off" in found(*items)


@pytest.mark.parametrize(
    ("step", "extra", "code"),
    [
        (INSTALLED, [NO_ISOLATOR], {"kai_not_limited"}),
        (INSTALLED, [], set()),
        (INSTALLED, isolator(), {"kai_limit_missing"}),
        (LIMITED, [NO_ISOLATOR], {"kai_limit_unused"}),
        (LIMITED, isolator(), set()),
    ],
)
def test_shares_are_limited_if_the_binder_the_webhook_and_the_isolator_agree(step, extra, code):
    assert codes(*objects(step), *extra) == code


def test_a_binder_whose_webhook_does_not_pass_the_limit_is_an_error():
    items = objects(LIMITED)
    own = component(items, "admission")
    own["args"] = [each for each in own["args"] if "hami-core-enabled" not in each]
    assert "kai_limits_differ" in codes(*items, *isolator())


@pytest.mark.parametrize("label", [None, "", "0", "-1", "15Gi", "١٥٣٦٠"])
def test_a_node_with_gpus_and_no_size_of_them_is_reported(label):
    items = objects()
    (node,) = (
        each for each in items if "nvidia.com/gpu.memory" in each["metadata"].get("labels", {})
    )
    assert "kai_memory_label" not in codes(*items)
    del node["metadata"]["labels"]["nvidia.com/gpu.memory"]
    if label is not None:
        node["metadata"]["labels"]["nvidia.com/gpu.memory"] = label
    _, text = found(*items)["kai_memory_label"]
    assert node["metadata"]["name"] in text
    assert "1 node " in text


def test_pods_that_name_their_queue_by_the_label_that_is_not_read_are_reported():
    items = objects("the_tenant_is_bound")
    assert "kai_queue_label_unread" not in codes(*items)
    (pod,) = (each for each in items if each["metadata"]["name"] == "train-0")
    labels = pod["metadata"]["labels"]
    labels["runai/queue"] = labels["kai.scheduler/queue"]
    assert "kai_queue_label_unread" not in codes(*items)
    del labels["kai.scheduler/queue"]
    about, text = found(*items)["kai_queue_label_unread"]
    assert about == "runai/queue"
    assert "team-a/train-0" in text


def test_components_that_read_different_labels_are_an_error():
    items = objects()
    own = component(items, "pod-grouper")
    own["args"] = [each for each in own["args"] if "queue-label-key" not in each]
    own["args"].append("--queue-label-key=runai/queue")
    assert "kai_queue_labels" in found(*items)


def test_a_cluster_without_kai_has_no_finding_about_it():
    nodes = [each for each in objects() if each["kind"] == "Node"]
    assert found(*nodes, *isolator()) == {}


def test_a_hostile_list_of_plugins_costs_nothing():
    for text in (
        "{",
        "[]",
        json.dumps({"hamicore": 1}),
        json.dumps({"hamicore": {"enabled": "yes"}}),
    ):
        items = objects()
        component(items, "binder")["args"] += ["--plugins", text]
        assert codes(*items, NO_ISOLATOR) == {"kai_not_limited"}, text
