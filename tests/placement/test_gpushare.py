"""gpushare's extender: the worked numbers of its design document, and the rules behind them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpu.model import PodRef
from vgpu.placement.gpushare import GpushareGpu, GpushareReason, GpushareRefusal, choose, refusal
from vgpu.schemes.gpushare.node import unhealthy_gpus

SIZE = 16276
POD = PodRef("uid-1", "ml", "train-0")


def gpus(*free, unhealthy=()):
    """Cards of one size that have so much free."""
    return tuple(
        GpushareGpu(index, SIZE, SIZE - amount, healthy=index not in unhealthy)
        for index, amount in enumerate(free)
    )


@pytest.mark.parametrize(
    ("free", "fits"),
    [
        pytest.param((0, 4069), False, id="G2: less is free on the whole node"),
        pytest.param((4069, 4069), False, id="G3: enough on the node, on no single card"),
        pytest.param((8138, 0), True, id="G4: just enough on one card"),
    ],
)
def test_a_node_is_taken_if_a_single_gpu_has_enough(free, fits):
    expected = (
        None
        if fits
        else GpushareRefusal(GpushareReason.NO_ROOM, "Insufficient GPU Memory in one device")
    )
    assert refusal("n1", gpus(*free), 8138) == expected


def test_the_numbers_of_the_first_node_add_up():
    """G2: of two cards one is full and 12207 of the other are used: 4069 are left."""
    assert (
        sum(gpu.free for gpu in (GpushareGpu(0, SIZE, SIZE), GpushareGpu(1, SIZE, 12207))) == 4069
    )


def test_the_pod_goes_where_just_enough_is_left():
    """G5."""
    chosen = choose("n1", gpus(12207, 8138, 4069, 16276), 8138, POD)
    assert isinstance(chosen, GpushareGpu)
    assert chosen.index == 1


def test_of_equal_gpus_the_first_is_chosen():
    chosen = choose("n1", reversed(gpus(16276, 8138, 8138)), 100, POD)
    assert chosen == gpus(16276, 8138, 8138)[1]


def test_unhealthy_gpus_are_left_out():
    """G10: the ConfigMap says 0,2."""
    unhealthy = unhealthy_gpus("0,2", "n1")
    free = gpus(8138, 16276, 8138, 9000, unhealthy=unhealthy)
    assert choose("n1", free, 8138, POD) == free[3]
    assert refusal("n1", gpus(8138, 0, 8138, unhealthy=unhealthy), 8138) is not None


@pytest.mark.parametrize("node_gpus", [(), (GpushareGpu(0, 0), GpushareGpu(1, 0))])
def test_a_node_without_memory_to_share_is_skipped(node_gpus):
    message = "The node n1 is not for GPU share, need skip"
    assert refusal("n1", node_gpus, 1) == GpushareRefusal(GpushareReason.NOT_SHARED, message)


def test_a_pod_for_which_no_gpu_is_left_is_refused_by_name():
    message = "The node n1 can't place the pod train-0 in ns ml"
    assert choose("n1", gpus(1, 2), 3, POD) == GpushareRefusal(GpushareReason.NOT_PLACED, message)


def test_a_pod_that_asks_for_nothing_gets_no_gpu():
    assert isinstance(choose("n1", gpus(1), 0, POD), GpushareRefusal)


def test_a_gpu_that_is_given_out_twice_has_nothing_left():
    """The original wraps around to an almost endless rest."""
    twice = (GpushareGpu(0, SIZE, 2 * SIZE),)
    assert twice[0].free == 0
    assert refusal("n1", twice, 1) is not None


AMOUNTS = st.integers(0, 20)
GPUS = st.lists(
    st.builds(GpushareGpu, st.just(0), AMOUNTS, AMOUNTS, st.booleans()), max_size=6
).map(
    lambda drawn: tuple(
        GpushareGpu(index, gpu.total, gpu.used, gpu.healthy) for index, gpu in enumerate(drawn)
    )
)


@given(GPUS, st.integers(1, 20))
def test_filter_and_bind_agree_and_no_smaller_rest_was_passed_over(node_gpus, asked):
    chosen = choose("n1", node_gpus, asked, POD)
    assert isinstance(chosen, GpushareGpu) == (refusal("n1", node_gpus, asked) is None)
    if isinstance(chosen, GpushareGpu):
        assert chosen.healthy
        assert chosen.used + asked <= chosen.total
        others = [gpu for gpu in node_gpus if gpu.healthy and gpu.free >= asked]
        assert chosen.free == min(gpu.free for gpu in others)
