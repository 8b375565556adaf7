"""One cycle after the other: what is seen, done, recorded and remembered, and what fails."""

import pytest

from reconciler.apply.audit import AuditError
from reconciler.cycle import Cycles, Ending, Stage
from reconciler.model import ActionResult, Coverage
from reconciler.observe import ClusterView
from reconciler.policy import Limits, Policy
from reconciler.reasons import ActionOutcome
from reconciler.reconciler_state import ReconcilerState
from tests.reconciler.samples import CODECS_IN_USE, NOW, assumed, pod, refused, replace, snapshot
from vgpu.apiserver.connection import ClusterError
from vgpu.model.reasons import Reason, SourceError


class Eyes:
    """Sees one thing after the other; the last again and again. An error is raised."""

    def __init__(self, *seen):
        self.seen = list(seen)
        self.asked = []

    def view(self, now):
        self.asked.append(now)
        one = self.seen.pop(0) if len(self.seen) > 1 else self.seen[0]
        if isinstance(one, Exception):
            raise one
        return ClusterView(one, CODECS_IN_USE)

    def close(self):
        pass


class Store:
    """Keeps a memory."""

    def __init__(self, memory=None):
        self.memory = memory or ReconcilerState()
        self.loads, self.saves = 0, 0

    def load(self):
        self.loads += 1
        return self.memory

    def save(self, memory):
        self.saves += 1
        self.memory = memory
        return memory


class Hands:
    """Does each action with the same outcome; on request it cannot write its audit."""

    def __init__(self, outcome=ActionOutcome.DONE, untold_after=None):
        self.outcome, self.untold_after = outcome, untold_after
        self.done = []
        self.codecs = None

    def __call__(self, plan, judge):
        self.codecs = judge.codecs
        for number, entry in enumerate(plan.actions):
            if number == self.untold_after:
                raise AuditError("--audit full.jsonl", "No space left on device")
            self.done.append(entry.finding.object_ref.name)
            yield ActionResult(entry, self.outcome)


def ticking():
    """Seconds that go on by one each time somebody asks."""
    now = [0.0]

    def clock():
        now[0] += 1.0
        return now[0]

    return clock


def cycles(eyes, *, policy=None, **options):
    return Cycles(eyes, policy or Policy(), clock=lambda: NOW, monotonic=ticking(), **options)


SICK = snapshot(refused(pod("sick-0")), refused(pod("sick-1")))
WELL = snapshot(pod("well-0"))


def test_a_cycle_that_only_plans_has_a_plan_and_touches_nothing():
    store = Store()
    cycle = cycles(Eyes(SICK), store=store).run()
    assert (cycle.ending, cycle.began, cycle.results) == (Ending.PLANNED, NOW, ())
    assert len(cycle.plan.actions) == 2
    assert cycle.seconds == {Stage.OBSERVE: 1.0, Stage.PLAN: 1.0}
    assert (store.loads, store.saves) == (1, 0)


def test_the_plan_that_is_applied_is_the_plan_that_was_made():
    client = Hands()
    cycle = cycles(Eyes(SICK), apply=client).run()
    assert cycle.ending is Ending.APPLIED
    assert client.done == [entry.finding.object_ref.name for entry in cycle.plan.actions]
    assert client.codecs == CODECS_IN_USE
    assert set(cycle.seconds) == set(Stage)


@pytest.mark.parametrize(
    ("outcome", "ending"),
    [
        (ActionOutcome.GONE, Ending.APPLIED),
        (ActionOutcome.CHANGED, Ending.APPLIED),
        (ActionOutcome.BLOCKED_BY_PDB, Ending.PARTLY),
        (ActionOutcome.FORBIDDEN, Ending.PARTLY),
        (ActionOutcome.NOT_LEADER, Ending.PARTLY),
    ],
)
def test_the_outcome_of_a_cycle_follows_from_its_actions(outcome, ending):
    assert cycles(Eyes(SICK), apply=Hands(outcome)).run().ending is ending


def test_a_tripped_breaker_is_no_success():
    policy = Policy(limits=Limits(breaker=0.0, breaker_floor=0))
    cycle = cycles(Eyes(SICK), policy=policy, apply=Hands()).run()
    assert (cycle.ending, cycle.results) == (Ending.PARTLY, ())


@pytest.mark.parametrize(
    "error",
    [
        ClusterError(0, "Unreachable", "no route to host"),
        ClusterError(403, "Forbidden", "pods is forbidden"),
        SourceError(Reason.MALFORMED, "https://api", "no JSON"),
    ],
)
def test_a_look_that_fails_leads_to_no_plan_and_the_next_cycle_looks_again(error):
    client = Hands()
    both = cycles(Eyes(error, SICK), apply=client)
    blind = both.run()
    assert (blind.ending, blind.plan, blind.error) == (Ending.BLIND, None, str(error))
    assert not client.done
    assert both.run().ending is Ending.APPLIED


def test_a_cycle_that_did_not_see_all_pods_reports_nothing_and_is_no_success():
    client = Hands()
    half = replace(SICK, complete=frozenset({Coverage.NODES}), notes=("pods are not seen: 503",))
    cycle = cycles(Eyes(half), apply=client).run()
    assert (cycle.ending, cycle.plan) == (Ending.BLIND, None)
    assert "pods are not seen: 503" in cycle.error
    assert not client.done


def test_an_audit_that_cannot_be_written_stops_the_cycle_and_what_was_done_is_known():
    store = Store()
    cycle = cycles(Eyes(SICK), store=store, apply=Hands(untold_after=1)).run()
    assert cycle.ending is Ending.UNAUDITED
    assert "No space left on device" in cycle.error
    assert [result.outcome for result in cycle.results] == [ActionOutcome.DONE]
    assert store.saves == 1


def test_what_was_learnt_is_kept_and_found_again_by_the_next_process():
    store = Store()
    waits = snapshot(assumed("waits-0"), assumed("waits-1"))
    policy = Policy(limits=Limits(per_owner=1.0))
    first = cycles(Eyes(waits), policy=policy, store=store, apply=Hands()).run()
    assert len(first.results) == 2
    assert store.memory.attempts
    next_process = cycles(Eyes(waits), policy=policy, store=store, apply=Hands()).run()
    assert not next_process.plan.actions
    assert {entry.skip for entry in next_process.plan.skipped} == {"backing_off"}


def test_memory_is_read_once_and_written_only_when_it_has_changed():
    store = Store()
    many = cycles(Eyes(WELL, WELL, SICK, SICK, WELL), store=store, apply=Hands())
    saves = []
    for _ in range(5):
        many.run()
        saves.append(store.saves)
    assert saves == [0, 0, 1, 1, 2]
    assert store.loads == 1


def test_a_dry_run_keeps_nothing():
    store = Store()
    cycles(Eyes(SICK), store=store, apply=Hands(ActionOutcome.DRY_RUN), keeps=False).run()
    assert (store.loads, store.saves) == (1, 0)


def test_who_did_not_lead_for_a_while_reads_what_the_other_has_kept():
    store = Store()
    one = cycles(Eyes(WELL), store=store, apply=Hands())
    one.run()
    one.forget()
    one.run()
    assert store.loads == 2


def test_what_was_done_is_learnt_even_if_nobody_asks_for_the_rest():
    store = Store()
    stopped = cycles(Eyes(snapshot(assumed("waits-0"))), store=store, apply=Hands())
    results = stopped.apply(stopped.make())
    next(results)
    results.close()
    assert store.memory.attempts
