"""The verb preempt: kube-scheduler's victims, and those that have to go beside them.

kube-scheduler's dry run knows sums only. So a node on which its victims would free no GPU for the
pod gets more victims, or is no candidate: nobody ends for nothing. A pod whose end would violate a
PodDisruptionBudget is never added; kube-scheduler's own victims are its decision.
"""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from scheduler.cache.scheduler_cache import SchedulerCache
from scheduler.cluster.reservations import HeldShares
from scheduler.cluster.victims import NodePreemption
from scheduler.verbs.wire import NodeVictims, PreemptionQuery
from vgpu.apiserver.connection import NOT_FOUND, ClusterError
from vgpu.kube.disruption import DisruptionBudget
from vgpu.model.objects import Pod
from vgpu.model.reasons import SourceError
from vgpu.placement.candidate import PodDemand
from vgpu.placement.dialects import SchedulerScheme
from vgpu.placement.result import PlacementReason, PlacementRefusal

log = logging.getLogger(__name__)

PREEMPT_SECONDS: Final = 3.0
"""Maximum time for one answer, in seconds; later nodes are no candidates. kube-scheduler waits for
five."""


class BudgetApi(Protocol):
    """The API server for disruption budgets. Both methods raise ClusterError and SourceError."""

    def budgets(self, namespace: str) -> list[DisruptionBudget]:
        """All budgets of a namespace."""
        ...

    def pod_labels(self, namespace: str, name: str) -> tuple[str, Mapping[str, str]]:
        """A pod's UID and all its labels."""
        ...


class Preemptor:
    """Answers preempt. Any thread may call every method."""

    def __init__(
        self,
        api: BudgetApi,
        cache: SchedulerCache,
        complaint: Callable[[], str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``complaint`` returns why the cache cannot be used now, "" if it can.

        ``clock`` returns seconds that never go back.
        """
        self._api = api
        self._cache = cache
        self._complaint = complaint
        self._clock = clock

    def preempt(self, query: PreemptionQuery) -> Mapping[str, NodeVictims]:
        """The victims of each node on which the pod has its GPUs once they are gone."""
        complaint = self._complaint()
        if complaint:
            log.warning("pods not preempted", extra={"pod": query.pod.ref.key, "reason": complaint})
            return {}
        demand = self._cache.demand_of(query.pod)
        if not isinstance(demand, PlacementRefusal):
            return self._victims(*demand, query.victims)
        return query.victims if demand.reason is PlacementReason.NOTHING_REQUESTED else {}

    def _victims(
        self, scheme: SchedulerScheme, demand: PodDemand, chosen: Mapping[str, NodeVictims]
    ) -> Mapping[str, NodeVictims]:
        until = self._clock() + PREEMPT_SECONDS
        budgets = _Budgets(self._api)
        answer: dict[str, NodeVictims] = {}
        freed: dict[str, HeldShares] = {}
        for number, (name, victims) in enumerate(chosen.items()):
            if self._clock() > until:
                log.warning(
                    "nodes not preempted on: no time left",
                    extra={"pod": demand.pod.key, "nodes": len(chosen) - number},
                )
                break
            preemption = self._preemption(scheme, demand, name, victims, budgets)
            if preemption is None:
                continue
            added = tuple(pod.ref.uid for pod in preemption.added)
            answer[name] = NodeVictims(victims.uids + added, victims.violations)
            allocations = preemption.placement.allocations
            freed[name] = HeldShares(allocations, demand.wishes.groups)
        self._cache.note_preemption(demand.pod, freed)
        return answer

    def _preemption(
        self,
        scheme: SchedulerScheme,
        demand: PodDemand,
        name: str,
        victims: NodeVictims,
        budgets: "_Budgets",
    ) -> NodePreemption | None:
        """How the node is made to take the pod, without violating a budget."""
        chosen = frozenset(victims.uids)
        spared: set[str] = set()
        while True:
            preemption = self._cache.preempt(scheme, demand, name, chosen, spared)
            if preemption is None or not preemption.added:
                return preemption
            try:
                protected = budgets.protected(preemption.added, len(chosen))
            except (ClusterError, SourceError) as error:
                log.warning(
                    "pods of a node not preempted: disruption budgets not read",
                    extra={"pod": demand.pod.key, "node": name, "err": error},
                )
                return None
            if not protected:
                return preemption
            spared |= protected


class _Budgets:
    """The disruption budgets, read as they are needed, once for an answer."""

    def __init__(self, api: BudgetApi) -> None:
        self._api = api
        self._budgets: dict[str, list[DisruptionBudget]] = {}
        self._labels: dict[str, Mapping[str, str] | None] = {}

    def protected(self, pods: tuple[Pod, ...], others: int) -> set[str]:
        """The UIDs of pods whose end would violate a budget; raises ClusterError and SourceError.

        The ``others`` are further victims, of which each may count against the same budgets.
        """
        protected: set[str] = set()
        counts: dict[tuple[str, str], int] = {}
        for pod in pods:
            ref = pod.ref
            if ref.namespace not in self._budgets:
                self._budgets[ref.namespace] = self._api.budgets(ref.namespace)
            for budget in self._budgets[ref.namespace]:
                labels = self._labels_of(pod)
                if labels is None or not budget.covers(ref.name, labels):
                    continue
                key = budget.namespace, budget.name
                counts[key] = counts.get(key, others) + 1
                if counts[key] > budget.allowed:
                    protected.add(ref.uid)
        return protected

    def _labels_of(self, pod: Pod) -> Mapping[str, str] | None:
        """The labels; None if the pod is gone."""
        ref = pod.ref
        if ref.uid not in self._labels:
            try:
                uid, labels = self._api.pod_labels(ref.namespace, ref.name)
            except ClusterError as error:
                if error.status != NOT_FOUND:
                    raise
                uid, labels = "", {}
            self._labels[ref.uid] = labels if uid == ref.uid else None
        return self._labels[ref.uid]
