"""Prices as recording rules, for the cost series of the recording rules of ``grafana/``. Pure.

    model:vgpu_price_per_gpu_hour:max{model, mig_profile, currency} = price of an hour

A row holds from its first day to the first day of the next row of its model and MIG profile, so
that the rules stay right when a price changes. Series know no labels of nodes.
"""

import json
from collections.abc import Iterator
from itertools import groupby
from typing import Final
from zoneinfo import ZoneInfo

from vgpucli.bill.days import bounds
from vgpucli.bill.prices import FIRST_DAY, BadPrices, Price, PriceTable

RECORD: Final = "model:vgpu_price_per_gpu_hour:max"

_HEADER: Final = """\
# Prices of an hour of a whole GPU, for the cost series of vgpu's recording rules. They are
# confidential: whoever can read this file or these series knows the prices.
groups:
  - name: vgpu-prices
    rules:
"""


def price_rules(table: PriceTable, zone: ZoneInfo) -> str:
    """A rule file. Raises BadPrices if a row depends on labels of nodes."""
    for index, row in enumerate(table.prices):
        if row.node_labels:
            raise BadPrices(
                f"prices[{index}] has node_labels: the cost series know model and MIG profile only"
            )
    ordered = sorted(table.prices, key=lambda row: (row.model, row.mig_profile, row.since))
    rules = (
        rule
        for _, rows in groupby(ordered, key=lambda row: (row.model, row.mig_profile))
        for rule in _of_device([*rows], table.currency, zone)
    )
    return _HEADER + ("".join(rules) or "      []\n")


def _of_device(rows: list[Price], currency: str, zone: ZoneInfo) -> Iterator[str]:
    for row, following in zip(rows, [*rows[1:], None], strict=True):
        begin = "" if row.since == FIRST_DAY else f" >= {_start(row, zone)}"
        end = f" < {_start(following, zone)}" if following else ""
        when = f" and vector(time()){begin}{end}" if begin or end else ""
        labels = {"model": row.model, "mig_profile": row.mig_profile, "currency": currency}
        kept = {name: text for name, text in labels.items() if text}
        yield (
            f"      - record: {RECORD}\n"
            f"        expr: vector({row.amount:f}){when}\n"
            f"        labels: {json.dumps(kept, ensure_ascii=False)}\n"
        )


def _start(row: Price, zone: ZoneInfo) -> int:
    begin, _ = bounds(row.since.isoformat(), zone)
    return begin
