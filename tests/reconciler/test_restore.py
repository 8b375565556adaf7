"""Undoing: only what is still as it was left, the newest first, and twice is once."""

from datetime import UTC, datetime

import pytest

from reconciler.apply.applier import Applier
from reconciler.apply.audit import Audit, AuditError, Event, Record, read
from reconciler.apply.restore import Undo, effective, restore
from reconciler.model import Kind
from reconciler.reasons import Outcome, Rule
from reconciler.session import NoAudit
from tests.reconciler.hands_fake import BUSY, UNREACHABLE, FakeHands, FakeTime
from tests.reconciler.samples import NOW, SPOKEN, ended, node, pod, refused, replace, share_pod
from tests.support.reconcile_plans import editing, evicting, plan, unmoved
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
        list(Applier(hands, audit, clock=FakeTime()).apply(plan(*entries), unmoved(SPOKEN)))


def undo(hands, path, **options):
    told = restore(read(path), hands, options.pop("audit", NoAudit()), clock=lambda: NOW, **options)
    return [(each.record.subject.name, each.undo) for each in told]


def undoing(records, hands):
    return [each.undo for each in restore(records, hands, NoAudit(), clock=FakeTime())]


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


# ---------------------------------------------------------------- lost answers


@pytest.mark.parametrize("entry", ENTRIES[1:], ids=["pod", "node", "sharepod"])
def test_an_undoing_whose_answer_is_lost_is_looked_at(path, entry):
    hands = FakeHands(LEFT, MARKED, STUCK)
    apply(hands, path, entry)
    method = f"patch_{entry.finding.subject.kind.lower()}"
    hands.refuse(method, after=UNREACHABLE)
    ((_, became),) = undo(hands, path)
    assert became is Undo.DONE
    assert undo(hands, path)[0][1] is Undo.NOTHING


def test_an_undoing_that_cannot_be_looked_at_is_unknown(path):
    hands = FakeHands(LEFT)
    apply(hands, path, ENTRIES[1])
    hands.refuse("patch_pod", after=UNREACHABLE)
    hands.first("patch_pod", lambda: hands.refuse("pod", UNREACHABLE))
    assert undo(hands, path) == [("b", Undo.UNKNOWN)]
    assert undo(hands, path) == [("b", Undo.NOTHING)]


def test_an_undoing_that_never_arrived_has_failed(path):
    hands = FakeHands(LEFT)
    apply(hands, path, ENTRIES[1])
    hands.refuse("patch_pod", UNREACHABLE)
    assert undo(hands, path) == [("b", Undo.FAILED)]


# ---------------------------------------------------------------- its own audit


@pytest.fixture
def own(tmp_path):
    return str(tmp_path / "restore.jsonl")


def undo_told(hands, path, own, **options):
    with Audit.open(own) as audit:
        return undo(hands, path, audit=audit, **options)


def test_what_is_undone_is_told_before_and_after_and_can_be_undone_itself(path, own):
    hands = FakeHands(SICK, LEFT, MARKED, STUCK)
    apply(hands, path, *ENTRIES)
    done = dict(hands.objects)
    undo_told(hands, path, own)
    told = [(each.subject.name, each.event, each.outcome) for each in read(own)]
    assert told == [
        (name, *about)
        for name in ("jupyter", "gpu-1", "b")
        for about in ((Event.INTENT, None), (Event.RESULT, Outcome.DONE))
    ]
    assert {each.undo for each in restore(read(own), hands, NoAudit(), clock=FakeTime())} == {
        Undo.DONE
    }
    for key, each in done.items():
        now = hands.objects[key]
        assert replace(now, resource_version="") == replace(each, resource_version="")


def test_what_needs_no_undoing_is_not_told(path, own):
    hands = FakeHands(SICK, LEFT)
    apply(hands, path, *ENTRIES[:2])
    hands.annotate("b", **{"vgpu.dev/left": "theirs"})
    undo_told(hands, path, own)
    assert list(read(own)) == []


def test_a_dry_run_tells_nothing(path, own):
    hands = FakeHands(LEFT)
    apply(hands, path, ENTRIES[1])
    assert undo_told(hands, path, own, dry_run=True) == [("b", Undo.DRY_RUN)]
    assert list(read(own)) == []


def test_what_cannot_be_told_is_not_undone(path):
    class Full:
        def tell(self, record):
            raise AuditError("--audit x", "disk full")

    hands = FakeHands(LEFT)
    apply(hands, path, ENTRIES[1])
    before = dict(hands.objects)
    with pytest.raises(AuditError):
        undo(hands, path, audit=Full())
    assert hands.objects == before


def test_a_refused_undoing_is_told_with_its_outcome(path, own):
    hands = FakeHands(LEFT)
    apply(hands, path, ENTRIES[1])
    hands.refuse("patch_pod", BUSY)
    undo_told(hands, path, own)
    assert [each.outcome for each in read(own)] == [None, Outcome.THROTTLED]


# ---------------------------------------------------------------- what counts


@pytest.mark.parametrize("outcome", sorted(set(Outcome) - {Outcome.DONE, Outcome.UNKNOWN}))
def test_what_was_not_done_is_not_undone(outcome):
    records = [record(Event.INTENT), record(Event.RESULT, outcome)]
    assert list(effective(records)) == []


def test_what_was_begun_when_a_process_died_is_looked_at():
    hands = FakeHands(LEFT)
    entry = ENTRIES[1]
    begun = [record(Event.INTENT, entry=entry)]
    assert undoing(begun, hands) == [Undo.NOTHING]
    hands.annotate("b", **{"vgpu.dev/left": None, "vgpu.dev/mine": "2", "vgpu.dev/new": "3"})
    assert undoing(begun, hands) == [Undo.DONE]
    assert hands.get("b").annotations == LEFT.annotations


def test_an_edit_whose_answer_was_lost_and_that_could_not_be_read_again_is_looked_at(path):
    """A proxy went away with the answer, and came back a minute later."""
    hands = FakeHands(LEFT)
    hands.refuse("patch_pod", after=UNREACHABLE)
    hands.first("patch_pod", lambda: hands.refuse("pod", UNREACHABLE))
    apply(hands, path, ENTRIES[1])
    assert [each.outcome for each in read(path)] == [None, Outcome.UNKNOWN]
    assert hands.get("b").annotations != LEFT.annotations
    assert undo(hands, path) == [("b", Undo.DONE)]
    assert hands.get("b").annotations == LEFT.annotations


def test_an_unknown_edit_that_was_never_done_needs_no_undoing():
    records = [record(Event.INTENT), record(Event.RESULT, Outcome.UNKNOWN)]
    hands = FakeHands(LEFT)
    assert undoing(records, hands) == [Undo.NOTHING]
    assert hands.count("patch_pod") == 0


def test_of_an_unknown_eviction_it_is_said_that_it_may_not_have_been_done():
    records = [record(Event.RESULT, Outcome.UNKNOWN, entry=ENTRIES[0])]
    (told,) = restore(records, FakeHands(), NoAudit(), clock=FakeTime())
    assert (told.undo, told.detail) == (Undo.IRREVERSIBLE, "it may not have been done")


def test_an_eviction_that_was_begun_is_said_to_be_unsure():
    (told,) = restore(
        [record(Event.INTENT, entry=ENTRIES[0])], FakeHands(), NoAudit(), clock=FakeTime()
    )
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
