"""A bill: charges added up by namespace, team, owner or model. Pure.

sum of all lines = sum of all charges, for each part, in time and in money
"""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from vgpucli.bill.model import Charge, Part

UNSOLD: Final = "(unsold)"
NOT_MEASURED: Final = "(not measured)"
_NOBODY: Final = {Part.UNSOLD: UNSOLD, Part.NOT_MEASURED: NOT_MEASURED}


def _of_share(field: str) -> Callable[[Charge], str]:
    def name(charge: Charge) -> str:
        if charge.share is None:
            return _NOBODY[charge.part]
        value: str = getattr(charge.share, field)
        return _own_name(value) or f"(no {field})"

    return name


def _own_name(text: str) -> str:
    """A name that is none of ours: who may annotate a Namespace may name a team ``(unsold)``."""
    is_like_ours = text.lstrip().startswith(("(", '"'))
    return json.dumps(text, ensure_ascii=False) if is_like_ours else text


def _model(charge: Charge) -> str:
    profile = f" MIG {charge.mig_profile}" if charge.mig_profile else ""
    return f"{_own_name(charge.model) or '(unknown model)'}{profile}"


KEYS: Final[Mapping[str, Callable[[Charge], str]]] = {
    "namespace": _of_share("namespace"),
    "team": _of_share("team"),
    "owner": _of_share("owner"),
    "model": _model,
}
"""The choices of ``--by``: the name of the line to which a charge belongs."""


class BillLine(msgspec.Struct):
    """A line of the bill: time and money by part, and money of corrections among it."""

    name: str
    quantity: dict[Part, int] = msgspec.field(default_factory=lambda: dict.fromkeys(Part, 0))
    amount: dict[Part, int] = msgspec.field(default_factory=lambda: dict.fromkeys(Part, 0))
    corrections: int = 0

    @property
    def total(self) -> int:
        """The line's money."""
        return sum(self.amount.values())

    def add(self, charge: Charge) -> None:
        """Count a charge."""
        self.quantity[charge.part] += charge.quantity
        self.amount[charge.part] += charge.amount
        if charge.correction:
            self.corrections += charge.amount


def lines(charges: Iterable[Charge], by: str) -> list[BillLine]:
    """The lines, the most expensive first, and after them what nobody held."""
    name_of = KEYS[by]
    found: dict[str, BillLine] = {}
    for charge in charges:
        name = name_of(charge)
        if name not in found:
            found[name] = BillLine(name)
        found[name].add(charge)
    last = {UNSOLD: 1, NOT_MEASURED: 2}
    return sorted(found.values(), key=lambda line: (last.get(line.name, 0), -line.total, line.name))
