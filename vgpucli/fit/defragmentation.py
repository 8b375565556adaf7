"""The defragmentation plan of `vgpu fit`: which pods may be evicted, and the plan. Pure.

Whose pods may be evicted is decided as for the reconciler's evictions, with its default policy for
running pods: only pods whose owner creates another one without a side effect.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from msgspec import structs

from reconciler.cluster_index import PENDING
from reconciler.model import opted_out
from reconciler.owners.eviction import reaction
from reconciler.plan.eligibility import eviction_skip_reason
from reconciler.policy import Policy
from reconciler.reasons import SkipReason
from scheduler.cluster.reservations import PodPlacement
from scheduler.filter.refusals import RefusedNodes
from vgpu.kube.disruption import DisruptionBudget
from vgpu.model.allocation import physical
from vgpu.model.objects import Node, Pod, holds_devices
from vgpu.model.reasons import Explained
from vgpu.placement.candidate import PodDemand
from vgpu.placement.dialects import SchedulerScheme
from vgpu.placement.node_view import CandidateView, held_shares
from vgpu.placement.pod_count import PodCounter
from vgpu.placement.result import PlacementRefusal
from vgpucli.fit.answer import node_fits, place_again, place_pods
from vgpucli.fit.eviction_plan import (
    BudgetKey,
    EvictablePod,
    Trial,
    WantedPods,
    plan_evictions,
)
from vgpucli.fit.model import (
    Budgets,
    DefragmentationPlan,
    EvictionObstacle,
    MovedPod,
    PlannedEviction,
)
from vgpucli.prediction import SchedulingSimulation

POLICY: Final = Policy(evict_running=True)
"""The reconciler's default policy, for running pods."""


def defragment(
    simulation: SchedulingSimulation,
    demanded: tuple[SchedulerScheme, PodDemand],
    wanted: int,
    pods: Iterable[Pod],
    budgets: Budgets,
) -> DefragmentationPlan:
    """The plan after which ``wanted`` pods of the demand fit.

    The cache counts no eviction and no placement of it afterwards.
    """
    demand = demanded[1]
    with simulation.supposing():
        placed, refused = place_pods(simulation, *demanded, wanted)
        if refused is None:
            return DefragmentationPlan(fits=True, nodes=node_fits(placed))
        if simulation.cache.quota_of(demand).refusal is not None:
            pods = ()  # no eviction gives the namespace more than its quota
        evictable, obstacles = _evictable_pods(simulation, demanded, pods, budgets)
    trials = _Trials(simulation, demanded, wanted)
    search = plan_evictions(
        evictable,
        WantedPods(wanted, wanted - len(placed), demand.priority),
        {(each.namespace, each.name): each.allowed for each in budgets.budgets},
        trials,
    )
    answer = DefragmentationPlan(
        fits=False, complete=search.complete, evictable=len(evictable), obstacles=obstacles
    )
    if search.plan is None:
        return answer
    evicted = sorted(
        search.plan.evicted, key=lambda each: (each.pod.priority, each.pod.node, each.pod.ref)
    )
    placed, replacements = trials.outcome(evicted)
    return structs.replace(
        answer,
        fits=True,
        evictions=tuple(
            PlannedEviction(each.pod, replacements[each.uid], each.budget) for each in evicted
        ),
        nodes=node_fits(placed),
        any_order=trials.fits_after_replacements(evicted),
    )


class _Trials:
    """Supposed evictions on the cache."""

    def __init__(
        self,
        simulation: SchedulingSimulation,
        demanded: tuple[SchedulerScheme, PodDemand],
        wanted: int,
    ) -> None:
        self._simulation = simulation
        self._demanded = demanded
        self._wanted = wanted
        scheme, demand = demanded
        self._counter = PodCounter(scheme.dialect, demand, wanted)

    def count(self, node: str, gone: AbstractSet[str]) -> int:
        """How many of the wanted pods a node takes once the pods of these UIDs are gone."""
        candidate = self._simulation.cache.candidate_without(*self._demanded, node, gone)
        return 0 if candidate is None else self._counter.count(candidate).pods

    def try_out(self, evicted: Sequence[EvictablePod]) -> Trial:
        """Place the wanted pods, and then the replacements of the evicted ones."""
        placed, replacements = self.outcome(evicted)
        unplaced = (uid for uid, moved in replacements.items() if not moved.target)
        return Trial(len(placed) == self._wanted, frozenset(unplaced))

    def outcome(
        self, evicted: Sequence[EvictablePod]
    ) -> tuple[list[PodPlacement], dict[str, MovedPod]]:
        """The placements of the wanted pods, and of the replacements by the UID of the evicted."""
        pods = [each.pod for each in evicted]
        with self._simulation.supposing():
            for pod in pods:
                self._simulation.evict(pod)
            placed, _ = place_pods(self._simulation, *self._demanded, self._wanted)
            moved = place_again(self._simulation, pods)
        return placed, {each.pod.uid: each for each in moved}

    def fits_after_replacements(self, evicted: Sequence[EvictablePod]) -> bool:
        """Whether the wanted pods fit if the replacements are placed first."""
        pods = [each.pod for each in evicted]
        with self._simulation.supposing():
            for pod in pods:
                self._simulation.evict(pod)
            place_again(self._simulation, pods)
            return place_pods(self._simulation, *self._demanded, self._wanted)[1] is None


# ---------------------------------------------------------------- who may be evicted


def _evictable_pods(
    simulation: SchedulingSimulation,
    demanded: tuple[SchedulerScheme, PodDemand],
    pods: Iterable[Pod],
    budgets: Budgets,
) -> tuple[list[EvictablePod], Mapping[Explained, int]]:
    """The pods that may be evicted, and the number of the others by their obstacle."""
    cache = simulation.cache
    names = frozenset(simulation.names)
    covering = _CoveringBudgets(budgets)
    places: dict[object, bool] = {}
    evictable: list[EvictablePod] = []
    obstacles: Counter[Explained] = Counter()
    scheme, demand = demanded
    for pod in pods:
        if pod.node not in names or not holds_devices(pod) or not scheme.is_asked(pod):
            continue
        view = cache.view(pod.node)
        if view is None:  # a node of several systems takes no pod, whoever leaves it
            continue
        budget = None
        obstacle = _obstacle(pod, cache.node(pod.node), demand)
        if obstacle is None:
            budget, obstacle = covering.of(pod)
        gpus = _gpus(scheme, pod, view)
        own = cache.demand_of(pod)
        if obstacle is not None:
            obstacles[obstacle] += 1
        elif gpus is None or isinstance(own, PlacementRefusal):
            obstacles[EvictionObstacle.UNREADABLE] += 1
        else:
            key = own[1].requests, own[1].wishes
            if key not in places:
                places[key] = _has_place(simulation, pod)
            evictable.append(EvictablePod(pod, gpus, places[key], budget))
    return evictable, obstacles


def _obstacle(pod: Pod, node: Node | None, demand: PodDemand) -> Explained | None:
    """Why the pod may not be evicted, whatever its budget is."""
    if pod.priority > demand.priority:
        return EvictionObstacle.HIGHER_PRIORITY
    if node is not None and opted_out(node):
        return SkipReason.OPTED_OUT
    skip_reason = eviction_skip_reason(pod, POLICY, lambda failed: reaction(failed, None))
    return skip_reason[0] if skip_reason is not None else None


def _gpus(scheme: SchedulerScheme, pod: Pod, view: CandidateView) -> frozenset[str] | None:
    """The names of the pod's GPUs; None if they are unknown."""
    if any(standing.pod == pod.ref for standing in view.standing):
        return None
    shares = held_shares(scheme, pod, (gpu.device for gpu in view.candidate.gpus))
    return frozenset(physical(share.device) for share in shares or ())


def _has_place(simulation: SchedulingSimulation, pod: Pod) -> bool:
    """Whether a pod like this one fits beside all others."""
    demanded = simulation.replacement(pod)
    if isinstance(demanded, PlacementRefusal):
        return False
    with simulation.supposing():
        return not isinstance(simulation.place(*demanded), RefusedNodes)


class _CoveringBudgets:
    """Which budget counts the eviction of a pod."""

    def __init__(self, budgets: Budgets) -> None:
        self._budgets = budgets
        self._by_namespace: dict[str, list[DisruptionBudget]] = {}
        for budget in budgets.budgets:
            self._by_namespace.setdefault(budget.namespace, []).append(budget)

    def of(self, pod: Pod) -> tuple[BudgetKey | None, EvictionObstacle | None]:
        """The budget, and why it forbids the eviction now; the API server checks no Pending pod."""
        ref = pod.ref
        budgets = self._by_namespace.get(ref.namespace, [])
        is_unread = ref.namespace in self._budgets.unread
        if pod.phase == PENDING or not (budgets or is_unread):
            return None, None
        labels = self._budgets.labels.get(ref.uid)
        if is_unread or labels is None:
            return None, EvictionObstacle.BUDGET_UNREAD
        covering = [budget for budget in budgets if budget.covers(ref.name, labels)]
        if len(covering) > 1:
            return None, EvictionObstacle.SEVERAL_BUDGETS
        for budget in covering:
            obstacle = None if budget.allowed else EvictionObstacle.BUDGET
            return (budget.namespace, budget.name), obstacle
        return None, None
