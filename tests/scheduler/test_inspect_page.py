"""gpushare's inspect page where GPUs do not divide the memory, or where not all can be read."""

import json

import pytest

from scheduler.compat.rows import PodHoldings
from tests.scheduler.served import Served
from tests.support.web_helpers import fetch
from vgpu.kube.kinds import NODES, PODS

INSPECT = "/gpushare-scheduler/inspect"


@pytest.fixture
def served():
    with Served() as served:
        yield served


def set_node(served, units, count):
    amounts = {"aliyun.com/gpu-mem": str(units), "aliyun.com/gpu-count": str(count)}
    status = {"capacity": amounts, "allocatable": amounts}
    document = {"metadata": {"name": "n1", "uid": "n1"}, "status": status}
    served.cache.set_node("n1", NODES.one(json.dumps(document).encode()))


def pod_of(name, units, index=None):
    """A pod that is bound to the node if it has a GPU's index."""
    annotations = {
        "ALIYUN_COM_GPU_MEM_IDX": index,
        "ALIYUN_COM_GPU_MEM_POD": str(units),
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1700000000000000000",
    }
    metadata = {"name": name, "namespace": "ml", "uid": f"uid-{name}", "resourceVersion": "1"}
    resources = {"limits": {"aliyun.com/gpu-mem": str(units)}}
    document = {
        "metadata": metadata | ({"annotations": annotations} if index else {}),
        "spec": {"containers": [{"name": "main", "resources": resources}]}
        | ({"nodeName": "n1"} if index else {}),
        "status": {"phase": "Running" if index else "Pending"},
    }
    return PODS.one(json.dumps(document).encode())


def page(served, node=""):
    """The page, as it is on the wire."""
    status, _, body = fetch(served.server.addresses[0], f"{INSPECT}{node}")
    assert status == 200
    return body.decode()


def device(number, total, used=0, pods=""):
    return f'{{"id":{number},"totalGPU":{total},"usedGPU":{used},"pods":[{pods}]}}'


def node_page(total, used, *devices):
    devs = ",".join(devices)
    return f'{{"nodes":[{{"name":"n1","totalGPU":{total},"usedGPU":{used},"devs":[{devs}]}}]}}'


def a_pod(name, units):
    return f'{{"name":"{name}","namespace":"ml","usedGPU":{units}}}'


def test_a_node_has_its_own_memory_also_what_its_gpus_do_not_divide(served):
    """32 units on three GPUs: the original has 32 and 10 a GPU."""
    set_node(served, 32, 3)
    served.show("a", pod_of("a", 4, "1"))
    used = device(1, 10, 4, a_pod("a", 4))
    expected = node_page(32, 4, device(0, 10), used, device(2, 10))
    assert page(served) == page(served, "/n1") == expected


def test_a_pod_that_cannot_be_read_is_on_no_gpu_and_hides_no_other(served):
    """As in the original. The node takes no pod meanwhile, and its gauges are absent."""
    set_node(served, 32, 2)
    served.show("a", pod_of("a", 4, "1"))
    served.show("b", pod_of("b", 8, "no number"))
    expected = node_page(32, 4, device(0, 16), device(1, 16, 4, a_pod("a", 4)))
    assert page(served) == page(served, "/n1") == expected
    (inspected,) = served.cache.inspected("gpushare")
    scheme = next(each for each in served.cache.schemes if each.row.name == "gpushare")
    (held,) = PodHoldings().of(scheme, [inspected])
    assert not inspected.is_readable
    assert held.gpus == ()


def test_what_was_decided_a_moment_ago_is_in_use_beside_a_pod_that_cannot_be_read(served):
    set_node(served, 32, 2)
    waiting = served.api.store(pod_of("new", 4))
    served.show("new", waiting)
    assert not served.bind(waiting.ref, "n1")
    served.show("b", pod_of("b", 8, "no number"))
    assert page(served) == node_page(32, 4, device(0, 16, 4), device(1, 16))


def test_a_node_whose_gpus_cannot_be_read_has_its_memory_and_no_gpus(served):
    set_node(served, 32, 5000)
    assert page(served) == node_page(32, 0)
