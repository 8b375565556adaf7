"""Dumps without a part of KAI's pods: what is not there is not called missing."""

import json

import pytest

from tests.kai.kai_dumps import (
    RESERVATIONS,
    content_of,
    document,
    is_reservation,
    is_tenant,
    lists_all,
    objects_of,
    printed,
)
from vgpu.kube.dump import decode_dump

UNCHECKED = "have reservation pods is not checked"


def kinds(found):
    return sorted(each["type"] for each in found["conflicts"])


def elsewhere():
    """A cluster whose KAI has its reservation pods in a namespace of another name."""
    objects = objects_of()
    for each in filter(is_reservation, objects):
        each["metadata"]["namespace"] = "gpu-reservations"
    return objects


def test_reservation_pods_in_a_namespace_of_another_name_are_not_called_missing(tmp_path):
    found = document(elsewhere(), tmp_path, "inspect")
    assert kinds(found) == []
    plan = printed(elsewhere(), tmp_path, "reconcile", "plan")
    assert "group_unreserved" not in plan


def test_a_tenant_with_the_marks_of_a_reservation_pod_withholds_nothing_for_other_groups(tmp_path):
    objects = [each for each in objects_of() if not is_reservation(each)]
    assert kinds(document(objects, tmp_path, "inspect")) == ["group_unreserved"] * 2
    for each in objects:
        if is_tenant(each) and each["metadata"]["name"] == "infer-0":
            each["metadata"]["annotations"]["run.ai/reserve_for_gpu_index"] = "GPU-1"
    assert kinds(document(objects, tmp_path, "inspect")) == ["group_unreserved"] * 2


def of_namespaces(*names):
    return [
        each
        for each in objects_of(kinds=("Node", "Pod"))
        if each["kind"] == "Node" or each["metadata"]["namespace"] in names
    ]


@pytest.mark.parametrize(
    "names", [("team-a",), ("team-a", "kai-scheduler"), ("team-a", "team-b", "kai-scheduler")]
)
def test_lists_of_some_namespaces_do_not_show_that_a_reservation_pod_is_gone(tmp_path, names):
    objects = of_namespaces(*names)
    assert not lists_all(objects)
    found = document(objects, tmp_path, "inspect")
    assert kinds(found) == []
    plan = document(objects, tmp_path, "reconcile", "plan")
    for notes in (found["notes"], plan["notes"]):
        assert any(UNCHECKED in note and "team-a/train-0" in note for note in notes)


def test_lists_of_two_namespaces_one_after_another_do_not_either():
    lists = [content_of(of_namespaces(name)) for name in ("team-a", "kai-scheduler")]
    assert not decode_dump(b"\n".join(lists)).lists_all


def test_the_namespace_of_reservation_pods_shows_that_they_are_gone(tmp_path):
    objects = [each for each in objects_of() if not is_reservation(each)]
    assert lists_all(objects)
    namespaces = [each for each in objects if each["kind"] == "Namespace"]
    assert RESERVATIONS in {each["metadata"]["name"] for each in namespaces}
    found = document(objects, tmp_path, "inspect")
    assert UNCHECKED not in json.dumps(found["notes"])


def test_the_note_about_unknown_shares_names_no_tenant_whose_gpu_is_known(tmp_path):
    assert "neither an allocation nor a request" not in printed(objects_of(), tmp_path, "inspect")
