"""The GPUs of the nodes of a sharing system in columns: a demand compared with all at once; pure.

A size of pod that no node has answered yet would ask thousands of nodes. Here the dialect is asked
once for all GPUs that compare alike with the demand, and numpy counts for each node:

    alike(a, b)  =>  both fit, or both are refused for the same reason
    the node takes the demand  <=>  number of its GPUs that fit >= number that is requested

GPUs compare alike with a demand if :func:`_kind_of` is the same, and they have enough free memory,
too little, or less than none. The score of a node depends on the sums of its GPUs alone. A node or
a demand for which this does not hold is not answered here, but asked.
"""

from collections.abc import Hashable
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import structs

from scheduler.filter.refusals import NodeAnswer
from vgpu.model.allocation import Request
from vgpu.model.names import ContainerKind
from vgpu.placement.candidate import NO_WISHES, SOFTWARE, CandidateNode, PodDemand, UsedGpu, sums
from vgpu.placement.dialect import SequentialDialect
from vgpu.placement.dialects import SchedulerScheme
from vgpu.placement.result import (
    EXCLUDING,
    UNRESOLVABLE,
    PlacementReason,
    PlacementRefusal,
)

MOST_GPUS: Final = 32
"""Maximum number of GPUs of a node in the columns; one with more is asked."""

MOST_KINDS: Final = 4096
"""Maximum number of kinds of GPUs; beyond it they are numbered again."""

MOST_BYTES: Final = 2**53
"""Sums of bytes below this are exact as floats."""

_REASONS: Final = tuple(PlacementReason)
_NUMBERS: Final = {reason: number for number, reason in enumerate(_REASONS)}
_LASTING: Final = [_NUMBERS[reason] for reason in UNRESOLVABLE]
_UNUSABLE: Final = [
    _NUMBERS[reason] for reason in (*EXCLUDING, PlacementReason.UNHEALTHY, PlacementReason.CORDONED)
]
"""Reasons of GPUs that do not take the pod whatever is free."""
_FITS: Final = -1
_NO_GPU: Final = -2
"""What stands in place of a reason's number where a GPU fits, and where a node has no GPU."""

_Ints = npt.NDArray[np.int64]


class NodeColumns:
    """The columns; each node has a row. Not for several threads: the cache locks."""

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}
        self._nodes: list[CandidateNode] = []
        self._only_devices: list[Hashable | None] = []
        self._empty_rows: list[int] = []
        self._kinds: dict[Hashable, int] = {}
        self._examples: list[UsedGpu] = []
        """A GPU of each kind."""
        self._kind: _Ints = np.empty((0, 0), np.int64)
        """The kind of each GPU by its node and place; 0 where a node has no GPU."""
        self._free: _Ints = np.empty((0, 0), np.int64)
        """Bytes that are free of each GPU, below 0 where more are in use than there are."""
        self._sums: _Ints = np.empty((0, 4), np.int64)
        """The :func:`~vgpu.placement.candidate.sums` of each node."""
        self._most_free: _Ints = np.empty(0, np.int64)
        """``PlacementRefusal.free_bytes`` of each node for a pod without wishes, -1 for none."""

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    def set(self, name: str, node: CandidateNode | None) -> None:
        """The node as every pod finds it; None if pods have to ask it."""
        row = self._rows.get(name)
        if node is None or not _is_plain(node):
            if row is not None:
                del self._rows[name]
                self._kind[row] = 0
                self._empty_rows.append(row)
            return
        if row is None:
            row = self._rows[name] = self._new_row(node)
        if len(node.gpus) > self._kind.shape[1]:
            self._resize(len(self._kind), len(node.gpus))
        self._nodes[row] = node
        self._write(row)
        if len(self._kinds) > MOST_KINDS:
            self._kinds.clear()
            self._examples.clear()
            for other in self._rows.values():
                self._write(other)

    def only_device(self, name: str) -> Hashable | None:
        """Memory and model of the node's GPUs, None if they differ or the node is not here."""
        row = self._rows.get(name)
        return None if row is None else self._only_devices[row]

    def answers(self, scheme: SchedulerScheme, demand: PodDemand) -> dict[str, NodeAnswer]:
        """The answer of each node by its name; nothing of nodes that have to be asked."""
        dialect = scheme.dialect
        if not isinstance(dialect, SequentialDialect) or not self._rows:
            return {}
        request = _only_request(dialect, demand)
        if request is None:
            return {}
        memory = [dialect.memory(request, example) for example in self._examples]
        kind, free = self._kind, self._free
        enough = free >= np.array([0, *(each or 0 for each in memory)])[kind]
        code = 3 * kind + enough + (free >= 0)
        verdicts = self._verdicts(code, request, demand, dialect)[code]

        fitting = verdicts == _FITS
        takes = fitting.sum(axis=1) >= request.count
        # Share.memory_bytes None is all of the GPU.
        shares = [
            example.capacity_bytes if each is None else each
            for each, example in zip(memory, self._examples, strict=True)
        ]
        share = np.array([0, *shares])[kind]
        least = np.where(fitting, share, MOST_BYTES).min(axis=1)
        is_known = ~takes | (least == np.where(fitting, share, -1).max(axis=1))
        added = np.where(takes, least, 0) * request.count
        fullness = self._fullness(added, (dialect.cores(request) or 0) * request.count)
        causes = _causes(verdicts, request.count)
        most_free = self._most_free
        if demand.wishes.use_types or demand.wishes.avoid_types:
            usable = (verdicts != _NO_GPU) & ~np.isin(verdicts, _UNUSABLE)
            most_free = np.where(usable, np.maximum(free, 0), -1).max(axis=1)

        accepting: dict[float, NodeAnswer] = {}
        refusing: dict[tuple[int, int], NodeAnswer] = {}
        columns = (takes, is_known, fullness, causes, most_free)
        rows = list(zip(*(column.tolist() for column in columns), strict=True))
        answers: dict[str, NodeAnswer] = {}
        for name, row in self._rows.items():
            is_taken, is_certain, part, cause, free_there = rows[row]
            if not is_certain:
                continue
            if is_taken:
                answer = accepting.get(part)
                if answer is None:
                    score = dialect.rank_of(demand, part)
                    answer = accepting[part] = NodeAnswer(score=score)
            else:
                answer = refusing.get((cause, free_there))
                if answer is None:
                    free_bytes = None if free_there < 0 else free_there
                    refusal = PlacementRefusal(_REASONS[cause], free_bytes=free_bytes)
                    answer = refusing[cause, free_there] = NodeAnswer.refused(refusal)
            answers[name] = answer
        return answers

    # ------------------------------------------------------------ parts

    def _verdicts(
        self, code: _Ints, request: Request, demand: PodDemand, dialect: SequentialDialect
    ) -> npt.NDArray[np.int8]:
        """The dialect's verdict on the GPUs of each code: :data:`_FITS`, or the reason's number."""
        somewhere = np.full(3 * len(self._examples) + 3, -1)
        somewhere[code.ravel()] = np.arange(code.size)
        verdicts = np.full(len(somewhere), _NO_GPU, np.int8)
        for each in np.flatnonzero(somewhere[3:] >= 0) + 3:
            row, place = divmod(int(somewhere[each]), code.shape[1])
            node = self._nodes[row]
            gpu = node.gpus[place]
            result = dialect.fit(gpu, request, dialect.memory(request, gpu), demand, node)
            verdicts[each] = _NUMBERS[result] if isinstance(result, PlacementReason) else _FITS
        return verdicts

    def _fullness(self, memory: _Ints, cores: int) -> npt.NDArray[np.float64]:
        """:func:`vgpu.placement.dialect.fullness` of each node with these amounts more in use."""
        parts: list[npt.NDArray[np.float64]] = [
            np.divide(in_use, total, out=np.zeros(len(total)), where=total > 0)
            for total, in_use in (
                (self._sums[:, 0], self._sums[:, 1] + memory),
                (self._sums[:, 2], self._sums[:, 3] + cores),
            )
        ]
        fullest: npt.NDArray[np.float64] = np.minimum(1.0, np.maximum(*parts))
        return fullest

    def _new_row(self, node: CandidateNode) -> int:
        if self._empty_rows:
            return self._empty_rows.pop()
        self._nodes.append(node)
        self._only_devices.append(None)
        if len(self._nodes) > len(self._kind):
            self._resize(2 * len(self._nodes), self._kind.shape[1])
        return len(self._nodes) - 1

    def _resize(self, rows: int, places: int) -> None:
        """Make room for so many rows, and GPUs in each."""
        kind, free = np.zeros((rows, places), np.int64), np.zeros((rows, places), np.int64)
        sums, most_free = np.zeros((rows, 4), np.int64), np.zeros(rows, np.int64)
        before = self._kind.shape
        kind[: before[0], : before[1]] = self._kind
        free[: before[0], : before[1]] = self._free
        sums[: before[0]] = self._sums
        most_free[: before[0]] = self._most_free
        self._kind, self._free, self._sums, self._most_free = kind, free, sums, most_free

    def _write(self, row: int) -> None:
        node = self._nodes[row]
        gpus = node.gpus
        devices = {(gpu.device.memory_bytes, gpu.device.model) for gpu in gpus}
        self._only_devices[row] = devices.pop() if len(devices) == 1 else None
        self._kind[row] = 0
        self._kind[row, : len(gpus)] = [self._number(gpu, node) for gpu in gpus]
        self._free[row, : len(gpus)] = [gpu.capacity_bytes - gpu.memory_bytes for gpu in gpus]
        self._sums[row] = sums(gpus)
        self._most_free[row] = max((gpu.free_bytes for gpu in gpus if gpu.is_usable), default=-1)

    def _number(self, gpu: UsedGpu, node: CandidateNode) -> int:
        """The number of the GPU's kind, from 1."""
        kind = _kind_of(gpu, node)
        number = self._kinds.get(kind)
        if number is None:
            self._examples.append(gpu)
            number = self._kinds[kind] = len(self._examples)
        return number


def _kind_of(gpu: UsedGpu, node: CandidateNode) -> Hashable:
    """What :meth:`SequentialDialect.fit` reads of a GPU, beside the amount of its free memory."""
    device = gpu.device
    return (
        device.memory_bytes,
        device.cores_milli,
        device.healthy,
        device.model,
        device.slots is None or gpu.users < device.slots,
        gpu.users > 0,
        gpu.memory_bytes > 0,
        gpu.cores_milli,
        gpu.cordoned,
        gpu.mode or node.mode,
    )


def _is_plain(node: CandidateNode) -> bool:
    """Whether the columns can answer for the node: GPUs that are shared in software, not huge."""
    return (
        0 < len(node.gpus) <= MOST_GPUS
        and all((gpu.mode or node.mode) == SOFTWARE for gpu in node.gpus)
        and any(gpu.capacity_bytes for gpu in node.gpus)
        and max(sums(node.gpus)) < MOST_BYTES
    )


def _only_request(dialect: SequentialDialect, demand: PodDemand) -> Request | None:
    """The request that the dialect places, if it is the only one and no wish names GPUs."""
    general = structs.replace(
        demand.wishes,
        use_types=(),
        avoid_types=(),
        groups=(),
        gpu_order=(),
        use_weights=NO_WISHES.use_weights,
        node_policy="",
        idle_gpus=False,
    )
    if general != NO_WISHES or any(each.kind is not ContainerKind.APP for each in demand.requests):
        return None
    requests = dialect.requests(demand)
    if len(requests) != 1:
        return None
    (request,) = requests
    is_exact = max(request.memory_bytes or 0, request.cores_milli) * request.count < MOST_BYTES
    return request if request.count > 0 and is_exact else None


def _causes(verdicts: npt.NDArray[np.int8], count: int) -> npt.NDArray[np.int64]:
    """:attr:`PlacementRefusal.cause` of each node, by the reason's number."""
    most = np.full(len(verdicts), _NUMBERS[PlacementReason.TOO_FEW_GPUS])
    highest = np.zeros(len(verdicts), np.int64)
    present = (verdicts != _NO_GPU).sum(axis=1)
    lasting = present - np.isin(verdicts, _LASTING).sum(axis=1) < count
    has_enough = present >= count
    for number in np.unique(verdicts[verdicts >= 0]).tolist():  # of equal counts the later one
        counts = (verdicts == number).sum(axis=1)
        decides = has_enough & (lasting if number in _LASTING else ~lasting)
        is_more = decides & (counts > 0) & (counts >= highest)
        most[is_more] = number
        highest[is_more] = counts[is_more]
    return most
