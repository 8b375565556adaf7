"""Why nodes refuse a pod, where thousands of nodes share a few refusals; pure."""

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Final

from vgpu.placement.result import UNRESOLVABLE, PlacementReason, PlacementRefusal

_ORDER: Final = {reason: number for number, reason in enumerate(PlacementReason)}


class RefusedNodes:
    """The refusals of nodes by name. Each question looks at a shared refusal only once."""

    def __init__(self, by_name: Mapping[str, PlacementRefusal]) -> None:
        self._names = by_name
        self._numbers = list(map(id, by_name.values()))
        self._distinct = dict(zip(self._numbers, by_name.values(), strict=True))

    def distinct(self) -> Collection[PlacementRefusal]:
        """Each refusal once."""
        return self._distinct.values()

    def counts(self) -> tuple[tuple[PlacementReason, int], ...]:
        """The causes with the number of their nodes, the most frequent first.

        Causes that are equally frequent are in the order of the enum.
        """
        counts: Counter[PlacementReason] = Counter()
        for number, nodes in Counter(self._numbers).items():
            counts[self._distinct[number].cause] += nodes
        return tuple(sorted(counts.items(), key=lambda item: (-item[1], _ORDER[item[0]])))

    def most_frequent(self) -> PlacementReason | None:
        """The cause of most nodes; None without nodes."""
        return next((cause for cause, _ in self.counts()), None)

    def resolvable(self) -> list[str]:
        """Names of the nodes whose answer other pods may change."""
        lasting = self._lasting()
        return [
            name
            for name, number in zip(self._names, self._numbers, strict=True)
            if number not in lasting
        ]

    def texts(self) -> tuple[dict[str, str], dict[str, str]]:
        """The causes by node: those that other pods may change, and those that they do not."""
        by_number = {number: each.cause.explanation for number, each in self._distinct.items()}
        texts = dict(zip(self._names, map(by_number.__getitem__, self._numbers), strict=True))
        if not self._lasting():  # nearly always
            return texts, {}
        failed = {name: texts[name] for name in self.resolvable()}
        return failed, {name: text for name, text in texts.items() if name not in failed}

    def _lasting(self) -> set[int]:
        return {number for number, each in self._distinct.items() if each.cause in UNRESOLVABLE}
