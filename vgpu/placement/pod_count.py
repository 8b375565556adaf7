"""How many pods of one demand a node takes, one after another; pure."""

import heapq
from typing import Final

import msgspec
from msgspec import structs

from vgpu.model.allocation import Request, Share
from vgpu.model.names import ContainerKind
from vgpu.placement.candidate import CandidateNode, PodDemand, UsedGpu
from vgpu.placement.dialect import PlacementDialect, SequentialDialect
from vgpu.placement.result import PlacementReason, PlacementRefusal

MOST_ON_NODE: Final = 10_000
"""Maximum number of pods that are counted on a node."""

_ANY: Final = "any"
"""In place of the UUIDs of GPUs that are alike."""


class PodCount(msgspec.Struct, frozen=True):
    """The pods that a node takes.

    Attributes:
        pods: their number.
        shares: number of their shares on each GPU, in the order of the node's GPUs.
        refusal: why the node takes none; None if it takes some.
        memory_bytes: the memory of all shares.
    """

    pods: int
    shares: tuple[int, ...]
    refusal: PlacementRefusal | None = None
    memory_bytes: int = 0


def count_pods(
    dialect: PlacementDialect, demand: PodDemand, node: CandidateNode, most: int
) -> PodCount:
    """The pods of a demand that the node takes one after another, at most ``most``."""
    gpus = node.gpus
    pods, refusal = 0, None
    while pods < most:
        result = dialect.choose(demand, structs.replace(node, gpus=gpus))
        if isinstance(result, PlacementRefusal):
            refusal = result if not pods else None
            break
        gpus = result.gpus
        pods += 1
    changes = list(zip(node.gpus, gpus, strict=True))
    shares = tuple(after.users - before.users for before, after in changes)
    memory = sum(after.memory_bytes - before.memory_bytes for before, after in changes)
    return PodCount(pods, shares, refusal, memory)


class _Steps(msgspec.Struct, frozen=True, gc=False):
    """A GPU that gets one share of a request after another, until the next one does not fit.

    Attributes:
        turns: the dialect's turn of the GPU before each of the shares.
        memory_bytes: what is in use before the first share, and after each.
    """

    turns: tuple[tuple[float, ...], ...]
    memory_bytes: tuple[int, ...]


class PodCounter:
    """:func:`count_pods` for many nodes of one demand; GPUs that are alike are asked once.

    In the dialects that try one GPU after another, whether a GPU fits and when it is tried depend
    on this GPU alone. So of a pod with one request each GPU g has a row of turns, one for each
    share that it takes by itself, and the node takes what the dialect does with these rows:

        each pod takes the ``count`` GPUs with the least turns, which go on to their next turn

    With one GPU for each pod this is the sum of the lengths of the rows.
    """

    def __init__(self, dialect: PlacementDialect, demand: PodDemand, most: int) -> None:
        """``most`` is the maximum number of pods that are counted on a node."""
        self._dialect = dialect
        self._demand = demand
        self._most = most
        self._request = _only_request(dialect, demand)
        self._known: dict[tuple[str, UsedGpu], _Steps] = {}

    def count(self, node: CandidateNode) -> PodCount:
        """The pods that the node takes; of pods with one GPU the maximum is that of each GPU."""
        return self._counted(node, None)

    def first(self, node: CandidateNode, most: int) -> PodCount:
        """The pods that the node takes, at most ``most``: on the GPUs that come first."""
        return self._counted(node, most)

    def _counted(self, node: CandidateNode, bound: int | None) -> PodCount:
        most = self._most if bound is None else min(bound, self._most)
        dialect, request = self._dialect, self._request
        if request is None or not isinstance(dialect, SequentialDialect):
            return count_pods(dialect, self._demand, node, most)
        if dialect.node_reason(self._demand, node) is not None or request.count > len(node.gpus):
            return count_pods(dialect, self._demand, node, most)
        steps = [self._steps(dialect, request, node.mode, gpu) for gpu in node.gpus]
        shares = [len(each.turns) for each in steps]
        pods = sum(shares)
        if request.count > 1 or (bound is not None and pods > most):
            pods, shares = _taken(steps, request.count, most, last_first=dialect.last_first)
        if not pods:
            return count_pods(dialect, self._demand, node, most)  # with the refusal
        memory = sum(
            each.memory_bytes[number] - each.memory_bytes[0]
            for each, number in zip(steps, shares, strict=True)
        )
        return PodCount(pods, tuple(shares), memory_bytes=memory)

    def _steps(
        self, dialect: SequentialDialect, request: Request, mode: str, gpu: UsedGpu
    ) -> _Steps:
        wishes = self._demand.wishes
        is_named = bool(wishes.use_uuids or wishes.avoid_uuids)
        key = mode, gpu if is_named else _without_name(gpu)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._computed(dialect, request, mode, gpu)
        return known

    def _computed(
        self, dialect: SequentialDialect, request: Request, mode: str, gpu: UsedGpu
    ) -> _Steps:
        demand, node = self._demand, CandidateNode("", (), mode)
        cores, groups = dialect.cores(request), demand.wishes.groups
        turns: list[tuple[float, ...]] = []
        memory_bytes = [gpu.memory_bytes]
        while len(turns) < self._most:
            memory = dialect.memory(request, gpu)
            fitting = dialect.fit(gpu, request, memory, demand, node)
            if isinstance(fitting, PlacementReason):
                break
            turns.append(dialect.turn(gpu, request, demand))
            gpu = gpu.with_share(Share(fitting, memory, cores), groups)
            memory_bytes.append(gpu.memory_bytes)
        return _Steps(tuple(turns), tuple(memory_bytes))


def _only_request(dialect: PlacementDialect, demand: PodDemand) -> Request | None:
    """The only request that is placed, if whether a GPU fits depends on this GPU alone."""
    wishes = demand.wishes
    if not isinstance(dialect, SequentialDialect) or wishes.one_numa_node or wishes.best_connected:
        return None
    if any(request.kind is ContainerKind.INIT for request in demand.requests):
        return None
    requests = dialect.requests(demand)
    return requests[0] if len(requests) == 1 and requests[0].count > 0 else None


def _taken(
    steps: list[_Steps], count: int, most: int, *, last_first: bool
) -> tuple[int, list[int]]:
    """The number of pods with a share on ``count`` GPUs each, and of the shares of each GPU."""
    shares = [0] * len(steps)
    waiting = [
        (each.turns[0], -place if last_first else place)
        for place, each in enumerate(steps)
        if each.turns
    ]
    heapq.heapify(waiting)
    pods = 0
    while pods < most and len(waiting) >= count:
        chosen = [heapq.heappop(waiting)[1] for _ in range(count)]
        for order in chosen:
            place = abs(order)
            shares[place] += 1
            turns = steps[place].turns
            if shares[place] < len(turns):
                heapq.heappush(waiting, (turns[shares[place]], order))
        pods += 1
    return pods, shares


def _without_name(gpu: UsedGpu) -> UsedGpu:
    """What a placement sees of a GPU, besides its names; its index may decide among equals."""
    device = structs.replace(gpu.device, uuid=_ANY, handles=(), parent="")
    return structs.replace(gpu, device=device)
