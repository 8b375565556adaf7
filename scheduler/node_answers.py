"""Whether each node takes a demand, remembered until the node changes; pure.

filter asks about hundreds of nodes, of which few have changed since the last pod. Nodes that answer
alike share one answer, so that an answer is looked up without touching the node itself.
"""

import itertools
from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, Generic, Self, TypeVar

import msgspec

from vgpu.model.objects import Node
from vgpu.placement.result import OF_STANDING, PlacementReason, PlacementRefusal
from vgpu.quota.usage import PodUsage, node_model, node_pool

MOST_KEYS: Final = 128
"""Maximum number of keys whose answers are remembered; the least recently used are forgotten."""

MOST_PLACED: Final = 8
"""Maximum number of demands whose usage of quotas is remembered by node."""

MOST_DISTINCT: Final = 10_000
"""Maximum number of different answers that nodes share."""

ShapeKey = tuple[int, ...]
"""Numbers of shapes: those of pods that are placed before, and that of the pod."""


class NodeAnswer(msgspec.Struct, frozen=True, eq=False):
    """Whether a node takes a demand. An answer is equal to itself only, so that it is hashed fast.

    Attributes:
        refusal: its cause and the free memory, without the node's GPUs, and the pods that stand in
            the way; None if it takes it.
        score: the node's score, 0 with a refusal.
    """

    refusal: PlacementRefusal | None = None
    score: int = 0

    @classmethod
    def refused(cls, refusal: PlacementRefusal) -> Self:
        """The answer of a node that refuses."""
        cause = refusal.cause
        message = refusal.message if cause in OF_STANDING else cause.explanation
        return cls(PlacementRefusal(cause, message, free_bytes=refusal.free_bytes))


UNKNOWN: Final = NodeAnswer(PlacementRefusal.of(PlacementReason.UNKNOWN_NODE))
"""The answer of a node of which nothing is known."""


_Value = TypeVar("_Value")


class NodeMemory(Generic[_Value]):
    """What was computed of nodes that have not changed since. Not for several threads."""

    def __init__(self, most: int) -> None:
        """At most so many keys are remembered; the least recently used are forgotten."""
        self._most = most
        self._by_key: OrderedDict[Hashable, dict[str, _Value]] = OrderedDict()

    def of(self, key: Hashable) -> dict[str, _Value]:
        """The values of a key by the node's name, to be read and to be added to."""
        values = self._by_key.get(key)
        if values is None:
            if len(self._by_key) >= self._most:
                self._by_key.popitem(last=False)
            values = self._by_key[key] = {}
        self._by_key.move_to_end(key)
        return values

    def forget(self, node: str) -> None:
        """The node has changed."""
        for values in self._by_key.values():
            values.pop(node, None)


class NodeAnswers(NodeMemory[NodeAnswer]):
    """The answers that the module describes. Not for several threads: the cache locks."""

    def __init__(self) -> None:
        super().__init__(MOST_KEYS)
        self._distinct: dict[Hashable, NodeAnswer] = {}

    def shared(self, answer: NodeAnswer) -> NodeAnswer:
        """The one object of all equal answers."""
        refusal = answer.refusal
        content = (
            None if refusal is None else refusal.reason,
            None if refusal is None else refusal.message,
            None if refusal is None else refusal.free_bytes,
            answer.score,
        )
        if len(self._distinct) >= MOST_DISTINCT:
            self._distinct.clear()
        return self._distinct.setdefault(content, answer)


class PlacedUsage(msgspec.Struct, frozen=True):
    """What a pod counts for a quota on nodes that are alike for quotas.

    Attributes:
        number: its own in a process, so that a refusal is computed once for all these nodes.
        usage: what the pod counts.
        node: one of the nodes: the others have the same model and pool in their labels.
    """

    number: int
    usage: PodUsage
    node: Node | None


class PlacedUsages(NodeMemory[PlacedUsage]):
    """The usages of placed demands, by node. Not for several threads: the cache locks.

    The key of a memory is the number of the demand's shape, with the pod's extended resources.
    """

    def __init__(self) -> None:
        super().__init__(MOST_PLACED)
        self._distinct: dict[Hashable, PlacedUsage] = {}
        self._numbers = itertools.count()

    def shared(self, usage: PodUsage, node: Node | None) -> PlacedUsage:
        """The one object of all equal usages on nodes that are alike."""
        amounts = frozenset(
            (model, resource, amount)
            for model, by_resource in usage.by_model.items()
            for resource, amount in by_resource.items()
        )
        content = amounts, node_model(node), node_pool(node)
        placed = self._distinct.get(content)
        if placed is None:
            if len(self._distinct) >= MOST_DISTINCT:
                self._distinct.clear()
            placed = self._distinct[content] = PlacedUsage(next(self._numbers), usage, node)
        return placed
