"""FOCUS 1.2: the 21 mandatory columns and those that a share needs. Pure.

Columns and rules are of https://focus.finops.org/focus-specification/v1-2 (tag v1.2 of
FinOps-Open-Cost-and-Usage-Spec/FOCUS_Spec, specification/columns/ and specification/attributes/).
A row is one charge of one day. Unless the price table has ``billed``, BilledCost is 0: the
machines are in the cloud's own file, and a sum over both files would count them twice.
"""

import datetime as dt
import json
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Final
from zoneinfo import ZoneInfo

import msgspec

from vgpu.model.printable_text import printable
from vgpucli.bill.days import bounds
from vgpucli.bill.measurement import PartRule
from vgpucli.bill.model import HOUR, SECOND, Charge, DayHead, Part
from vgpucli.bill.prices import PriceTable

METHOD: Final = "vgpu/1"
"""Names the rules of docs/bill.md by which a GPU is divided."""


def method_text(head: DayHead) -> str:
    """The rules of a file: ``vgpu/1 sum 0.5``, or ``vgpu/1 max``."""
    words = (METHOD, head.rule, head.memory_weight if head.rule == PartRule.SUM else "")
    return printable(" ".join(filter(None, words)))


_WORDS: Final[Mapping[Part, str]] = {
    Part.USED: "GPU share, used",
    Part.HELD_IDLE: "GPU share, held and not used",
    Part.UNSOLD: "GPU, held by nobody",
    Part.NOT_MEASURED: "GPU, not measured",
}


class Context(msgspec.Struct, frozen=True):
    """What the columns need beside the charge."""

    table: PriceTable
    zone: ZoneInfo
    heads: Sequence[DayHead] = ()
    """The first lines of the files, those of earlier days before those of later ones."""


_Cell = str | None


def _method(charge: Charge, context: Context) -> str:
    """By the file of the day: rows are written when it is the last one that was read."""
    heads = reversed(context.heads)
    return next((method_text(head) for head in heads if head.day == charge.gpu.day), METHOD)


def _decimal(value: int, unit: int) -> str:
    """A quotient whose unit is a product of powers of 2 and 5, or rounded to 9 decimals."""
    quotient = (Decimal(value) / Decimal(unit)).quantize(Decimal("1e-9")).normalize()
    return f"{quotient:f}" if quotient else "0"


def _moment(seconds: int) -> str:
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _money(charge: Charge, _: Context) -> _Cell:
    return _decimal(charge.amount, SECOND)


def _pointed(text: str) -> str:
    """With a decimal point: readers that infer types, as pandas, take a column for decimals."""
    return text if "." in text else f"{text}.0"


def _cost(charge: Charge, _: Context) -> _Cell:
    return _pointed(_decimal(charge.amount, SECOND))


def _billed(charge: Charge, context: Context) -> _Cell:
    return _cost(charge, context) if context.table.billed else "0.0"


def _month(day: str, context: Context) -> tuple[str, str]:
    first = dt.date.fromisoformat(day).replace(day=1)
    following = (first + dt.timedelta(days=32)).replace(day=1)
    return tuple(_moment(bounds(each.isoformat(), context.zone)[0]) for each in (first, following))  # type: ignore[return-value]  # two


def _day(charge: Charge, context: Context) -> tuple[int, int]:
    return bounds(charge.gpu.day, context.zone)


def _namespace(charge: Charge, _: Context) -> _Cell:
    return charge.share.namespace or None if charge.share else None


def _resource(charge: Charge, _: Context) -> _Cell:
    return "/".join(filter(None, (charge.gpu.cluster, charge.gpu.node, charge.gpu.uuid)))


def _tags(charge: Charge, _: Context) -> _Cell:
    share = charge.share
    if share is None:
        return None
    named = {
        "team": share.team,
        "owner": share.owner,
        "pod": share.pod,
        "container": share.container,
        "node": charge.gpu.node,
    }
    return json.dumps({key: text for key, text in named.items() if text}, ensure_ascii=False)


def _class(charge: Charge, _: Context) -> _Cell:
    """A correction within its own billing period is none: that period was not billed yet."""
    late = charge.correction[:7] > charge.gpu.day[:7]
    return "Correction" if late else None


def _description(charge: Charge, _: Context) -> _Cell:
    words = _WORDS[charge.part]
    profile = f" {charge.mig_profile}" if charge.mig_profile else ""
    return f"{words}: {charge.model or 'unknown model'}{profile}"


def _bound(charge: Charge, _: Context) -> _Cell:
    return str(charge.exactness.bound) if charge.exactness else None


def _bound_hours(charge: Charge, _: Context) -> _Cell:
    return _pointed(_decimal(charge.exactness.bound, HOUR)) if charge.exactness else None


def _seconds(field: str) -> Callable[[Charge, Context], _Cell]:
    """Seconds in which a share was divided."""

    def text(charge: Charge, _: Context) -> _Cell:
        return str(getattr(charge.exactness, field)) if charge.share and charge.exactness else None

    return text


def _hours(field: str) -> Callable[[Charge, Context], _Cell]:
    seconds = _seconds(field)

    def text(charge: Charge, context: Context) -> _Cell:
        value = seconds(charge, context)
        return None if value is None else _pointed(_decimal(int(value), 3600))

    return text


COLUMNS: Final[Mapping[str, Callable[[Charge, Context], _Cell]]] = {
    "BilledCost": _billed,
    "BillingAccountId": lambda _, context: context.table.account.id,
    "BillingAccountName": lambda _, context: context.table.account.name or None,
    "BillingCurrency": lambda _, context: context.table.currency,
    "BillingPeriodEnd": lambda charge, context: _month(charge.gpu.day, context)[1],
    "BillingPeriodStart": lambda charge, context: _month(charge.gpu.day, context)[0],
    "ChargeCategory": lambda *_: "Usage",
    "ChargeClass": _class,
    "ChargeDescription": _description,
    "ChargePeriodEnd": lambda charge, context: _moment(_day(charge, context)[1]),
    "ChargePeriodStart": lambda charge, context: _moment(_day(charge, context)[0]),
    "ContractedCost": _cost,
    "EffectiveCost": _cost,
    "InvoiceIssuerName": lambda _, context: context.table.issuer,
    "ListCost": _cost,
    "PricingQuantity": lambda charge, _: _pointed(_decimal(charge.quantity, HOUR)),
    "PricingUnit": lambda *_: "GPU Hours",
    "ProviderName": lambda _, context: context.table.issuer,
    "PublisherName": lambda _, context: context.table.issuer,
    "ServiceCategory": lambda *_: "Compute",
    "ServiceName": lambda *_: "Shared GPUs",
    "ResourceId": _resource,
    "ResourceType": lambda charge, _: charge.mig_profile or charge.model or "GPU",
    "SubAccountId": _namespace,
    "SubAccountName": _namespace,
    "Tags": _tags,
    "x_VgpuPart": lambda charge, _: str(charge.part),
    "x_VgpuMethod": _method,
    "x_VgpuBoundHours": _bound_hours,
    "x_VgpuNormalisedHours": _hours("normalised"),
    "x_VgpuOverCommittedHours": _hours("over_committed"),
}
"""Each column and its value of a charge; None is null, an empty cell of the CSV."""


PLAIN_COLUMNS: Final[Mapping[str, Callable[[Charge, Context], _Cell]]] = {
    "day": lambda charge, _: charge.gpu.day,
    "cluster": lambda charge, _: charge.gpu.cluster,
    "node": lambda charge, _: charge.gpu.node,
    "uuid": lambda charge, _: charge.gpu.uuid,
    "model": lambda charge, _: charge.model,
    "mig_profile": lambda charge, _: charge.mig_profile,
    "namespace": _namespace,
    "team": lambda charge, _: charge.share.team if charge.share else None,
    "owner": lambda charge, _: charge.share.owner if charge.share else None,
    "pod": lambda charge, _: charge.share.pod if charge.share else None,
    "container": lambda charge, _: charge.share.container if charge.share else None,
    "pod_uid": lambda charge, _: charge.share.pod_uid if charge.share else None,
    "part": lambda charge, _: str(charge.part),
    "gpu_hours": lambda charge, _: _decimal(charge.quantity, HOUR),
    "gpu_microseconds": lambda charge, _: str(charge.quantity),
    "amount": _money,
    "currency": lambda _, context: context.table.currency,
    "correction": lambda charge, _: charge.correction or None,
    "bound_gpu_microseconds": _bound,
    "normalised_seconds": _seconds("normalised"),
    "over_committed_seconds": _seconds("over_committed"),
}
"""The columns of ``-o csv``; ``correction`` is the day whose file has the row.

Hours are rounded to 9 decimals; sums of ``gpu_microseconds`` are exact. The last three are of the
share's day, so they stand in each of its rows.
"""


_NUMBER: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_FORMULA: Final = (*"=+-@'\t\r\n", *"\uff1d\uff0b\uff0d\uff20")
"""With which a cell begins that a spreadsheet may compute, and the mark of one that it may not.

After https://owasp.org/www-community/attacks/CSV_Injection; the last four are of full width.
"""


def _text(cell: _Cell) -> _Cell:
    """With an apostrophe before what a spreadsheet would compute: tenants write names of teams.

    Of a text that begins with an apostrophe, a reader leaves out the first one.
    """
    if cell is None or _NUMBER.fullmatch(cell):
        return cell
    is_formula = cell.startswith(_FORMULA) or cell.lstrip().startswith(_FORMULA)
    return f"'{cell}" if is_formula else cell


def row(
    charge: Charge, columns: Mapping[str, Callable[[Charge, Context], _Cell]], context: Context
) -> dict[str, _Cell]:
    """The columns of a charge."""
    return {name: _text(value(charge, context)) for name, value in columns.items()}
