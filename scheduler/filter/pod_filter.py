"""Which nodes take a pod: beside the pods under way, and within the quota of its namespace; pure.

A pod that no node takes is remembered as rejected, until it fits on a node that has changed, or
into a quota that was relieved.
"""

import itertools
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Final

import msgspec

from scheduler.cluster.cluster_state import ClusterState
from scheduler.cluster.demands import DemandShape
from scheduler.filter.node_filter import (
    MOST_DISTINCT,
    NodeFilter,
    NodeMemo,
    PodsUnderWay,
    UnderWay,
)
from scheduler.filter.node_scores import BEST_SCORE, extender_scores
from scheduler.filter.refusals import RefusedNodes
from scheduler.filter.rejected_pods import RejectedPod, RejectedPods
from vgpu.model.objects import Node
from vgpu.placement.candidate import PodDemand
from vgpu.placement.dialects import SchedulerScheme
from vgpu.placement.result import OF_QUOTA, Placement, PlacementReason, PlacementRefusal
from vgpu.quota.check import QuotaRefusal, check_node
from vgpu.quota.usage import PodUsage, node_model, node_pool, usage_of_requests

MOST_PLACED: Final = 8
"""Maximum number of demands whose usage of quotas is remembered by node."""

MOST_WOKEN: Final = 16
"""Maximum number of pods of one demand that one change of a node wakes."""

_TAKEN: Final = PlacementRefusal.of(PlacementReason.UNDER_WAY)


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


class PlacedUsages(NodeMemo[PlacedUsage]):
    """The usages of placed demands, by node. Not for several threads: the cache locks.

    The key of a memo is the number of the demand's shape, with the pod's extended resources.
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


class QuotaFilter:
    """Which pods, and which nodes for a pod, the quotas of namespaces refuse.

    Not for several threads: the cache locks.
    """

    def __init__(self, state: ClusterState, nodes: NodeFilter) -> None:
        self._state = state
        self._nodes = nodes
        self._placed = PlacedUsages()
        nodes.forget_also(self._placed)

    def needs_placement(self, demand: PodDemand) -> bool:
        """Whether the quota of the pod's namespace depends on the GPUs that the pod gets."""
        return self._state.quotas.quota(demand.pod.namespace).needs_placement or any(
            request.memory_bytes is None for request in demand.requests
        )

    def refusal(
        self, demand: PodDemand, placement: Placement | None = None
    ) -> PlacementRefusal | None:
        """Why the quota of the pod's namespace refuses the pod; None if it does not.

        Without a placement the pod counts what is known of it before: a lower bound.
        """
        quotas = self._state.quotas
        if not quotas.quota(demand.pod.namespace):
            return None
        if placement is not None:
            return self._refusal_on(demand, *self._usage(demand, placement))
        usage = usage_of_requests(dict(demand.units), demand.requests, "")
        return _refusal(quotas.check(demand.pod, usage, is_placed=False))

    def within(
        self,
        names: Sequence[str],
        scheme: SchedulerScheme,
        shape: DemandShape,
        demand: PodDemand,
        now: float,
    ) -> tuple[list[str], dict[str, PlacementRefusal]]:
        """Those of the nodes on which the pod is within its quota, and why the others are not.

        All of them take the pod. Nodes on which it counts alike have one refusal: the quota is
        compared once for them. One request counts alike on all GPUs of one memory and model.
        """
        self._nodes.forget_changed(now)
        known = self._placed.of((shape.number, demand.units))
        own = self._state.reserved_on(demand.pod.uid)
        alike: dict[Hashable, PlacedUsage] = {}
        refusals: dict[int, PlacementRefusal | None] = {}
        within: list[str] = []
        over: dict[str, PlacementRefusal] = {}
        for name in dict.fromkeys(names):  # each is placed once, however often it was sent
            kind: Hashable | None = None
            placed = None if name in own else known.get(name)
            if placed is None and name not in own:
                kind = self._kind(demand, name)
                if kind is not None and (placed := alike.get(kind)) is not None:
                    known[name] = placed
            if placed is None:
                result = self._nodes.place(name, scheme, demand, now)
                if isinstance(result, PlacementRefusal):
                    over[name] = result
                    continue
                placed = self._placed.shared(*self._usage(demand, result))
                if self._state.nodes[name].is_alike_for(demand):
                    known[name] = placed
                    if kind is not None:
                        alike[kind] = placed
            if placed.number not in refusals:
                refusals[placed.number] = self._refusal_on(demand, placed.usage, placed.node)
            refusal = refusals[placed.number]
            if refusal is None:
                within.append(name)
            else:
                over[name] = refusal
        return within, over

    # ------------------------------------------------------------ parts

    def _kind(self, demand: PodDemand, name: str) -> Hashable | None:
        """Nodes of one kind count alike for a demand that they take; None if it depends on GPUs."""
        device = self._nodes.only_device(name) if len(demand.requests) == 1 else None
        if device is None:
            return None
        node = self._state.nodes[name].node
        return device, node_model(node), node_pool(node)

    def _usage(self, demand: PodDemand, placement: Placement) -> tuple[PodUsage, Node | None]:
        """What a placed pod counts for its quota, and its node."""
        usage = self._state.usage_on(placement.node, dict(demand.units), placement.allocations)
        return usage, self._state.nodes[placement.node].node

    def _refusal_on(
        self, demand: PodDemand, usage: PodUsage, node: Node | None
    ) -> PlacementRefusal | None:
        """Why the quota of the pod's namespace refuses the pod with this usage on a node."""
        quotas = self._state.quotas
        return _refusal(
            quotas.check(demand.pod, usage, is_placed=True)
            or check_node(quotas.quota(demand.pod.namespace), usage, node)
        )


class FilteredNodes(msgspec.Struct, frozen=True):
    """The nodes that take a pod, and why the others do not."""

    nodes: tuple[str, ...]
    refused: RefusedNodes


class PodFilter:
    """Filters, and remembers rejected pods. Not for several threads: the cache locks.

    Attributes:
        nodes: the answers of nodes.
        quotas: the refusals of quotas.
        under_way: the pods that passed and are not bound yet.
        rejected: the pods that no node took.
    """

    def __init__(
        self,
        schemes: Mapping[str, SchedulerScheme],
        state: ClusterState,
        changed: set[str],
        *,
        offers_best: bool = False,
        avoids_locked: bool = False,
    ) -> None:
        """The first arguments are those of :class:`NodeFilter`.

        ``offers_best`` leaves the best of the nodes that take a pod, for a kube-scheduler that asks
        for no scores. ``avoids_locked`` leaves nodes out that other pods wait for while others
        fit, for device plugins that serve one pod of a node at a time.
        """
        self._schemes = schemes
        self._state = state
        self._offers_best = offers_best
        self._avoids_locked = avoids_locked
        self.nodes = NodeFilter(schemes, state, changed)
        self.quotas = QuotaFilter(state, self.nodes)
        self.under_way = PodsUnderWay()
        self.rejected = RejectedPods()

    def filter(
        self,
        scheme: SchedulerScheme,
        shape: DemandShape,
        demand: PodDemand,
        names: Sequence[str],
        now: float,
    ) -> FilteredNodes:
        """The nodes that take the pod; a pod that none takes is remembered as rejected.

        A pod that does not fit into the quota of its namespace is refused by every node. The quota
        counts bound pods and reservations; pods under way are counted when they are reserved for.
        Pods under way are counted on every node that they may be bound to, where that leaves a
        node: else the first of them to be bound has it.
        """
        uid = demand.pod.uid
        quota = self._state.quotas.quota(demand.pod.namespace)
        over_quota = self.quotas.refusal(demand) if quota else None
        if over_quota is not None:
            refused = RefusedNodes.alike(names, over_quota)
            self._reject(shape, demand, refused, now)
            return FilteredNodes((), refused)
        fitting, refused = self.nodes.split(names, shape, demand, now)
        if quota and self.quotas.needs_placement(demand):
            fitting, over = self.quotas.within(fitting, scheme, shape, demand, now)
            refused = refused.and_also(over)
        newest = self.under_way.newest(uid, now)
        kept = self.nodes.kept_for(newest, fitting, shape, demand, now)
        chosen = fitting
        if kept:
            chosen = [name for name in fitting if name not in kept] or fitting
        if chosen is not fitting:
            refused = refused.and_also(dict.fromkeys(kept, _TAKEN))
        if self._avoids_locked and len(chosen) > 1:
            chosen = self._least_awaited(scheme, demand, chosen, now)
        if self._offers_best and len(chosen) > 1:
            scores = self.scores(shape, demand, chosen, now)
            chosen = (chosen[scores.index(max(scores))],)
        if chosen:
            self.under_way.add(uid, UnderWay(shape, demand, frozenset(chosen), now))
            self.rejected.discard(uid)
        else:
            self._reject(shape, demand, refused, now)
        return FilteredNodes(tuple(chosen), refused)

    def scores(
        self, shape: DemandShape, demand: PodDemand, names: Sequence[str], now: float
    ) -> list[int]:
        """The score of each node for kube-scheduler, 0 of one that does not take the pod.

        Pods under way count on the node where they are expected, so that the next pod finds it as
        it will be. Equal nodes have equal scores, and kube-scheduler takes any of them. Only while
        other pods are under way one of them alone is the best: then it is known where this pod
        comes, and pods that come fast one after another are placed as slow ones are.
        """
        uid = demand.pod.uid
        pods = self.under_way.beside(uid)
        answers = self.nodes.answers_beside(pods, names, shape, demand, now)
        by_answer = extender_scores(answer.score for answer in answers if answer.refusal is None)
        scores = [by_answer[each.score] if each.refusal is None else 0 for each in answers]
        best = scores.count(BEST_SCORE)
        if best > 1 and pods:
            first = scores.index(BEST_SCORE)
            scores = [min(score, BEST_SCORE - 1) for score in scores]
            scores[first] = BEST_SCORE
            best = 1
        if best == 1:
            self.under_way.set_best(uid, names[scores.index(BEST_SCORE)])
        return scores

    def _least_awaited(
        self, scheme: SchedulerScheme, demand: PodDemand, names: Sequence[str], now: float
    ) -> Sequence[str]:
        """The nodes with the fewest pods that are to be served before this one."""
        if not scheme.dialect_row.lock:
            return names
        newest = self.under_way.newest(demand.pod.uid, now)
        awaited = Counter(pod.node for pod in newest if pod.node)
        own = demand.pod.namespace, demand.pod.name
        for name in self._state.locked:  # of thousands of nodes a few are
            locks = self._state.nodes[name].locks
            if any(lock.owner != own and not lock.is_expired(now) for lock in locks):
                awaited[name] += 1
        if not awaited:
            return names
        free = list(itertools.filterfalse(awaited.__contains__, names))
        if free:
            return free
        least = min(awaited[name] for name in names)
        return [name for name in names if awaited[name] == least]

    def take_rejected(self, name: str, now: float) -> list[RejectedPod]:
        """Forget and return the rejected pods that fit on a node now."""

        def fitting(shape: DemandShape, demand: PodDemand, most: int) -> int:
            if self.quotas.refusal(demand) is not None:
                return 0
            found = self.nodes.found_by(demand, name)
            scheme = self._schemes[shape.scheme]
            return 0 if found is None else found.count(scheme, demand, now, min(most, MOST_WOKEN))

        cached = self._state.nodes.get(name)
        if cached is None:
            return []
        foreign = (each.pod.uid for each in cached.foreign_reservations.values())
        return self.rejected.take(name, fitting, (*cached.reservations, *foreign))

    def take_relieved(self, namespace: str) -> list[RejectedPod]:
        """Forget and return pods that the quota of their namespace refused, and admits now.

        They fit into the quota together, as far as their requests have the amounts.
        """
        with self._state.quotas.supposing() as suppose:

            def passes(demand: PodDemand) -> bool:
                if self.quotas.refusal(demand) is not None:
                    return False
                suppose(demand.pod, usage_of_requests(dict(demand.units), demand.requests, ""))
                return True

            return self.rejected.take_over_quota(namespace, passes, MOST_WOKEN)

    def _reject(
        self, shape: DemandShape, demand: PodDemand, refused: RefusedNodes, now: float
    ) -> None:
        namespace = demand.pod.namespace
        limited = namespace if self._state.quotas.quota(namespace) else ""
        over_quota = bool(limited) and any(each.reason in OF_QUOTA for each in refused.distinct())
        self.rejected.reject(
            demand,
            shape,
            refused.names,
            now,
            limited=limited,
            over_quota=over_quota,
            everywhere=len(refused.names) >= len(self._state.nodes),
        )


def _refusal(refusal: QuotaRefusal | None) -> PlacementRefusal | None:
    return None if refusal is None else PlacementRefusal(refusal.reason, refusal.detail)
