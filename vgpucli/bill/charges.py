"""Closed days and a price table make charges. Pure.

For each device and day, with its price p of an hour:

    sum of the amounts of its charges = round(GPU-hours * p, 6 decimals)

The amount of the day is rounded once and then divided among its rows, so no sum is rounded again.
A correction's charges are the difference between the amounts with it and the amounts without it:
after a correction the same identity holds for the corrected day, and no earlier charge changes. A
correction that has another model or other labels takes back the charges at the price before.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import groupby
from typing import Final

import msgspec

from vgpucli.bill.division import amount_of, divided
from vgpucli.bill.model import NO_BOUND, Charge, Exactness, GpuDay, GpuKey, Part, ShareDay, ShareKey
from vgpucli.bill.prices import PriceTable

NO_PRICE: Final = Decimal(0)


class UnknownModel(msgspec.Struct, frozen=True, order=True):
    """A device without a price, which is charged 0."""

    model: str
    mig_profile: str = ""


class DeviceDay(msgspec.Struct, frozen=True):
    """All rows of one device and day, corrections included."""

    key: GpuKey
    gpus: tuple[GpuDay, ...]
    shares: tuple[ShareDay, ...]


def device_days(gpus: Iterable[GpuDay], shares: Iterable[ShareDay]) -> Iterator[DeviceDay]:
    """The rows by device and day, in their order. A share without a device's row has none."""
    by_key: dict[GpuKey, tuple[list[GpuDay], list[ShareDay]]] = {}
    for gpu in gpus:
        by_key.setdefault(gpu.key, ([], []))[0].append(gpu)
    for share in shares:
        if share.gpu in by_key:
            by_key[share.gpu][1].append(share)
    for key, (of_key, shares_of_key) in sorted(by_key.items()):
        yield DeviceDay(key, (*of_key,), (*shares_of_key,))


_Piece = tuple[ShareKey | None, Part]
_Line = tuple[ShareKey | None, Part, str, str]
"""A piece with the model and MIG profile by which it has its price."""


def charges(
    days: Iterable[DeviceDay], table: PriceTable, unknown: set[UnknownModel]
) -> Iterator[Charge]:
    """The charges of each device and day; ``unknown`` gets the devices without a price."""
    for day in days:
        described = _described(day.gpus)
        if _price(described, table) is None:
            unknown.add(UnknownModel(described.model, described.mig_profile))
        yield from _of_device(day, table)


def _described(gpus: Iterable[GpuDay]) -> GpuDay:
    """The latest row that has a model: that a later one has none is no evidence of another one."""
    latest_first = reversed([*gpus])
    return max(latest_first, key=lambda gpu: (gpu.model != "", gpu.correction))


def _price(gpu: GpuDay, table: PriceTable) -> Decimal | None:
    return table.price(gpu.key.day, gpu.model, gpu.mig_profile, gpu.labels)


def _of_device(day: DeviceDay, table: PriceTable) -> Iterator[Charge]:
    rows: tuple[GpuDay | ShareDay, ...] = (*day.gpus, *day.shares)
    before: dict[_Line, tuple[int, int]] = {}
    for correction in sorted({row.correction for row in rows}):  # "" comes first
        gpus = [gpu for gpu in day.gpus if gpu.correction <= correction]
        if not gpus:
            continue
        described = _described(gpus)
        shares = [share for share in day.shares if share.correction <= correction]
        exact = _exactness(shares)
        amounts = _amounts(gpus, shares, _price(described, table) or NO_PRICE)
        now = {
            (*piece, described.model, described.mig_profile): amount
            for piece, amount in amounts.items()
        }
        as_described = described.model, described.mig_profile
        in_order = sorted(before.keys() | now.keys(), key=_order)
        # what is taken back comes first, so that a share's last charge has its bound
        for line in sorted(in_order, key=lambda line: line[2:] == as_described):
            quantity, amount = now.get(line, (0, 0))
            old_quantity, old_amount = before.get(line, (0, 0))
            if quantity != old_quantity or amount != old_amount:
                share, part, model, mig_profile = line
                is_taken_back = line[2:] != as_described
                of_share = NO_BOUND if is_taken_back else exact.get(share, NO_BOUND)
                yield Charge(
                    day.key,
                    model,
                    mig_profile,
                    part,
                    quantity - old_quantity,
                    amount - old_amount,
                    share,
                    correction,
                    None if part is Part.NOT_MEASURED else of_share,
                )
        before = now


def _order(line: _Line) -> tuple[bool, tuple[str, ...], str, str, str]:
    share, *texts = line
    part, model, mig_profile = texts
    return share is None, msgspec.structs.astuple(share) if share else (), part, model, mig_profile


def _exactness(shares: Sequence[ShareDay]) -> dict[ShareKey | None, Exactness]:
    """Of each share, and of all together, for what is unsold."""
    sums: dict[ShareKey | None, Exactness] = {}
    for row in shares:
        of_row = Exactness(row.bound, row.normalised, row.over_committed)
        known = sums.get(row.share)
        sums[row.share] = of_row if known is None else known + of_row
    sums[None] = Exactness(
        sum(row.bound for row in shares),
        sum(row.normalised for row in shares),
        sum(row.over_committed for row in shares),
    )
    return sums


def _amounts(
    gpus: Sequence[GpuDay], shares: Sequence[ShareDay], price: Decimal
) -> dict[_Piece, tuple[int, int]]:
    """(quantity, amount) of each piece. The quantities' sum is the device's time."""
    total = max(0, sum(gpu.total for gpu in gpus))
    lost = min(total, max(0, sum(gpu.not_measured for gpu in gpus)))
    pieces: dict[_Piece, int] = {}
    ordered = sorted(shares, key=lambda row: msgspec.structs.astuple(row.share))
    for share, rows in groupby(ordered, key=lambda row: row.share):
        of_share = [*rows]
        pieces[share, Part.USED] = max(0, sum(row.used for row in of_share))
        pieces[share, Part.HELD_IDLE] = max(0, sum(row.idle for row in of_share))
    held = sum(pieces.values())
    measured = total - lost
    if held > measured:  # each row was rounded by itself
        pieces = dict(zip(pieces, divided(measured, [*pieces.values()]), strict=True))
        held = measured
    pieces[None, Part.UNSOLD] = measured - held
    pieces[None, Part.NOT_MEASURED] = lost
    quantities = {piece: quantity for piece, quantity in pieces.items() if quantity}
    amounts = divided(amount_of(total, price), [*quantities.values()])
    return {
        piece: (quantity, amount)
        for (piece, quantity), amount in zip(quantities.items(), amounts, strict=True)
    }


def missing_of_inventory(
    table: PriceTable, day: str, seconds: int, gpus: Sequence[GpuDay], unit: int
) -> Iterator[GpuDay]:
    """For owned GPUs that were not there for the whole day, a row with what is missing.

    Each correction of the day has a row of its own with the change. Entries of one node and model
    are added up: GPUs that were bought later are an entry of theirs. ``unit`` is a whole GPU's
    amount of a second; ``gpus`` are the day's rows, corrections included.
    """
    owned: Counter[tuple[str, str, str]] = Counter()
    for entry in table.inventory:
        if entry.since.isoformat() <= day < entry.to.isoformat():
            owned[entry.cluster, entry.node, entry.model] += entry.gpus
    by_node: dict[tuple[str, str], list[GpuDay]] = {}
    for gpu in gpus:
        by_node.setdefault((gpu.key.cluster, gpu.key.node), []).append(gpu)
    for (cluster, node, model), number in sorted(owned.items()):
        of_node = by_node.get((cluster, node), [])
        before = 0
        for correction in sorted({"", *(gpu.correction for gpu in of_node)}):
            known = [gpu for gpu in of_node if gpu.correction <= correction]
            present = sum(gpu.total for gpu in known if (gpu.model, gpu.mig_profile) == (model, ""))
            missing = max(0, number * seconds * unit - present)
            if change := missing - before:
                key = GpuKey(day, cluster, node, f"inventory/{model}")
                labels: Mapping[str, str] = next((gpu.labels for gpu in known), {})
                yield GpuDay(key, model, change, change, labels=dict(labels), correction=correction)
            before = missing
