"""What ``kubectl inspect gpushare`` prints, and with ``-d``, byte for byte.

Of gpushare-device-plugin's ``cmd/inspect``, with its ways: a node's memory is what is allocatable,
its GPUs are all of the average size, a pod is on the GPU that its annotations name or else
pending, and numbers are in the plugin's units, whose name is guessed. Only the order of nodes and
pods, random in the original, is by name. For the truth ask the ledger.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Final

import msgspec

from vgpu.kube.objects import Node, Pod
from vgpu.model import ContainerKind
from vgpu.schemes.codec import ClaimError
from vgpu.schemes.gpushare.annotations import ALLOCATION, INDEX
from vgpu.schemes.gpushare.node import CARDS, MEMORY, MOST_CARDS
from vgpu.tabwriter import align

_PENDING: Final = -1  # the card of a pod whose annotations name none
_MOST_GIB = 100  # a card of more units is taken to be counted in MiB
_SUMMARY_DASHES = 20  # more than the first node's row has bytes
_DETAIL_DASHES = 10  # more than the rows of the first node's pods have bytes
_IN_CLUSTER = "Allocated/Total GPU Memory In Cluster:"

_DECIMAL = re.compile(r"([+-]?)0*([0-9]{1,19})")
_MOST_INT64 = 2**63 - 1
_Amount = Annotated[int, msgspec.Meta(ge=-_MOST_INT64 - 1, le=_MOST_INT64)]
_BY_CONTAINER = msgspec.json.Decoder(dict[str, dict[str, _Amount | None] | None] | None)


class _Usage(msgspec.Struct, frozen=True):
    """A node as the original sees it, in units of memory.

    Attributes:
        node: the node.
        total: of all GPUs.
        count: how many GPUs.
        rows: the pods that ask for memory, by name, each with what its row shows by column;
            the column after the last GPU's is that of pending memory.
        used: by GPU, of all that exist or that a pod names, whatever its number.
    """

    node: Node
    total: int
    count: int
    rows: tuple[tuple[Pod, Mapping[int, int]], ...]
    used: Mapping[int, int]

    @property
    def card_total(self) -> int:
        return self.total // self.count if self.count else 0

    @property
    def has_pending(self) -> bool:
        return _PENDING in self.used

    @property
    def address(self) -> str:
        return self.node.address or "unknown"


def summary(nodes: Iterable[Node], pods: Iterable[Pod]) -> str:
    """One row a node: used and total of every GPU and of the node. Raises ClaimError."""
    usages = _usages(nodes, pods)
    cards = range(max((usage.count for usage in usages), default=0))
    pending = any(usage.has_pending for usage in usages)
    header = ["NAME", "IPADDRESS", *(f"GPU{card}(Allocated/Total)" for card in cards)]
    header += ["PENDING(Allocated)"] if pending else []
    rows, cluster_used = [], 0
    for usage in usages:
        shown = [card for card in (*cards, _PENDING) if card in usage.used]
        used = sum(usage.used[card] for card in shown)
        cells = [usage.node.name, usage.address]
        cells += [
            f"{usage.used[card]}/{usage.card_total}" if card in usage.used else "0/0"
            for card in cards
        ]
        if pending:
            cells.append(str(usage.used[_PENDING]) if usage.has_pending else "")
        rows.append("\t".join([*cells, f"{used}/{usage.total}\n"]))
        cluster_used += used
    dashes = len(rows[0].encode()) + _SUMMARY_DASHES if rows else 0
    header.append(f"GPU Memory({_unit_name(usages)})\n")
    cluster = _used_of_total(cluster_used, usages)
    return align(
        "".join(["\t".join(header), *rows, "-" * dashes, f"\n{_IN_CLUSTER}\n{cluster}\t\n"])
    )


def details(nodes: Iterable[Node], pods: Iterable[Pod]) -> str:
    """A table a node, one row a pod: what it has of every GPU. Raises ClaimError."""
    usages = _usages(nodes, pods)
    text: list[str] = []
    cluster_used, dashes = 0, 0
    for usage in usages:
        columns = range(usage.count + usage.has_pending)
        header = ["NAME", "NAMESPACE", *(f"GPU{card}(Allocated)" for card in range(usage.count))]
        header += ["Pending(Allocated)"] if usage.has_pending else []
        rows = "".join(
            "\t".join([pod.ref.name, pod.ref.namespace, *(str(row.get(c, 0)) for c in columns)])
            + "\t\n"
            for pod, row in usage.rows
        )
        dashes = dashes or len(rows.encode()) + _DETAIL_DASHES
        used = sum(usage.used.values())
        text += [
            f"\nNAME:\t{usage.node.name}\nIPADDRESS:\t{usage.address}\n\n",
            "\t".join(header) + "\t\n",
            rows,
            f"Allocated :\t{used} ({_percent(used, usage.total)}%)\t\n",
            f"Total :\t{usage.total} \t\n",
            "-" * dashes + "\n",
        ]
        cluster_used += used
    text.append(f"\n\n{_IN_CLUSTER}\t{_used_of_total(cluster_used, usages)}\t\n")
    return align("".join(text))


def _usages(nodes: Iterable[Node], pods: Iterable[Pod]) -> list[_Usage]:
    """The nodes that have memory to share, and their active pods, both by name."""
    tenants = defaultdict(list)
    for pod in sorted(pods, key=lambda pod: (pod.ref.name, pod.ref.namespace, pod.ref.uid)):
        if not pod.terminal:
            tenants[pod.node].append(pod)
    return [
        _usage(node, tenants[node.name])
        for node in sorted(nodes, key=lambda node: node.name)
        if node.allocatable.get(MEMORY, 0) > 0
    ]


def _usage(node: Node, pods: Sequence[Pod]) -> _Usage:
    count = node.allocatable.get(CARDS, 0)
    if not 0 <= count <= MOST_CARDS:
        raise ClaimError(f"node {node.name}", CARDS, str(count), "no such number of cards")
    used = dict.fromkeys(range(count), 0)
    rows: list[tuple[Pod, Mapping[int, int]]] = []
    for pod in pods:
        asked = sum(
            container.limits.get(MEMORY, 0)
            for container in pod.containers
            if container.kind is ContainerKind.APP
        )
        if asked <= 0:
            continue
        row = by_card = _allocation(pod)
        if not by_card:
            card = _integer(pod.annotations.get(INDEX, ""))
            by_card = {_PENDING if card is None else card: asked}
            row = {count: asked} if _PENDING in by_card else by_card
        rows.append((pod, row))
        for card, units in by_card.items():
            used[card] = used.get(card, 0) + units
    return _Usage(node, node.allocatable[MEMORY], count, tuple(rows), used)


def _allocation(pod: Pod) -> dict[int, int]:
    """Units by GPU in ACK's annotation; nothing if there is anything wrong with it.

    Looser than a scheme's reading, as Go reads JSON into a map: numbers with signs and leading
    zeros, the last of several equal keys, null for nothing.
    """
    try:
        told = _BY_CONTAINER.decode(pod.annotations.get(ALLOCATION, "").encode(errors="replace"))
    except (msgspec.DecodeError, RecursionError):
        return {}
    containers = {_integer(number): cards or {} for number, cards in (told or {}).items()}
    units: dict[int, int] = {}
    for cards in containers.values():
        for text, amount in cards.items():
            card = _integer(text)
            if card is None:
                return {}
            units[card] = units.get(card, 0) + (amount or 0)
    return {} if None in containers else units


def _integer(text: str) -> int | None:
    """What Go's ``strconv.Atoi`` makes of a text; None where it fails."""
    parts = _DECIMAL.fullmatch(text)
    if parts is None:
        return None
    number = int(parts[2]) * (-1 if parts[1] == "-" else 1)
    return number if -_MOST_INT64 - 1 <= number <= _MOST_INT64 else None


def _unit_name(usages: Iterable[_Usage]) -> str:
    """By the first node that has GPUs, as the original guesses it."""
    for usage in usages:
        if usage.count:
            return "MiB" if usage.card_total > _MOST_GIB else "GiB"
    return ""


def _used_of_total(used: int, usages: Iterable[_Usage]) -> str:
    total = sum(usage.total for usage in usages)
    return f"{used}/{total} ({_percent(used, total)}%)"


def _percent(used: int, total: int) -> int:
    """Truncated after a division of floats: 29 of 100 are 28."""
    return int(used / total * 100) if total else 0
