"""A bill: charges added up by namespace, team, owner or model. Pure.

sum of all lines = sum of all charges, for each part, in time and in money
"""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from vgpucli.bill.model import NO_BOUND, Charge, Exactness, GpuKey, Part, ShareKey

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
    exactness: Exactness | None = None
    """That of all shares of the line; None if it has none."""
    _device: GpuKey | None = None
    _of_device: dict[ShareKey, Exactness] = msgspec.field(default_factory=dict)

    @property
    def total(self) -> int:
        """The line's money."""
        return sum(self.amount.values())

    def add(self, charge: Charge) -> None:
        """Count a charge. Those of a device's day come one after another, corrections last."""
        self.quantity[charge.part] += charge.quantity
        self.amount[charge.part] += charge.amount
        if charge.correction:
            self.corrections += charge.amount
        if charge.share is not None and charge.exactness is not None:
            self._add_exactness(charge.gpu, charge.share, charge.exactness)

    def _add_exactness(self, device: GpuKey, share: ShareKey, now: Exactness) -> None:
        """Count a share of a device's day once, as its last charge has it."""
        if device != self._device:
            self._device = device
            self._of_device.clear()
        before = self._of_device.get(share)
        self._of_device[share] = now
        if now != before:
            added = now if before is None else now - before
            self.exactness = added if self.exactness is None else self.exactness + added


def lines(charges: Iterable[Charge], by: str) -> list[BillLine]:
    """The lines, the most expensive first, and after them what nobody held.

    What is unsold is the rest of what all shares held, and as exact as all of them.
    """
    name_of = KEYS[by]
    found: dict[str, BillLine] = {}
    for charge in charges:
        name = name_of(charge)
        if name not in found:
            found[name] = BillLine(name)
        found[name].add(charge)
    if UNSOLD in found:
        of_shares = (line.exactness for line in found.values() if line.exactness)
        found[UNSOLD].exactness = sum(of_shares, NO_BOUND)
    last = {UNSOLD: 1, NOT_MEASURED: 2}
    return sorted(found.values(), key=lambda line: (last.get(line.name, 0), -line.total, line.name))
