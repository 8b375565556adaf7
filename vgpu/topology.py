"""How near a node's GPUs are to one another: a tree, as gpu-manager draws it, and what is free.

Leaves are GPUs; an inner node joins all GPUs that reach one another over a link of its level or
a nearer one. The tree never changes. What is taken is counted on the GPUs, always again from the
shares that are held: nothing has to be returned, so nothing can be returned twice.

Levels are NVML's (``nvmlGpuTopologyLevel_t``); the drawing is that of gpu-manager
``pkg/device/nvidia/tree.go``.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from itertools import combinations

import msgspec

from vgpu.model import Share
from vgpu.reasons import Reason, SourceError
from vgpu.units import MILLI_PER_PERCENT, WHOLE_DEVICE_MILLI


class LinkLevel(IntEnum):
    """What two GPUs have between them, the nearest first; ``name`` is what the drawing reports."""

    GPU = 0  # one GPU; or two on one board, which count as PIX
    PIX = 10  # one PCIe switch
    PXB = 20  # several PCIe switches
    PHB = 30  # a host bridge
    CPU = 40  # a CPU
    SYS = 50  # the link between CPUs
    ROOT = 60


INNER = (LinkLevel.PIX, LinkLevel.PXB, LinkLevel.PHB, LinkLevel.CPU, LinkLevel.SYS)


class TopologyGpu(msgspec.Struct, frozen=True, gc=False):
    """One GPU, and how much of it is taken.

    Attributes:
        index: its number to the driver, as the drawing shows it.
        minor: the N of ``/dev/nvidia<N>``, which gpu-manager calls it by.
        uuid: "" if unknown.
        bus_id: its PCI bus ID, "" if unknown.
        memory_bytes: all its memory.
        held_milli, held_bytes: thousandths of its cores, and memory, that were promised.
        used_bytes: what processes really use.
        pids: the processes on it.
    """

    index: int
    minor: int
    uuid: str = ""
    bus_id: str = ""
    memory_bytes: int = 0
    held_milli: int = 0
    held_bytes: int = 0
    used_bytes: int = 0
    pids: tuple[int, ...] = ()

    @property
    def free_milli(self) -> int:
        """Thousandths of its cores that may still be promised."""
        return max(0, WHOLE_DEVICE_MILLI - self.held_milli)

    @property
    def free_bytes(self) -> int:
        """Memory that may still be promised."""
        return max(0, self.memory_bytes - self.held_bytes)

    @property
    def untouched(self) -> bool:
        """Whether nobody has any part of it."""
        return self.held_milli == 0 == self.held_bytes


class TopologyNode(msgspec.Struct, frozen=True):
    """A node of the tree: ``cards`` are positions in :attr:`TopologyTree.cards`, ascending."""

    level: LinkLevel
    cards: tuple[int, ...]
    children: tuple["TopologyNode", ...] = ()


class TopologyTree(msgspec.Struct, frozen=True):
    """A node's GPUs and what joins them; leaves are in the order of ``cards``."""

    cards: tuple[TopologyGpu, ...]
    root: TopologyNode

    def available(self, group: TopologyNode) -> tuple[TopologyGpu, ...]:
        """The group's GPUs that nobody has any part of, in order."""
        return tuple(self.cards[at] for at in group.cards if self.cards[at].untouched)

    def paths(self) -> Iterator[tuple[TopologyNode, ...]]:
        """For each GPU the groups above it, from its leaf to the one below the root."""
        for at in range(len(self.cards)):
            path, group = [], self.root
            while group.level is not LinkLevel.GPU:
                group = next(child for child in group.children if at in child.cards)
                path.append(group)
            yield tuple(reversed(path))

    def holding(self, shares: Iterable[Share]) -> "TopologyTree":
        """The same tree with these shares taken as well."""
        return TopologyTree(holding(self.cards, shares), self.root)


def grow(cards: Iterable[TopologyGpu], between: Callable[[int, int], LinkLevel]) -> TopologyTree:
    """The tree of these GPUs; ``between`` tells the level of two positions, the lower first."""
    all_cards = tuple(cards)
    positions = range(len(all_cards))
    groups = [TopologyNode(LinkLevel.GPU, (at,)) for at in positions]
    first = list(positions)  # of the GPUs within reach of each GPU
    for level in INNER:
        for low, high in combinations(positions, 2):
            if first[low] != first[high] and between(low, high) <= level:
                joined = (first[low], first[high])
                first = [min(joined) if at in joined else at for at in first]
        groups = [
            _joined(level, [group for group in groups if first[group.cards[0]] == at])
            for at in sorted(set(first))
        ]
    return TopologyTree(all_cards, TopologyNode(LinkLevel.ROOT, tuple(positions), tuple(groups)))


def _joined(level: LinkLevel, groups: list[TopologyNode]) -> TopologyNode:
    """One group of these; a level with nothing to join has no node."""
    if len(groups) == 1:
        return groups[0]
    return TopologyNode(
        level, tuple(sorted(at for group in groups for at in group.cards)), tuple(groups)
    )


def holding(cards: Sequence[TopologyGpu], shares: Iterable[Share]) -> tuple[TopologyGpu, ...]:
    """The GPUs with these shares taken as well; shares of other devices change nothing here.

    A share names its GPU by UUID or minor number. What it does not limit it takes whole, and with
    all cores it takes all memory.
    """
    position = {name: at for at, card in enumerate(cards) for name in (str(card.minor), card.uuid)}
    position.pop("", None)
    held = list(cards)
    for share in shares:
        at = position.get(share.device)
        if at is not None:
            held[at] = _holding(held[at], share)
    return tuple(held)


def _holding(card: TopologyGpu, share: Share) -> TopologyGpu:
    cores, memory = share.cores_milli, share.memory_bytes
    if memory is None or (cores or 0) >= WHOLE_DEVICE_MILLI:
        memory = card.memory_bytes
    return msgspec.structs.replace(
        card,
        held_milli=card.held_milli + (WHOLE_DEVICE_MILLI if cores is None else cores),
        held_bytes=card.held_bytes + memory,
    )


# ---------------------------------------------------------------- the text of nvidia-smi topo -m

MOST_CARDS = 64
MATRIX_LIMIT = 64 * 1024
"""Characters."""

_LINKS: Mapping[str, LinkLevel] = {
    "PIX": LinkLevel.PIX,
    "PXB": LinkLevel.PXB,
    "PHB": LinkLevel.PHB,
    "NODE": LinkLevel.CPU,
    "SOC": LinkLevel.CPU,  # old drivers; gpu-manager takes it so
    "SYS": LinkLevel.SYS,
}
_NVLINK = re.compile(r"NV[0-9]{1,2}")
_CARD_NAME = re.compile(r"GPU([0-9]{1,2})")
_COLOUR = re.compile(r"\x1b\[[0-9;]{0,16}m")


def parse_matrix(text: str, subject: str = "topology matrix") -> tuple[tuple[LinkLevel, ...], ...]:
    """The levels between all GPUs, from ``nvidia-smi topo -m``.

    NVLink (``NV1`` …) hides what PCIe there is; it is nearer than any and read as PIX. Network
    GPUs, affinities and the legend are passed over.

    Raises SourceError MALFORMED, TOO_LARGE.
    """
    if len(text) > MATRIX_LIMIT:
        raise SourceError(Reason.TOO_LARGE, subject, f"{len(text)} characters")
    lines = [words for line in _COLOUR.sub("", text).split("\n") if (words := line.split())]
    names = [word for word in lines[0] if _CARD_NAME.fullmatch(word)] if lines else []
    if (
        names != [f"GPU{number}" for number in range(len(names))]
        or not 0 < len(names) <= MOST_CARDS
    ):
        raise SourceError(Reason.MALFORMED, subject, f"line 1: not 1 to {MOST_CARDS} GPUs in order")
    rows = [words for words in lines[1:] if _CARD_NAME.fullmatch(words[0])]
    if [words[0] for words in rows] != names or any(len(words) <= len(names) for words in rows):
        raise SourceError(Reason.MALFORMED, subject, "not one whole row for each GPU, in order")
    matrix = tuple(
        tuple(
            _level(word, f"{words[0]}, {name}", subject)
            for name, word in zip(names, words[1:], strict=False)  # affinities follow
        )
        for words in rows
    )
    for at, row in enumerate(matrix):
        for other, level in enumerate(row):
            if (level is LinkLevel.GPU) != (at == other) or level != matrix[other][at]:
                raise SourceError(Reason.MALFORMED, subject, f"GPU{at}, GPU{other}: contradiction")
    return matrix


def _level(word: str, where: str, subject: str) -> LinkLevel:
    if word in ("X", "x"):
        return LinkLevel.GPU
    level = LinkLevel.PIX if _NVLINK.fullmatch(word) else _LINKS.get(word)
    if level is None:
        raise SourceError(Reason.MALFORMED, subject, f"{where}: no link is called {word[:16]!r}")
    return level


# ---------------------------------------------------------------- the drawing


def draw(tree: TopologyTree) -> str:
    """The text of gpu-manager's PrintGraph: memory in bytes, cores in percent.

    Siblings are sorted by level, by how many GPUs are free, and by their first GPU. Of inner
    nodes the original counts nothing allocatable, ever.
    """
    lines = [f"ROOT:{len(tree.available(tree.root))}"]
    lines += _lines(tree, tree.root, depth=0)
    return "".join(f"{line}\n" for line in lines)


def _lines(tree: TopologyTree, group: TopologyNode, depth: int) -> Iterator[str]:
    for child in sorted(group.children, key=lambda child: _drawn_before(tree, child)):
        yield f"{'|   ' * depth}|---{_label(tree, child)}"
        yield from _lines(tree, child, depth + 1)


def _drawn_before(tree: TopologyTree, group: TopologyNode) -> tuple[int, int, int]:
    first = min(tree.cards[at].minor for at in group.cards)
    return group.level, len(tree.available(group)), first


def _label(tree: TopologyTree, group: TopologyNode) -> str:
    cards = [tree.cards[at] for at in group.cards]
    leaf = cards[0] if group.level is LinkLevel.GPU else None
    name = (
        f"GPU{leaf.index} ("
        if leaf
        else f"{group.level.name} (aval: {len(tree.available(group))}, "
    )
    pids = " ".join(str(pid) for card in cards for pid in card.pids)
    return (
        f"{name}pids: [{pids}], usedMemory: {sum(card.used_bytes for card in cards)}, "
        f"totalMemory: {sum(card.memory_bytes for card in cards)}, "
        f"allocatableCores: {leaf.free_milli // MILLI_PER_PERCENT if leaf else 0}, "
        f"allocatableMemory: {leaf.free_bytes if leaf else 0})"
    )
