"""The annotations of a placement, beside those that a pod's user has written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from scheduler.cluster.reservations import PodPlacement, reservation_annotations
from tests.support.registers import hami_register, volcano_register
from vgpu.model.names import ContainerKind, PodRef
from vgpu.model.objects import Container, Node, Pod
from vgpu.placement.dialects import demand_of, scheduler_schemes
from vgpu.placement.node_view import node_view
from vgpu.placement.result import Placement, PlacementReason, PlacementRefusal

NOW = 1_700_000_000.0
SCHEMES = scheduler_schemes({})
UUIDS = ("GPU-0", "GPU-1")
NODES = {
    "gpushare": Node("n1", capacity={"aliyun.com/gpu-mem": 32, "aliyun.com/gpu-count": 2}),
    "gaia": Node("n1", capacity={"tencent.com/vcuda-core": 200, "tencent.com/vcuda-memory": 128}),
    "hami": Node("n1", annotations=hami_register(*UUIDS)),
    "volcano": Node("n1", annotations=volcano_register(*UUIDS)),
}
LIMITS = {
    "gpushare": {"aliyun.com/gpu-mem": 4},
    "gaia": {"tencent.com/vcuda-core": 20, "tencent.com/vcuda-memory": 4},
    "hami": {"nvidia.com/gpu": 2, "nvidia.com/gpumem": 1024},
    "volcano": {"volcano.sh/vgpu-number": 2, "volcano.sh/vgpu-memory": 1024},
}
KEYS = {
    "gpushare": (
        "ALIYUN_COM_GPU_MEM_IDX",
        "ALIYUN_COM_GPU_MEM_POD",
        "ALIYUN_COM_GPU_MEM_ASSIGNED",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME",
        "scheduler.framework.gpushare.allocation",
        "scheduler.framework.gpushare.assigned",
    ),
    "gaia": (
        "tencent.com/predicate-gpu-idx-0",
        "tencent.com/predicate-gpu-idx-1",
        "tencent.com/predicate-node",
        "tencent.com/gpu-assigned",
        "tencent.com/predicate-time",
    ),
    "hami": (
        "hami.io/vgpu-devices-allocated",
        "hami.io/vgpu-devices-to-allocate",
        "hami.io/vgpu-node",
        "hami.io/bind-phase",
        "hami.io/vgpu-time",
    ),
    "volcano": (
        "volcano.sh/vgpu-ids-new",
        "volcano.sh/devices-to-allocate",
        "volcano.sh/vgpu-node",
        "volcano.sh/bind-phase",
        "volcano.sh/gpu-index",
        "volcano.sh/predicate-time",
    ),
}
TEXTS = st.sampled_from(
    [
        *("", "0", "1", "7", "0,1", "true", "false", "n2", "success", "failed", "x"),
        *(
            '{"0":{"1":4}}',
            '{"0":{"1":1},"1":{"0":9}}',
            "GPU-1,NVIDIA,1,0:;",
            ";",
            "18446744073709551615",
        ),
    ]
) | st.text(max_size=12)


def placed(system, containers):
    """A pod of a system, and the placement of its containers on an idle node."""
    pod = Pod(PodRef("uid-1", "ml", "train"), containers=containers, phase="Pending")
    scheme, demand = demand_of(pod, SCHEMES)
    view = node_view(NODES[system], scheme, (), (), (), now=NOW)
    result = scheme.dialect.choose(demand, view.candidate)
    assert isinstance(result, Placement)
    devices = {name: gpu.device for gpu in view.candidate.gpus for name in gpu.device.names}
    return pod, PodPlacement(scheme, "n1", result.allocations, devices)


def shares(allocations, placement):
    """By container, with the GPUs by the name that the placement has for them."""
    named = {name: device.name for name, device in placement.devices.items()}
    return {
        allocation.container: [
            structs.replace(share, device=named.get(share.device, share.device))
            for share in allocation.shares
        ]
        for allocation in allocations
    }


@pytest.mark.parametrize("system", NODES)
@given(data=st.data())
def test_what_is_written_is_read_back_whatever_a_user_wrote_before(system, data):
    written_before = data.draw(st.dictionaries(st.sampled_from(KEYS[system]), TEXTS))
    containers = (Container("main", LIMITS[system]), Container("plain"))
    pod, placement = placed(system, containers)
    pod = structs.replace(pod, annotations=written_before)
    annotations = reservation_annotations(pod, placement, NOW)
    if isinstance(annotations, PlacementRefusal):
        assert annotations.reason is PlacementReason.FOREIGN_ANNOTATIONS
        assert written_before
        return
    bound = structs.replace(pod, node="n1", annotations={**written_before, **annotations})
    claim = placement.scheme.codec.claim(bound)
    assert shares(claim.allocations, placement) == shares(placement.allocations, placement)
    assert claim.node in ("", "n1")


def test_hamis_annotations_have_init_containers_first_and_an_entry_for_each_container():
    limits = LIMITS["hami"] | {"nvidia.com/gpu": 1}
    containers = (
        Container("main", limits),
        Container("plain"),
        Container("setup", limits, ContainerKind.INIT),
    )
    pod, placement = placed("hami", containers)
    annotations = reservation_annotations(pod, placement, NOW)
    text = annotations["hami.io/vgpu-devices-allocated"]
    segments = text.removesuffix(";").split(";")
    assert [segment.split(",")[0] for segment in segments] == ["GPU-1", "GPU-1", ""]
    assert annotations["hami.io/bind-phase"] == "allocating"
    assert annotations["hami.io/vgpu-devices-to-allocate"] == text


def test_a_pod_of_which_only_an_init_container_requests_gpus_is_reserved_for():
    setup = Container("setup", LIMITS["hami"] | {"nvidia.com/gpu": 1}, ContainerKind.INIT)
    pod, placement = placed("hami", (Container("main"), setup))
    annotations = reservation_annotations(pod, placement, NOW)
    claim = placement.scheme.codec.claim(structs.replace(pod, annotations=annotations, node="n1"))
    assert [allocation.container for allocation in claim.allocations] == ["setup"]
    assert shares(claim.allocations, placement) == shares(placement.allocations, placement)
