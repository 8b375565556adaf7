"""The originals' worked examples over HTTP: S1 to S6 of gpushare, and those of gpu-admission.

The pod is that of kube-scheduler's recorded request; a bind is followed by the event of the bound
pod. S7 and S8 need a real API server and are in ``tests/cluster/test_scheduler_pods.py``.
"""

import copy
import json

import pytest

from tests.scheduler.served import RECORDED_POD, Served, binding, filler, query
from vgpu.kube.kinds import PODS
from vgpu.model.objects import Node
from vgpu.model.units import MIB
from vgpu.placement.result import PlacementReason

MEMORY = PlacementReason.MEMORY.explanation


class Example:
    """A cluster whose pods ask over HTTP."""

    def __init__(self, served):
        self.served, self.cache = served, served.cache
        self.number = 0

    def gpushare(self, name, size, *free):
        """A node with a GPU of ``size`` units for each of the units that are free of it."""
        capacity = {"aliyun.com/gpu-mem": size * len(free), "aliyun.com/gpu-count": len(free)}
        self.cache.set_node(name, Node(name, capacity=capacity, allocatable=capacity))
        for index, left in enumerate(free):
            if left < size:
                pod = filler(f"{name}-{index}", name, index, size - left)
                self.cache.set_pod(f"ns/{pod.ref.name}", pod)

    def gaia(self, name, cores=200, blocks=8):
        """A node of gpu-manager."""
        capacity = {"tencent.com/vcuda-core": cores, "tencent.com/vcuda-memory": blocks}
        self.cache.set_node(name, Node(name, capacity=capacity, allocatable=capacity))

    def pod(self, *limits):
        """The recorded pod, with a container for each of these limits."""
        pod = copy.deepcopy(RECORDED_POD)
        self.number += 1
        pod["metadata"] |= {"name": f"p{self.number}", "uid": f"uid-{self.number}"}
        pod["metadata"].pop("annotations", None)
        (container,) = pod["spec"]["containers"]
        pod["spec"]["containers"] = [
            {
                **container,
                "name": f"c{at}",
                "resources": {"limits": {name: str(units) for name, units in asked.items()}},
            }
            for at, asked in enumerate(limits)
        ]
        return pod

    def filter(self, pod, *nodes, path="/filter"):
        """The nodes that take the pod, and why each of the others does not."""
        answer = self.served.post(path, query(pod, nodes))
        assert answer["Error"] == ""
        failed = {**answer["FailedNodes"], **answer["FailedAndUnresolvableNodes"]}
        return answer["NodeNames"] or [], failed

    def bind(self, pod, node):
        """The annotations of the pod, once it is bound and an event has shown it."""
        ref = self.served.api.store(PODS.one(json.dumps(pod).encode())).ref
        assert self.served.post("/bind", binding(ref, node)) == {"Error": ""}
        bound = self.served.api.pods[ref.name]
        assert bound.node == node
        self.cache.set_pod(f"{bound.ref.namespace}/{bound.ref.name}", bound)
        return bound.annotations


def units(number):
    return {"aliyun.com/gpu-mem": number}


@pytest.fixture
def example():
    with Served(units={"gpushare": MIB}) as served:
        yield Example(served)


def test_s1_only_a_node_with_enough_on_one_gpu_takes_the_pod(example):
    example.gpushare("n1", 16276, 0, 4069)
    example.gpushare("n2", 16276, 4069, 4069)
    example.gpushare("n3", 16276, 8138, 0)
    for path in ("/filter", "/gpushare-scheduler/filter"):
        taken, failed = example.filter(example.pod(units(8138)), "n1", "n2", "n3", path=path)
        assert taken == ["n3"]
        assert failed == {"n1": MEMORY, "n2": MEMORY}


def test_s2_a_node_without_memory_to_share_takes_none(example):
    example.cache.set_node("n1", Node("n1", capacity={}, allocatable={}))
    taken, failed = example.filter(example.pod(units(1)), "n1")
    assert (taken, failed) == ([], {"n1": PlacementReason.NO_GPUS.explanation})


def test_s3_the_gpu_with_just_enough_is_written_on_the_binding(example):
    example.gpushare("n1", 16276, 12207, 8138, 4069, 16276)
    annotations = example.bind(example.pod(units(8138)), "n1")
    written = {key.removeprefix("ALIYUN_COM_GPU_MEM_"): text for key, text in annotations.items()}
    expected = {"IDX": "1", "POD": "8138", "DEV": "16276", "ASSIGNED": "false"}
    assert {key: written[key] for key in expected} == expected


def test_s4_a_pod_counts_as_soon_as_it_is_bound(example):
    example.gpushare("n1", 5, 5, 5)
    pods = [example.pod(units(5)) for _ in range(2)]
    indexes = [example.bind(pod, "n1")["ALIYUN_COM_GPU_MEM_IDX"] for pod in pods]
    assert indexes == ["0", "1"]
    assert example.filter(example.pod(units(1)), "n1") == ([], {"n1": MEMORY})


@pytest.mark.parametrize(("text", "index"), [("0", "1"), ("", "0")])
def test_s5_no_pod_gets_a_gpu_that_the_configmap_lists(example, text, index):
    """The original takes an empty text for GPU 0."""
    example.gpushare("n", 8, 8, 8)
    example.cache.set_unhealthy({"unhealthy-gpu-n": text})
    assert example.bind(example.pod(units(4)), "n")["ALIYUN_COM_GPU_MEM_IDX"] == index


def test_s5_a_list_that_cannot_be_read_holds_its_node_back(example):
    """What stands for no index may be any of the GPUs; the original takes it for GPU 0."""
    for name in ("n", "m"):
        example.gpushare(name, 8, 8, 8)
    example.cache.set_unhealthy({"unhealthy-gpu-n": "0,x"})
    taken, failed = example.filter(example.pod(units(4)), "n", "m")
    assert (taken, failed) == (["m"], {"n": PlacementReason.UNREADABLE.explanation})


def test_s5_the_list_outlives_its_node(example):
    example.cache.set_unhealthy({"unhealthy-gpu-n": "0,1"})
    for _ in range(2):
        example.gpushare("n", 8, 8, 8)
        unhealthy = {"n": PlacementReason.UNHEALTHY.explanation}
        assert example.filter(example.pod(units(4)), "n") == ([], unhealthy)
        example.cache.set_node("n", None)
        unknown = {"n": PlacementReason.UNKNOWN_NODE.explanation}
        assert example.filter(example.pod(units(4)), "n") == ([], unknown)


def test_s6_a_gpu_with_more_in_use_than_it_has_is_full(example):
    """The original has 2^64 - 1 units free there."""
    example.gpushare("n1", 15, -1, 0)
    assert example.filter(example.pod(units(1)), "n1") == ([], {"n1": MEMORY})


def shares(*cores_and_blocks):
    return [
        {"tencent.com/vcuda-core": cores, "tencent.com/vcuda-memory": blocks}
        for cores, blocks in cores_and_blocks
    ]


def test_gpu_admissions_four_pods_get_the_gpus_of_its_own_test(example):
    """E3: three nodes of two GPUs; kube-scheduler takes the node with the best score."""
    nodes = ("node0", "node1", "node2")
    for name in nodes:
        example.gaia(name)
    for asked, where, indexes in (
        (((10, 1), (10, 1)), "node0", ("0", "0")),
        (((100, 3), (80, 3)), "node1", ("0", "1")),
        (((200, 10), (0, 0)), "node2", ("0,1", None)),
        (((10, 2), (0, 0)), "node0", ("0", None)),
    ):
        pod = example.pod(*shares(*asked))
        taken, _ = example.filter(pod, *nodes, path="/scheduler/predicates")
        rows = example.served.post("/prioritize", query(pod, taken))
        scores = {row["Host"]: row["Score"] for row in rows}
        assert scores[where] == max(scores.values())
        annotations = example.bind(pod, where)
        for at, index in enumerate(indexes):
            assert annotations.get(f"tencent.com/predicate-gpu-idx-{at}") == index
        assert annotations["tencent.com/predicate-node"] == where
        assert annotations["tencent.com/gpu-assigned"] == "false"


def test_gpu_admissions_shares_that_do_not_fit_on_one_gpu(example):
    example.gaia("node0")
    annotations = example.bind(example.pod(*shares((50, 1), (60, 1))), "node0")
    assert annotations["tencent.com/predicate-gpu-idx-0"] == "0"
    assert annotations["tencent.com/predicate-gpu-idx-1"] == "1"
    example.gaia("small", cores=100, blocks=4)
    taken, failed = example.filter(example.pod(*shares((100, 0), (10, 1))), "small")
    assert (taken, failed) == ([], {"small": PlacementReason.CORES.explanation})
