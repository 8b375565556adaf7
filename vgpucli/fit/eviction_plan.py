"""Which pods have to be evicted so that more pods of a demand fit: a defragmentation plan; pure.

A GPU, or a node, with many small pods takes no large one, although enough is free in sum. The plan
evicts as few pods as it finds, and rather those whose replacement fits on other GPUs.

The search is greedy. A *step* is a set of pods of one node whose absence makes room for more pods.
The plan is a single step that suffices, or the cheapest steps of several nodes together, whichever
costs less. Every plan is tried as a whole before it counts: the wanted pods are placed, and then
the replacements of the evicted ones. Two maximums, of counted sets and of tries, bound the search,
so that equal clusters have equal plans at any speed of the machine.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import IntEnum
from itertools import combinations
from math import comb
from typing import Final, Protocol

import msgspec

from scheduler.cluster.victims import importance, reprieve
from vgpu.model.objects import Pod

MOST_COUNTED: Final = 60_000
"""Maximum number of sets of pods of a node without which the pods that fit are counted."""

MOST_TRIED: Final = 2_000
"""Maximum number of pods that are placed to try plans out."""

MOST_SUBSETS: Final = 256
"""Maximum number of sets of one size that are counted of a node."""

AT_A_TIME: Final = 500
"""Number of nodes whose steps are found before the next try."""

BudgetKey = tuple[str, str]
"""The namespace and the name of a PodDisruptionBudget."""


class EvictablePod(msgspec.Struct, frozen=True):
    """A bound pod that may be evicted.

    Attributes:
        pod: the pod.
        gpus: the names of its GPUs.
        has_place: whether its replacement fits somewhere before anything is evicted.
        budget: the PodDisruptionBudget that counts its eviction; None if there is none.
    """

    pod: Pod
    gpus: frozenset[str] = frozenset()
    has_place: bool = False
    budget: BudgetKey | None = None

    @property
    def uid(self) -> str:
        """The UID of the pod."""
        return self.pod.ref.uid


class Trial(msgspec.Struct, frozen=True):
    """What comes of evictions: whether the wanted pods fit, and the UIDs of the evicted pods whose
    replacement has no place beside them.
    """

    fits: bool
    unplaced: frozenset[str] = frozenset()


class EvictionPlan(msgspec.Struct, frozen=True):
    """The pods to evict, in no order; ``unplaced`` are the UIDs of those without another place."""

    evicted: tuple[EvictablePod, ...]
    unplaced: frozenset[str] = frozenset()

    @property
    def cost(self) -> tuple[int, int, list[int]]:
        """Lower is better: pods without another place, evictions, and the evicted priorities."""
        priorities = sorted((each.pod.priority for each in self.evicted), reverse=True)
        return len(self.unplaced), len(self.evicted), priorities


class Defragmentation(msgspec.Struct, frozen=True):
    """The best plan that was found, None if none; ``complete`` is whether the search was not ended
    by one of its maximums.
    """

    plan: EvictionPlan | None
    complete: bool = True


class Prospect(IntEnum):
    """What the replacements of a step's pods can expect, before it is tried out."""

    ALL_PLACED = 0
    SOME_UNPLACED = 1  # all of these are less important than the wanted pods
    FORBIDDEN = 2  # a pod that is as important as the wanted ones has no place


class EvictionStep(msgspec.Struct, frozen=True):
    """Pods of a node, and how many more pods of the demand the node takes without them."""

    node: str
    pods: tuple[EvictablePod, ...]
    gain: int
    prospect: Prospect

    @property
    def uids(self) -> frozenset[str]:
        """The UIDs of the pods."""
        return _uids(self.pods)

    @property
    def order(self) -> tuple[int, int, str]:
        """Steps of one pod more come later, then those of more important pods."""
        return len(self.pods), max(each.pod.priority for each in self.pods), self.node

    @property
    def rate(self) -> tuple[Prospect, float, tuple[int, int, str]]:
        """The cheapest first: by the prospect, then few pods for each one that fits."""
        return self.prospect, len(self.pods) / self.gain, self.order


class _Exhausted(Exception):  # noqa: N818  # an event, and no error of a program
    """No more plans may be tried out."""


class WantedPods(msgspec.Struct, frozen=True):
    """The pods that are to fit.

    Attributes:
        number: of all of them; as many are placed to try a plan out.
        missing: how many of them do not fit now.
        priority: theirs: no pod of it or of a higher one is left without another place.
    """

    number: int
    missing: int
    priority: int = 0


class EvictionTrials(Protocol):
    """The cluster of a question, in which evictions are supposed."""

    def count(self, node: str, gone: AbstractSet[str]) -> int:
        """How many of the wanted pods a node takes once the pods of these UIDs are gone."""
        ...

    def try_out(self, evicted: Sequence[EvictablePod]) -> Trial:
        """Place the wanted pods, and then the replacements of the evicted ones."""
        ...


def plan_evictions(
    pods: Iterable[EvictablePod],
    wanted: WantedPods,
    allowed: Mapping[BudgetKey, int],
    trials: EvictionTrials,
) -> Defragmentation:
    """The plan after which the wanted pods fit; ``allowed`` are the disruptions of each budget."""
    search = _Search(pods, wanted, allowed, trials)
    try:
        search.run()
    except _Exhausted:
        search.complete = False
    return Defragmentation(search.best, search.complete or _is_perfect(search.best))


def _is_perfect(plan: EvictionPlan | None) -> bool:
    """Whether no plan has a lower number of evictions and of pods without another place."""
    return plan is not None and not plan.unplaced and len(plan.evicted) == 1


class _Search:
    """One search.

    Attributes:
        best: the best plan so far.
        complete: whether every step was found.
    """

    def __init__(
        self,
        pods: Iterable[EvictablePod],
        wanted: WantedPods,
        allowed: Mapping[BudgetKey, int],
        trials: EvictionTrials,
    ) -> None:
        self.best: EvictionPlan | None = None
        self.complete = True
        self._wanted = wanted
        self._allowed = allowed
        self._cluster = trials
        self._pods: dict[str, list[EvictablePod]] = {}
        for each in sorted(pods, key=lambda each: importance(each.pod)):
            self._pods.setdefault(each.pod.node, []).append(each)
        self._by_uid = {each.uid: each for own in self._pods.values() for each in own}
        self._now: dict[str, int] = {}
        self._gains: dict[tuple[str, frozenset[str]], int] = {}
        self._trials: dict[frozenset[str], Trial] = {}
        self._steps: dict[tuple[str, frozenset[str]], EvictionStep] = {}
        self._left_to_try = MOST_TRIED

    def run(self) -> None:
        """Search until nothing is left that may be better. Raises _Exhausted."""
        for _ in self._found():
            self._single()
            self._several()
            if _is_perfect(self.best):
                return

    # ------------------------------------------------------------ steps

    def _found(self) -> Iterator[None]:
        """Finds more and more steps; yields when it is time to try them out."""
        nodes = sorted(self._pods, key=lambda name: (len(self._pods[name]), name))
        useful: list[str] = []
        for start in range(0, len(nodes), AT_A_TIME):
            useful += filter(self._with_fewest, self._bounded(nodes[start : start + AT_A_TIME]))
            yield
        for size in range(1, max((len(self._pods[name]) for name in useful), default=0) + 1):
            if not self._may_help(size):
                return
            for name in self._bounded(useful):
                self._subsets(name, size)
            yield

    def _bounded(self, names: Sequence[str]) -> Iterator[str]:
        """The names, until too many sets were counted."""
        for name in names:
            if len(self._gains) >= MOST_COUNTED:
                self.complete = False
                return
            yield name

    def _with_fewest(self, name: str) -> bool:
        """Steps of a node with few pods: those of one GPU, and those that make room for all.

        Returns whether the node takes more pods at all without all of its pods.
        """
        pods = self._pods[name]
        most = self._gain(name, _uids(pods))
        if most <= 0:
            return False
        found = False
        for gpu in sorted({gpu for each in pods for gpu in each.gpus}):
            found |= self._fewest(name, [each for each in pods if gpu in each.gpus], 1)
        if not found:
            self._fewest(name, pods, 1)
        if self._wanted.missing > 1 < most:
            self._fewest(name, pods, min(most, self._wanted.missing))
        return True

    def _fewest(self, name: str, pods: Sequence[EvictablePod], least: int) -> bool:
        """A step of these pods, of which the important ones stay if they may; whether it is one."""
        gone = _uids(pods)
        if self._gain(name, gone) < least:
            return False
        ordered = (each.pod for each in pods)
        self._keep(name, reprieve(ordered, gone, lambda few: self._gain(name, few) >= least))
        return True

    def _subsets(self, name: str, size: int) -> None:
        """Steps with so many pods of the node."""
        pods = self._pods[name]
        if size > len(pods):
            return
        if comb(len(pods), size) > MOST_SUBSETS:
            self.complete = False
            return
        for chosen in combinations(pods, size):
            self._keep(name, _uids(chosen))

    def _keep(self, name: str, uids: frozenset[str]) -> None:
        gain = self._gain(name, uids)
        if gain > 0:
            pods = tuple(self._by_uid[uid] for uid in sorted(uids))
            self._steps[name, uids] = EvictionStep(name, pods, gain, self._prospect(pods))

    def _prospect(self, pods: Iterable[EvictablePod]) -> Prospect:
        unplaced = [each.pod.priority for each in pods if not each.has_place]
        if not unplaced:
            return Prospect.ALL_PLACED
        is_allowed = max(unplaced) < self._wanted.priority
        return Prospect.SOME_UNPLACED if is_allowed else Prospect.FORBIDDEN

    def _may_help(self, size: int) -> bool:
        """Whether a step with so many pods may be part of a better plan."""
        best = self.best
        return best is None or bool(best.unplaced) or size < len(best.evicted)

    def _gain(self, name: str, gone: AbstractSet[str]) -> int:
        """How many more pods the node takes without these than now."""
        key = name, frozenset(gone)
        gain = self._gains.get(key)
        if gain is None:
            if name not in self._now:
                self._now[name] = self._cluster.count(name, frozenset())
            gain = self._gains[key] = self._cluster.count(name, gone) - self._now[name]
        return gain

    # ------------------------------------------------------------ plans

    def _single(self) -> None:
        """Try the steps that suffice alone."""
        enough = [step for step in self._steps.values() if step.gain >= self._wanted.missing]
        for step in sorted(enough, key=lambda step: (step.prospect, step.order)):
            if self._may_help(len(step.pods)):
                self._consider(step.uids)

    def _several(self) -> None:
        """Try the cheapest steps together, without those that leave pods without a place."""
        steps = sorted(self._steps.values(), key=lambda step: step.rate)
        avoided: frozenset[str] = frozenset()
        while True:
            chosen = self._cheapest(steps, avoided)
            if chosen is None or not self._may_help(len(chosen)):
                return
            trial = self._consider(chosen)
            if trial is None or not trial.unplaced:
                return
            avoided |= trial.unplaced

    def _cheapest(
        self, steps: Iterable[EvictionStep], avoided: AbstractSet[str]
    ) -> frozenset[str] | None:
        """The first steps that suffice together; None if they do not."""
        gone: dict[str, frozenset[str]] = {}
        evictions: Counter[BudgetKey] = Counter()
        gained = 0
        for step in steps:
            own = gone.get(step.node, frozenset())
            uids = step.uids - own
            if not uids or not uids.isdisjoint(avoided):
                continue
            budgets = self._budgets(uids)
            if not self._allows(evictions + budgets):
                continue
            gain = self._gain(step.node, own | uids) - (self._gain(step.node, own) if own else 0)
            if gain <= 0:
                continue
            gone[step.node] = own | uids
            evictions += budgets
            gained += gain
            if gained >= self._wanted.missing:
                return frozenset().union(*gone.values())
        return None

    def _consider(self, uids: frozenset[str]) -> Trial | None:
        """Try a plan out, and keep it if it is the best; None if a budget forbids it.

        Raises _Exhausted.
        """
        if not self._allows(self._budgets(uids)):
            return None
        evicted = tuple(self._by_uid[uid] for uid in sorted(uids))
        trial = self._trials.get(uids)
        if trial is None:
            self._left_to_try -= self._wanted.number + len(evicted)
            if self._left_to_try < 0:
                raise _Exhausted
            trial = self._trials[uids] = self._cluster.try_out(evicted)
        plan = EvictionPlan(evicted, trial.unplaced)
        if (
            trial.fits
            and all(
                self._by_uid[uid].pod.priority < self._wanted.priority for uid in trial.unplaced
            )
            and (self.best is None or plan.cost < self.best.cost)
        ):
            self.best = plan
        return trial

    def _budgets(self, uids: Iterable[str]) -> Counter[BudgetKey]:
        budgets = (self._by_uid[uid].budget for uid in uids)
        return Counter(budget for budget in budgets if budget is not None)

    def _allows(self, evictions: Mapping[BudgetKey, int]) -> bool:
        return all(number <= self._allowed.get(key, 0) for key, number in evictions.items())


def _uids(pods: Iterable[EvictablePod]) -> frozenset[str]:
    return frozenset(each.uid for each in pods)
