"""Pods that passed filter and are not bound yet: the next filter comes before their bind ends."""

from typing import Final

import msgspec

from scheduler.cluster.demands import DemandShape
from vgpu.placement.candidate import PodDemand

UNDER_WAY_SECONDS: Final = 10.0
"""Maximum time between filter and bind for which a pod is expected to be bound, in seconds."""

MOST_UNDER_WAY: Final = 4
"""Maximum number of pods under way that filter counts beside a pod."""

MOST_REMEMBERED: Final = 64
"""Maximum number of pods that are remembered, each with its nodes; the oldest are forgotten."""


class UnderWay(msgspec.Struct, frozen=True):
    """A pod that passed filter.

    Attributes:
        shape, demand: what it requests.
        nodes: the nodes that it may be bound to.
        since: when it passed, in unix seconds.
    """

    shape: DemandShape
    demand: PodDemand
    nodes: frozenset[str]
    since: float


class PodsUnderWay:
    """The pods that the module describes, by UID. Not for several threads: the cache locks."""

    def __init__(self) -> None:
        self._pods: dict[str, UnderWay] = {}

    def add(self, uid: str, pod: UnderWay) -> None:
        """Remember a pod; a new filter replaces the last one."""
        self._pods.pop(uid, None)
        if len(self._pods) >= MOST_REMEMBERED:
            del self._pods[next(iter(self._pods))]
        self._pods[uid] = pod

    def discard(self, uid: str) -> None:
        """Forget a pod: it is bound, rejected or gone."""
        self._pods.pop(uid, None)

    def newest(self, uid: str, now: float) -> list[UnderWay]:
        """Those that are to be counted beside the pod of this UID, and forget old ones."""
        for other, pod in list(self._pods.items()):
            if now - pod.since > UNDER_WAY_SECONDS:
                del self._pods[other]
        others = [pod for other, pod in self._pods.items() if other != uid]
        return others[-MOST_UNDER_WAY:]
