"""Parts of a GPU add up to at most one GPU."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpucli.bill.measurement import MeasuredShare, Method, PartRule, moment

PARTS = st.none() | st.floats(0, 1.5)
SHARES = st.dictionaries(
    st.integers(), st.builds(MeasuredShare, PARTS, PARTS, PARTS, PARTS, PARTS), max_size=8
)
METHODS = st.builds(Method, st.sampled_from(PartRule), st.floats(0, 1))


@given(SHARES, METHODS)
def test_parts_make_at_most_one_gpu_and_use_is_within_what_is_held(
    shares: dict[int, MeasuredShare], method: Method
) -> None:
    now = moment(shares, method)
    assert len(now.slices) == len(shares)
    assert sum(each.held for each in now.slices) <= 1 + 1e-6
    for each in now.slices:
        assert 0 <= each.used <= each.held + 1e-12
        assert each.above >= 0
        assert each.known or (each.used, each.above) == (0, 0)


@given(SHARES, METHODS)
def test_over_commitment_is_of_one_dimension_and_crowding_of_the_sum(
    shares: dict[int, MeasuredShare], method: Method
) -> None:
    now = moment(shares, method)
    memory = sum(share.memory or 0 for share in shares.values())
    cores = sum(share.cores or 0 for share in shares.values())
    assert now.over_committed == (max(memory, cores) > 1 + 1e-9)


@pytest.mark.parametrize(
    ("share", "part"),
    [
        (MeasuredShare(memory=0.5, cores=0.3), 0.4),
        (MeasuredShare(memory=0.5), 0.5),
        (MeasuredShare(cores=0.3), 0.3),
        (MeasuredShare(replica=0.25), 0.25),
    ],
)
def test_the_part_of_a_share(share: MeasuredShare, part: float) -> None:
    assert moment({1: share}, Method()).slices[0].held == pytest.approx(part)


def test_two_shares_of_memory_and_cores_can_be_more_than_one_gpu() -> None:
    """0.8 of the memory without cores beside 0.1 of it with all cores: 0.8 + 0.55."""
    now = moment({1: MeasuredShare(memory=0.8), 2: MeasuredShare(memory=0.1, cores=1)}, Method())
    assert now.crowded
    assert not now.over_committed
    assert [each.held for each in now.slices] == pytest.approx([0.8 / 1.35, 0.55 / 1.35])


def test_use_of_each_dimension_counts_up_to_what_is_held() -> None:
    share = MeasuredShare(memory=0.5, cores=0.5, memory_use=0.25, core_use=0.9)
    now = moment({1: share}, Method()).slices[0]
    assert (now.held, now.used) == pytest.approx((0.5, 0.375))
    assert now.above == pytest.approx(0.2)


def test_the_example_of_the_documentation() -> None:
    """docs/bill.md: two hours of a GPU at 2.00."""
    a, b = MeasuredShare(memory=0.8, memory_use=0.4), MeasuredShare(0.1, 1.0, None, 0.1, 1.0)
    first, second = moment({"A": a}, Method()), moment({"A": a, "B": b}, Method())
    assert first.slices[0][:2] == pytest.approx((0.8, 0.4))
    assert second.slices[0][:2] == pytest.approx((0.5926, 0.2963), abs=1e-4)
    assert second.slices[1][:2] == pytest.approx((0.4074, 0.4074), abs=1e-4)


def test_a_share_of_unknown_size_counts_as_nothing() -> None:
    share = MeasuredShare(memory_use=0.5)
    assert share.is_unsized
    assert moment({1: share}, Method()).slices[0].held == 0
