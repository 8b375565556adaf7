"""The pods that no node took, and which of them fit on a node that has changed; pure.

Pods with equal demands and priorities that were refused by the same nodes are a group, so that a
change of a node costs one placement a group, however many pods wait.
"""

import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

import msgspec
from msgspec import structs

from scheduler.cluster.demands import DemandShape
from vgpu.model.names import PodRef
from vgpu.placement.candidate import PodDemand

MOST_REJECTED: Final = 20_000
"""Maximum number of rejected pods that are remembered; the oldest are forgotten first."""

MOST_NAMES: Final = 400_000
"""Maximum number of names in all sets of nodes that are kept, about 100 bytes each."""

NodeNames = frozenset[str] | None
"""Names of nodes; None stands for every node."""


class RejectedPod(msgspec.Struct, frozen=True, gc=False):
    """A pod that no node took.

    Attributes:
        pod: the pod.
        shape, demand: what it requests.
        nodes: the nodes that have refused it since it was rejected first.
        since: its first rejection, in unix seconds.
        rejections: number of rejections since then.
        offered: number of nodes of the last rejection.
        limited: its namespace if that has a quota, else "".
        over_quota: whether the quota is a reason of the rejection.
    """

    pod: PodRef
    shape: DemandShape
    demand: PodDemand
    nodes: NodeNames
    since: float
    rejections: int = 1
    offered: int = 0
    limited: str = ""
    over_quota: bool = False

    @property
    def group(self) -> "Group":
        """What it has in common with pods that fit alike."""
        return self.shape, self.nodes, self.limited, self.demand.priority


Group = tuple[DemandShape, NodeNames, str, int]


class NodeNameSets:
    """The sets of names of rejected pods, each kept once, with a maximum of names in all of them.

    A set beyond the maximum is replaced by None, every node: its pods may be woken by a node that
    kube-scheduler did not offer, and are never missed.
    """

    def __init__(self) -> None:
        self._kept: dict[frozenset[str], frozenset[str]] = {}
        self._pods: Counter[frozenset[str]] = Counter()
        self.names = 0

    def take(self, nodes: NodeNames) -> NodeNames:
        """The kept set that is equal, for one more pod."""
        if nodes is None:
            return None
        kept = self._kept.get(nodes)
        if kept is None:
            if self.names + len(nodes) > MOST_NAMES:
                return None
            kept = frozenset(map(sys.intern, nodes))
            self._kept[kept] = kept
            self.names += len(kept)
        self._pods[kept] += 1
        return kept

    def release(self, nodes: NodeNames) -> None:
        """A pod less has the kept set."""
        if nodes is None:
            return
        self._pods[nodes] -= 1
        if not self._pods[nodes]:
            del self._pods[nodes], self._kept[nodes]
            self.names -= len(nodes)


class RejectedPods:
    """The pods that the module describes. Not for several threads: the cache locks."""

    def __init__(self) -> None:
        self._groups: dict[Group, dict[str, RejectedPod]] = {}
        self._pods: dict[str, RejectedPod] = {}
        self._name_sets = NodeNameSets()
        self._over_quota: dict[str, dict[str, RejectedPod]] = {}

    def __len__(self) -> int:
        """Number of pods."""
        return len(self._pods)

    @property
    def names(self) -> int:
        """Number of names in all sets of nodes, each set counted once."""
        return self._name_sets.names

    def get(self, uid: str) -> RejectedPod | None:
        """What is remembered of a pod."""
        return self._pods.get(uid)

    def reject(
        self,
        demand: PodDemand,
        shape: DemandShape,
        names: Collection[str],
        now: float,
        *,
        limited: str = "",
        over_quota: bool = False,
        everywhere: bool = False,
    ) -> None:
        """Remember a rejection by the nodes of these names; ``everywhere`` if these are all nodes.

        They add to the nodes of earlier rejections: kube-scheduler may offer other nodes each time.
        """
        uid = demand.pod.uid
        before = self._pods.get(uid)
        nodes = None if before is None else before.nodes
        if everywhere:
            nodes = None
        elif before is None:
            nodes = frozenset(names)
        elif nodes is not None and not nodes.issuperset(names):
            nodes = nodes.union(names)
        rejected = RejectedPod(
            demand.pod,
            shape,
            demand,
            nodes,
            now if before is None else before.since,
            1 if before is None else before.rejections + 1,
            len(names),
            limited,
            over_quota,
        )
        if before is None or (before.group, before.over_quota) != (rejected.group, over_quota):
            self.add(rejected)
            return
        self._pods[uid] = self._groups[rejected.group][uid] = rejected  # as nearly always
        if over_quota:
            self._over_quota[limited][uid] = rejected

    def add(self, rejected: RejectedPod) -> None:
        """Remember a pod, in place of what was remembered of it."""
        uid = rejected.pod.uid
        if uid not in self._pods and len(self._pods) >= MOST_REJECTED:
            self.discard(next(iter(self._pods)))
        nodes = self._name_sets.take(rejected.nodes)  # before the same set is released
        self.discard(uid)
        if nodes is not rejected.nodes:
            rejected = structs.replace(rejected, nodes=nodes)
        self._groups.setdefault(rejected.group, {})[uid] = rejected
        self._pods[uid] = rejected
        if rejected.over_quota:
            self._over_quota.setdefault(rejected.limited, {})[uid] = rejected

    def discard(self, uid: str) -> RejectedPod | None:
        """Forget a pod; returns what was remembered."""
        rejected = self._pods.pop(uid, None)
        if rejected is not None:
            self._name_sets.release(rejected.nodes)
            pods = self._groups[rejected.group]
            del pods[uid]
            if not pods:
                del self._groups[rejected.group]
            if rejected.over_quota:
                del self._over_quota[rejected.limited][uid]
        return rejected

    def take(
        self,
        node: str,
        fitting: Callable[[DemandShape, PodDemand, int], int],
        alone: Iterable[str] = (),
    ) -> list[RejectedPod]:
        """Forget and return the pods that may fit on the node now.

        ``fitting`` returns how many pods of a demand fit on the node, at most the third argument.
        Of equal demands those of the highest priority are taken, then those that wait longest.
        ``alone`` are UIDs of pods for which something is kept on the node: of equal demands only
        theirs may fit.
        """
        apart = [uid for uid in alone if uid in self._pods]
        groups = [each for each in self._groups.items() if each[0][1] is None or node in each[0][1]]
        groups.sort(key=lambda each: -each[0][3])  # what is held is free for a higher priority
        before: dict[tuple[int, NodeNames, str], int] = {}
        taken: list[RejectedPod] = []
        for (shape, nodes, limited, _), pods in groups:
            alike = shape.number, nodes, limited
            for asked in _asked_together(pods, apart):
                demand, earlier = next(iter(asked.values())).demand, before.get(alike, 0)
                count = fitting(shape, demand, earlier + len(asked)) - earlier
                if count > 0:
                    taken += _in_order(asked)[:count]
                    before[alike] = earlier + count
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


def _asked_together(
    pods: Mapping[str, RejectedPod], apart: Iterable[str]
) -> list[Mapping[str, RejectedPod]]:
    """The pods of a group, those with these UIDs each by itself."""
    single: list[Mapping[str, RejectedPod]] = [{uid: pods[uid]} for uid in apart if uid in pods]
    if not single:
        return [pods]
    others = {uid: pod for uid, pod in pods.items() if uid not in apart}
    return [*single, others] if others else single


def _in_order(pods: Mapping[str, RejectedPod]) -> list[RejectedPod]:
    """Those of the highest priority first, then those that wait longest."""
    return sorted(pods.values(), key=lambda pod: (-pod.demand.priority, pod.since))
