"""The room in `vgpu inspect` beside `vgpu fit`, on nodes that other pods may use."""

import json

import pytest
from click.testing import CliRunner

from tests.commands.conftest import dumped
from tests.support import sample_cluster as sample
from vgpucli.main import main

UNITS = {"aliyun.com/gpu-mem": 32, "aliyun.com/gpu-count": 2}
ASKED = {"aliyun.com/gpu-mem": 4}
TAINT = {"key": "dedicated", "value": "ml", "effect": "NoSchedule"}
MISSPELT = "aliyun.com/gpu-memx"


def run(*args):
    outcome = CliRunner().invoke(main, args, catch_exceptions=False)
    assert outcome.exit_code in (0, 1), outcome.output
    return outcome.output


def answers(folder, *, taints=(), tolerations=(), asked=ASKED, holder=False):
    """The room of inspect, its text, and the number of `vgpu fit`, of a pod that waits or holds."""
    node = sample.node("gpu-1", UNITS)
    node["spec"]["taints"] = list(taints)
    pod = sample.pod("asks", "gpu-1" if holder else "", asked)
    if holder:
        pod["metadata"]["annotations"] = {
            "ALIYUN_COM_GPU_MEM_IDX": "0",
            "ALIYUN_COM_GPU_MEM_POD": "4",
            "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
        }
    pod["spec"]["tolerations"] = list(tolerations)
    source = dumped(folder, [node, pod])
    (room,) = json.loads(run("inspect", *source, "-o", "json"))["rooms"]
    fit = json.loads(run("fit", *source, "--pod", "ml/asks", "-o", "json"))
    return room, run("inspect", *source), fit["pods"]


def test_a_room_has_no_node_whose_taint_the_waiting_pod_does_not_tolerate(tmp_path):
    room, text, fits = answers(tmp_path, taints=[TAINT])
    assert room["fits"] == fits == 0
    assert room["closed"] == [
        {"reason": "tainted_node", "detail": "dedicated=ml:NoSchedule", "names": ["gpu-1"]}
    ]
    assert "no such pod fits on 1 node (gpu-1): the node has a taint" in " ".join(text.split())
    tolerated = [{"key": "dedicated", "operator": "Exists"}]
    room, _, fits = answers(tmp_path, taints=[TAINT], tolerations=tolerated)
    assert (room["fits"], room["closed"]) == (fits, [])
    assert fits == 8


def test_a_room_for_the_most_common_share_has_the_nodes_that_such_pods_are_on(tmp_path):
    tolerated = [{"key": "dedicated", "operator": "Exists"}]
    room, _, fits = answers(tmp_path, taints=[TAINT], tolerations=tolerated, holder=True)
    assert (room["fits"], room["closed"]) == (fits, [])
    assert fits == 7


def test_there_is_no_room_for_a_pod_with_a_misspelt_resource_beside_others(tmp_path):
    room, _, fits = answers(tmp_path, asked={**ASKED, MISSPELT: 1})
    assert room["fits"] == fits == 0
    (closed,) = room["closed"]
    assert closed["reason"] == "insufficient_resource"
    assert MISSPELT in closed["detail"]


def test_a_taint_that_keeps_nobody_off_closes_no_node(tmp_path):
    room, _, fits = answers(tmp_path, taints=[TAINT | {"effect": "PreferNoSchedule"}])
    assert (room["fits"], room["closed"]) == (fits, [])
    assert fits == 8


CPUS = {"cpu": "8", "memory": "16Gi", "pods": "3"}


def limited(folder, *, spec=None, requests=None, pods=0, nodes=1):
    """As :func:`answers`, on nodes of eight CPUs and at most three pods, for a pod that waits."""
    cluster = []
    for number in range(nodes):
        node = sample.node(f"gpu-{number}", UNITS)
        for amounts in ("capacity", "allocatable"):
            node["status"].setdefault(amounts, {}).update(CPUS)
        node["metadata"]["labels"] = {"zone": "a"}
        cluster.append(node)
    for number in range(pods):
        other = sample.pod(f"other-{number}", "gpu-0", {})
        other["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "3"}}
        cluster.append(other)
    asks = sample.pod("asks", "", ASKED)
    asks["spec"]["containers"][0]["resources"]["requests"] = {**(requests or {})}
    asks["spec"].update(spec or {})
    source = dumped(folder, [*cluster, asks])
    (room,) = json.loads(run("inspect", *source, "-o", "json"))["rooms"]
    fit = json.loads(run("fit", *source, "--pod", "ml/asks", "-o", "json"))
    assert room["fits"] == fit["pods"]
    assert {name: each["reason"] for each in room["closed"] for name in each["names"]} == {
        name: code for name, code in fit["excludedNodes"].items() if name.startswith("gpu-")
    }
    return room


@pytest.mark.parametrize(
    ("asked", "fits", "closed"),
    [
        ({}, 3, {}),
        ({"spec": {"nodeSelector": {"zone": "b"}}}, 0, {"node_selector"}),
        ({"requests": {"cpu": "3"}}, 2, {}),
        ({"requests": {"cpu": "3"}, "pods": 2}, 0, {"insufficient_cpu"}),
        ({"requests": {"memory": "17Gi"}}, 0, {"insufficient_memory"}),
        ({"pods": 3}, 0, {"too_many_pods"}),
    ],
)
def test_a_room_is_what_fit_answers_by_all_that_the_waiting_pod_requests(
    tmp_path, asked, fits, closed
):
    room = limited(tmp_path, **asked)
    assert room["fits"] == fits
    assert {each["reason"] for each in room["closed"]} == set(closed)


def test_nodes_that_are_closed_for_one_reason_are_one_line_also_where_they_differ(tmp_path):
    room = limited(tmp_path, requests={"cpu": "7"}, pods=1, nodes=2)
    assert room["fits"] == 1
    room = limited(tmp_path, requests={"cpu": "9"}, pods=1, nodes=2)
    (closed,) = room["closed"]
    assert closed["names"] == ["gpu-0", "gpu-1"]
    assert closed["detail"] == "gpu-0: 9 requested, 5 of 8 free"


def test_a_room_for_the_most_common_share_ends_with_the_pods_that_a_kubelet_takes(tmp_path):
    node = sample.node("gpu-1", UNITS)
    node["status"]["allocatable"]["pods"] = "1"
    pod = sample.pod("asks", "gpu-1", ASKED)
    pod["metadata"]["annotations"] = {
        "ALIYUN_COM_GPU_MEM_IDX": "0",
        "ALIYUN_COM_GPU_MEM_POD": "4",
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
    }
    source = dumped(tmp_path, [node, pod])
    (room,) = json.loads(run("inspect", *source, "-o", "json"))["rooms"]
    assert room["fits"] == 0
    assert [each["reason"] for each in room["closed"]] == ["too_many_pods"]
