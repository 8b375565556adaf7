"""How many pods of one demand a node takes, one after another; pure."""

from typing import Final

import msgspec
from msgspec import structs

from vgpu.placement.candidate import CandidateNode, PodDemand, UsedGpu
from vgpu.placement.dialect import PlacementDialect
from vgpu.placement.result import PlacementRefusal

MOST_ON_NODE: Final = 10_000
"""Maximum number of pods that are counted on a node."""

_ANY: Final = "any"
"""In place of the UUIDs of GPUs that are alike."""


class PodCount(msgspec.Struct, frozen=True):
    """The pods that a node takes.

    Attributes:
        pods: their number.
        shares: number of their shares on each GPU, in the order of the node's GPUs.
        refusal: why the node takes no more; None if the count ended at its maximum.
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
            refusal = result
            break
        gpus = result.gpus
        pods += 1
    changes = list(zip(node.gpus, gpus, strict=True))
    shares = tuple(after.users - before.users for before, after in changes)
    memory = sum(after.memory_bytes - before.memory_bytes for before, after in changes)
    return PodCount(pods, shares, refusal, memory)


class PodCounter:
    """:func:`count_pods` for many nodes of one demand; nodes and GPUs that are alike count once.

    A pod with one share is on one GPU, whatever the policies are, so that a node takes the sum of
    what its GPUs take by themselves.
    """

    def __init__(self, dialect: PlacementDialect, demand: PodDemand, most: int) -> None:
        """``most`` is the maximum number of pods that are counted on a node."""
        self._dialect = dialect
        self._demand = demand
        self._most = most
        self._known: dict[tuple[str, tuple[UsedGpu, ...]], PodCount] = {}

    def count(self, node: CandidateNode) -> PodCount:
        """The pods that the node takes."""
        if sum(request.count for request in self._demand.requests) != 1:
            return self._count(node)
        by_gpu = [self._count(CandidateNode(node.name, (gpu,), node.mode)) for gpu in node.gpus]
        shares = tuple(counted.pods for counted in by_gpu)
        if not any(shares):
            return self._count(node)  # with the refusal of the whole node
        memory = sum(counted.memory_bytes for counted in by_gpu)
        return PodCount(sum(shares), shares, memory_bytes=memory)

    def first(self, node: CandidateNode, most: int) -> PodCount:
        """The pods that the node takes, at most ``most``: on the GPUs that come first."""
        whole = self.count(node)
        if whole.pods <= most:
            return whole
        return count_pods(self._dialect, self._demand, node, most)

    def _count(self, node: CandidateNode) -> PodCount:
        wishes = self._demand.wishes
        if wishes.use_uuids or wishes.avoid_uuids or wishes.best_connected:
            return count_pods(self._dialect, self._demand, node, self._most)
        key = node.mode, tuple(map(_without_name, node.gpus))
        known = self._known.get(key)
        if known is None:
            known = count_pods(self._dialect, self._demand, node, self._most)
            self._known[key] = known
        return known


def _without_name(gpu: UsedGpu) -> UsedGpu:
    """What a placement sees of a GPU, besides its names."""
    device = structs.replace(gpu.device, uuid=_ANY, index=0, handles=(), parent="")
    return structs.replace(gpu, device=device)
