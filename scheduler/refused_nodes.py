"""Why nodes refuse a pod, where thousands of nodes share a few refusals; pure."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, Self

from scheduler.node_answers import NodeAnswer
from scheduler.wire import NodeTexts
from vgpu.placement.result import (
    OF_QUOTA,
    OF_STANDING,
    UNRESOLVABLE,
    PlacementReason,
    PlacementRefusal,
)


def answer_text(refusal: PlacementRefusal) -> str:
    """The text of a node's answer: its cause, and the pods that stand in the way."""
    cause = refusal.cause
    return refusal.text if cause in OF_STANDING else cause.explanation


_ORDER: Final = {reason: number for number, reason in enumerate(PlacementReason)}


class RefusedNodes:
    """The refusals of nodes. Each question looks at a shared refusal only once."""

    def __init__(
        self,
        names: Sequence[str] = (),
        answers: Sequence[NodeAnswer] = (),
        distinct: AbstractSet[NodeAnswer] | None = None,
    ) -> None:
        """Each of the answers is a refusal, by the node whose name is at the same place.

        ``distinct`` has each of the answers once, if that is known.
        """
        self.names = names
        self._answers = answers
        self._refusals: Mapping[NodeAnswer, PlacementRefusal] = {
            answer: answer.refusal
            for answer in (set(answers) if distinct is None else distinct)
            if answer.refusal is not None
        }

    @classmethod
    def of(cls, by_name: Mapping[str, PlacementRefusal]) -> Self:
        """From refusals by the name of the node."""
        return cls(tuple(by_name), tuple(map(NodeAnswer, by_name.values())))

    @classmethod
    def alike(cls, names: Sequence[str], refusal: PlacementRefusal) -> Self:
        """Every node refuses for the same reason."""
        return cls(names, (NodeAnswer(refusal),) * len(names))

    @classmethod
    def for_one_cause(cls, names: Sequence[str], distinct: AbstractSet[NodeAnswer]) -> Self:
        """Every node refuses by one of these answers, which have one cause.

        Whose answer is which is not known: they differ in the free memory only.
        """
        return cls(names, (next(iter(distinct)),) * len(names), distinct)

    def and_also(self, by_name: Mapping[str, PlacementRefusal]) -> Self:
        """These refusals, and those of further nodes."""
        answers = (*self._answers, *map(NodeAnswer, by_name.values()))
        return type(self)((*self.names, *by_name), answers) if by_name else self

    def of_quota(self) -> Mapping[str, PlacementRefusal]:
        """The refusals by the quota of the pod's namespace, by node."""
        refusals = zip(self.names, map(self._refusals.__getitem__, self._answers), strict=True)
        return {name: refusal for name, refusal in refusals if refusal.reason in OF_QUOTA}

    def distinct(self) -> Iterable[PlacementRefusal]:
        """Each refusal once."""
        return self._refusals.values()

    def counts(self) -> tuple[tuple[PlacementReason, int], ...]:
        """The causes with the number of their nodes, the most frequent first.

        Causes that are equally frequent are in the order of the enum.
        """
        only = self.only_cause()
        if only is not None:
            return ((only, len(self.names)),)
        counts: Counter[PlacementReason] = Counter()
        for answer, nodes in Counter(self._answers).items():
            counts[self._refusals[answer].cause] += nodes
        return tuple(sorted(counts.items(), key=lambda item: (-item[1], _ORDER[item[0]])))

    def most_frequent(self) -> PlacementReason | None:
        """The cause of most nodes; None without nodes."""
        return next((cause for cause, _ in self.counts()), None)

    def only_cause(self) -> PlacementReason | None:
        """The cause of all nodes; None if there are several, or no nodes.

        Nearly always there is one: every node has too little of the same.
        """
        causes = {refusal.cause for refusal in self._refusals.values()}
        return causes.pop() if len(causes) == 1 else None

    def resolvable(self) -> Iterator[str]:
        """Names of the nodes whose answer other pods may change."""
        lasting = self._lasting()
        for name, answer in zip(self.names, self._answers, strict=True):
            if answer not in lasting:
                yield name

    def texts(self, each: Callable[[str], NodeTexts] | None = None) -> tuple[NodeTexts, NodeTexts]:
        """The causes by node: those that other pods may change, and those that they do not.

        ``each`` makes one text for all of these nodes.
        """
        only = self.only_cause()
        if only is not None and only not in OF_STANDING:
            text = only.explanation
            alike = dict.fromkeys(self.names, text) if each is None else each(text)
            return ({}, alike) if only in UNRESOLVABLE else (alike, {})
        explained = {answer: answer_text(it) for answer, it in self._refusals.items()}
        texts = dict(zip(self.names, map(explained.__getitem__, self._answers), strict=True))
        lasting = self._lasting()
        if not lasting:  # nearly always
            return texts, {}
        if len(lasting) == len(explained):
            return {}, texts
        failed = {name: texts[name] for name in self.resolvable()}
        return failed, {name: text for name, text in texts.items() if name not in failed}

    def _lasting(self) -> set[NodeAnswer]:
        return {answer for answer, each in self._refusals.items() if each.cause in UNRESOLVABLE}
