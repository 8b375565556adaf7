"""Closed days and a price table make charges. Pure.

For each device and day, with its price p of an hour:

    sum of the amounts of its charges = round(GPU-hours * p, 6 decimals)

The amount of the day is rounded once and then divided among its rows, so no sum is rounded again.
A correction's charges are the difference between the amounts with it and the amounts without it:
after a correction the same identity holds for the corrected day.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import groupby
from typing import Final

import msgspec

from vgpucli.bill.division import amount_of, divided
from vgpucli.bill.model import Charge, GpuDay, GpuKey, Part, ShareDay, ShareKey
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


def charges(
    days: Iterable[DeviceDay], table: PriceTable, unknown: set[UnknownModel]
) -> Iterator[Charge]:
    """The charges of each device and day; ``unknown`` gets the devices without a price."""
    for day in days:
        described = day.gpus[-1]
        price = table.price(day.key.day, described.model, described.mig_profile, described.labels)
        if price is None:
            unknown.add(UnknownModel(described.model, described.mig_profile))
            price = NO_PRICE
        yield from _of_device(day, described, price)


def _of_device(day: DeviceDay, described: GpuDay, price: Decimal) -> Iterator[Charge]:
    rows: tuple[GpuDay | ShareDay, ...] = (*day.gpus, *day.shares)
    before: dict[_Piece, tuple[int, int]] = {}
    for correction in sorted({row.correction for row in rows}):  # "" comes first
        now = _amounts(
            [gpu for gpu in day.gpus if gpu.correction <= correction],
            [share for share in day.shares if share.correction <= correction],
            price,
        )
        for piece in sorted(before.keys() | now.keys(), key=_order):
            quantity, amount = now.get(piece, (0, 0))
            old_quantity, old_amount = before.get(piece, (0, 0))
            if quantity != old_quantity or amount != old_amount:
                share, part = piece
                yield Charge(
                    day.key,
                    described.model,
                    described.mig_profile,
                    part,
                    quantity - old_quantity,
                    amount - old_amount,
                    share,
                    correction,
                )
        before = now


def _order(piece: _Piece) -> tuple[bool, tuple[str, ...], str]:
    share, part = piece
    return share is None, msgspec.structs.astuple(share) if share else (), part


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

    Entries of one node and model are added up: GPUs that were bought later are an entry of theirs.
    ``unit`` is a whole GPU's amount of a second; ``gpus`` are the day's own rows.
    """
    owned: Counter[tuple[str, str, str]] = Counter()
    for entry in table.inventory:
        if entry.since.isoformat() <= day < entry.to.isoformat():
            owned[entry.cluster, entry.node, entry.model] += entry.gpus
    for (cluster, node, model), number in sorted(owned.items()):
        of_node = [gpu for gpu in gpus if (gpu.key.cluster, gpu.key.node) == (cluster, node)]
        present = sum(gpu.total for gpu in of_node if (gpu.model, gpu.mig_profile) == (model, ""))
        missing = number * seconds * unit - present
        if missing > 0:
            key = GpuKey(day, cluster, node, f"inventory/{model}")
            labels: Mapping[str, str] = next((gpu.labels for gpu in of_node), {})
            yield GpuDay(key, model, missing, missing, labels=dict(labels))
