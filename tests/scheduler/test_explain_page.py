"""The page of a pending pod: each node's answer, and which nodes kube-scheduler does not offer."""

import pytest
from msgspec import structs

from tests.scheduler.model_api import gpushare_node
from tests.scheduler.served import Served
from tests.support.web_helpers import fetch
from vgpu.kube.closed_nodes import ClosedReason
from vgpu.model.names import PodRef
from vgpu.model.objects import Container, Pod
from vgpu.model.taints import Taint, Toleration
from vgpu.placement.result import PlacementReason

TAINT = Taint("team", "vision", "NoSchedule")
ASKS = Container("main", {"aliyun.com/gpu-mem": 6})
OPEN = structs.replace(gpushare_node("n1", 1), ready=True)


@pytest.fixture
def page():
    with Served() as served:

        def page(node, **fields):
            """The page of a pod with these fields, beside the node."""
            served.cache.set_node("n1", node)
            pod = Pod(PodRef("uid-p", "ns", "p"), containers=(ASKS,), phase="Pending", **fields)
            served.show("p", pod)
            status, _, body = fetch(served.server.addresses[0], "/explain/ns/p")
            assert status == 200
            return body.decode().splitlines()

        yield page


@pytest.mark.parametrize(
    ("node", "taking", "answer"),
    [
        (OPEN, 1, "takes the pod"),
        (structs.replace(OPEN, ready=False), 0, "has room, but the node is not ready"),
        (structs.replace(OPEN, unschedulable=True), 0, "has room, but the node is cordoned"),
        (
            structs.replace(OPEN, taints=(TAINT,)),
            0,
            f"has room, but {ClosedReason.TAINTED_NODE.explanation} (team=vision:NoSchedule)",
        ),
    ],
)
def test_a_node_that_kube_scheduler_does_not_offer_takes_nobody(page, node, taking, answer):
    lines = page(node)
    assert f"now {taking} of 1 node with GPUs take it" in lines
    assert f"node n1: {answer}" in lines


def test_a_pod_that_tolerates_the_taint_is_taken(page):
    tolerations = (Toleration("team", "Equal", "vision", ""),)
    lines = page(structs.replace(OPEN, taints=(TAINT,)), tolerations=tolerations)
    assert "node n1: takes the pod" in lines


def test_a_closed_node_without_room_has_the_reason_of_its_gpus(page):
    small = {"aliyun.com/gpu-mem": 2, "aliyun.com/gpu-count": 1}
    lines = page(structs.replace(OPEN, unschedulable=True, capacity=small, allocatable=small))
    assert f"node n1: {PlacementReason.MEMORY.explanation}" in lines
