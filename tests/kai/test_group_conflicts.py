"""Conflicts of GPU groups of a real KAI, changed: each is reported, where it is shown."""

import json

import pytest

from reconciler.model import OPT_OUT
from tests.kai.kai_dumps import document, is_reservation, is_tenant, objects_of, printed
from tests.kai.test_partial_dumps import kinds
from tests.kai.test_rule_kai import found
from tests.support.kai_pods import gpu, reservation, tenant
from vgpu.model.names import PodRef


def planned(objects, folder):
    plan = document(objects, folder, "reconcile", "plan")
    return sorted(each["reason"] for each in plan["findings"])


def without_reservations(kinds=("Node", "Pod", "Namespace")):
    return [each for each in objects_of(kinds=kinds) if not is_reservation(each)]


def test_each_group_of_one_pod_is_in_the_plan(tmp_path):
    objects = without_reservations()
    plan = document(objects, tmp_path, "reconcile", "plan")
    groups = [text for each in plan["findings"] for text in each["evidence"]]
    assert len(groups) == len(set(groups)) == 2


def test_conflicts_of_two_groups_are_about_two_pods_if_there_are_two():
    both = tenant("a", groups=("g", "h"))
    assert found(both, tenant("b", groups=("h",))) == [
        ("group_unreserved", "a"),
        ("group_unreserved", "b"),
    ]


def test_a_node_whose_gpus_nobody_names_has_its_conflicts(tmp_path):
    objects = without_reservations()
    assert kinds(document(objects, tmp_path, "inspect")) == ["group_unreserved"] * 2
    assert "Conflicts: 2" in printed(objects, tmp_path, "inspect")


def test_a_pod_that_has_opted_out_hides_nothing_from_the_others_of_its_group():
    out = tenant(annotations={OPT_OUT: "false", "gpu-fraction": "0.5"})
    other = tenant("zebra", ref=PodRef("z", "team-b", "zebra"))
    assert found(out, other) == [("group_unreserved", "zebra")]
    assert found(out) == []


@pytest.mark.parametrize("change", ["only reservation pods", "tenants without a node"])
def test_a_reservation_pod_is_only_called_unused_where_all_pods_are_known(tmp_path, change):
    objects = objects_of(kinds=("Node", "Pod"))
    if change == "only reservation pods":
        objects = [each for each in objects if each["kind"] == "Node" or is_reservation(each)]
    for each in filter(is_tenant, objects):
        del each["spec"]["nodeName"]
        each["status"] = {"phase": "Pending"}
    assert kinds(document(objects, tmp_path, "inspect")) == []
    assert planned(objects, tmp_path) == []


def test_a_reservation_pod_on_another_node_is_unused_there(tmp_path):
    objects = objects_of()
    for each in filter(is_reservation, objects):
        each["spec"]["nodeName"] = "node3"
    text = " ".join(printed(objects, tmp_path, "inspect").split())
    assert "no pod of the node has this group" in text


def test_a_pod_without_a_node_awaits_its_reservation_pod():
    assert found(reservation(), tenant(node="")) == []
    assert found(reservation(uuid=gpu(2))) == [("reservation_unused", "gpu-reservation-g")]


def test_several_reservation_pods_are_counted_as_such(tmp_path):
    objects = objects_of()
    (first, *_) = filter(is_reservation, objects)
    second = json.loads(json.dumps(first))
    second["metadata"] |= {"name": "gpu-reservation-z", "uid": "z"}
    text = " ".join(printed([*objects, second], tmp_path, "inspect").split())
    assert "has 2 reservation pods on 1 GPU" in text
