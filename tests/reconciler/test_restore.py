"""Undoing: only what is still as it was left, the newest first, and twice is once."""

from datetime import UTC, datetime

import pytest

from reconciler.apply.applier import Applier
from reconciler.apply.audit import Audit, Event, Record, read
from reconciler.apply.restore import Undo, effective, restore
from reconciler.model import Kind
from reconciler.reasons import Outcome, Rule
from tests.reconciler.hands_fake import BUSY, UNREACHABLE, FakeHands, FakeTime
from tests.reconciler.samples import NOW, SPOKEN, ended, node, pod, refused, replace, share_pod
from tests.support.reconcile_plans import editing, evicting, plan
from vgpu.cluster import ClusterError
from vgpu.model import PodRef

LEFT = ended(pod("b", annotations={"vgpu.dev/left": "over", "vgpu.dev/mine": "1"}))
MARKED = node("gpu-1", "hami", annotations={"vgpu.dev/m": "1"}, uid="uid-of-gpu-1")
STUCK = share_pod("jupyter", served=False)
SICK = refused(pod("a"))


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "audit.jsonl")


def apply(hands, path, *entries):
    with Audit.open(path) as audit:
        list(Applier(hands, audit, clock=FakeTime()).apply(plan(*entries), SPOKEN))


def undo(hands, path, **options):
    told = restore(read(path), hands, clock=lambda: NOW, **options)
    return [(each.record.subject.name, each.undo) for each in told]


ENTRIES = (
    evicting(SICK),
    editing(LEFT, {"vgpu.dev/left": None, "vgpu.dev/mine": "2", "vgpu.dev/new": "3"}),
    editing(MARKED, {"vgpu.dev/m": None}, Rule.STALE_LOCK),
    editing(STUCK, {"kubeshare/GPUID": None}, Rule.KUBESHARE, unbind=STUCK.node),
)


def test_everything_that_can_be_undone_is_undone(path):
    hands = FakeHands(SICK, LEFT, MARKED, STUCK)
    apply(hands, path, *ENTRIES)
    assert undo(hands, path) == [
        ("jupyter", Undo.DONE),
        ("gpu-1", Undo.DONE),
        ("b", Undo.DONE),
        ("a", Undo.IRREVERSIBLE),
    ]
    assert hands.get("b").annotations == LEFT.annotations
    assert hands.get("gpu-1", Kind.NODE).annotations == MARKED.annotations
    again = hands.get("jupyter", Kind.SHARE_POD)
    assert (again.annotations, again.node) == (STUCK.annotations, STUCK.node)


def test_twice_is_once(path):
    hands = FakeHands(SICK, LEFT, MARKED, STUCK)
    apply(hands, path, *ENTRIES)
    undo(hands, path)
    before = dict(hands.objects)
    assert {each for _, each in undo(hands, path)} == {Undo.NOTHING, Undo.IRREVERSIBLE}
    assert hands.objects == before


def test_a_dry_run_tells_the_same_and_changes_nothing(path):
    hands = FakeHands(SICK, LEFT, MARKED, STUCK)
    apply(hands, path, *ENTRIES)
    before = dict(hands.objects)
    told = undo(hands, path, dry_run=True)
    assert hands.objects == before
    done = [(name, Undo.DONE if each is Undo.DRY_RUN else each) for name, each in told]
    assert done == undo(hands, path)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda hands: hands.annotate("b", **{"vgpu.dev/left": "theirs"}), Undo.CHANGED),
        (lambda hands: hands.annotate("b", **{"vgpu.dev/mine": "theirs"}), Undo.CHANGED),
        (lambda hands: hands.annotate("b", **{"vgpu.dev/new": None}), Undo.CHANGED),
        (lambda hands: hands.remove("b"), Undo.GONE),
        (
            lambda hands: hands.put(replace(hands.get("b"), ref=PodRef("new", "ml", "b"))),
            Undo.GONE,
        ),
        (lambda hands: hands.annotate("b", unrelated="1"), Undo.DONE),
        (lambda hands: hands.first("patch_pod", lambda: hands.touch("b")), Undo.CHANGED),
        (lambda hands: hands.refuse("patch_pod", BUSY), Undo.THROTTLED),
        (lambda hands: hands.refuse("pod", UNREACHABLE), Undo.FAILED),
        (
            lambda hands: hands.refuse(
                "patch_pod", ClusterError(403, "Forbidden", 'User "x" cannot patch resource')
            ),
            Undo.FORBIDDEN,
        ),
    ],
)
def test_what_has_changed_since_is_somebody_elses(path, change, expected):
    hands = FakeHands(LEFT)
    apply(hands, path, ENTRIES[1])
    change(hands)
    kept = dict(hands.objects)
    assert undo(hands, path) == [("b", expected)]
    if expected is Undo.CHANGED and not hands.count("patch_pod") > 1:
        assert hands.objects == kept


def test_a_share_pod_that_was_placed_again_stays_there(path):
    hands = FakeHands(STUCK)
    apply(hands, path, ENTRIES[3])
    hands.touch("jupyter", Kind.SHARE_POD, node="gpu-2")
    assert undo(hands, path) == [("jupyter", Undo.CHANGED)]


@pytest.mark.parametrize("dry_run", [False, True])
def test_what_was_changed_several_times_ends_as_before_the_first(path, dry_run):
    hands = FakeHands(LEFT)
    apply(hands, path, editing(LEFT, {"vgpu.dev/mine": "2"}))
    second = hands.get("b")
    apply(hands, path, editing(second, {"vgpu.dev/mine": "3", "vgpu.dev/left": None}))
    done = Undo.DRY_RUN if dry_run else Undo.DONE
    assert undo(hands, path, dry_run=dry_run) == [("b", done), ("b", done)]
    if not dry_run:
        assert hands.get("b").annotations == LEFT.annotations


# ---------------------------------------------------------------- what counts


@pytest.mark.parametrize("outcome", sorted(set(Outcome) - {Outcome.DONE}))
def test_what_was_not_done_is_not_undone(outcome):
    records = [record(Event.INTENT), record(Event.RESULT, outcome)]
    assert list(effective(records)) == []


def test_what_was_begun_when_a_process_died_is_looked_at():
    hands = FakeHands(LEFT)
    entry = ENTRIES[1]
    begun = [record(Event.INTENT, entry=entry)]
    assert [each.undo for each in restore(begun, hands, clock=FakeTime())] == [Undo.NOTHING]
    hands.annotate("b", **{"vgpu.dev/left": None, "vgpu.dev/mine": "2", "vgpu.dev/new": "3"})
    assert [each.undo for each in restore(begun, hands, clock=FakeTime())] == [Undo.DONE]
    assert hands.get("b").annotations == LEFT.annotations


def test_an_eviction_that_was_begun_is_said_to_be_unsure():
    (told,) = restore([record(Event.INTENT, entry=ENTRIES[0])], FakeHands(), clock=FakeTime())
    assert (told.undo, told.detail) == (Undo.IRREVERSIBLE, "it may not have been done")


def test_an_action_counts_once_and_at_its_place():
    first, second = ENTRIES[1], ENTRIES[2]
    records = [
        record(Event.INTENT, entry=first),
        record(Event.INTENT, entry=second),
        record(Event.RESULT, Outcome.DONE, entry=second),
        record(Event.INTENT, entry=first),
        record(Event.RESULT, Outcome.DONE, entry=first),
    ]
    assert list(effective(records)) == [records[0], records[2], records[4]]


def record(event, outcome=None, entry=ENTRIES[1]):
    finding = entry.finding
    return Record(
        time=datetime.fromtimestamp(NOW, UTC),
        plan="plan-1",
        event=event,
        rule=finding.rule,
        cause=finding.cause,
        subject=finding.subject,
        action=finding.action,
        outcome=outcome,
    )
