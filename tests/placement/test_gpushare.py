"""gpushare's extender: the worked numbers of its design document, and the rules behind them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpu.model.allocation import Device, Request, Share
from vgpu.model.names import ContainerKind, PodRef
from vgpu.placement.candidate import CandidateNode, PodDemand, UsedGpu
from vgpu.placement.gpushare import GpushareDialect
from vgpu.placement.result import Placement, PlacementReason, PlacementRefusal
from vgpu.schemes.gpushare.node import unhealthy_gpus

SIZE = 16276
POD = PodRef("uid-1", "ml", "train-0")


def gpu(index, total, used=0, healthy=True):
    return UsedGpu(Device(index=index, memory_bytes=total, healthy=healthy), memory_bytes=used)


def gpus(*free, unhealthy=()):
    """GPUs of one size with these amounts free."""
    return tuple(
        gpu(index, SIZE, SIZE - amount, index not in unhealthy) for index, amount in enumerate(free)
    )


def demand(*asked):
    """A pod whose containers ask for so much each."""
    requests = (
        Request(f"c{number}", 1, memory_bytes=amount) for number, amount in enumerate(asked)
    )
    return PodDemand(POD, tuple(request for request in requests if request.memory_bytes))


def choose(node, node_gpus, *asked):
    return GpushareDialect().choose(demand(*asked), CandidateNode(node, tuple(node_gpus)))


def refusal(node, node_gpus, *asked):
    return GpushareDialect().filter(demand(*asked), CandidateNode(node, tuple(node_gpus)))


def index_of(placement):
    """The only GPU of a placement."""
    assert isinstance(placement, Placement), placement
    (device,) = {share.device for each in placement.allocations for share in each.shares}
    return int(device)


@pytest.mark.parametrize(
    ("free", "fits"),
    [
        pytest.param((0, 4069), False, id="G2: less is free on the whole node"),
        pytest.param((4069, 4069), False, id="G3: enough on the node, on no single GPU"),
        pytest.param((8138, 0), True, id="G4: just enough on one GPU"),
    ],
)
def test_a_node_is_taken_if_a_single_gpu_has_enough(free, fits):
    refused = refusal("n1", gpus(*free), 8138)
    assert (refused is None) == fits
    if refused is not None:
        assert refused.message == "Insufficient GPU Memory in one device"
        assert refused.cause is PlacementReason.MEMORY
        assert refused.free_bytes == max(free)


def test_the_numbers_of_the_first_node_add_up():
    """G2: of two GPUs one is full and 12207 of the other are used: 4069 are left."""
    assert sum(gpu.free_bytes for gpu in (gpu(0, SIZE, SIZE), gpu(1, SIZE, 12207))) == 4069


def test_the_pod_goes_where_just_enough_is_left():
    """G5."""
    assert index_of(choose("n1", gpus(12207, 8138, 4069, 16276), 8138)) == 1


def test_of_equal_gpus_the_first_is_chosen():
    assert index_of(choose("n1", reversed(gpus(16276, 8138, 8138)), 100)) == 1


def test_unhealthy_gpus_are_left_out():
    """G10: the ConfigMap has 0,2."""
    unhealthy = unhealthy_gpus("0,2", "n1")
    free = gpus(8138, 16276, 8138, 9000, unhealthy=unhealthy)
    assert index_of(choose("n1", free, 8138)) == 3
    assert refusal("n1", gpus(8138, 0, 8138, unhealthy=unhealthy), 8138) is not None


@pytest.mark.parametrize("node_gpus", [(), (gpu(0, 0), gpu(1, 0))])
def test_a_node_without_memory_to_share_is_skipped(node_gpus):
    message = "The node n1 is not for GPU share, need skip"
    refused = refusal("n1", node_gpus, 1)
    assert (refused.reason, refused.message) == (PlacementReason.NO_GPUS, message)


def test_a_pod_that_asks_for_nothing_gets_no_gpu():
    refused = choose("n1", gpus(1), 0)
    assert isinstance(refused, PlacementRefusal)
    assert refused.message == "The node n1 can't place the pod train-0 in ns ml"


def test_the_containers_of_a_pod_share_one_gpu_by_their_sum():
    placement = choose("n1", gpus(10, 30), 5, 7, 0)
    assert [each.shares for each in placement.allocations] == [(Share("1", 5),), (Share("1", 7),)]
    assert placement.gpus[1].free_bytes == 18
    assert refusal("n1", gpus(10, 10), 5, 7) is not None


def test_init_containers_count_nothing_and_sidecars_count():
    kinds = (ContainerKind.INIT, ContainerKind.SIDECAR, ContainerKind.APP)
    requests = tuple(Request(kind, 1, memory_bytes=4, kind=kind) for kind in kinds)
    placement = GpushareDialect().choose(PodDemand(POD, requests), CandidateNode("n1", gpus(7, 8)))
    assert index_of(placement) == 1
    assert [each.container for each in placement.allocations] == ["sidecar", "app"]


def test_a_pod_with_the_label_of_several_gpus_gets_as_much_of_each():
    requests = (Request("main", 2, memory_bytes=4),)
    placement = GpushareDialect().choose(
        PodDemand(POD, requests), CandidateNode("n1", gpus(9, 3, 5))
    )
    assert placement.allocations[0].shares == (Share("0", 4), Share("2", 4))


def test_a_gpu_that_is_allocated_twice_has_nothing_left():
    """The original wraps around to an almost endless rest."""
    twice = (gpu(0, SIZE, 2 * SIZE),)
    assert twice[0].free_bytes == 0
    assert refusal("n1", twice, 1) is not None


AMOUNTS = st.integers(0, 20)
GPUS = st.lists(st.tuples(AMOUNTS, AMOUNTS, st.booleans()), max_size=6).map(
    lambda drawn: tuple(gpu(index, *numbers) for index, numbers in enumerate(drawn))
)


@given(GPUS, st.integers(1, 20))
def test_filter_and_bind_agree_and_no_smaller_rest_was_passed_over(node_gpus, asked):
    result = choose("n1", node_gpus, asked)
    assert isinstance(result, Placement) == (refusal("n1", node_gpus, asked) is None)
    if isinstance(result, Placement):
        chosen = node_gpus[index_of(result)]
        assert chosen.device.healthy
        assert chosen.memory_bytes + asked <= chosen.capacity_bytes
        others = [gpu for gpu in node_gpus if gpu.device.healthy and gpu.free_bytes >= asked]
        assert chosen.free_bytes == min(gpu.free_bytes for gpu in others)
