"""The rows of nodes, with a cell for each GPU: filters, orders, pages. Pure.

/nodes?sort=free&filter=gpu-&system=hami&page=2
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from fleet.measured import known_as
from fleet.problems import NEEDS_ACTION, FleetProblem
from fleet.snapshot import FleetSnapshot
from vgpucli.inspect.document import NodeDocument, NvidiaDocument

PAGE: Final = 100
"""Number of nodes, or of problems, on a page."""

_Entry = TypeVar("_Entry")


def page_of(
    entries: Sequence[_Entry], query: Mapping[str, str]
) -> tuple[Sequence[_Entry], int, int]:
    """The entries of the page that the query asks for, its number, and the number of pages."""
    pages = max(1, -(-len(entries) // PAGE))
    wanted = query.get("page", "1")
    page = min(pages, max(1, int(wanted))) if wanted.isdecimal() and len(wanted) < 7 else 1
    return entries[(page - 1) * PAGE : page * PAGE], page, pages


class NodeRow(msgspec.Struct, frozen=True, rename="camel"):
    """A node as ``vgpu inspect`` has it, and the number of problems on it and on its GPUs.

    ``used`` are the bytes that its pods use, by GPU; a GPU whose use is unknown is missing.
    ``nvidia`` is what it has of NVIDIA's own plugin; ``isNvidias`` is a node that ``vgpu inspect``
    lists there alone.
    """

    node: NodeDocument
    problems: int
    used: Mapping[str, int] = {}
    nvidia: tuple[NvidiaDocument, ...] = ()
    is_nvidias: bool = False


class NodesView(msgspec.Struct, frozen=True, rename="camel"):
    """One page of the chosen nodes.

    Attributes:
        rows: the nodes of the page.
        total: number of all nodes.
        chosen: number of those that the filters choose.
        page, pages: which page, from 1, and how many there are.
        sort: the order.
        filters: their texts by name; "" chooses all.
    """

    rows: tuple[NodeRow, ...]
    total: int
    chosen: int
    page: int
    pages: int
    sort: str
    filters: Mapping[str, str]


def _free(row: NodeRow) -> int:
    return row.node.memory_available_bytes


def _held(row: NodeRow) -> int:
    return sum(device.memory_held_bytes for device in row.node.devices)


def _used(row: NodeRow) -> int:
    return sum(row.used.values())


SORTS: Final[Mapping[str, Callable[[NodeRow], tuple[object, ...]]]] = {
    "problems": lambda row: (-row.problems, row.node.name),
    "name": lambda row: (row.node.name,),
    "free": lambda row: (-_free(row), row.node.name),
    "held": lambda row: (-_held(row), row.node.name),
    "used": lambda row: (-_used(row), row.node.name),
    "gpus": lambda row: (-len(row.node.devices), row.node.name),
}
"""The orders; the first is the default."""


def _holds(row: NodeRow, namespace: str) -> bool:
    node = row.node
    holdings = (*node.unplaced, *(held for device in node.devices for held in device.holdings))
    holders = (holder for each in row.nvidia for holder in each.holders)
    pods = (*(held.pod for held in holdings), *(holder.pod for holder in holders))
    return any(pod.namespace == namespace for pod in pods)


FILTERS: Final[Mapping[str, Callable[[NodeRow, str], bool]]] = {
    "text": lambda row, text: text.lower() in row.node.name.lower(),
    "model": lambda row, text: (
        text in {device.model for device in row.node.devices}
        or text in {each.model for each in row.nvidia}
    ),
    "system": lambda row, text: text in row.node.systems,
    "namespace": _holds,
    "state": lambda row, text: (text == "problems") == bool(row.problems),
}
"""Whether a filter with this text chooses a node."""


def used_on(node: NodeDocument, used: Mapping[tuple[str, str], int]) -> dict[str, int]:
    """The used bytes of the GPUs of one node."""
    names = map(known_as, node.devices)
    return {name: used[node.name, name] for name in names if (node.name, name) in used}


def nodes_view(
    snapshot: FleetSnapshot,
    problems: tuple[FleetProblem, ...],
    used: Mapping[tuple[str, str], int],
    query: Mapping[str, str],
) -> NodesView:
    """The page that the query asks for; unknown orders and pages are the first ones."""
    counts: dict[str, int] = {}
    for problem in problems:
        name = problem.name if problem.kind == "Node" else problem.node
        if problem.severity in NEEDS_ACTION:
            counts[name] = counts.get(name, 0) + 1
    only = {node.name for node in snapshot.nvidia_nodes}
    nvidia: dict[str, list[NvidiaDocument]] = {}
    for each in snapshot.inspect.nvidia:
        nvidia.setdefault(each.node, []).append(each)
    rows = [
        NodeRow(
            node,
            counts.get(node.name, 0),
            used_on(node, used),
            tuple(nvidia.get(node.name, ())),
            is_nvidias=node.name in only,
        )
        for node in snapshot.nodes
    ]
    filters = {name: query.get(name, "") for name in FILTERS}
    chosen = [
        row
        for row in rows
        if all(not text or FILTERS[name](row, text) for name, text in filters.items())
    ]
    sort = query.get("sort", "")
    sort = sort if sort in SORTS else next(iter(SORTS))
    chosen.sort(key=SORTS[sort])
    shown, page, pages = page_of(chosen, query)
    return NodesView(tuple(shown), len(rows), len(chosen), page, pages, sort, filters)
