"""gpushare's extender: the worked numbers of its design document, and the rules behind them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpu.model import PodRef
from vgpu.placement.gpushare import GpushareGpu, GpushareReason, GpushareRefusal, choose, refusal
from vgpu.schemes.gpushare.node import unhealthy_cards

SIZE = 16276
POD = PodRef("uid-1", "ml", "train-0")


def cards(*free, unhealthy=()):
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
def test_a_node_is_taken_if_a_single_card_has_enough(free, fits):
    expected = (
        None
        if fits
        else GpushareRefusal(GpushareReason.NO_ROOM, "Insufficient GPU Memory in one device")
    )
    assert refusal("n1", cards(*free), 8138) == expected


def test_the_numbers_of_the_first_node_add_up():
    """G2: of two cards one is full and 12207 of the other are used: 4069 are left."""
    assert (
        sum(card.free for card in (GpushareGpu(0, SIZE, SIZE), GpushareGpu(1, SIZE, 12207))) == 4069
    )


def test_the_pod_goes_where_just_enough_is_left():
    """G5."""
    chosen = choose("n1", cards(12207, 8138, 4069, 16276), 8138, POD)
    assert isinstance(chosen, GpushareGpu)
    assert chosen.index == 1


def test_of_equal_cards_the_first_is_chosen():
    chosen = choose("n1", reversed(cards(16276, 8138, 8138)), 100, POD)
    assert chosen == cards(16276, 8138, 8138)[1]


def test_unhealthy_cards_are_left_out():
    """G10: the ConfigMap says 0,2."""
    unhealthy = unhealthy_cards("0,2", "n1")
    free = cards(8138, 16276, 8138, 9000, unhealthy=unhealthy)
    assert choose("n1", free, 8138, POD) == free[3]
    assert refusal("n1", cards(8138, 0, 8138, unhealthy=unhealthy), 8138) is not None


@pytest.mark.parametrize("node_cards", [(), (GpushareGpu(0, 0), GpushareGpu(1, 0))])
def test_a_node_without_memory_to_share_is_skipped(node_cards):
    message = "The node n1 is not for GPU share, need skip"
    assert refusal("n1", node_cards, 1) == GpushareRefusal(GpushareReason.NOT_SHARED, message)


def test_a_pod_for_which_no_card_is_left_is_refused_by_name():
    message = "The node n1 can't place the pod train-0 in ns ml"
    assert choose("n1", cards(1, 2), 3, POD) == GpushareRefusal(GpushareReason.NOT_PLACED, message)


def test_a_pod_that_asks_for_nothing_gets_no_card():
    assert isinstance(choose("n1", cards(1), 0, POD), GpushareRefusal)


def test_a_card_that_is_given_out_twice_has_nothing_left():
    """The original wraps around to an almost endless rest."""
    twice = (GpushareGpu(0, SIZE, 2 * SIZE),)
    assert twice[0].free == 0
    assert refusal("n1", twice, 1) is not None


AMOUNTS = st.integers(0, 20)
CARDS = st.lists(
    st.builds(GpushareGpu, st.just(0), AMOUNTS, AMOUNTS, st.booleans()), max_size=6
).map(
    lambda drawn: tuple(
        GpushareGpu(index, card.total, card.used, card.healthy) for index, card in enumerate(drawn)
    )
)


@given(CARDS, st.integers(1, 20))
def test_filter_and_bind_agree_and_no_smaller_rest_was_passed_over(node_cards, asked):
    chosen = choose("n1", node_cards, asked, POD)
    assert isinstance(chosen, GpushareGpu) == (refusal("n1", node_cards, asked) is None)
    if isinstance(chosen, GpushareGpu):
        assert chosen.healthy
        assert chosen.used + asked <= chosen.total
        others = [card for card in node_cards if card.healthy and card.free >= asked]
        assert chosen.free == min(card.free for card in others)
