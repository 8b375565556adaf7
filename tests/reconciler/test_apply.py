"""What applying a plan does to a cluster that moves, refuses and falls silent."""

import logging
import threading

import pytest

from reconciler.apply.acts import TRIES
from reconciler.apply.announcing import MOST as MOST_EVENTS
from reconciler.apply.announcing import Announcer
from reconciler.apply.applier import MOST_UNREACHED, Applier
from reconciler.apply.audit import AuditError
from reconciler.model import Kind, NobodyWaitsGuard, OwnerGuard, OwnerState
from reconciler.reasons import Outcome, Rule
from tests.reconciler.hands_fake import BUSY, CONFLICT, PDB, UNREACHABLE, FakeHands, FakeTime
from tests.reconciler.samples import (
    NOW,
    SPOKEN,
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
from tests.support.waiting import WAIT_SECONDS, wait_until
from vgpu.cluster import ClusterError
from vgpu.kube import EventNote
from vgpu.model import PodRef
from vgpu.reasons import Reason, SourceError


class Told:
    """An audit that remembers what it was told; the events of that name cannot be told."""

    def __init__(self, *unwritable):
        self.lines = []
        self._unwritable = unwritable

    def intent(self, plan, entry):
        self._tell("intent", entry)

    def result(self, plan, result):
        self._tell(str(result.outcome), result.entry)

    def _tell(self, event, entry):
        if event in self._unwritable:
            raise AuditError("--audit x", "disk full")
        self.lines.append((entry.finding.subject.name, event))


class Bench:
    """Applies plans in fake time."""

    def __init__(self, *objects, **options):
        self.hands = FakeHands(*objects)
        self.time = FakeTime()
        self.audit = options.pop("audit", Told())
        self.judge = options.pop("judge", unmoved(SPOKEN))
        self.applier = Applier(
            self.hands,
            self.audit,
            clock=self.time,
            monotonic=self.time,
            sleep=self.time.sleep,
            **options,
        )

    def apply(self, *entries):
        return list(self.applier.apply(plan(*entries), self.judge))

    def outcomes(self, *entries):
        return {r.entry.finding.subject.name: r.outcome for r in self.apply(*entries)}

    def one(self, entry):
        (result,) = self.apply(entry)
        return result


SICK = refused(pod("a"))
OTHERS = [refused(pod(name)) for name in "bcdef"]


# ---------------------------------------------------------------- evictions


def test_an_eviction_is_told_before_and_after():
    bench = Bench(SICK)
    result = bench.one(evicting(SICK))
    assert (result.outcome, result.at) == (Outcome.DONE, bench.time.now)
    assert not bench.hands.has("a")
    assert bench.audit.lines == [("a", "intent"), ("a", "done")]


def test_results_come_as_they_are_there():
    bench = Bench(SICK, OTHERS[0])
    results = bench.applier.apply(plan(evicting(SICK), evicting(OTHERS[0])), unmoved())
    assert next(results).outcome is Outcome.DONE
    assert bench.hands.has("b")


@pytest.mark.parametrize(
    ("meanwhile", "outcome"),
    [
        (lambda hands: hands.remove("a"), Outcome.GONE),
        (lambda hands: hands.put(replace(SICK, ref=PodRef("new", "ml", "a"))), Outcome.GONE),
        (lambda hands: hands.touch("a"), Outcome.CHANGED),
        (lambda hands: hands.touch("a", phase="Running"), Outcome.CHANGED),
        (
            lambda hands: hands.put(terminating(replace(SICK, resource_version="9"))),
            Outcome.CHANGED,
        ),
    ],
    ids=["gone", "another of its name", "touched", "runs", "being deleted"],
)
def test_a_pod_that_moved_on_is_left_alone(meanwhile, outcome):
    bench = Bench(SICK)
    entry = evicting(SICK)
    meanwhile(bench.hands)
    assert bench.one(entry).outcome is outcome
    assert bench.hands.count("evict") == 0


def test_a_pod_that_changes_at_the_last_moment_is_left_alone():
    bench = Bench(SICK)
    bench.hands.first("evict", lambda: bench.hands.touch("a", phase="Running"))
    assert bench.one(evicting(SICK)).outcome is Outcome.CHANGED
    assert bench.hands.get("a").phase == "Running"


REFUSALS = {
    Outcome.GONE: [ClusterError(404, "NotFound", "x"), ClusterError(410, "Expired", "x")],
    Outcome.CHANGED: [CONFLICT],
    Outcome.BLOCKED_BY_PDB: [
        PDB,
        ClusterError(403, "Forbidden", 'poddisruptionbudget.policy "web" is forbidden: too big'),
    ],
    Outcome.THROTTLED: [BUSY],
    Outcome.SEVERAL_PDBS: [
        ClusterError(
            500, "HTTP 500", "This pod has more than one PodDisruptionBudget, which the eviction"
        )
    ],
    Outcome.FORBIDDEN: [
        ClusterError(403, "Forbidden", 'User "x" cannot create resource "pods/eviction"'),
        ClusterError(401, "Unauthorized", "Unauthorized"),
    ],
    Outcome.FAILED: [
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
    bench.hands.refuse("evict", error, times=TRIES)
    result = bench.one(evicting(SICK))
    assert result.outcome is outcome
    assert result.detail
    assert bench.hands.has("a")


@pytest.mark.parametrize("method", ["pod", "evict"])
@pytest.mark.parametrize("error", [ClusterError(500, "HTTP 500", "x"), RuntimeError("a defect")])
def test_one_failure_stops_nobody_else(method, error, caplog):
    bench = Bench(SICK, *OTHERS)
    bench.hands.refuse(method, error)
    told = bench.outcomes(evicting(SICK), *map(evicting, OTHERS))
    begun = method == "evict" and isinstance(error, RuntimeError)
    assert told.pop("a") is (Outcome.UNKNOWN if begun else Outcome.FAILED)
    assert set(told.values()) == {Outcome.DONE}


# ---------------------------------------------------------------- answers that are lost


def test_an_eviction_whose_answer_is_lost_is_looked_at():
    bench = Bench(SICK)
    bench.hands.refuse("evict", after=UNREACHABLE)
    result = bench.one(evicting(SICK))
    assert result.outcome is Outcome.DONE
    assert "the answer was lost" in result.detail


def test_a_pod_that_terminates_after_a_lost_answer_counts_as_evicted():
    bench = Bench(SICK)
    bench.hands.refuse("evict", UNREACHABLE)
    bench.hands.first("evict", lambda: bench.hands.put(terminating(SICK)))
    assert bench.one(evicting(SICK)).outcome is Outcome.DONE


def test_an_eviction_that_never_arrived_is_said_not_to_be_done():
    bench = Bench(SICK)
    bench.hands.refuse("evict", UNREACHABLE)
    result = bench.one(evicting(SICK))
    assert result.outcome is Outcome.FAILED
    assert "can be seen not to be done" in result.detail
    assert bench.hands.count("evict") == 1


def test_what_cannot_be_looked_at_is_said_to_be_unknown():
    bench = Bench(SICK)
    bench.hands.refuse("evict", after=UNREACHABLE)
    bench.hands.first("evict", lambda: bench.hands.refuse("pod", UNREACHABLE))
    result = bench.one(evicting(SICK))
    assert result.outcome is Outcome.UNKNOWN
    assert "not known" in result.detail


def test_an_edit_whose_answer_is_lost_is_looked_at():
    sick = ended(pod("a", annotations={"left": "over"}))
    bench = Bench(sick)
    bench.hands.refuse("patch_pod", after=UNREACHABLE)
    assert bench.one(editing(sick, {"left": None})).outcome is Outcome.DONE
    bench = Bench(sick)
    bench.hands.refuse("patch_pod", UNREACHABLE)
    assert bench.one(editing(sick, {"left": None})).outcome is Outcome.FAILED


def test_a_server_that_falls_silent_is_not_asked_for_ever():
    pods = [SICK, *OTHERS]
    bench = Bench(*pods)
    bench.hands.refuse("pod", UNREACHABLE, times=100)
    told = list(bench.outcomes(*map(evicting, pods)).values())
    assert told[:MOST_UNREACHED] == [Outcome.FAILED] * MOST_UNREACHED
    assert set(told[MOST_UNREACHED:]) == {Outcome.OUT_OF_TIME}
    assert bench.hands.count("pod") == MOST_UNREACHED


def test_single_silences_are_no_reason_to_give_up():
    pods = [SICK, *OTHERS]
    bench = Bench(*pods)
    for answer in (UNREACHABLE, UNREACHABLE, None, UNREACHABLE, UNREACHABLE, None):
        bench.hands.refuse("pod", answer)
    assert list(bench.outcomes(*map(evicting, pods)).values()).count(Outcome.DONE) == 2


# ---------------------------------------------------------------- waiting


def test_a_budget_is_asked_again_while_nobody_else_waits_for_it():
    bench = Bench(SICK, *OTHERS)
    bench.hands.refuse("evict", PDB)
    results = bench.apply(evicting(SICK), *map(evicting, OTHERS))
    assert [r.entry.finding.subject.name for r in results] == [*"bcdef", "a"]
    assert {r.outcome for r in results} == {Outcome.DONE}
    assert bench.time.waited == [10.0]
    assert bench.audit.lines.count(("a", "intent")) == 1


def test_a_budget_that_does_not_give_in_is_named():
    bench = Bench(SICK, deadline_seconds=25)
    bench.hands.refuse("evict", PDB, times=100)
    result = bench.one(evicting(SICK))
    assert result.outcome is Outcome.BLOCKED_BY_PDB
    assert result.detail.startswith("The disruption budget web needs 1 healthy pods and has 1")
    assert bench.hands.count("evict") == 3
    assert bench.time.waited == [10.0, 10.0]  # a third pause would end after the deadline


def test_a_pod_that_changes_while_a_budget_is_waited_for_is_left_alone():
    bench = Bench(SICK)
    bench.hands.refuse("evict", PDB)
    bench.hands.first("evict", lambda: bench.hands.touch("a"))
    assert bench.one(evicting(SICK)).outcome is Outcome.CHANGED


def test_the_server_says_how_long_to_wait():
    bench = Bench(SICK)
    bench.hands.refuse("evict", ClusterError(429, "TooManyRequests", PDB.message, 7.0))
    bench.one(evicting(SICK))
    assert bench.time.waited == [7.0]


def test_a_busy_server_holds_up_everybody():
    bench = Bench(SICK, *OTHERS)
    bench.hands.refuse("evict", BUSY)
    results = bench.apply(evicting(SICK), *map(evicting, OTHERS))
    assert [r.entry.finding.subject.name for r in results] == [*"abcdef"]
    assert {r.outcome for r in results} == {Outcome.DONE}


def test_a_server_that_stays_busy_is_given_up_at_the_deadline():
    bench = Bench(SICK, OTHERS[0], deadline_seconds=5)
    bench.hands.refuse("evict", BUSY, times=100)
    told = bench.outcomes(evicting(SICK), evicting(OTHERS[0]))
    assert told["a"] is Outcome.THROTTLED
    assert bench.time.now <= bench.time.waited[0] * 5 + FakeTime().now


def test_after_the_deadline_nothing_is_begun():
    bench = Bench(SICK, OTHERS[0], deadline_seconds=5)
    bench.hands.first("evict", lambda: bench.time.sleep(6))
    told = bench.outcomes(evicting(SICK), evicting(OTHERS[0]))
    assert told == {"a": Outcome.DONE, "b": Outcome.OUT_OF_TIME}
    assert ("b", "intent") not in bench.audit.lines


def test_who_is_told_to_stop_while_waiting_stops():
    bench = Bench(SICK, OTHERS[0])
    bench.time.woken = True
    bench.hands.refuse("evict", PDB, times=100)
    told = bench.outcomes(evicting(SICK), evicting(OTHERS[0]))
    assert set(told.values()) == {Outcome.BLOCKED_BY_PDB}
    assert bench.hands.count("evict") == 2
    assert len(bench.time.waited) == 1


# ---------------------------------------------------------------- leadership


def test_who_leads_no_longer_does_nothing():
    bench = Bench(SICK, leads=lambda: False)
    assert bench.one(evicting(SICK)).outcome is Outcome.NOT_LEADER
    assert bench.hands.calls == []


@pytest.mark.parametrize("asks", range(4))
def test_leadership_lost_on_the_way_stops_before_the_next_write(asks):
    answers = iter([True] * asks)
    bench = Bench(SICK, OTHERS[0], leads=lambda: next(answers, False))
    results = bench.apply(evicting(SICK), evicting(OTHERS[0]))
    done = [r.outcome for r in results].count(Outcome.DONE)
    assert done == bench.hands.count("evict") == asks // 2  # asked before each action, each write
    assert {r.outcome for r in results} <= {Outcome.DONE, Outcome.NOT_LEADER}


# ---------------------------------------------------------------- the audit


def test_what_cannot_be_audited_is_not_done():
    bench = Bench(SICK, audit=Told("intent"))
    with pytest.raises(AuditError):
        bench.apply(evicting(SICK))
    assert bench.hands.has("a")


def test_after_a_result_that_could_not_be_told_nothing_more_is_done():
    bench = Bench(SICK, OTHERS[0], audit=Told("done"))
    results = bench.applier.apply(plan(evicting(SICK), evicting(OTHERS[0])), unmoved())
    assert next(results).outcome is Outcome.DONE
    with pytest.raises(AuditError):
        next(results)
    assert bench.hands.has("b")


# ---------------------------------------------------------------- edits


def test_an_edit_changes_what_it_names_and_nothing_else():
    sick = ended(pod("a", annotations={"left": "over", "mine": "stays"}))
    bench = Bench(sick)
    assert bench.one(editing(sick, {"left": None, "new": "1"})).outcome is Outcome.DONE
    kept = {**sick.annotations, "new": "1"}
    del kept["left"]
    assert bench.hands.get("a").annotations == kept


def test_a_pod_of_another_version_is_not_edited():
    sick = ended(pod("a", annotations={"left": "over"}))
    bench = Bench(sick)
    entry = editing(sick, {"left": None})
    bench.hands.touch("a")
    assert bench.one(entry).outcome is Outcome.CHANGED
    assert bench.hands.count("patch_pod") == 0


LOCKED = node("gpu-1", "hami", annotations={"left": "over"}, uid="uid-of-gpu-1")


def test_a_node_may_change_as_long_as_its_values_do_not():
    bench = Bench(LOCKED)
    entry = editing(LOCKED, {"left": None})
    bench.hands.touch("gpu-1", Kind.NODE)
    for _ in range(2):
        bench.hands.first("patch_node", lambda: bench.hands.touch("gpu-1", Kind.NODE))
    assert bench.one(entry).outcome is Outcome.DONE
    assert "left" not in bench.hands.get("gpu-1", Kind.NODE).annotations


def test_a_node_that_never_rests_is_left_alone():
    bench = Bench(LOCKED)
    for _ in range(100):
        bench.hands.first("patch_node", lambda: bench.hands.touch("gpu-1", Kind.NODE))
    assert bench.one(editing(LOCKED, {"left": None})).outcome is Outcome.CHANGED
    assert bench.hands.count("patch_node") == 3


@pytest.mark.parametrize("when", ["before it is read", "after it is read"])
@pytest.mark.parametrize("value", ["another", None])
def test_a_value_that_somebody_changed_is_theirs(when, value):
    bench = Bench(LOCKED)
    entry = editing(LOCKED, {"left": None, "other": "1"})

    def change():
        bench.hands.annotate("gpu-1", Kind.NODE, left=value)

    if when == "before it is read":
        change()
    else:
        bench.hands.first("patch_node", change)
    assert bench.one(entry).outcome is Outcome.CHANGED
    assert bench.hands.get("gpu-1", Kind.NODE).annotations.get("left") == value
    assert "other" not in bench.hands.get("gpu-1", Kind.NODE).annotations


def test_a_node_that_was_made_anew_is_another():
    bench = Bench(LOCKED)
    entry = editing(LOCKED, {"left": None})
    bench.hands.put(replace(LOCKED, uid="uid-of-another"))
    assert bench.one(entry).outcome is Outcome.GONE


def test_a_share_pod_is_unbound_where_it_was_bound():
    stuck = share_pod("jupyter", served=False)
    bench = Bench(stuck)
    entry = editing(stuck, {"kubeshare/GPUID": None}, Rule.KUBESHARE, unbind=stuck.node)
    assert bench.one(entry).outcome is Outcome.DONE
    found = bench.hands.get("jupyter", Kind.SHARE_POD)
    assert (found.node, "kubeshare/GPUID" in found.annotations) == ("", False)


def test_a_share_pod_that_is_bound_elsewhere_is_left_alone():
    stuck = share_pod("jupyter", served=False)
    bench = Bench(stuck)
    entry = editing(stuck, {"kubeshare/GPUID": None}, Rule.KUBESHARE, unbind="gpu-2")
    assert bench.one(entry).outcome is Outcome.CHANGED


def test_an_edit_that_does_not_unbind_leaves_a_share_pod_where_it_is():
    stuck = share_pod("jupyter", served=False)
    bench = Bench(stuck)
    assert bench.one(editing(stuck, {"kubeshare/GPUID": None})).outcome is Outcome.DONE
    assert bench.hands.get("jupyter", Kind.SHARE_POD).node == "gpu-1"


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
    cleared = key not in bench.hands.get("gpu-1", Kind.NODE).annotations
    assert cleared == ((planned, now) in SAFE)
    assert result.outcome is (Outcome.DONE if cleared else Outcome.CHANGED)


def test_an_owner_that_appears_at_the_last_moment_keeps_the_lock_that_it_took():
    locked = node("gpu-1", "hami", annotations=lock(pod("owner", "hami")))
    (key,) = lock()
    bench = Bench(locked)
    taken = lock(pod("owner", "hami"), age=0)[key]
    bench.hands.first(
        "patch_node", lambda: bench.hands.annotate("gpu-1", Kind.NODE, **{key: taken})
    )
    guard = OwnerGuard("ml", "owner", OwnerState.GONE)
    entry = editing(locked, {key: None}, Rule.STALE_LOCK, guards=(guard,))
    assert bench.one(entry).outcome is Outcome.CHANGED
    assert bench.hands.get("gpu-1", Kind.NODE).annotations[key] == taken


def test_an_owner_that_cannot_be_asked_for_keeps_the_lock():
    bench = Bench(LOCKED)
    for guard in (OwnerGuard("", "owner", OwnerState.GONE), OwnerGuard("ml", "", OwnerState.GONE)):
        assert bench.one(editing(LOCKED, {"left": None}, guards=(guard,))).outcome is Outcome.FAILED
    forbidden = ClusterError(403, "Forbidden", 'pods is forbidden: User "x" cannot get resource')
    bench.hands.refuse("pod", forbidden)
    guard = OwnerGuard("ml", "owner", OwnerState.GONE)
    entry = editing(LOCKED, {"left": None}, guards=(guard,))
    assert bench.one(entry).outcome is Outcome.FORBIDDEN
    assert "left" in bench.hands.get("gpu-1", Kind.NODE).annotations


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
    assert result.outcome is Outcome.CHANGED
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
    assert bench.one(entry).outcome is Outcome.DONE


def test_a_pod_that_is_bound_between_the_lists_is_seen():
    bench = Bench(LOCKED, pod("w", "hami", node="", claim=None))
    bench.hands.first("pods", lambda: None)
    bench.hands.first("pods", lambda: bench.hands.put(assumed("w", "hami")))
    entry = editing(LOCKED, {"left": None}, guards=(NobodyWaitsGuard("gpu-1"),))
    assert bench.one(entry).outcome is Outcome.CHANGED


# ---------------------------------------------------------------- dry run


def test_a_dry_run_asks_everything_and_changes_nothing():
    sick = ended(pod("b", annotations={"left": "over"}))
    bench = Bench(SICK, sick, LOCKED, dry_run=True)
    before = dict(bench.hands.objects)
    told = bench.outcomes(
        evicting(SICK), editing(sick, {"left": None}), editing(LOCKED, {"left": None})
    )
    assert set(told.values()) == {Outcome.DRY_RUN}
    assert bench.hands.objects == before
    assert bench.hands.events == []
    assert {"evict", "patch_pod", "patch_node"} <= set(bench.hands.calls)


def test_a_dry_run_does_not_take_what_moved_on_for_what_would_be_done():
    bench = Bench(SICK, dry_run=True)
    entry = evicting(SICK)
    bench.hands.touch("a")
    assert bench.one(entry).outcome is Outcome.CHANGED


def test_a_dry_run_whose_answer_is_lost_has_failed():
    bench = Bench(SICK, dry_run=True)
    bench.hands.refuse("evict", UNREACHABLE)
    bench.hands.first("evict", lambda: bench.hands.remove("a"))  # that was somebody else
    assert bench.one(evicting(SICK)).outcome is Outcome.FAILED


def test_a_dry_run_that_is_refused_says_nothing_to_anybody_else():
    bench = Bench(SICK, dry_run=True, deadline_seconds=5)
    bench.hands.refuse("evict", PDB)
    assert bench.one(evicting(SICK)).outcome is Outcome.BLOCKED_BY_PDB
    assert bench.hands.events == []


# ---------------------------------------------------------------- events


def test_an_eviction_is_told_to_the_pod_and_to_its_owner():
    bench = Bench(SICK)
    bench.one(evicting(SICK))
    assert [(note.kind, note.reason) for note in bench.hands.events] == [
        ("Pod", "VgpuEvicted"),
        ("ReplicaSet", "VgpuEvicted"),
    ]


def test_events_that_cannot_be_written_change_no_outcome_and_are_logged_once(caplog):
    bench = Bench(SICK, *OTHERS)
    forbidden = ClusterError(403, "Forbidden", 'cannot create resource "events"')
    bench.hands.refuse("write_event", forbidden, times=100)
    with caplog.at_level(logging.WARNING):
        told = bench.outcomes(evicting(SICK), *map(evicting, OTHERS))
    assert set(told.values()) == {Outcome.DONE}
    assert len([r for r in caplog.records if "event" in r.message]) == 1


def test_an_event_that_takes_long_holds_up_no_action():
    bench = Bench(SICK, *OTHERS)
    released = threading.Event()
    bench.hands.first("write_event", lambda: released.wait(WAIT_SECONDS))
    results = bench.applier.apply(plan(*map(evicting, [SICK, *OTHERS])), SPOKEN)
    assert {next(results).outcome for _ in range(6)} == {Outcome.DONE}
    assert bench.hands.events == []
    released.set()
    assert list(results) == []
    assert len(bench.hands.events) == 12


def a_note(name):
    return EventNote("Pod", "v1", "ml", name, "", "VgpuEvicted", "the pod was evicted", NOW)


def test_events_are_written_in_their_order_until_the_end():
    written = []
    announcer = Announcer(written.append)
    for name in "abc":
        announcer.say([a_note(name)])
    announcer.finish(WAIT_SECONDS, lambda: False)
    assert [note.name for note in written] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("seconds", "stopping"), [(0.0, False), (3600.0, True)], ids=["late", "told to stop"]
)
def test_what_is_not_written_in_time_is_dropped_and_that_is_said(seconds, stopping, caplog):
    begun, released, written = threading.Event(), threading.Event(), []

    def write(note):
        begun.set()
        released.wait(WAIT_SECONDS)
        written.append(note.name)

    announcer = Announcer(write)
    announcer.say(map(a_note, "abc"))
    assert begun.wait(WAIT_SECONDS)
    with caplog.at_level(logging.WARNING):
        announcer.finish(seconds, lambda: stopping)
    assert caplog.messages == ["2 events were not written: there was no time"]
    released.set()
    wait_until(lambda: written == ["a"], "the one under way is written")


def test_of_too_many_events_the_last_are_dropped(caplog):
    begun, released, written = threading.Event(), threading.Event(), []

    def write(note):
        begun.set()
        released.wait(WAIT_SECONDS)
        written.append(note.name)

    announcer = Announcer(write)
    announcer.say([a_note("first")])
    assert begun.wait(WAIT_SECONDS)
    announcer.say(a_note(str(at)) for at in range(MOST_EVENTS + 5))
    released.set()
    with caplog.at_level(logging.WARNING):
        announcer.finish(WAIT_SECONDS, lambda: False)
    assert written == ["first", *map(str, range(MOST_EVENTS))]
    assert caplog.messages == ["5 events were not written: there was no time"]


def test_a_defect_in_writing_one_event_costs_no_other(caplog):
    written = []

    def write(note):
        if note.name == "a":
            raise RuntimeError(note.name)
        written.append(note.name)

    announcer = Announcer(write)
    announcer.say(map(a_note, "ab"))
    announcer.finish(WAIT_SECONDS, lambda: False)
    assert written == ["b"]
    assert len(caplog.records) == 1


def test_applying_twice_equals_once():
    sick = ended(pod("b", annotations={"left": "over"}))
    bench = Bench(SICK, sick, LOCKED)
    entries = (
        evicting(SICK),
        editing(sick, {"left": None}),
        editing(LOCKED, {"left": None}),
    )
    bench.apply(*entries)
    after = dict(bench.hands.objects)
    assert set(bench.outcomes(*entries).values()) == {Outcome.GONE, Outcome.CHANGED}
    assert bench.hands.objects == after
