"""Whether the units of memory that the operator has set can be right on this node. Pure."""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from vgpu.inventory import NodeDoubt, doubts_of, sizes_by_scheme, unit_doubt
from vgpu.ledger import Holding
from vgpu.model.objects import Node
from vgpu.model.units import MIB
from vgpu.schemes.registry import UnitBytes, registry


class UnitRow(msgspec.Struct, frozen=True):
    """A unit that is set, in bytes; ``doubt`` is what the node's data contradicts it with."""

    scheme: str
    unit_bytes: int
    doubt: NodeDoubt | None = None


def unit_rows(
    units: UnitBytes, name: str, node: Node | None, holdings: Iterable[Holding]
) -> tuple[UnitRow, ...]:
    """A row for each unit that is set. ``node`` is None where the Node object was not read."""
    doubts = {doubt.row.name: doubt for doubt in _doubts(units, name, node, holdings)}
    return tuple(
        UnitRow(scheme, unit_bytes, doubts.get(scheme))
        for scheme, unit_bytes in units.items()
        if unit_bytes is not None
    )


def _doubts(
    units: UnitBytes, name: str, node: Node | None, holdings: Iterable[Holding]
) -> Iterator[NodeDoubt]:
    sizes = sizes_by_scheme(holdings)
    if node is not None:
        yield from doubts_of([node], {node.name: sizes}, registry().rows, units)
        return
    unread = Node(name)  # only its shares can contradict a unit
    for row in registry().rows:
        doubt = unit_doubt(unread, row, units.get(row.name) or 0, sizes.get(row.scheme, ()))
        if doubt is not None:
            yield doubt


Bounds = Mapping[tuple[str, ...], int]


def fitting(row: UnitRow) -> Bounds:
    """The least and the most bytes of a unit that would fit, where this one does not."""
    if row.doubt is None:
        return {}
    doubt = row.doubt.doubt
    bounds = {"least": doubt.least, "most": doubt.most}
    return {(bound,): size * MIB for bound, size in bounds.items() if size is not None}
