"""What preemptions free, from the answer until kube-scheduler has chosen a node; pure."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

import msgspec

from vgpu.model.allocation import Allocation

CHOICE_SECONDS: Final = 60.0
"""Maximum time between the answer to preempt and the choice of a node, in seconds."""

MOST_PREEMPTING: Final = 1000
"""Maximum number of pods whose preemptions are remembered; the oldest are forgotten first."""


class HeldShares(msgspec.Struct, frozen=True):
    """The shares that a pod gets once its victims are gone; ``groups`` are its groups."""

    allocations: tuple[Allocation, ...]
    groups: tuple[str, ...] = ()


class Preemptions:
    """The shares by pod and node. Not for several threads: the cache locks."""

    def __init__(self) -> None:
        self._pods: OrderedDict[str, tuple[float, Mapping[str, HeldShares]]] = OrderedDict()

    def add(self, uid: str, freed: Mapping[str, HeldShares], now: float) -> None:
        """Remember the nodes of an answer; a new answer replaces the last one."""
        self._pods.pop(uid, None)
        self._pods[uid] = now, freed
        if len(self._pods) > MOST_PREEMPTING:
            self._pods.popitem(last=False)

    def shares(self, uid: str, node: str, now: float) -> HeldShares | None:
        """The shares on the chosen node; None if no answer that is new enough has that node."""
        at, freed = self._pods.get(uid, (now, {}))
        return freed.get(node) if now - at <= CHOICE_SECONDS else None

    def discard(self, uid: str) -> None:
        """Forget a pod: it is bound or gone."""
        self._pods.pop(uid, None)
