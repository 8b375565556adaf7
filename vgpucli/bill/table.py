"""A bill as a table, and as a document. Pure: sums are computed elsewhere."""

from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Final

import msgspec

from vgpu.model.printable_text import printable
from vgpu.model.units import count
from vgpucli import tabwriter
from vgpucli.bill.division import shown
from vgpucli.bill.focus import method_text
from vgpucli.bill.model import HOUR, SECOND, Part
from vgpucli.bill.prices import PriceTable
from vgpucli.bill.read import Period
from vgpucli.bill.summary import BillLine

_HUNDREDTH: Final = HOUR // 100
_TOTAL: Final = "total"


class Money(msgspec.Struct, frozen=True):
    """A line in the units in which it is shown: hundredths of hours, and cents.

    ``amounts`` and ``total`` are in what the currency has in place of cents. ``is_held``: the line
    has hours, even if they are shown as 0. ``bound`` is in GPU-microseconds.
    """

    name: str
    hours: int
    amounts: dict[Part, int]
    total: int
    is_held: bool
    bound: int | None


def displayed(lines: Sequence[BillLine], decimals: int) -> tuple[Money, ...]:
    """The lines as they are shown, from the total downwards.

    The lines make the total, in hours and in money, and the parts of a line make the line.
    """
    cent = SECOND // 10**decimals
    quantities = [sum(line.quantity.values()) for line in lines]
    rows = zip(
        lines,
        quantities,
        shown(quantities, _HUNDREDTH),
        shown([line.total for line in lines], cent),
        strict=True,
    )
    return tuple(
        Money(
            f'"{line.name}"' if line.name.strip() == _TOTAL else line.name,
            hours,
            dict(zip(Part, shown([line.amount[part] for part in Part], cent, total), strict=True)),
            total,
            quantity > 0,
            line.exactness.bound if line.exactness else None,
        )
        for line, quantity, hours, total in rows
    )


def _sum(money: Sequence[Money], bound: int) -> Money:
    """The line below the others."""
    return Money(
        _TOTAL,
        sum(each.hours for each in money),
        {part: sum(each.amounts[part] for each in money) for part in Part},
        sum(each.total for each in money),
        any(each.is_held for each in money),
        bound,
    )


def _cells(line: Money, decimals: int) -> tuple[str, ...]:
    amounts = (
        line.amounts[Part.USED],
        line.amounts[Part.HELD_IDLE],
        line.amounts[Part.UNSOLD] + line.amounts[Part.NOT_MEASURED],
        line.total,
    )
    hours = "<0.01" if line.is_held and not line.hours else money_text(line.hours, 2)
    bound = "-" if line.bound is None else bound_text(line.bound)
    return line.name, hours, bound, *(money_text(each, decimals) for each in amounts)


def money_text(amount: int, decimals: int) -> str:
    """An amount in cents, or in hundredths, as people write it."""
    return f"{Decimal(amount).scaleb(-decimals):,.{decimals}f}"


def hours_text(quantity: int) -> str:
    """GPU-hours with two decimals; what is not 0 is not shown as 0."""
    text = f"{Decimal(quantity) / HOUR:,.2f}"
    return "<0.01" if quantity > 0 and text == "0.00" else text


def bound_text(quantity: int) -> str:
    """GPU-hours with two decimals, rounded up."""
    return money_text(-(-quantity // _HUNDREDTH), 2)


def text_lines(
    lines: Sequence[BillLine], by: str, table: PriceTable, period: Period, days: tuple[str, str]
) -> Iterator[str]:
    """The table and the notes below it."""
    decimals = table.decimals
    money = displayed(lines, decimals)
    currency = table.currency
    first, until = days
    yield f"{first} to {until} (not included), {currency}, by {by}"
    yield ""
    header = (by.upper(), "GPU-HOURS", "BOUND", "USED", "HELD IDLE", "NOT HELD", "TOTAL")
    rows = [_cells(each, decimals) for each in (*money, _sum(money, period.bound))]
    yield from aligned_right((header, *rows))
    yield ""
    yield from notes(table, period)


def aligned_right(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Cells in columns; all but the first are numbers, which end below each other."""
    cells = [[*row] for row in rows]
    widths = [max(len(row[index]) for row in cells) for index in range(1, len(cells[0]))]
    for row in cells:
        row[1:] = [cell.rjust(width) for cell, width in zip(row[1:], widths, strict=True)]
    yield from tabwriter.table(cells)


def notes(table: PriceTable, period: Period) -> Iterator[str]:
    """What stands beside the bill."""
    generated = dict.fromkeys(head.generator for head in period.heads if head.generator)
    for generator in generated:
        yield f"note: this is no measured bill: {printable(generator)}"
    if period.missing:
        shown_days = ", ".join(period.missing[:5]) + (" …" if len(period.missing) > 5 else "")
        yield f"note: {count(len(period.missing), 'day')} of the period not closed: {shown_days}"
    for device in sorted(period.unknown):
        profile = f" with MIG profile {device.mig_profile}" if device.mig_profile else ""
        yield f"note: no price for model {device.model or '(unknown)'}{profile}: charged 0"
    methods = sorted({method_text(head) for head in period.heads})
    if len(methods) > 1:
        yield f"note: days were closed by different rules: {', '.join(methods)}"
    if not table.billed:
        yield "note: for showback: prices are of the price table, not of an invoice"
    yield f"note: all shares together are exact to {bound_text(period.bound)} GPU-hours"
    if period.above:
        yield f"note: use above what was held, in no line: {hours_text(period.above)} GPU-hours"
    if period.outside:
        yield f"note: use outside of containers, in no line: {hours_text(period.outside)} GPU-hours"
    if period.use_unknown:
        yield (
            "note: held while its use was not measured, in HELD IDLE:"
            f" {hours_text(period.use_unknown)} GPU-hours"
        )
    if period.normalised:
        yield (
            "note: shares that were divided by the sum of their GPU:"
            f" {period.normalised / 3600:,.2f} hours"
        )
    if period.unsized:
        yield f"note: shares of unknown size, charged 0: {period.unsized / 3600:,.2f} hours"
