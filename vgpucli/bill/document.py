"""`vgpu bill -o json`: the same sums as the table, in micro-units of the currency."""

from typing import Self

import msgspec

from vgpucli.bill.model import HOUR, Part
from vgpucli.bill.prices import PriceTable
from vgpucli.bill.read import Period
from vgpucli.bill.summary import BillLine


class LineDocument(msgspec.Struct, frozen=True, rename="camel"):
    """A line: GPU-hours and money by part. Money is in 10⁻⁶ of the currency, as an integer.

    The last three are null where none of the line was measured.
    """

    name: str
    gpu_hours: dict[str, float]
    micro_amount: dict[str, int]
    micro_total: int
    micro_corrections: int
    bound_gpu_hours: float | None
    normalised_hours: float | None
    over_committed_hours: float | None

    @classmethod
    def of(cls, line: BillLine) -> Self:
        """The document of a line."""
        exact = line.exactness
        return cls(
            line.name,
            {part.value: round(line.quantity[part] / HOUR, 9) for part in Part},
            {part.value: line.amount[part] for part in Part},
            line.total,
            line.corrections,
            None if exact is None else round(exact.bound / HOUR, 6),
            None if exact is None else round(exact.normalised / 3600, 6),
            None if exact is None else round(exact.over_committed / 3600, 6),
        )


class BillDocument(msgspec.Struct, frozen=True, rename="camel"):
    """The whole bill; ``until`` is the first day that is not in it."""

    first: str
    until: str
    timezone: str
    by: str
    currency: str
    billed: bool
    lines: tuple[LineDocument, ...]
    micro_total: int
    missing_days: tuple[str, ...]
    models_without_price: tuple[str, ...]
    bound_gpu_hours: float
    above_held_gpu_hours: float
    outside_containers_gpu_hours: float
    use_unknown_gpu_hours: float
    normalised_hours: float
    over_committed_hours: float
    unsized_hours: float
    generators: tuple[str, ...]


def document(
    lines: list[BillLine],
    by: str,
    table: PriceTable,
    period: Period,
    days: tuple[str, str, str],
) -> BillDocument:
    """The bill as a document; ``days`` are its bounds and their time zone."""
    first, until, timezone = days
    return BillDocument(
        first,
        until,
        timezone,
        by,
        table.currency,
        table.billed,
        tuple(map(LineDocument.of, lines)),
        sum(line.total for line in lines),
        (*period.missing,),
        tuple(" ".join(filter(None, (d.model, d.mig_profile))) for d in sorted(period.unknown)),
        round(period.bound / HOUR, 6),
        round(period.above / HOUR, 6),
        round(period.outside / HOUR, 6),
        round(period.use_unknown / HOUR, 6),
        round(period.normalised / 3600, 6),
        round(period.over_committed / 3600, 6),
        round(period.unsized / 3600, 6),
        (*dict.fromkeys(head.generator for head in period.heads if head.generator),),
    )
