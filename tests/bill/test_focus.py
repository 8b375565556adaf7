"""What FOCUS 1.2 demands of the columns, rule by rule.

Each row of RULES is a MUST of specification/columns/ or specification/attributes/ of the tag v1.2
of FinOps-Open-Cost-and-Usage-Spec/FOCUS_Spec, about columns that are written here.
"""

import csv
import datetime as dt
import io
import json
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Final
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpucli.bill.currencies import DECIMALS
from vgpucli.bill.focus import COLUMNS, PLAIN_COLUMNS, Context, row
from vgpucli.bill.model import HOUR, Charge, Exactness, GpuKey, Part, ShareKey
from vgpucli.bill.prices import Account, PriceTable

MANDATORY: Final = (
    "BilledCost",
    "BillingAccountId",
    "BillingAccountName",
    "BillingCurrency",
    "BillingPeriodEnd",
    "BillingPeriodStart",
    "ChargeCategory",
    "ChargeClass",
    "ChargeDescription",
    "ChargePeriodEnd",
    "ChargePeriodStart",
    "ContractedCost",
    "EffectiveCost",
    "InvoiceIssuerName",
    "ListCost",
    "PricingQuantity",
    "PricingUnit",
    "ProviderName",
    "PublisherName",
    "ServiceCategory",
    "ServiceName",
)
MAY_BE_NULL: Final = {
    "BillingAccountName", "ChargeClass", "SubAccountId", "SubAccountName", "Tags",
    "x_VgpuBoundHours", "x_VgpuNormalisedHours", "x_VgpuOverCommittedHours",
}  # fmt: skip
COSTS: Final = ("BilledCost", "ContractedCost", "EffectiveCost", "ListCost")
NUMBERS: Final = (*COSTS, "PricingQuantity")
MOMENTS: Final = (
    "BillingPeriodEnd", "BillingPeriodStart", "ChargePeriodEnd", "ChargePeriodStart",
)  # fmt: skip
NUMBER: Final = re.compile(r"-?\d+(\.\d+)?")
MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")

Row = Mapping[str, str | None]
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), max_size=20)
NAMES = TEXTS.filter(bool)
SHARES = st.none() | st.builds(ShareKey, NAMES, NAMES, NAMES, TEXTS, TEXTS, TEXTS)
DAYS = st.dates(dt.date(1971, 1, 1), dt.date(2200, 12, 31)).map(str)
CHARGES = st.builds(
    Charge,
    st.builds(GpuKey, DAYS, TEXTS, NAMES, NAMES),
    TEXTS,
    st.sampled_from(("", "1g.10gb")),
    st.sampled_from(Part),
    st.integers(1, 24 * HOUR),
    st.integers(0, 10**12),
    SHARES,
    st.just("") | DAYS,
    st.none() | st.builds(Exactness, *[st.integers(0, 10**14)] * 3),
)
ZONES = st.sampled_from([ZoneInfo(name) for name in ("UTC", "Europe/Berlin", "Asia/Kolkata")])
TABLES = st.builds(
    PriceTable,
    st.sampled_from([*DECIMALS]),
    st.just(()),
    NAMES,
    st.builds(Account, NAMES, TEXTS),
    st.booleans(),
)

RULES: Final[Mapping[str, Callable[[Row, Charge, PriceTable], bool]]] = {
    "mandatory columns are present": lambda cells, *_: {*MANDATORY} <= cells.keys(),
    "a column is null only where it may be": lambda cells, *_: all(
        value is not None or name in MAY_BE_NULL for name, value in cells.items()
    ),
    "no empty text stands for null": lambda cells, *_: "" not in cells.values(),
    "NumericFormat: digits, one point, a sign only if negative": lambda cells, *_: all(
        NUMBER.fullmatch(cells[name] or "") for name in NUMBERS
    ),
    "numbers have a point, by which a type that is inferred is a decimal": lambda cells, *_: all(
        "." in (cells[name] or "") for name in NUMBERS
    ),
    "DateTimeFormat: ISO 8601 in UTC": lambda cells, *_: all(
        MOMENT.fullmatch(cells[name] or "") for name in MOMENTS
    ),
    "the bounds of periods are in their order, the charge's in the billing's": lambda cells, *_: (
        (cells["BillingPeriodStart"] or "")
        <= (cells["ChargePeriodStart"] or "")
        < (cells["ChargePeriodEnd"] or "")
        <= (cells["BillingPeriodEnd"] or "")
    ),
    "BilledCost is 0 where others receive the payment": lambda cells, _, table: (
        table.billed or Decimal(cells["BilledCost"] or "1") == 0
    ),
    "costs are those of the charge, in the BillingCurrency": lambda cells, charge, table: (
        Decimal(cells["EffectiveCost"] or "") * 10**6 == charge.amount
        and cells["BillingCurrency"] == table.currency
        and cells["EffectiveCost"] == cells["ListCost"] == cells["ContractedCost"]
    ),
    "CurrencyFormat: ISO 4217": lambda cells, *_: cells["BillingCurrency"] in DECIMALS,
    "ChargeCategory is one of its values": lambda cells, *_: cells["ChargeCategory"] == "Usage",
    "ChargeClass is null or Correction": lambda cells, *_: (
        cells["ChargeClass"] in (None, "Correction")
    ),
    "ChargeClass is null within the current billing period": lambda cells, charge, _: (
        cells["ChargeClass"] is None or charge.correction[:7] > charge.gpu.day[:7]
    ),
    "ChargeClass is not null for an earlier billing period": lambda cells, charge, _: (
        cells["ChargeClass"] is not None or charge.correction[:7] <= charge.gpu.day[:7]
    ),
    "PricingQuantity is not null for Usage, nor PricingUnit then": lambda cells, *_: (
        cells["PricingQuantity"] is not None and cells["PricingUnit"] == "GPU Hours"
    ),
    "ServiceCategory is one of its values": lambda cells, *_: cells["ServiceCategory"] == "Compute",
    "ResourceType is null exactly where ResourceId is": lambda cells, *_: (
        (cells["ResourceId"] is None) == (cells["ResourceType"] is None)
    ),
    "SubAccountName is null exactly where SubAccountId is": lambda cells, *_: (
        (cells["SubAccountId"] is None) == (cells["SubAccountName"] is None)
    ),
    "SubAccountId is null where no sub account is charged": lambda cells, charge, _: (
        (cells["SubAccountId"] is None) == (charge.share is None)
    ),
    "KeyValueFormat: an object without objects or arrays": lambda cells, *_: (
        cells["Tags"] is None
        or all(isinstance(value, str) for value in json.loads(cells["Tags"]).values())
    ),
    "own columns begin with x_": lambda cells, *_: all(
        name in MANDATORY
        or name.startswith("x_")
        or name in ("ResourceId", "ResourceType", "SubAccountId", "SubAccountName", "Tags")
        for name in cells
    ),
}


@given(CHARGES, TABLES, ZONES)
def test_each_row_keeps_each_rule(charge: Charge, table: PriceTable, zone: ZoneInfo) -> None:
    cells = row(charge, COLUMNS, Context(table, zone))
    assert [rule for rule, holds in RULES.items() if not holds(cells, charge, table)] == []


@given(CHARGES, TABLES, ZONES)
def test_a_row_is_the_same_after_it_was_read(
    charge: Charge, table: PriceTable, zone: ZoneInfo
) -> None:
    cells = row(charge, COLUMNS, Context(table, zone))
    text = io.StringIO()
    writer = csv.DictWriter(text, [*COLUMNS], lineterminator="\r\n")
    writer.writeheader()
    writer.writerow(cells)
    text.seek(0)
    (read,) = csv.DictReader(text)
    assert read == {name: value or "" for name, value in cells.items()}


@pytest.mark.parametrize(
    "text",
    ["=HYPERLINK(1)", "+1+1", "-2+3", "@SUM(1)", "\t=1+1", "\r=1+1", " =1+1", "\uff1d1+1", "'a"],
)
@pytest.mark.parametrize("columns", [COLUMNS, PLAIN_COLUMNS])
def test_no_name_is_a_formula_of_a_spreadsheet(
    text: str, columns: Mapping[str, Callable[[Charge, Context], str | None]]
) -> None:
    key = GpuKey("2026-11-01", text, text, text)
    share = ShareKey(text, text, text, text, text, text)
    charge = Charge(key, text, text, Part.USED, -HOUR, -1_500_000, share, "2026-12-01")
    table = PriceTable("EUR", (), text, Account(text, text))
    cells = row(charge, columns, Context(table, ZoneInfo("UTC")))
    begins = [cell for cell in cells.values() if cell and cell.lstrip()[:1] in "=+-@\uff1d'"]
    assert {cell for cell in begins if not NUMBER.fullmatch(cell)} <= {
        f"'{text}",
        f"'{text}/{text}/{text}",
    }
    assert "-1.0" in begins or "-1" in begins
    assert f"'{text}" in begins


def test_a_name_that_is_no_formula_stays_as_it_is() -> None:
    share = ShareKey("team-a", "pod", "uid", "main", "Job/a=b", "R&D (north)")
    charge = Charge(GpuKey("2026-11-01", "", "n", "GPU-1"), "A", "", Part.USED, 1, 1, share)
    cells = row(charge, PLAIN_COLUMNS, Context(PriceTable("EUR", ()), ZoneInfo("UTC")))
    assert (cells["owner"], cells["team"]) == ("Job/a=b", "R&D (north)")
