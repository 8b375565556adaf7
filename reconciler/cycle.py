"""One cycle: observe, plan, and apply where that is configured; the state is kept for the next.

A failed observation leads to no plan: missing data is not evidence. The next cycle observes again.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Final, Protocol

import msgspec

from reconciler.apply.records import AuditError
from reconciler.judge import Judge
from reconciler.model import ActionResult, Coverage, Plan, Snapshot
from reconciler.observe import Observer
from reconciler.plan import make_plan
from reconciler.policy import Policy
from reconciler.reconciler_state import ReconcilerState, learn
from reconciler.report.document import succeeded
from vgpu.apiserver.connection import ClusterError
from vgpu.model.reasons import Explained, SourceError
from vgpu.schemes.codec import SchemeCodec


class Stage(StrEnum):
    """A part of a cycle."""

    OBSERVE = "observe"
    PLAN = "plan"
    APPLY = "apply"


class Ending(Explained):
    """How a cycle ended."""

    PLANNED = "planned", "a plan was made, and was not to be applied"
    APPLIED = "applied", "a plan was made, and all of it was done or no longer needed"
    PARTLY = "partly", "a plan was made, and not all of it could be done"
    BLIND = "blind", "the pods could not all be seen, so nothing was judged"
    UNAUDITED = "untold", "the audit could not be written, so nothing more was done"
    STANDBY = "standby", "another reconciler is the leader, so nothing was examined"


SEEING: Final = frozenset({Ending.PLANNED, Ending.APPLIED, Ending.PARTLY})
"""Endings of cycles that had a plan, and handled it as configured."""


class StateStore(Protocol):
    """Keeps the reconciler's state from one process to the next."""

    def load(self) -> ReconcilerState:
        """The kept state; an empty state where there is none."""
        ...

    def save(self, state: ReconcilerState) -> ReconcilerState:
        """Keep the state; returns the state to go on with, which others may have written too."""
        ...


Apply = Callable[[Plan, Judge], Iterator[ActionResult]]
"""Applies a plan; the judge has the snapshot that the plan was made from. Raises AuditError."""


class PreparedPlan(msgspec.Struct, frozen=True):
    """A plan, what it was made from, and the time that each stage took, in seconds."""

    plan: Plan
    snapshot: Snapshot
    codecs: tuple[SchemeCodec, ...]
    state: ReconcilerState
    seconds: Mapping[Stage, float]

    @property
    def blind(self) -> str:
        """Why the plan reports nothing: not all pods were seen; "" if all were."""
        if Coverage.PODS in self.snapshot.complete:
            return ""
        return "; ".join(("not all pods could be seen, so nothing is judged", *self.plan.notes))


class Cycle(msgspec.Struct, frozen=True):
    """The outcome of one cycle.

    Attributes:
        began: unix seconds.
        ending: how the cycle ended.
        plan: None if there was none.
        results: of the plan's actions that were tried.
        seconds: by stage that took place.
        error: what went wrong, in words; "" if nothing did.
    """

    began: float
    ending: Ending
    plan: Plan | None = None
    results: tuple[ActionResult, ...] = ()
    seconds: Mapping[Stage, float] = {}
    error: str = ""


def planned(prepared: PreparedPlan) -> Cycle:
    """The cycle of a plan that is not applied, or that reports nothing."""
    if prepared.blind:
        began = prepared.plan.made_at
        return Cycle(began, Ending.BLIND, seconds=prepared.seconds, error=prepared.blind)
    return Cycle(prepared.plan.made_at, Ending.PLANNED, prepared.plan, seconds=prepared.seconds)


def applied(
    prepared: PreparedPlan, results: Sequence[ActionResult], seconds: float, error: str = ""
) -> Cycle:
    """The cycle of a plan whose actions had these results; ``error`` is the audit's error."""
    whole = succeeded(results) and not prepared.plan.breaker.tripped
    ending = Ending.UNAUDITED if error else Ending.APPLIED if whole else Ending.PARTLY
    stages = {**prepared.seconds, Stage.APPLY: seconds}
    return Cycle(prepared.plan.made_at, ending, prepared.plan, tuple(results), stages, error)


class Cycles:
    """Runs cycles, one at a time."""

    def __init__(
        self,
        observer: Observer,
        policy: Policy,
        *,
        store: StateStore | None = None,
        apply: Apply | None = None,
        keeps: bool = True,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Without ``apply``, plans are only made; without ``keeps``, the store is only read.

        ``clock`` returns unix seconds, ``monotonic`` seconds that never go back.
        """
        self._observer = observer
        self._policy = policy
        self._store = store
        self._apply = apply
        self._keeps = keeps
        self._clock = clock
        self._monotonic = monotonic
        self._state: ReconcilerState | None = None
        self._kept = ReconcilerState()

    def run(self) -> Cycle:
        """A whole cycle; its ``error`` has errors of other systems, which are never raised."""
        began = self._clock()
        try:
            prepared = self.make()
        except (SourceError, ClusterError) as error:
            return Cycle(began, Ending.BLIND, error=str(error))
        if prepared.blind or self._apply is None:
            return planned(prepared)
        results: list[ActionResult] = []
        error_text = ""
        start = self._monotonic()
        try:
            results.extend(self.apply(prepared))
        except AuditError as error:
            error_text = str(error)
        return applied(prepared, results, self._monotonic() - start, error_text)

    def make(self) -> PreparedPlan:
        """Observe, and make a plan. Raises SourceError, ClusterError."""
        start = self._monotonic()
        view = self._observer.view(self._clock())
        looked = self._monotonic()
        if self._state is None:
            self._state = self._kept = self._store.load() if self._store else ReconcilerState()
        plan, self._state = make_plan(view.snapshot, self._policy, self._state, view.codecs)
        seconds = {Stage.OBSERVE: looked - start, Stage.PLAN: self._monotonic() - looked}
        return PreparedPlan(plan, view.snapshot, view.codecs, self._state, seconds)

    def apply(self, prepared: PreparedPlan) -> Iterator[ActionResult]:
        """The results of the plan's actions as they come; then the state is kept.

        The state is kept also when the caller stops iterating. Raises AuditError.
        """
        if self._apply is None:
            return
        results: list[ActionResult] = []
        try:
            judge = Judge(prepared.snapshot, self._policy, prepared.state, prepared.codecs)
            for result in self._apply(prepared.plan, judge):
                results.append(result)
                yield result
        finally:
            self._state = learn(prepared.state, results, self._clock(), self._policy.backoff)
            if self._store is not None and self._keeps and self._state != self._kept:
                self._state = self._kept = self._store.save(self._state)

    def forget(self) -> None:
        """Read the kept state again: another reconciler may have led and written it."""
        self._state = None
