"""The GPU topology of a node: a tree, as gpu-manager draws it, with free amounts.

Leaves are GPUs; an inner node joins all GPUs that reach one another over a link of its level or
a nearer one. The tree never changes. Held amounts are counted on the GPUs, always again from the
held shares: nothing has to be returned, so nothing can be returned twice.

Levels are NVML's (``nvmlGpuTopologyLevel_t``); the drawing is that of gpu-manager
``pkg/device/nvidia/tree.go``.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from itertools import combinations

import msgspec

from vgpu.model.allocation import Share
from vgpu.model.names import device_node
from vgpu.model.reasons import Reason, SourceError
from vgpu.model.units import MILLI_PER_PERCENT, WHOLE_DEVICE_MILLI


class LinkLevel(IntEnum):
    """The link between two GPUs, the nearest first; the drawing shows its ``name``."""

    GPU = 0  # one GPU; or two on one board, which count as PIX
    NVLINK = 5  # ours, beside NVML's: gpu-manager's drawing has PCIe levels only
    PIX = 10  # one PCIe switch
    PXB = 20  # several PCIe switches
    PHB = 30  # a host bridge
    CPU = 40  # a CPU
    SYS = 50  # the link between CPUs
    ROOT = 60


PCIE = (LinkLevel.PIX, LinkLevel.PXB, LinkLevel.PHB, LinkLevel.CPU, LinkLevel.SYS)
"""The levels of gpu-manager's drawing; a nearer link counts as the first."""

LEVELS = (LinkLevel.NVLINK, *PCIE)
"""All levels of groups."""


class TopologyGpu(msgspec.Struct, frozen=True, gc=False):
    """One GPU, and how much of it is held.

    Attributes:
        index: its number to the driver, as the drawing shows it.
        minor: the N of ``/dev/nvidia<N>``, which gpu-manager calls it by; None if unknown.
        uuid: "" if unknown.
        bus_id: its PCI bus ID, "" if unknown.
        memory_bytes: all its memory.
        held_milli, held_bytes: thousandths of its cores, and memory, that shares hold.
        used_bytes: memory that processes use.
        pids: the processes on it.
    """

    index: int
    minor: int | None
    uuid: str = ""
    bus_id: str = ""
    memory_bytes: int = 0
    held_milli: int = 0
    held_bytes: int = 0
    used_bytes: int = 0
    pids: tuple[int, ...] = ()

    @property
    def node(self) -> str:
        """The path of its device node; "" if unknown."""
        return "" if self.minor is None else device_node(self.minor)

    @property
    def by_minor(self) -> tuple[bool, int]:
        """The key of the order of minor numbers; unknown ones come last, by index."""
        return self.minor is None, self.index if self.minor is None else self.minor

    @property
    def free_milli(self) -> int:
        """Thousandths of the GPU's cores that may still be allocated."""
        return max(0, WHOLE_DEVICE_MILLI - self.held_milli)

    @property
    def free_bytes(self) -> int:
        """Memory that may still be allocated."""
        return max(0, self.memory_bytes - self.held_bytes)

    @property
    def untouched(self) -> bool:
        """Whether no share holds any part of the GPU."""
        return self.held_milli == 0 == self.held_bytes


class TopologyNode(msgspec.Struct, frozen=True):
    """A node of the tree: ``gpus`` are positions in :attr:`TopologyTree.gpus`, ascending."""

    level: LinkLevel
    gpus: tuple[int, ...]
    children: tuple["TopologyNode", ...] = ()


class TopologyTree(msgspec.Struct, frozen=True):
    """A node's GPUs and their links; leaves are in the order of ``gpus``."""

    gpus: tuple[TopologyGpu, ...]
    root: TopologyNode

    def available(self, group: TopologyNode) -> tuple[TopologyGpu, ...]:
        """The group's GPUs of which no share holds any part, in order."""
        return tuple(self.gpus[index] for index in group.gpus if self.gpus[index].untouched)

    def paths(self) -> Iterator[tuple[TopologyNode, ...]]:
        """For each GPU the groups above it, from its leaf to the one below the root."""
        for index in range(len(self.gpus)):
            path, group = [], self.root
            while group.level is not LinkLevel.GPU:
                group = next(child for child in group.children if index in child.gpus)
                path.append(group)
            yield tuple(reversed(path))

    def holding(self, shares: Iterable[Share]) -> "TopologyTree":
        """The same tree with these shares held as well."""
        return TopologyTree(holding(self.gpus, shares), self.root)


def grow(
    topology_gpus: Iterable[TopologyGpu],
    between: Callable[[int, int], LinkLevel],
    levels: Iterable[LinkLevel] = PCIE,
) -> TopologyTree:
    """The tree of these GPUs; ``between`` returns the level of two positions, the lower first.

    ``levels`` are those of the groups, the nearest first.
    """
    gpus = tuple(topology_gpus)
    positions = range(len(gpus))
    groups = [TopologyNode(LinkLevel.GPU, (position,)) for position in positions]
    first_in_reach = list(positions)  # by position, the first GPU within reach
    for level in levels:
        for low, high in combinations(positions, 2):
            if first_in_reach[low] != first_in_reach[high] and between(low, high) <= level:
                joined = (first_in_reach[low], first_in_reach[high])
                first_in_reach = [
                    min(joined) if position in joined else position for position in first_in_reach
                ]
        groups = [
            _joined(level, [group for group in groups if first_in_reach[group.gpus[0]] == position])
            for position in sorted(set(first_in_reach))
        ]
    return TopologyTree(gpus, TopologyNode(LinkLevel.ROOT, tuple(positions), tuple(groups)))


def _joined(level: LinkLevel, groups: list[TopologyNode]) -> TopologyNode:
    """One group of these; a level that joins nothing has no node."""
    if len(groups) == 1:
        return groups[0]
    return TopologyNode(
        level,
        tuple(sorted(position for group in groups for position in group.gpus)),
        tuple(groups),
    )


def holding(
    topology_gpus: Sequence[TopologyGpu], shares: Iterable[Share]
) -> tuple[TopologyGpu, ...]:
    """The GPUs with these shares held as well; shares of other devices change nothing here.

    A share names its GPU by UUID or device node. An amount that it does not limit is held as a
    whole, and all cores hold all memory.
    """
    position = {
        name: index for index, gpu in enumerate(topology_gpus) for name in (gpu.node, gpu.uuid)
    }
    position.pop("", None)
    held = list(topology_gpus)
    for share in shares:
        index = position.get(share.device)
        if index is not None:
            held[index] = _holding(held[index], share)
    return tuple(held)


def _holding(gpu: TopologyGpu, share: Share) -> TopologyGpu:
    cores, memory = share.cores_milli, share.memory_bytes
    if memory is None or (cores or 0) >= WHOLE_DEVICE_MILLI:
        memory = gpu.memory_bytes
    return msgspec.structs.replace(
        gpu,
        held_milli=gpu.held_milli + (WHOLE_DEVICE_MILLI if cores is None else cores),
        held_bytes=gpu.held_bytes + memory,
    )


# ---------------------------------------------------------------- the text of nvidia-smi topo -m

MOST_GPUS = 64
MATRIX_LIMIT = 64 * 1024
"""Maximum length of the text, in characters."""

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


def parse_matrix(
    text: str, object_name: str = "topology matrix"
) -> tuple[tuple[LinkLevel, ...], ...]:
    """The levels between all GPUs, from ``nvidia-smi topo -m``.

    NVLink (``NV1`` …) hides the PCIe link. Network adapters, affinities and the legend are skipped.

    Raises SourceError MALFORMED, TOO_LARGE.
    """
    if len(text) > MATRIX_LIMIT:
        raise SourceError(Reason.TOO_LARGE, object_name, f"{len(text)} characters")
    lines = [columns for line in _COLOUR.sub("", text).split("\n") if (columns := line.split())]
    names = [column for column in lines[0] if _CARD_NAME.fullmatch(column)] if lines else []
    if names != [f"GPU{number}" for number in range(len(names))] or not 0 < len(names) <= MOST_GPUS:
        raise SourceError(
            Reason.MALFORMED, object_name, f"line 1: not 1 to {MOST_GPUS} GPUs in order"
        )
    rows = [columns for columns in lines[1:] if _CARD_NAME.fullmatch(columns[0])]
    if [columns[0] for columns in rows] != names or any(
        len(columns) <= len(names) for columns in rows
    ):
        raise SourceError(Reason.MALFORMED, object_name, "not one whole row for each GPU, in order")
    matrix = tuple(
        tuple(
            _level(column, f"{columns[0]}, {name}", object_name)
            for name, column in zip(names, columns[1:], strict=False)  # affinities follow
        )
        for columns in rows
    )
    for index, row in enumerate(matrix):
        for other, level in enumerate(row):
            if (level is LinkLevel.GPU) != (index == other) or level != matrix[other][index]:
                raise SourceError(
                    Reason.MALFORMED, object_name, f"GPU{index}, GPU{other}: contradiction"
                )
    return matrix


def _level(link: str, where: str, object_name: str) -> LinkLevel:
    if link in ("X", "x"):
        return LinkLevel.GPU
    level = LinkLevel.NVLINK if _NVLINK.fullmatch(link) else _LINKS.get(link)
    if level is None:
        raise SourceError(
            Reason.MALFORMED, object_name, f"{where}: no link is called {link[:16]!r}"
        )
    return level


# ---------------------------------------------------------------- the drawing


def draw(tree: TopologyTree) -> str:
    """The text of gpu-manager's PrintGraph: memory in bytes, cores in percent.

    Siblings are sorted by level, by number of free GPUs, and by their first GPU. The original
    never counts anything of inner nodes as allocatable.
    """
    lines = [f"ROOT:{len(tree.available(tree.root))}"]
    lines += _lines(tree, tree.root, depth=0)
    return "".join(f"{line}\n" for line in lines)


def _lines(tree: TopologyTree, group: TopologyNode, depth: int) -> Iterator[str]:
    for child in sorted(group.children, key=lambda child: _drawn_before(tree, child)):
        yield f"{'|   ' * depth}|---{_label(tree, child)}"
        yield from _lines(tree, child, depth + 1)


def _drawn_before(tree: TopologyTree, group: TopologyNode) -> tuple[int, int, tuple[bool, int]]:
    first = min(tree.gpus[index].by_minor for index in group.gpus)
    return group.level, len(tree.available(group)), first


def _label(tree: TopologyTree, group: TopologyNode) -> str:
    gpus = [tree.gpus[index] for index in group.gpus]
    leaf = gpus[0] if group.level is LinkLevel.GPU else None
    name = (
        f"GPU{leaf.index} ("
        if leaf
        else f"{group.level.name} (aval: {len(tree.available(group))}, "
    )
    pids = " ".join(str(pid) for gpu in gpus for pid in gpu.pids)
    return (
        f"{name}pids: [{pids}], usedMemory: {sum(gpu.used_bytes for gpu in gpus)}, "
        f"totalMemory: {sum(gpu.memory_bytes for gpu in gpus)}, "
        f"allocatableCores: {leaf.free_milli // MILLI_PER_PERCENT if leaf else 0}, "
        f"allocatableMemory: {leaf.free_bytes if leaf else 0})"
    )
