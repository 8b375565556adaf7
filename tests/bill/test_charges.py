"""Used + held idle + unsold + not measured = GPU-hours × price, whatever the numbers are."""

import json
from collections import defaultdict
from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from itertools import cycle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from vgpucli.bill.charges import UnknownModel, charges, device_days, missing_of_inventory
from vgpucli.bill.division import amount_of
from vgpucli.bill.model import HOUR, SECOND, Charge, GpuDay, GpuKey, Part, ShareDay, ShareKey
from vgpucli.bill.prices import Owned, Price, PriceTable
from vgpucli.bill.summary import KEYS, lines
from vgpucli.bill.table import displayed

DAY = "2026-11-01"
SECONDS = 86_400

MODELS = ("A", "B", "")
PRICES = st.decimals(0, 100, places=7)
TABLES = st.builds(
    lambda prices: PriceTable("EUR", tuple(Price(model, price) for model, price in prices.items())),
    st.dictionaries(st.sampled_from(MODELS[:2]), PRICES),
)


@st.composite
def rows(draw: st.DrawFn) -> tuple[list[GpuDay], list[ShareDay]]:
    """Devices' days with shares that were rounded each by itself, and corrections of them."""
    gpus = []
    shares = []
    for number in range(draw(st.integers(1, 3))):
        key = GpuKey(DAY, "", "node", f"GPU-{number}")
        total = draw(st.integers(0, SECONDS * SECOND))
        lost = draw(st.integers(0, total))
        model = draw(st.sampled_from(MODELS))
        gpus.append(GpuDay(key, model, total, lost))
        weights = draw(st.lists(st.integers(0, 100), max_size=4))
        for index, weight in enumerate(weights):
            held = (total - lost) * weight // max(1, sum(weights)) + draw(st.integers(0, 1))
            used = draw(st.integers(0, held))
            name = ShareKey(f"team-{index % 2}", f"pod-{index}", f"uid-{index}", "main")
            shares.append(ShareDay(key, name, used, held - used))
        for correction in draw(st.lists(st.sampled_from(("2026-11-02", "2026-12-03")), max_size=2)):
            change = draw(st.integers(-total, SECONDS * SECOND))
            part = draw(st.integers(0, max(0, change)))
            again = draw(st.sampled_from(MODELS))
            gpus.append(GpuDay(key, again, change, part, correction=correction))
            if shares and draw(st.booleans()):
                name = draw(st.sampled_from(shares)).share
                used = draw(st.integers(-SECONDS, SECONDS))
                shares.append(ShareDay(key, name, used, 0, correction=correction))
    return gpus, shares


def _charges(gpus: Sequence[GpuDay], shares: Sequence[ShareDay], table: PriceTable) -> list[Charge]:
    return [*charges(device_days(gpus, shares), table, set())]


@given(rows(), TABLES)
def test_the_charges_of_a_device_are_its_hours_times_its_price(
    drawn: tuple[list[GpuDay], list[ShareDay]], table: PriceTable
) -> None:
    gpus, shares = drawn
    made = _charges(gpus, shares, table)
    amounts: dict[GpuKey, int] = defaultdict(int)
    quantities: dict[GpuKey, int] = defaultdict(int)
    for charge in made:
        amounts[charge.gpu] += charge.amount
        quantities[charge.gpu] += charge.quantity
    for key in {gpu.key for gpu in gpus}:
        of_key = [gpu for gpu in gpus if gpu.key == key]
        total = max(0, sum(gpu.total for gpu in of_key))
        named = [gpu for gpu in sorted(of_key, key=lambda gpu: gpu.correction) if gpu.model]
        price = (table.price(DAY, named[-1].model, "", {}) if named else None) or Decimal(0)
        assert quantities[key] == total
        assert amounts[key] == amount_of(total, price)


@given(rows(), TABLES, st.sampled_from([*KEYS]))
def test_the_lines_of_a_bill_make_its_charges(
    drawn: tuple[list[GpuDay], list[ShareDay]], table: PriceTable, by: str
) -> None:
    made = _charges(*drawn, table)
    bill = lines(made, by)
    for part in Part:
        of_part = [charge for charge in made if charge.part is part]
        assert sum(line.amount[part] for line in bill) == sum(each.amount for each in of_part)
        assert sum(line.quantity[part] for line in bill) == sum(each.quantity for each in of_part)


@given(rows(), TABLES, st.sampled_from([*KEYS]))
def test_the_lines_that_are_shown_make_the_total_in_hours_and_money(
    drawn: tuple[list[GpuDay], list[ShareDay]], table: PriceTable, by: str
) -> None:
    bill = lines(_charges(*drawn, table), by)
    money = displayed(bill, table.decimals)
    quantity = sum(sum(line.quantity.values()) for line in bill)
    assert abs(sum(line.hours for line in money) * HOUR // 100 - quantity) <= HOUR // 200
    assert abs(sum(line.total for line in money) * 10_000 - sum(b.total for b in bill)) <= 5_000
    for line in money:
        assert sum(line.amounts.values()) == line.total


@given(rows(), TABLES)
def test_a_correction_adds_rows_and_changes_none(
    drawn: tuple[list[GpuDay], list[ShareDay]], table: PriceTable
) -> None:
    gpus, shares = drawn
    first = _charges(
        [gpu for gpu in gpus if not gpu.correction],
        [share for share in shares if not share.correction],
        table,
    )
    unchanged = [charge for charge in _charges(gpus, shares, table) if not charge.correction]
    assert first == unchanged


@given(rows(), TABLES, st.lists(st.integers(0, 10**9), min_size=1), st.sampled_from([*KEYS]))
def test_the_bounds_of_the_lines_are_those_of_their_shares(
    drawn: tuple[list[GpuDay], list[ShareDay]], table: PriceTable, bounds: list[int], by: str
) -> None:
    gpus, shares = drawn
    bounded = [
        replace(share, used=HOUR, bound=bound)
        for share, bound in zip(shares, cycle(bounds), strict=False)
        if not share.correction
    ]
    made = _charges([replace(gpu, total=24 * HOUR, not_measured=0) for gpu in gpus], bounded, table)
    bill = lines(made, by)
    total = sum(share.bound for share in bounded)
    of_lines = {line.name: line.exactness for line in bill}
    unsold = of_lines.pop("(unsold)", None)
    assert sum(exact.bound for exact in of_lines.values() if exact) == total
    assert unsold is None or unsold.bound == total


OWNED = Owned("node", "A", 3)


@given(rows(), TABLES)
def test_a_correction_adds_rows_of_owned_gpus_and_changes_none(
    drawn: tuple[list[GpuDay], list[ShareDay]], table: PriceTable
) -> None:
    gpus, _ = drawn
    owned = replace(table, inventory=(OWNED,))
    own = [gpu for gpu in gpus if not gpu.correction]
    first, away = ([*missing_of_inventory(owned, DAY, SECONDS, of, SECOND)] for of in (own, gpus))
    assert [gpu for gpu in away if not gpu.correction] == first
    present = sum(gpu.total for gpu in gpus if gpu.model == "A")
    assert sum(gpu.total for gpu in away) == max(0, 3 * SECONDS * SECOND - present)


def test_a_hole_that_is_filled_later_is_taken_from_owned_gpus_by_a_correction() -> None:
    key = GpuKey(DAY, "", "node", "GPU-1")
    measured = GpuDay(key, "A", 10 * HOUR)
    filled = GpuDay(key, "A", HOUR, HOUR, correction="2026-11-02")
    table = PriceTable("EUR", (Price("A", Decimal("2.10")),), inventory=(Owned("node", "A", 1),))
    made = [
        _charges([*gpus, *missing_of_inventory(table, DAY, SECONDS, gpus, SECOND)], [], table)
        for gpus in ([measured], [measured, filled])
    ]
    assert [each for each in made[1] if not each.correction] == made[0]
    assert [
        (each.gpu.uuid, each.quantity // HOUR, each.amount)
        for each in made[1]
        if each.correction == "2026-11-02"
    ] == [("GPU-1", 1, 2_100_000), ("inventory/A", -1, -2_100_000)]


def test_a_model_that_is_known_later_takes_the_charges_before_back() -> None:
    key = GpuKey(DAY, "", "node", "GPU-1")
    gpus = [GpuDay(key, "B", HOUR), GpuDay(key, "A", HOUR, correction="2026-11-02")]
    gpus.append(GpuDay(key, "", HOUR, correction="2026-11-03"))
    table = PriceTable("EUR", (Price("A", 2), Price("B", 1)))
    made = [(c.model, c.quantity // HOUR, c.amount // SECOND) for c in _charges(gpus, [], table)]
    assert made == [("B", 1, 1), ("B", -1, -1), ("A", 2, 4), ("A", 1, 2)]


def test_a_device_without_a_price_is_charged_nothing_and_named() -> None:
    unknown: set[UnknownModel] = set()
    gpu = GpuDay(GpuKey(DAY, "", "node", "MIG-1"), "A", 3600 * SECOND, mig_profile="1g.10gb")
    table = PriceTable("EUR", (Price("A", 2),))
    (charge,) = charges(device_days([gpu], []), table, unknown)
    assert (charge.amount, charge.part) == (0, Part.UNSOLD)
    assert unknown == {UnknownModel("A", "1g.10gb")}


def test_of_the_prices_that_fit_the_one_with_most_labels_and_then_the_latest_decides() -> None:
    table = PriceTable(
        "EUR",
        (
            Price("A", 3),
            Price("A", 2, since=date(2026, 11, 1)),
            Price("A", 1, node_labels={"pool": "spot"}),
        ),
    )
    assert table.price("2026-10-31", "A", "", {}) == 3
    assert table.price("2026-11-01", "A", "", {}) == 2
    assert table.price("2026-11-01", "A", "", {"pool": "spot", "zone": "a"}) == 1
    assert table.price("2026-11-01", "B", "", {}) is None


def test_owned_gpus_count_while_their_node_is_away() -> None:
    table = PriceTable(
        "EUR", (Price("A", 1),), inventory=(Owned("n1", "A", 2), Owned("n2", "A", 1))
    )
    here = GpuDay(GpuKey(DAY, "", "n1", "GPU-1"), "A", SECONDS * SECOND)
    away = [*missing_of_inventory(table, DAY, SECONDS, [here], SECOND)]
    assert [(gpu.key.node, gpu.total, gpu.not_measured) for gpu in away] == [
        ("n1", SECONDS * SECOND, SECONDS * SECOND),
        ("n2", SECONDS * SECOND, SECONDS * SECOND),
    ]
    made = _charges([here, *away], [], table)
    assert sum(charge.amount for charge in made) == 3 * 24 * SECOND


def test_owned_gpus_of_a_node_in_several_entries_are_added_up() -> None:
    owned = (Owned("n1", "A", 2), Owned("n1", "A", 1, since=date(2026, 10, 1)), Owned("n1", "B", 1))
    table = PriceTable("EUR", (Price("A", 1),), inventory=owned)
    here = [GpuDay(GpuKey(DAY, "", "n1", f"GPU-{n}"), "A", SECONDS * SECOND) for n in range(2)]
    away = [*missing_of_inventory(table, DAY, SECONDS, here, SECOND)]
    assert {gpu.model: gpu.total for gpu in away} == {
        "A": SECONDS * SECOND,
        "B": SECONDS * SECOND,
    }
    three = [*here, GpuDay(GpuKey(DAY, "", "n1", "GPU-2"), "A", SECONDS * SECOND)]
    assert {gpu.model for gpu in missing_of_inventory(table, DAY, SECONDS, three, SECOND)} == {"B"}


@pytest.mark.parametrize("by", ["namespace", "team", "owner", "model"])
@pytest.mark.parametrize(
    "name",
    [
        "(unsold)",
        "(not measured)",
        "(no team)",
        "(no owner)",
        "(unknown model)",
        '"(unsold)"',
        " (unsold)",
    ],
)
def test_no_name_of_the_cluster_is_the_line_of_nobody(name: str, by: str) -> None:
    key = GpuKey(DAY, "", "node", "GPU-1")
    unknown = GpuKey(DAY, "", "node", "GPU-2")
    gpus = [GpuDay(key, name, 10 * HOUR, HOUR), GpuDay(unknown, "", HOUR)]
    shares = [
        ShareDay(key, ShareKey(name, "p", "u1", "c", name, name), HOUR, HOUR),
        ShareDay(key, ShareKey("", "p", "u2", "c"), HOUR, HOUR),
    ]
    table = PriceTable("EUR", (Price(name, 1),))
    bill = {
        line.name: sum(line.quantity.values()) // HOUR
        for line in lines(_charges(gpus, shares, table), by)
    }
    theirs, ours = json.dumps(name), {"(unsold)": 6, "(not measured)": 1, f"(no {by})": 2}
    assert bill == ({theirs: 10, "(unknown model)": 1} if by == "model" else {theirs: 2, **ours})
