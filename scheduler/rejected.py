"""The pods that no node took, and which of them fit on a node that has changed; pure.

Pods with equal demands that were refused by the same nodes are a group, so that a change of a node
costs one placement a group, however many pods wait.
"""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec
from msgspec import structs

from scheduler.shapes import DemandShape
from vgpu.model import PodRef
from vgpu.placement.candidate import PodDemand

MOST_REJECTED: Final = 20_000
"""Maximum number of rejected pods that are remembered; the oldest are forgotten first."""


MOST_NAME_SETS: Final = 64
"""Maximum number of sets of nodes that are kept once for all pods."""


class RejectedPod(msgspec.Struct, frozen=True):
    """A pod that no node took.

    Attributes:
        pod: the pod.
        shape, demand: what it requests.
        nodes: the nodes that refused it.
        since: its first rejection, in unix seconds.
        rejections: number of rejections since then.
        limited: its namespace if that has a quota, else "".
        over_quota: whether the quota is a reason of the rejection.
    """

    pod: PodRef
    shape: DemandShape
    demand: PodDemand
    nodes: frozenset[str]
    since: float
    rejections: int = 1
    limited: str = ""
    over_quota: bool = False

    @property
    def group(self) -> "Group":
        """What it has in common with pods that fit alike."""
        return self.shape, self.nodes, self.limited


Group = tuple[DemandShape, frozenset[str], str]


class RejectedPods:
    """The pods that the module describes. Not for several threads: the cache locks."""

    def __init__(self) -> None:
        self._groups: dict[Group, dict[str, RejectedPod]] = {}
        self._pods: dict[str, RejectedPod] = {}
        self._name_sets: dict[frozenset[str], frozenset[str]] = {}
        self._over_quota: dict[str, dict[str, RejectedPod]] = {}

    def __len__(self) -> int:
        """Number of pods."""
        return len(self._pods)

    def get(self, uid: str) -> RejectedPod | None:
        """What is remembered of a pod."""
        return self._pods.get(uid)

    def add(self, rejected: RejectedPod) -> None:
        """Remember a pod. A new rejection replaces the last one, but not the time of the first."""
        uid = rejected.pod.uid
        before = self.discard(uid)
        if before is not None:
            rejected = structs.replace(
                rejected, since=before.since, rejections=before.rejections + 1
            )
        elif len(self._pods) >= MOST_REJECTED:
            self.discard(next(iter(self._pods)))
        if len(self._name_sets) >= MOST_NAME_SETS:
            self._name_sets.clear()
        nodes = self._name_sets.setdefault(rejected.nodes, rejected.nodes)
        rejected = structs.replace(rejected, nodes=nodes)
        self._groups.setdefault(rejected.group, {})[uid] = rejected
        self._pods[uid] = rejected
        if rejected.over_quota:
            self._over_quota.setdefault(rejected.limited, {})[uid] = rejected

    def discard(self, uid: str) -> RejectedPod | None:
        """Forget a pod; returns what was remembered."""
        rejected = self._pods.pop(uid, None)
        if rejected is not None:
            pods = self._groups[rejected.group]
            del pods[uid]
            if not pods:
                del self._groups[rejected.group]
            if rejected.over_quota:
                del self._over_quota[rejected.limited][uid]
        return rejected

    def take(
        self, node: str, fitting: Callable[[DemandShape, PodDemand, int], int]
    ) -> list[RejectedPod]:
        """Forget and return the pods that may fit on the node now.

        ``fitting`` returns how many pods of a demand fit on the node, at most the third argument.
        Of a group those of the highest priority are taken, then those that wait longest.
        """
        taken: list[RejectedPod] = []
        for (shape, nodes, _), pods in list(self._groups.items()):
            if node not in nodes:
                continue
            demand = next(iter(pods.values())).demand
            count = fitting(shape, demand, len(pods))
            if count:
                taken += _in_order(pods)[:count]
        for pod in taken:
            self.discard(pod.pod.uid)
        return taken

    def take_over_quota(
        self, namespace: str, passes: Callable[[PodDemand], bool], most: int
    ) -> list[RejectedPod]:
        """Forget and return pods that the quota of their namespace has refused and admits now.

        ``passes`` is called in the order of :meth:`take` until it has returned True ``most`` times.
        """
        taken: list[RejectedPod] = []
        for pod in _in_order(self._over_quota.get(namespace, {})):
            if len(taken) == most:
                break
            if passes(pod.demand):
                taken.append(pod)
        for pod in taken:
            self.discard(pod.pod.uid)
        return taken


def _in_order(pods: Mapping[str, RejectedPod]) -> list[RejectedPod]:
    """Those of the highest priority first, then those that wait longest."""
    return sorted(pods.values(), key=lambda pod: (-pod.demand.priority, pod.since))
