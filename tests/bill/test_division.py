"""Money is divided without loss."""

from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from vgpucli.bill.division import amount_of, divided, shown
from vgpucli.bill.model import HOUR

AMOUNTS = st.integers(-(10**15), 10**15)
WEIGHTS = st.lists(st.integers(0, 10**12), min_size=1, max_size=30)


@given(AMOUNTS, WEIGHTS)
def test_the_parts_make_the_whole_and_each_is_exact_to_one(amount: int, weights: list[int]) -> None:
    parts = divided(amount, weights)
    total = sum(weights)
    assert sum(parts) == (amount if total else 0)
    for part, weight in zip(parts, weights, strict=True):
        assert abs(part * total - amount * weight) < max(1, total)


@given(st.lists(AMOUNTS, max_size=30), st.integers(0, 3))
def test_what_is_shown_has_the_rounded_total(amounts: list[int], decimals: int) -> None:
    step = 10 ** (6 - decimals)
    cents = shown(amounts, step)
    assert abs(sum(cents) * step - sum(amounts)) <= step / 2
    for cent, amount in zip(cents, amounts, strict=True):
        assert abs(cent * step - amount) < step


def test_an_amount_is_rounded_once_and_half_to_even() -> None:
    assert amount_of(HOUR, Decimal("2.1")) == 2_100_000
    assert amount_of(HOUR // 2, Decimal("0.000001")) == 0
    assert amount_of(3 * HOUR // 2, Decimal("0.000001")) == 2
    assert amount_of(24 * HOUR, Decimal("0.0000001")) == 2
