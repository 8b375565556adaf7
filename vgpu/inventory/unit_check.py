"""Whether the units in force can be right: a wrong unit makes all sizes wrong by the same factor.

No unit is derived here. A unit that a node's data contradicts is reported with the units that would
fit, and the node's figures are marked as unconfirmed. Pure.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from vgpu.ledger import Holding
from vgpu.model.names import Scheme
from vgpu.model.objects import Node
from vgpu.model.units import MIB, exact_size
from vgpu.schemes.row import SchemeRow, UnitDoubt

LEAST_SHARE: Final = 64 * MIB
"""Minimum plausible share of a GPU, in bytes: a CUDA context alone takes more."""

_NAMED: Final = 3
"""Number of nodes that a note names."""


class NodeDoubt(msgspec.Struct, frozen=True):
    """A node whose data contradicts the unit of a row; ``unit_bytes`` is the unit in force."""

    node: str
    row: SchemeRow
    unit_bytes: int
    doubt: UnitDoubt


def unit_doubt(
    node: Node, row: SchemeRow, unit_bytes: int, shares: Iterable[int]
) -> NodeDoubt | None:
    """What contradicts the row's unit on this node; None if nothing does.

    ``shares`` are the sizes of the row's shares on the node, in bytes of the unit in force.
    """
    if row.unit is None or not unit_bytes:
        return None
    doubts: list[UnitDoubt] = []
    if row.unit.doubt is not None:
        doubts += row.unit.doubt(node, unit_bytes)
    smallest = min((share for share in shares if share > 0), default=LEAST_SHARE)
    if smallest < LEAST_SHARE:
        least = -(-LEAST_SHARE * unit_bytes // smallest // MIB)
        doubts.append(UnitDoubt(f"a share has {exact_size(smallest)}", least))
    if not doubts:
        return None
    least = max(doubt.least for doubt in doubts)
    bounds = [doubt.most for doubt in doubts if doubt.most is not None]
    if row.unit.most is not None and (most := row.unit.most(node)) is not None:
        bounds.append(most)
    whole = UnitDoubt(doubts[0].problem, least, min(bounds, default=None))
    return NodeDoubt(node.name, row, unit_bytes, whole)


def sizes_by_scheme(holdings: Iterable[Holding]) -> dict[Scheme, list[int]]:
    """The known sizes of shares, in bytes."""
    sizes: dict[Scheme, list[int]] = {}
    for holding in holdings:
        if holding.share.memory_bytes is not None:
            sizes.setdefault(holding.scheme, []).append(holding.share.memory_bytes)
    return sizes


def doubt_notes(doubts: Iterable[NodeDoubt]) -> Iterator[str]:
    """One line for each flag: the nodes, the first problem, and the units that would fit all."""
    for flag, of_flag in _by_flag(doubts).items():
        names = list(dict.fromkeys(doubt.node for doubt in of_flag))
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        first = of_flag[0]
        yield (
            f"unit unconfirmed on {', '.join(names[:_NAMED])}{more}: {first.doubt.problem} with"
            f" {flag} {_text(flag, first.unit_bytes)}{_fitting(flag, of_flag, '; ')}"
        )


def short_notes(doubts: Iterable[NodeDoubt]) -> Iterator[str]:
    """The same in short lines without the nodes, the units that would fit first."""
    for flag, of_flag in _by_flag(doubts).items():
        in_force = f"{flag} {_text(flag, of_flag[0].unit_bytes)}"
        yield f"unit unconfirmed{_fitting(flag, of_flag, ', ')} ({in_force})"


def _by_flag(doubts: Iterable[NodeDoubt]) -> dict[str, list[NodeDoubt]]:
    by_flag: dict[str, list[NodeDoubt]] = {}
    for doubt in doubts:
        if doubt.row.unit is not None:
            by_flag.setdefault(doubt.row.unit.flag, []).append(doubt)
    return by_flag


def _fitting(flag: str, doubts: Iterable[NodeDoubt], mark: str) -> str:
    """The units that would fit all these nodes, as text behind ``mark``."""
    least, bounds = 1, []
    for node_doubt in doubts:
        least = max(least, node_doubt.doubt.least)
        if node_doubt.doubt.most is not None:
            bounds.append(node_doubt.doubt.most)
    most = min(bounds, default=None)
    if most is not None and most < least:
        return f"{mark}no unit fits all of them: the nodes' plugins may run with different units"
    if most == least:
        return f"{mark}{_text(flag, least * MIB)} would fit"
    if most is None:
        return f"{mark}{_text(flag, least * MIB)} or more would fit"
    return f"{mark}{_text(flag, least * MIB)} to {_text(flag, most * MIB)} would fit"


def _text(flag: str, unit_bytes: int) -> str:
    """The unit as the flag has it: a factor is a number of MiB."""
    mebibytes = unit_bytes // MIB
    return str(mebibytes) if flag.endswith("factor") else f"{mebibytes}MiB"


def doubts_of(
    nodes: Iterable[Node],
    shares: Mapping[str, Mapping[Scheme, Sequence[int]]],
    rows: Iterable[SchemeRow],
    unit_bytes: Mapping[str, int | None],
) -> tuple[NodeDoubt, ...]:
    """The doubts about all nodes; ``shares`` are sizes in bytes by node and scheme."""
    known_rows = [row for row in rows if row.unit is not None]
    return tuple(
        doubt
        for node in nodes
        for row in known_rows
        if row.has_devices(node)
        and (
            doubt := unit_doubt(
                node,
                row,
                unit_bytes.get(row.name) or 0,
                shares.get(node.name, {}).get(row.scheme, ()),
            )
        )
    )
