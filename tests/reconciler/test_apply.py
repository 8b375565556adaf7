"""What applying a plan does to a cluster that moves, refuses and falls silent."""

import logging
import threading

import pytest

from reconciler.apply.applier import MOST_UNREACHED, Applier, ApplyOptions
from reconciler.apply.audit import AuditError
from reconciler.apply.executor import TRIES
from reconciler.model import NobodyWaitsGuard, ObjectKind, OwnerGuard, OwnerState
from reconciler.reasons import ActionOutcome, Rule
from tests.reconciler.fake_client import BUSY, CONFLICT, PDB, UNREACHABLE, FakeClient, FakeTime
from tests.reconciler.samples import (
    CODECS_IN_USE,
    assumed,
    ended,
    lock,
    node,
    pod,
    refused,
    replace,
    share_pod,
    terminating,
    unbound,
)
from tests.support.reconcile_plans import editing, evicting, plan, unmoved
from tests.support.waiting import WAIT_SECONDS
from vgpu.apiserver.connection import ClusterError
from vgpu.model.names import PodRef
from vgpu.model.reasons import Reason, SourceError


class MemoryAudit:
    """An audit that keeps its records; the events in ``unwritable`` cannot be written."""

    def __init__(self, *unwritable):
        self.lines = []
        self._unwritable = unwritable

    def intent(self, plan, entry):
        self._record("intent", entry)

    def result(self, plan, result):
        self._record(str(result.outcome), result.entry)

    def _record(self, event, entry):
        if event in self._unwritable:
            raise AuditError("--audit x", "disk full")
        self.lines.append((entry.finding.object_ref.name, event))


class Bench:
    """Applies plans in fake time."""

    def __init__(self, *objects, **options):
        self.client = FakeClient(*objects)
        self.time = FakeTime()
        self.audit = options.pop("audit", MemoryAudit())
        self.judge = options.pop("judge", unmoved(CODECS_IN_USE))
        self.applier = Applier(
            self.client,
            self.audit,
            ApplyOptions(clock=self.time, monotonic=self.time, sleep=self.time.sleep, **options),
        )

    def apply(self, *entries):
        return list(self.applier.apply(plan(*entries), self.judge))

    def outcomes(self, *entries):
        return {r.entry.finding.object_ref.name: r.outcome for r in self.apply(*entries)}

    def one(self, entry):
        (result,) = self.apply(entry)
        return result


SICK = refused(pod("a"))
OTHERS = [refused(pod(name)) for name in "bcdef"]


# ---------------------------------------------------------------- evictions


def test_an_eviction_is_recorded_before_and_after():
    bench = Bench(SICK)
    result = bench.one(evicting(SICK))
    assert (result.outcome, result.ended_at) == (ActionOutcome.DONE, bench.time.now)
    assert not bench.client.has("a")
    assert bench.audit.lines == [("a", "intent"), ("a", "done")]


def test_results_come_as_they_are_there():
    bench = Bench(SICK, OTHERS[0])
    results = bench.applier.apply(plan(evicting(SICK), evicting(OTHERS[0])), unmoved())
    assert next(results).outcome is ActionOutcome.DONE
    assert bench.client.has("b")


@pytest.mark.parametrize(
    ("meanwhile", "outcome"),
    [
        (lambda client: client.remove("a"), ActionOutcome.GONE),
        (
            lambda client: client.put(replace(SICK, ref=PodRef("new", "ml", "a"))),
            ActionOutcome.GONE,
        ),
        (lambda client: client.touch("a"), ActionOutcome.CHANGED),
        (lambda client: client.touch("a", phase="Running"), ActionOutcome.CHANGED),
        (
            lambda client: client.put(terminating(replace(SICK, resource_version="9"))),
            ActionOutcome.CHANGED,
        ),
    ],
    ids=["gone", "another of its name", "touched", "runs", "being deleted"],
)
def test_a_pod_that_moved_on_is_skipped(meanwhile, outcome):
    bench = Bench(SICK)
    entry = evicting(SICK)
    meanwhile(bench.client)
    assert bench.one(entry).outcome is outcome
    assert bench.client.count("evict") == 0


def test_a_pod_that_changes_at_the_last_moment_is_skipped():
    bench = Bench(SICK)
    bench.client.first("evict", lambda: bench.client.touch("a", phase="Running"))
    assert bench.one(evicting(SICK)).outcome is ActionOutcome.CHANGED
    assert bench.client.get("a").phase == "Running"


REFUSALS = {
    ActionOutcome.GONE: [ClusterError(404, "NotFound", "x"), ClusterError(410, "Expired", "x")],
    ActionOutcome.CHANGED: [CONFLICT],
    ActionOutcome.BLOCKED_BY_PDB: [
        PDB,
        ClusterError(403, "Forbidden", 'poddisruptionbudget.policy "web" is forbidden: too big'),
    ],
    ActionOutcome.THROTTLED: [BUSY],
    ActionOutcome.SEVERAL_PDBS: [
        ClusterError(
            500, "HTTP 500", "This pod has more than one PodDisruptionBudget, which the eviction"
        )
    ],
    ActionOutcome.FORBIDDEN: [
        ClusterError(403, "Forbidden", 'User "x" cannot create resource "pods/eviction"'),
        ClusterError(401, "Unauthorized", "Unauthorized"),
    ],
    ActionOutcome.FAILED: [
        ClusterError(403, "Forbidden", "admission webhook w denied the request"),
        ClusterError(422, "Invalid", "x"),
        ClusterError(500, "InternalError", "etcdserver: request timed out"),
        ClusterError(503, "HTTP 503", "no healthy upstream"),
        UNREACHABLE,
        SourceError(Reason.MALFORMED, "https://api", "no JSON"),
    ],
}


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(error, outcome) for outcome, errors in REFUSALS.items() for error in errors],
    ids=str,
)
def test_every_refusal_has_its_outcome(error, outcome):
    bench = Bench(SICK, deadline_seconds=0.5)  # no second try after a wait
    bench.client.refuse("evict", error, times=TRIES)
    result = bench.one(evicting(SICK))
    assert result.outcome is outcome
    assert result.detail
    assert bench.client.has("a")


@pytest.mark.parametrize("method", ["pod", "evict"])
@pytest.mark.parametrize("error", [ClusterError(500, "HTTP 500", "x"), RuntimeError("a defect")])
def test_one_failure_stops_nobody_else(method, error, caplog):
    bench = Bench(SICK, *OTHERS)
    bench.client.refuse(method, error)
    outcomes = bench.outcomes(evicting(SICK), *map(evicting, OTHERS))
    begun = method == "evict" and isinstance(error, RuntimeError)
    assert outcomes.pop("a") is (ActionOutcome.UNKNOWN if begun else ActionOutcome.FAILED)
    assert set(outcomes.values()) == {ActionOutcome.DONE}


# ---------------------------------------------------------------- answers that are lost


def test_an_eviction_whose_answer_is_lost_is_looked_at():
    bench = Bench(SICK)
    bench.client.refuse("evict", after=UNREACHABLE)
    result = bench.one(evicting(SICK))
    assert result.outcome is ActionOutcome.DONE
    assert "the answer was lost" in result.detail


def test_a_pod_that_terminates_after_a_lost_answer_counts_as_evicted():
    bench = Bench(SICK)
    bench.client.refuse("evict", UNREACHABLE)
    bench.client.first("evict", lambda: bench.client.put(terminating(SICK)))
    assert bench.one(evicting(SICK)).outcome is ActionOutcome.DONE


def test_an_eviction_that_never_arrived_is_reported_as_not_done():
    bench = Bench(SICK)
    bench.client.refuse("evict", UNREACHABLE)
    result = bench.one(evicting(SICK))
    assert result.outcome is ActionOutcome.FAILED
    assert "can be seen not to be done" in result.detail
    assert bench.client.count("evict") == 1


def test_what_cannot_be_read_is_reported_as_unknown():
    bench = Bench(SICK)
    bench.client.refuse("evict", after=UNREACHABLE)
    bench.client.first("evict", lambda: bench.client.refuse("pod", UNREACHABLE))
    result = bench.one(evicting(SICK))
    assert result.outcome is ActionOutcome.UNKNOWN
    assert "not known" in result.detail


def test_an_edit_whose_answer_is_lost_is_looked_at():
    sick = ended(pod("a", annotations={"left": "over"}))
    bench = Bench(sick)
    bench.client.refuse("patch_pod", after=UNREACHABLE)
    assert bench.one(editing(sick, {"left": None})).outcome is ActionOutcome.DONE
    bench = Bench(sick)
    bench.client.refuse("patch_pod", UNREACHABLE)
    assert bench.one(editing(sick, {"left": None})).outcome is ActionOutcome.FAILED


def test_a_server_that_falls_silent_is_not_asked_for_ever():
    pods = [SICK, *OTHERS]
    bench = Bench(*pods)
    bench.client.refuse("pod", UNREACHABLE, times=100)
    outcomes = list(bench.outcomes(*map(evicting, pods)).values())
    assert outcomes[:MOST_UNREACHED] == [ActionOutcome.FAILED] * MOST_UNREACHED
    assert set(outcomes[MOST_UNREACHED:]) == {ActionOutcome.OUT_OF_TIME}
    assert bench.client.count("pod") == MOST_UNREACHED


def test_single_silences_are_no_reason_to_give_up():
    pods = [SICK, *OTHERS]
    bench = Bench(*pods)
    for answer in (UNREACHABLE, UNREACHABLE, None, UNREACHABLE, UNREACHABLE, None):
        bench.client.refuse("pod", answer)
    assert list(bench.outcomes(*map(evicting, pods)).values()).count(ActionOutcome.DONE) == 2


# ---------------------------------------------------------------- waiting


def test_a_budget_is_asked_again_while_nobody_else_waits_for_it():
    bench = Bench(SICK, *OTHERS)
    bench.client.refuse("evict", PDB)
    results = bench.apply(evicting(SICK), *map(evicting, OTHERS))
    assert [r.entry.finding.object_ref.name for r in results] == [*"bcdef", "a"]
    assert {r.outcome for r in results} == {ActionOutcome.DONE}
    assert bench.time.waited == [10.0]
    assert bench.audit.lines.count(("a", "intent")) == 1


def test_a_budget_that_does_not_give_in_is_named():
    bench = Bench(SICK, deadline_seconds=25)
    bench.client.refuse("evict", PDB, times=100)
    result = bench.one(evicting(SICK))
    assert result.outcome is ActionOutcome.BLOCKED_BY_PDB
    assert result.detail.startswith("The disruption budget web needs 1 healthy pods and has 1")
    assert bench.client.count("evict") == 3
    assert bench.time.waited == [10.0, 10.0]  # a third pause would end after the deadline


def test_a_pod_that_changes_while_a_budget_is_waited_for_is_skipped():
    bench = Bench(SICK)
    bench.client.refuse("evict", PDB)
    bench.client.first("evict", lambda: bench.client.touch("a"))
    assert bench.one(evicting(SICK)).outcome is ActionOutcome.CHANGED


def test_the_server_decides_how_long_to_wait():
    bench = Bench(SICK)
    bench.client.refuse("evict", ClusterError(429, "TooManyRequests", PDB.message, 7.0))
    bench.one(evicting(SICK))
    assert bench.time.waited == [7.0]


def test_a_busy_server_holds_up_everybody():
    bench = Bench(SICK, *OTHERS)
    bench.client.refuse("evict", BUSY)
    results = bench.apply(evicting(SICK), *map(evicting, OTHERS))
    assert [r.entry.finding.object_ref.name for r in results] == [*"abcdef"]
    assert {r.outcome for r in results} == {ActionOutcome.DONE}


def test_a_server_that_stays_busy_ends_the_attempts_at_the_deadline():
    bench = Bench(SICK, OTHERS[0], deadline_seconds=5)
    bench.client.refuse("evict", BUSY, times=100)
    outcomes = bench.outcomes(evicting(SICK), evicting(OTHERS[0]))
    assert outcomes["a"] is ActionOutcome.THROTTLED
    assert bench.time.now <= bench.time.waited[0] * 5 + FakeTime().now


def test_after_the_deadline_nothing_is_begun():
    bench = Bench(SICK, OTHERS[0], deadline_seconds=5)
    bench.client.first("evict", lambda: bench.time.sleep(6))
    outcomes = bench.outcomes(evicting(SICK), evicting(OTHERS[0]))
    assert outcomes == {"a": ActionOutcome.DONE, "b": ActionOutcome.OUT_OF_TIME}
    assert ("b", "intent") not in bench.audit.lines


def test_an_applier_that_is_stopped_while_waiting_stops():
    bench = Bench(SICK, OTHERS[0])
    bench.time.woken = True
    bench.client.refuse("evict", PDB, times=100)
    outcomes = bench.outcomes(evicting(SICK), evicting(OTHERS[0]))
    assert set(outcomes.values()) == {ActionOutcome.BLOCKED_BY_PDB}
    assert bench.client.count("evict") == 2
    assert len(bench.time.waited) == 1


# ---------------------------------------------------------------- leadership


def test_who_leads_no_longer_does_nothing():
    bench = Bench(SICK, leads=lambda: False)
    assert bench.one(evicting(SICK)).outcome is ActionOutcome.NOT_LEADER
    assert bench.client.calls == []


@pytest.mark.parametrize("asks", range(4))
def test_leadership_lost_on_the_way_stops_before_the_next_write(asks):
    answers = iter([True] * asks)
    bench = Bench(SICK, OTHERS[0], leads=lambda: next(answers, False))
    results = bench.apply(evicting(SICK), evicting(OTHERS[0]))
    done = [r.outcome for r in results].count(ActionOutcome.DONE)
    assert done == bench.client.count("evict") == asks // 2  # asked before each action, each write
    assert {r.outcome for r in results} <= {ActionOutcome.DONE, ActionOutcome.NOT_LEADER}


# ---------------------------------------------------------------- the audit


def test_what_cannot_be_audited_is_not_done():
    bench = Bench(SICK, audit=MemoryAudit("intent"))
    with pytest.raises(AuditError):
        bench.apply(evicting(SICK))
    assert bench.client.has("a")


def test_after_a_result_that_could_not_be_recorded_nothing_more_is_done():
    bench = Bench(SICK, OTHERS[0], audit=MemoryAudit("done"))
    results = bench.applier.apply(plan(evicting(SICK), evicting(OTHERS[0])), unmoved())
    assert next(results).outcome is ActionOutcome.DONE
    with pytest.raises(AuditError):
        next(results)
    assert bench.client.has("b")


# ---------------------------------------------------------------- edits


def test_an_edit_changes_what_it_names_and_nothing_else():
    sick = ended(pod("a", annotations={"left": "over", "mine": "stays"}))
    bench = Bench(sick)
    assert bench.one(editing(sick, {"left": None, "new": "1"})).outcome is ActionOutcome.DONE
    kept = {**sick.annotations, "new": "1"}
    del kept["left"]
    assert bench.client.get("a").annotations == kept


def test_a_pod_of_another_version_is_not_edited():
    sick = ended(pod("a", annotations={"left": "over"}))
    bench = Bench(sick)
    entry = editing(sick, {"left": None})
    bench.client.touch("a")
    assert bench.one(entry).outcome is ActionOutcome.CHANGED
    assert bench.client.count("patch_pod") == 0


LOCKED = node("gpu-1", "hami", annotations={"left": "over"}, uid="uid-of-gpu-1")


def test_a_node_may_change_as_long_as_its_values_do_not():
    bench = Bench(LOCKED)
    entry = editing(LOCKED, {"left": None})
    bench.client.touch("gpu-1", ObjectKind.NODE)
    for _ in range(2):
        bench.client.first("patch_node", lambda: bench.client.touch("gpu-1", ObjectKind.NODE))
    assert bench.one(entry).outcome is ActionOutcome.DONE
    assert "left" not in bench.client.get("gpu-1", ObjectKind.NODE).annotations


def test_a_node_that_changes_all_the_time_is_skipped():
    bench = Bench(LOCKED)
    for _ in range(100):
        bench.client.first("patch_node", lambda: bench.client.touch("gpu-1", ObjectKind.NODE))
    assert bench.one(editing(LOCKED, {"left": None})).outcome is ActionOutcome.CHANGED
    assert bench.client.count("patch_node") == 3


@pytest.mark.parametrize("when", ["before it is read", "after it is read"])
@pytest.mark.parametrize("value", ["another", None])
def test_a_value_that_somebody_changed_is_theirs(when, value):
    bench = Bench(LOCKED)
    entry = editing(LOCKED, {"left": None, "other": "1"})

    def change():
        bench.client.annotate("gpu-1", ObjectKind.NODE, left=value)

    if when == "before it is read":
        change()
    else:
        bench.client.first("patch_node", change)
    assert bench.one(entry).outcome is ActionOutcome.CHANGED
    assert bench.client.get("gpu-1", ObjectKind.NODE).annotations.get("left") == value
    assert "other" not in bench.client.get("gpu-1", ObjectKind.NODE).annotations


def test_a_node_that_was_recreated_is_another():
    bench = Bench(LOCKED)
    entry = editing(LOCKED, {"left": None})
    bench.client.put(replace(LOCKED, uid="uid-of-another"))
    assert bench.one(entry).outcome is ActionOutcome.GONE


def test_a_share_pod_is_unbound_where_it_was_bound():
    stuck = share_pod("jupyter", served=False)
    bench = Bench(stuck)
    entry = editing(stuck, {"kubeshare/GPUID": None}, Rule.KUBESHARE, unbind=stuck.node)
    assert bench.one(entry).outcome is ActionOutcome.DONE
    found = bench.client.get("jupyter", ObjectKind.SHARE_POD)
    assert (found.node, "kubeshare/GPUID" in found.annotations) == ("", False)


def test_a_share_pod_that_is_bound_elsewhere_is_skipped():
    stuck = share_pod("jupyter", served=False)
    bench = Bench(stuck)
    entry = editing(stuck, {"kubeshare/GPUID": None}, Rule.KUBESHARE, unbind="gpu-2")
    assert bench.one(entry).outcome is ActionOutcome.CHANGED


def test_an_edit_that_does_not_unbind_leaves_a_share_pod_where_it_is():
    stuck = share_pod("jupyter", served=False)
    bench = Bench(stuck)
    assert bench.one(editing(stuck, {"kubeshare/GPUID": None})).outcome is ActionOutcome.DONE
    assert bench.client.get("jupyter", ObjectKind.SHARE_POD).node == "gpu-1"


# ---------------------------------------------------------------- guards

OWNERS = {
    OwnerState.GONE: None,
    OwnerState.ENDED: ended(pod("owner", "hami")),
    OwnerState.SERVED: pod("owner", "hami"),
    OwnerState.WAITS: assumed("owner", "hami"),
    OwnerState.TERMINATING: terminating(pod("owner", "hami")),
}
SAFE = {
    (OwnerState.SERVED, OwnerState.SERVED),
    (OwnerState.SERVED, OwnerState.ENDED),
    (OwnerState.SERVED, OwnerState.GONE),
    (OwnerState.ENDED, OwnerState.ENDED),
    (OwnerState.ENDED, OwnerState.GONE),
    (OwnerState.GONE, OwnerState.GONE),
}


@pytest.mark.parametrize("planned", OwnerState)
@pytest.mark.parametrize("now", OwnerState)
def test_a_lock_goes_only_if_its_owner_is_as_it_was_or_further(planned, now):
    locked = node("gpu-1", "hami", annotations=lock(pod("owner", "hami")))
    (key,) = lock()
    owner = OWNERS[now]
    bench = Bench(locked, *([owner] if owner else []))
    guard = OwnerGuard("ml", "owner", planned)
    result = bench.one(editing(locked, {key: None}, Rule.STALE_LOCK, guards=(guard,)))
    cleared = key not in bench.client.get("gpu-1", ObjectKind.NODE).annotations
    assert cleared == ((planned, now) in SAFE)
    assert result.outcome is (ActionOutcome.DONE if cleared else ActionOutcome.CHANGED)


def test_an_owner_that_appears_at_the_last_moment_keeps_the_lock_that_it_took():
    locked = node("gpu-1", "hami", annotations=lock(pod("owner", "hami")))
    (key,) = lock()
    bench = Bench(locked)
    taken = lock(pod("owner", "hami"), age=0)[key]
    bench.client.first(
        "patch_node", lambda: bench.client.annotate("gpu-1", ObjectKind.NODE, **{key: taken})
    )
    guard = OwnerGuard("ml", "owner", OwnerState.GONE)
    entry = editing(locked, {key: None}, Rule.STALE_LOCK, guards=(guard,))
    assert bench.one(entry).outcome is ActionOutcome.CHANGED
    assert bench.client.get("gpu-1", ObjectKind.NODE).annotations[key] == taken


def test_an_owner_that_cannot_be_asked_for_keeps_the_lock():
    bench = Bench(LOCKED)
    for guard in (OwnerGuard("", "owner", OwnerState.GONE), OwnerGuard("ml", "", OwnerState.GONE)):
        assert (
            bench.one(editing(LOCKED, {"left": None}, guards=(guard,))).outcome
            is ActionOutcome.FAILED
        )
    forbidden = ClusterError(403, "Forbidden", 'pods is forbidden: User "x" cannot get resource')
    bench.client.refuse("pod", forbidden)
    guard = OwnerGuard("ml", "owner", OwnerState.GONE)
    entry = editing(LOCKED, {"left": None}, guards=(guard,))
    assert bench.one(entry).outcome is ActionOutcome.FORBIDDEN
    assert "left" in bench.client.get("gpu-1", ObjectKind.NODE).annotations


@pytest.mark.parametrize(
    ("waiter", "style"),
    [
        *((assumed, style) for style in ("hami", "volcano", "gpushare", "gaia")),
        *(
            (unbound, style) for style in ("hami", "volcano", "gaia")
        ),  # whose promises name the node
    ],
)
def test_a_lock_without_an_owner_stays_while_somebody_waits(style, waiter):
    bench = Bench(LOCKED, waiter("w", style))
    entry = editing(LOCKED, {"left": None}, guards=(NobodyWaitsGuard("gpu-1"),))
    result = bench.one(entry)
    assert result.outcome is ActionOutcome.CHANGED
    assert "ml/w may still be served on gpu-1" in result.detail


def test_a_lock_without_an_owner_goes_when_nobody_waits():
    others = (pod("runs"), refused(pod("failed")), ended(pod("done")))
    elsewhere = (
        assumed("e", node="gpu-2"),
        unbound("u", node="gpu-2"),
        pod("n", node="", claim=None),
    )
    bench = Bench(LOCKED, *others, *elsewhere)
    entry = editing(LOCKED, {"left": None}, guards=(NobodyWaitsGuard("gpu-1"),))
    assert bench.one(entry).outcome is ActionOutcome.DONE


def test_a_pod_that_is_bound_between_the_lists_is_seen():
    bench = Bench(LOCKED, pod("w", "hami", node="", claim=None))
    bench.client.first("pods", lambda: None)
    bench.client.first("pods", lambda: bench.client.put(assumed("w", "hami")))
    entry = editing(LOCKED, {"left": None}, guards=(NobodyWaitsGuard("gpu-1"),))
    assert bench.one(entry).outcome is ActionOutcome.CHANGED


# ---------------------------------------------------------------- dry run


def test_a_dry_run_asks_everything_and_changes_nothing():
    sick = ended(pod("b", annotations={"left": "over"}))
    bench = Bench(SICK, sick, LOCKED, dry_run=True)
    before = dict(bench.client.objects)
    outcomes = bench.outcomes(
        evicting(SICK), editing(sick, {"left": None}), editing(LOCKED, {"left": None})
    )
    assert set(outcomes.values()) == {ActionOutcome.DRY_RUN}
    assert bench.client.objects == before
    assert bench.client.events == []
    assert {"evict", "patch_pod", "patch_node"} <= set(bench.client.calls)


def test_a_dry_run_does_not_take_what_moved_on_for_what_would_be_done():
    bench = Bench(SICK, dry_run=True)
    entry = evicting(SICK)
    bench.client.touch("a")
    assert bench.one(entry).outcome is ActionOutcome.CHANGED


def test_a_dry_run_whose_answer_is_lost_has_failed():
    bench = Bench(SICK, dry_run=True)
    bench.client.refuse("evict", UNREACHABLE)
    bench.client.first("evict", lambda: bench.client.remove("a"))  # that was another client
    assert bench.one(evicting(SICK)).outcome is ActionOutcome.FAILED


def test_a_dry_run_that_is_refused_is_reported_only_in_its_result():
    bench = Bench(SICK, dry_run=True, deadline_seconds=5)
    bench.client.refuse("evict", PDB)
    assert bench.one(evicting(SICK)).outcome is ActionOutcome.BLOCKED_BY_PDB
    assert bench.client.events == []


# ---------------------------------------------------------------- events


def test_an_eviction_is_reported_on_the_pod_and_on_its_owner():
    bench = Bench(SICK)
    bench.one(evicting(SICK))
    assert [(note.kind, note.reason) for note in bench.client.events] == [
        ("Pod", "VgpuEvicted"),
        ("ReplicaSet", "VgpuEvicted"),
    ]


def test_events_that_cannot_be_written_change_no_outcome_and_are_logged_once(caplog):
    bench = Bench(SICK, *OTHERS)
    forbidden = ClusterError(403, "Forbidden", 'cannot create resource "events"')
    bench.client.refuse("write_event", forbidden, times=100)
    with caplog.at_level(logging.WARNING):
        outcomes = bench.outcomes(evicting(SICK), *map(evicting, OTHERS))
    assert set(outcomes.values()) == {ActionOutcome.DONE}
    assert len([r for r in caplog.records if "event" in r.message]) == 1


def test_an_event_that_takes_long_holds_up_no_action():
    bench = Bench(SICK, *OTHERS)
    released = threading.Event()
    bench.client.first("write_event", lambda: released.wait(WAIT_SECONDS))
    results = bench.applier.apply(plan(*map(evicting, [SICK, *OTHERS])), CODECS_IN_USE)
    assert {next(results).outcome for _ in range(6)} == {ActionOutcome.DONE}
    assert bench.client.events == []
    released.set()
    assert list(results) == []
    assert len(bench.client.events) == 12


def test_applying_twice_equals_once():
    sick = ended(pod("b", annotations={"left": "over"}))
    bench = Bench(SICK, sick, LOCKED)
    entries = (
        evicting(SICK),
        editing(sick, {"left": None}),
        editing(LOCKED, {"left": None}),
    )
    bench.apply(*entries)
    after = dict(bench.client.objects)
    assert set(bench.outcomes(*entries).values()) == {ActionOutcome.GONE, ActionOutcome.CHANGED}
    assert bench.client.objects == after
