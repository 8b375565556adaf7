"""The room in `vgpu inspect` beside `vgpu fit`, on nodes that other pods may use."""

import json

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
