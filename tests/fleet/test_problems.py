"""What needs action: each problem on the pages of all its objects, and counted once."""

import json

import pytest

from tests.fleet.pages_of_dump import get, site_of
from tests.support.sample_cluster import (
    NOW,
    gpushare_node,
    gpushare_pod,
    node,
    pod,
    stamp,
    unhealthy,
    volcano_node,
)

NOTHING = "Nothing needs action."


def view(site, path):
    return json.loads(get(site, f"{path}.json").body)


def shown(site, path):
    return get(site, path).body.decode()


@pytest.fixture(scope="module")
def ill(written):
    """A node that is not ready, and one with an unhealthy GPU and one that is overcommitted."""
    pods = [gpushare_pod(f"over-{number}", "g", 10, 0) for number in range(3)]
    return site_of(
        written([volcano_node("v", 1, ready=False), gpushare_node("g"), unhealthy("g", "3"), *pods])
    )


def test_a_node_that_is_not_ready_needs_action(ill):
    (problem,) = view(ill, "/nodes/v")["problems"]
    assert (problem["kind"], problem["name"], problem["code"]) == ("Node", "v", "not_ready")
    assert problem["severity"] == "error"
    assert NOTHING not in shown(ill, "/nodes/v")
    healthy = view(ill, "/nodes")["rows"]
    assert [row["problems"] > 0 for row in healthy] == [True, True]
    assert json.loads(get(ill, "/nodes.json?state=healthy").body)["rows"] == []


def test_an_unhealthy_gpu_needs_action_on_its_page_and_on_no_other(ill):
    (problem,) = view(ill, "/gpus/g/3")["problems"]
    assert (problem["kind"], problem["node"], problem["code"]) == (
        "Device",
        "g",
        "device_unhealthy",
    )
    assert view(ill, "/gpus/g/2")["problems"] == []
    assert NOTHING in shown(ill, "/gpus/g/2")


def test_an_overcommitted_gpu_is_a_problem_of_each_of_its_pods_and_counts_once(ill):
    pages = ["/gpus/g/0", *(f"/pods/ml/over-{number}" for number in range(3))]
    found = [[each["code"] for each in view(ill, path)["problems"]] for path in pages]
    assert found == [["double_booked"]] * 4
    assert "double_booked" in [each["code"] for each in view(ill, "/nodes/g")["problems"]]
    codes = [each["code"] for each in view(ill, "/problems")["problems"]]
    assert codes.count("double_booked") == 1
    assert view(ill, "/index")["sentence"]["needingAction"] == len(codes) == 3


def test_what_a_dump_does_not_have_is_a_note_and_needs_nobody(written):
    site = site_of(written([gpushare_node("g")]))
    own = view(site, "/index")
    assert own["sentence"]["needingAction"] == 0
    assert own["problems"] == []
    assert any("DaemonSets" in note for note in own["notes"])
    assert "DaemonSets" in shown(site, "/")
    assert "DaemonSets" in shown(site, "/read")


def test_nothing_needs_action_never_stands_beside_a_step_that_fails(written):
    site = site_of(written([volcano_node("v", 1, cordoned=True)]))
    assert view(site, "/nodes/v")["problems"] == []
    assert NOTHING not in shown(site, "/nodes/v")
    assert "Only the step that fails above." in shown(site, "/nodes/v")


@pytest.mark.parametrize("leaves", [False, True])
def test_an_exceeded_quota_is_one_problem_in_readable_amounts(written, leaves):
    limited = {
        "kind": "Namespace",
        "apiVersion": "v1",
        "metadata": {"name": "ml", "annotations": {"vgpu.dev/quota-memory": "8Gi"}},
    }
    holder = gpushare_pod("a", "g", 10, 0)
    if leaves:  # then no pod has to end for it
        holder["metadata"]["deletionTimestamp"] = stamp(NOW)
    site = site_of(written([gpushare_node("g"), holder, limited]))
    found = [each for each in view(site, "/problems")["problems"] if "quota" in each["code"]]
    assert [each["kind"] for each in found] == ["Namespace" if leaves else "Pod"]
    assert "10.0 GiB of 8.0 GiB" in found[0]["detail"]
    assert [each["code"] for each in view(site, "/namespaces/ml")["problems"]] == ["over_quota"]


@pytest.mark.parametrize("node_name", ["ml", "over-0"])
def test_names_of_other_kinds_are_not_mixed_up(written, node_name):
    objects = [
        node(node_name),
        gpushare_node("g", gpus=1),
        *(gpushare_pod(f"over-{number}", "g", 10, 0) for number in range(3)),
        volcano_node(node_name, 1),
    ]
    site = site_of(written(objects))
    assert view(site, f"/nodes/{node_name}")["problems"] == []


@pytest.fixture(scope="module")
def many(written):
    """Many pods that wait and that failed, and many problems."""
    waiting = [
        pod(f"waits-{number}", limits={"aliyun.com/gpu-mem": 500}, unschedulable="0/1 nodes.")
        for number in range(60)
    ]
    failed = pod("failed", "g", {"aliyun.com/gpu-mem": 1}, phase="Failed")
    sick = [volcano_node(f"v-{number}", 2 * number, ready=False) for number in range(150)]
    return site_of(written([gpushare_node("g"), *waiting, failed, *sick]))


def test_many_waiting_pods_hide_no_abnormal_one(many):
    shown_groups = view(many, "/index")["similarPods"]
    (abnormal,) = [each for each in shown_groups if each["tab"] == "abnormal"]
    assert abnormal["name"] == "failed"
    assert abnormal["conclusion"]


def test_many_problems_have_pages(many):
    first = view(many, "/problems")
    assert (len(first["problems"]), first["total"], first["pages"]) == (100, 151, 2)
    second = json.loads(get(many, "/problems.json?page=2").body)
    assert len(second["problems"]) == 51
    names = {each["name"] for each in (*first["problems"], *second["problems"])}
    assert len(names) == 151
