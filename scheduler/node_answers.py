"""Whether each node takes a demand, remembered until the node changes; pure.

filter asks about hundreds of nodes, of which few have changed since the last pod. Nodes that answer
alike share one answer, so that an answer is looked up without touching the node itself.
"""

from collections import OrderedDict
from typing import Final, Self

import msgspec

from vgpu.placement.result import PlacementReason, PlacementRefusal

MOST_KEYS: Final = 128
"""Maximum number of keys whose answers are remembered; the least recently used are forgotten."""

MOST_DISTINCT: Final = 10_000
"""Maximum number of different answers that nodes share."""

ShapeKey = tuple[int, ...]
"""Numbers of shapes: those of pods that are placed before, and that of the pod."""


class NodeAnswer(msgspec.Struct, frozen=True):
    """Whether a node takes a demand.

    Attributes:
        refusal: its cause and the free memory, without the node's GPUs; None if it takes it.
        score: the node's score, 0 with a refusal.
    """

    refusal: PlacementRefusal | None = None
    score: int = 0

    @classmethod
    def refused(cls, refusal: PlacementRefusal) -> Self:
        """The answer of a node that refuses."""
        cause = refusal.cause
        return cls(PlacementRefusal(cause, cause.explanation, free_bytes=refusal.free_bytes))


UNKNOWN: Final = NodeAnswer(PlacementRefusal.of(PlacementReason.UNKNOWN_NODE))
"""The answer of a node of which nothing is known."""


class NodeAnswers:
    """The answers that the module describes. Not for several threads: the cache locks."""

    def __init__(self) -> None:
        self._by_key: OrderedDict[ShapeKey, dict[str, NodeAnswer]] = OrderedDict()
        self._distinct: dict[tuple[PlacementReason | None, int | None, int], NodeAnswer] = {}

    def of(self, key: ShapeKey) -> dict[str, NodeAnswer]:
        """The answers of nodes that have not changed since, by the node's name."""
        answers = self._by_key.get(key)
        if answers is None:
            if len(self._by_key) >= MOST_KEYS:
                self._by_key.popitem(last=False)
            answers = self._by_key[key] = {}
        self._by_key.move_to_end(key)
        return answers

    def shared(self, answer: NodeAnswer) -> NodeAnswer:
        """The one object of all equal answers."""
        refusal = answer.refusal
        content = (
            None if refusal is None else refusal.reason,
            None if refusal is None else refusal.free_bytes,
            answer.score,
        )
        if len(self._distinct) >= MOST_DISTINCT:
            self._distinct.clear()
        return self._distinct.setdefault(content, answer)

    def forget(self, node: str) -> None:
        """The node has changed."""
        for answers in self._by_key.values():
            answers.pop(node, None)
