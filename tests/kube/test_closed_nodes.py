"""Which check of kube-scheduler closes a node to a pod, and how many pods its resources admit."""

import msgspec
import pytest
from msgspec import structs

from vgpu.kube import wire
from vgpu.kube.closed_nodes import FreeResources, closed_to, closed_to_new_pods, closed_to_pod
from vgpu.kube.scheduling_objects import PlacedPod, SchedulingNode, SchedulingPod
from vgpu.model.objects import Node
from vgpu.model.taints import CORDON, Taint, Toleration

GIB = 1024**3
ALLOCATABLE = {"cpu": 8000, "memory": 32 * GIB, "pods": 10, "nvidia.com/gpu": 8, "rdma/hca": 1}
NODE = Node("gpu-1", ready=True, capacity={"nvidia.com/gpu": 8}, labels={})
WELL = SchedulingNode(NODE, {"zone": "a"}, ALLOCATABLE)
EVERYTHING = (Toleration(operator="Exists"),)


def having(node=WELL, **fields):
    return structs.replace(node, node=structs.replace(node.node, **fields))


def terms(*values):
    asked = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [*values]}]}]
    return tuple(msgspec.convert(asked, list[wire.NodeTerm]))


def reason(pod, node=WELL, *placed):
    why = closed_to_pod(pod, node, FreeResources([node], placed))
    return None if why is None else (why.reason.value, why.detail)


@pytest.mark.parametrize(
    ("pod", "node", "closed"),
    [
        ({}, {}, None),
        ({}, {"ready": False}, ("not_ready", "")),
        ({}, {"unschedulable": True}, ("cordoned_node", "")),
        ({"tolerations": EVERYTHING}, {"unschedulable": True, "taints": (CORDON,)}, None),
        ({"tolerations": EVERYTHING}, {"ready": False}, ("not_ready", "")),
        ({}, {"taints": (Taint("a", "b", "NoSchedule"),)}, ("tainted_node", "a=b:NoSchedule")),
        ({}, {"taints": (Taint("a", "b", "PreferNoSchedule"),)}, None),
        ({"node_selector": {"zone": "a"}}, {}, None),
        ({"node_selector": {"zone": "b", "x": ""}}, {}, ("node_selector", "zone=b, x=")),
        ({"node_terms": terms("a")}, {}, None),
        ({"node_terms": terms("b")}, {}, ("node_affinity", "")),
        ({"node_terms": ()}, {}, ("node_affinity", "")),
        ({"requests": {"cpu": 8000, "memory": 32 * GIB}}, {}, None),
        ({"requests": {"cpu": 8001}}, {}, ("insufficient_cpu", "8.001 requested, 8 of 8 free")),
        (
            {"requests": {"memory": 33 * GIB}},
            {},
            ("insufficient_memory", "33.0 GiB requested, 32.0 GiB of 32.0 GiB free"),
        ),
        (
            {"requests": {"rdma/hca": 2}},
            {},
            ("insufficient_resource", "2 of rdma/hca requested, 1 of 1 free"),
        ),
        (
            {"requests": {"rdma/none": 1}},
            {},
            ("insufficient_resource", "1 of rdma/none requested, 0 of 0 free"),
        ),
        ({"requests": {"nvidia.com/gpumem": 1000, "volcano.sh/vgpu-memory": 5}}, {}, None),
        ({"requests": {"hugepages-2Mi": 1}}, {}, None),
    ],
)
def test_a_node_is_closed_by_the_first_check_that_finds_something(pod, node, closed):
    assert reason(SchedulingPod(**pod), having(**node)) == closed


def test_what_other_pods_request_is_not_free():
    full = (PlacedPod("1", "gpu-1", {"cpu": 7000, "nvidia.com/gpu": 8}), PlacedPod("2", ""))
    asked = SchedulingPod({"cpu": 1000})
    assert reason(asked, WELL, *full) is None
    more = reason(SchedulingPod({"cpu": 1001}), WELL, *full)
    assert more == ("insufficient_cpu", "1.001 requested, 1 of 8 free")
    units = reason(SchedulingPod({"nvidia.com/gpu": 1}), WELL, *full)
    assert units == ("insufficient_resource", "1 of nvidia.com/gpu requested, 0 of 8 free")
    pods = [PlacedPod(str(number), "gpu-1") for number in range(10)]
    assert reason(SchedulingPod(), WELL, *pods) == ("too_many_pods", "10 of 10")


def test_units_of_which_none_is_allocatable_have_a_reason_of_their_own():
    gone = structs.replace(WELL, allocatable={**ALLOCATABLE, "nvidia.com/gpu": 0})
    asked = SchedulingPod({"nvidia.com/gpu": 1})
    assert reason(asked, gone) == ("nothing_allocatable", "0 of 8 nvidia.com/gpu allocatable")


def test_a_node_admits_as_many_pods_as_the_scarcest_resource():
    free = FreeResources([WELL], [PlacedPod("1", "gpu-1", {"cpu": 2000})])
    assert free.room("gpu-1", {"cpu": 2000, "memory": GIB}) == 3
    assert free.room("gpu-1", {}) == 9
    assert free.room("gpu-2", {"cpu": 1}) is None
    free.take("gpu-1", {"cpu": 2000})
    assert free.room("gpu-1", {"cpu": 2000}) == 2
    assert free.shortage("gpu-1", {"cpu": 2000}, beside=2).detail == "2 requested, 0 of 8 free"
    assert free.shortage("gpu-1", {"cpu": 2000}, beside=1) is None
    free.take("gpu-1", {"cpu": 2000}, -1)
    assert free.room("gpu-1", {"cpu": 2000}) == 3


def test_a_node_of_which_no_resource_is_known_is_judged_by_the_rest():
    bare = structs.replace(WELL, allocatable={})
    assert reason(SchedulingPod({"cpu": 10**9, "rdma/hca": 1}), bare) is None


def test_without_a_pod_taints_close_no_node():
    tainted = structs.replace(NODE, taints=(Taint("a", "b", "NoSchedule"),))
    assert closed_to_new_pods(tainted) is None
    assert closed_to((), [tainted])["gpu-1"].text.endswith("(a=b:NoSchedule)")
