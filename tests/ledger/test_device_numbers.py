"""A number names a GPU in its own system's count: gpu-manager's is the minor, others' the index."""

import pytest

from tests.ledger.ledger_values import A, B, C, kinds, pod, where
from tests.support.registers import hami_register
from vgpu.ledger import ConflictKind, merge
from vgpu.ledger.cluster import cluster
from vgpu.ledger.node import NodeSamples, node_evidence
from vgpu.model.facts import Gpu, GpuSample, Grant, KubeletSample, ProcessSample
from vgpu.model.objects import Container, Node
from vgpu.schemes.gaia.codec import Gaia
from vgpu.schemes.gpushare.codec import Gpushare
from vgpu.schemes.volcano.codec import HAMI, Volcano

CODECS = (Gaia(), Gpushare(), Volcano(HAMI))
MINORS = {A: "2", B: "0", C: "1"}
LIMITS = {
    "gaia": {"tencent.com/vcuda-core": 50, "tencent.com/vcuda-memory": 4},
    "gpushare": {"aliyun.com/gpu-mem": 1},
}
IDS = {
    "gaia": {
        "tencent.com/vcuda-core": [f"tencent.com/vcuda-core-{at}" for at in range(50)],
        "tencent.com/vcuda-memory": [f"tencent.com/vcuda-memory-268435456-{at}" for at in range(4)],
    },
    "gpushare": {"aliyun.com/gpu-mem": [f"{C}-_-0"]},
}


def annotations(style, number):
    if style == "gaia":
        return {
            "tencent.com/predicate-gpu-idx-0": str(number),
            "tencent.com/predicate-time": "1000000000",
            "tencent.com/gpu-assigned": "true",
        }
    return {
        "ALIYUN_COM_GPU_MEM_IDX": str(number),
        "ALIYUN_COM_GPU_MEM_POD": "1",
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1000000000",
    }


def sharing_pod(style, number=None, uid="u1"):
    of_pod = {} if number is None else annotations(style, number)
    return pod(uid, containers=(Container("main", LIMITS[style]),), annotations=of_pod)


def ledger(style, number=None, visible="", minors=MINORS):
    """The ledger of a node with these minors; ``visible`` is in the kubelet's answer."""
    gpus = [
        Gpu(uuid, index, {"minor": minors[uuid]} if uuid in minors else {}, {})
        for index, uuid in enumerate((A, B, C))
    ]
    env = {"NVIDIA_VISIBLE_DEVICES": visible} if visible else {}
    grants = tuple(
        Grant("u1", "main", resource, tuple(ids), env) for resource, ids in IDS[style].items()
    )
    samples = NodeSamples(
        gpu=GpuSample(tuple(gpus)),
        process=ProcessSample({}, sees_host=True, live_pods=frozenset({"u1"})),
        kubelet=KubeletSample({}, {}, grants) if visible else None,
        pods=(sharing_pod(style, number),),
    )
    return merge(node_evidence(CODECS, samples))


@pytest.mark.parametrize(
    ("style", "number", "gpu"), [("gaia", 2, A), ("gaia", 0, B), ("gpushare", 2, C)]
)
def test_an_annotations_number_is_counted_as_its_system_counts(style, number, gpu):
    assert where(ledger(style, number)) == {("u1", "main"): [gpu]}


@pytest.mark.parametrize(("style", "number"), [("gaia", 2), ("gpushare", 0)])
def test_a_healthy_pod_has_no_conflict_where_minors_are_not_indices(style, number):
    merged = ledger(style, number, visible=A)
    assert where(merged) == {("u1", "main"): [A]}
    assert kinds(merged) == []


@pytest.mark.parametrize(("style", "number"), [("gaia", 0), ("gpushare", 2)])
def test_an_annotation_of_another_gpu_is_a_conflict_in_either_count(style, number):
    merged = ledger(style, number, visible=A)
    assert where(merged) == {("u1", "main"): [A]}
    assert kinds(merged) == [ConflictKind.GPU_DIFFERS]


@pytest.mark.parametrize("style", ["gaia", "gpushare"])
def test_a_number_in_the_kubelets_answer_is_an_index_whatever_the_system(style):
    """NVIDIA's container runtime reads NVIDIA_VISIBLE_DEVICES, and counts as NVML does."""
    assert where(ledger(style, visible="0")) == {("u1", "main"): [A]}


@pytest.mark.parametrize("minors", [{}, {A: "2"}])
def test_a_number_of_unknown_minors_names_nothing_and_contradicts_nothing(minors):
    alone = ledger("gaia", 0, minors=minors)
    assert [holding.share.device for holding in alone.unplaced] == ["/dev/nvidia0"]
    assert kinds(alone) == []
    beside = ledger("gaia", 0, visible=A, minors=minors)
    assert where(beside) == {("u1", "main"): [A]}
    assert kinds(beside) == []


def test_a_number_of_no_gpu_is_missing_where_all_minors_are_known():
    merged = ledger("gaia", 7)
    assert [(one.kind, one.device) for one in merged.conflicts] == [
        (ConflictKind.DEVICE_MISSING, "/dev/nvidia7")
    ]


# ---------------------------------------------------------------- the API server alone

GAIA_NODE = {"tencent.com/vcuda-core": 200, "tencent.com/vcuda-memory": 80}
GPUSHARE_NODE = {"aliyun.com/gpu-mem": 30, "aliyun.com/gpu-count": 2}


def seen(node, *pods):
    return cluster([node], pods, CODECS).ledgers["node-0"]


def test_gpu_managers_gpus_are_counted_from_0_without_the_driver():
    node = Node("node-0", capacity=GAIA_NODE, allocatable=GAIA_NODE)
    merged = seen(node, sharing_pod("gaia", 1))
    assert where(merged) == {("u1", "main"): ["1"]}
    assert kinds(merged) == []


@pytest.mark.parametrize(
    "other",
    [
        {"capacity": GAIA_NODE | GPUSHARE_NODE},
        {"capacity": GAIA_NODE, "annotations": hami_register(A, B)},
    ],
    ids=["gpushare", "hami"],
)
def test_beside_another_systems_count_gpu_managers_number_names_nothing(other):
    node = Node("node-0", allocatable=other["capacity"], **other)
    merged = seen(node, sharing_pod("gaia", 1))
    assert [holding.share.device for holding in merged.unplaced] == ["/dev/nvidia1"]
    assert ConflictKind.DEVICE_MISSING not in kinds(merged)
    assert len(merged.devices) == 2
    if "aliyun.com/gpu-mem" in other["capacity"]:
        assert where(seen(node, sharing_pod("gpushare", 1))) == {("u1", "main"): ["1"]}
