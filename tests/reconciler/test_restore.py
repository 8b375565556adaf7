"""Undoing: only what is still as it was left, the newest first, and twice is once."""

import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from reconciler.apply.applier import Applier, ApplyOptions
from reconciler.apply.audit import Audit, AuditError, AuditEvent, AuditRecord, read
from reconciler.apply.restore import Undo, effective, restore
from reconciler.model import ObjectKind
from reconciler.reasons import ActionOutcome, Rule
from reconciler.session import NoAudit
from tests.reconciler.fake_client import BUSY, UNREACHABLE, FakeClient, FakeTime
from tests.reconciler.samples import (
    CODECS_IN_USE,
    NOW,
    ended,
    node,
    pod,
    refused,
    replace,
    share_pod,
)
from tests.support.reconcile_plans import editing, evicting, plan, unmoved
from vgpu.apiserver.connection import ClusterError
from vgpu.model.names import PodRef

LEFT = ended(pod("b", annotations={"vgpu.dev/left": "over", "vgpu.dev/mine": "1"}))
MARKED = node("gpu-1", "hami", annotations={"vgpu.dev/m": "1"}, uid="uid-of-gpu-1")
STUCK = share_pod("jupyter", served=False)
SICK = refused(pod("a"))


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "audit.jsonl")


def apply(client, path, *entries):
    with Audit.open(path) as audit:
        list(
            Applier(client, audit, ApplyOptions(clock=FakeTime())).apply(
                plan(*entries), unmoved(CODECS_IN_USE)
            )
        )


def undo(client, path, **options):
    restored = restore(
        read(path), client, options.pop("audit", NoAudit()), clock=lambda: NOW, **options
    )
    return [(each.record.object_ref.name, each.undo) for each in restored]


def undoing(records, client):
    return [each.undo for each in restore(records, client, NoAudit(), clock=FakeTime())]


ENTRIES = (
    evicting(SICK),
    editing(LEFT, {"vgpu.dev/left": None, "vgpu.dev/mine": "2", "vgpu.dev/new": "3"}),
    editing(MARKED, {"vgpu.dev/m": None}, Rule.STALE_LOCK),
    editing(STUCK, {"kubeshare/GPUID": None}, Rule.KUBESHARE, unbind=STUCK.node),
)


def test_everything_that_can_be_undone_is_undone(path):
    client = FakeClient(SICK, LEFT, MARKED, STUCK)
    apply(client, path, *ENTRIES)
    assert undo(client, path) == [
        ("jupyter", Undo.DONE),
        ("gpu-1", Undo.DONE),
        ("b", Undo.DONE),
        ("a", Undo.IRREVERSIBLE),
    ]
    assert client.get("b").annotations == LEFT.annotations
    assert client.get("gpu-1", ObjectKind.NODE).annotations == MARKED.annotations
    again = client.get("jupyter", ObjectKind.SHARE_POD)
    assert (again.annotations, again.node) == (STUCK.annotations, STUCK.node)


def test_twice_is_once(path):
    client = FakeClient(SICK, LEFT, MARKED, STUCK)
    apply(client, path, *ENTRIES)
    undo(client, path)
    before = dict(client.objects)
    assert {each for _, each in undo(client, path)} == {Undo.NOTHING, Undo.IRREVERSIBLE}
    assert client.objects == before


def test_a_dry_run_reports_the_same_and_changes_nothing(path):
    client = FakeClient(SICK, LEFT, MARKED, STUCK)
    apply(client, path, *ENTRIES)
    before = dict(client.objects)
    dry = undo(client, path, dry_run=True)
    assert client.objects == before
    done = [(name, Undo.DONE if each is Undo.DRY_RUN else each) for name, each in dry]
    assert done == undo(client, path)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda client: client.annotate("b", **{"vgpu.dev/left": "theirs"}), Undo.CHANGED),
        (lambda client: client.annotate("b", **{"vgpu.dev/mine": "theirs"}), Undo.CHANGED),
        (lambda client: client.annotate("b", **{"vgpu.dev/new": None}), Undo.CHANGED),
        (lambda client: client.remove("b"), Undo.GONE),
        (
            lambda client: client.put(replace(client.get("b"), ref=PodRef("new", "ml", "b"))),
            Undo.GONE,
        ),
        (lambda client: client.annotate("b", unrelated="1"), Undo.DONE),
        (lambda client: client.first("patch_pod", lambda: client.touch("b")), Undo.CHANGED),
        (lambda client: client.refuse("patch_pod", BUSY), Undo.THROTTLED),
        (lambda client: client.refuse("pod", UNREACHABLE), Undo.FAILED),
        (
            lambda client: client.refuse(
                "patch_pod", ClusterError(403, "Forbidden", 'User "x" cannot patch resource')
            ),
            Undo.FORBIDDEN,
        ),
    ],
)
def test_what_has_changed_since_is_somebody_elses(path, change, expected):
    client = FakeClient(LEFT)
    apply(client, path, ENTRIES[1])
    change(client)
    kept = dict(client.objects)
    assert undo(client, path) == [("b", expected)]
    if expected is Undo.CHANGED and not client.count("patch_pod") > 1:
        assert client.objects == kept


def test_a_share_pod_that_was_placed_again_stays_there(path):
    client = FakeClient(STUCK)
    apply(client, path, ENTRIES[3])
    client.touch("jupyter", ObjectKind.SHARE_POD, node="gpu-2")
    assert undo(client, path) == [("jupyter", Undo.CHANGED)]


@pytest.mark.parametrize("dry_run", [False, True])
def test_what_was_changed_several_times_ends_as_before_the_first(path, dry_run):
    client = FakeClient(LEFT)
    apply(client, path, editing(LEFT, {"vgpu.dev/mine": "2"}))
    second = client.get("b")
    apply(client, path, editing(second, {"vgpu.dev/mine": "3", "vgpu.dev/left": None}))
    done = Undo.DRY_RUN if dry_run else Undo.DONE
    assert undo(client, path, dry_run=dry_run) == [("b", done), ("b", done)]
    if not dry_run:
        assert client.get("b").annotations == LEFT.annotations


# ---------------------------------------------------------------- lost answers


@pytest.mark.parametrize("entry", ENTRIES[1:], ids=["pod", "node", "sharepod"])
def test_an_undoing_whose_answer_is_lost_is_looked_at(path, entry):
    client = FakeClient(LEFT, MARKED, STUCK)
    apply(client, path, entry)
    method = f"patch_{entry.finding.object_ref.kind.lower()}"
    client.refuse(method, after=UNREACHABLE)
    ((_, became),) = undo(client, path)
    assert became is Undo.DONE
    assert undo(client, path)[0][1] is Undo.NOTHING


def test_an_undoing_that_cannot_be_looked_at_is_unknown(path):
    client = FakeClient(LEFT)
    apply(client, path, ENTRIES[1])
    client.refuse("patch_pod", after=UNREACHABLE)
    client.first("patch_pod", lambda: client.refuse("pod", UNREACHABLE))
    assert undo(client, path) == [("b", Undo.UNKNOWN)]
    assert undo(client, path) == [("b", Undo.NOTHING)]


def test_an_undoing_that_never_arrived_has_failed(path):
    client = FakeClient(LEFT)
    apply(client, path, ENTRIES[1])
    client.refuse("patch_pod", UNREACHABLE)
    assert undo(client, path) == [("b", Undo.FAILED)]


# ---------------------------------------------------------------- its own audit


@pytest.fixture
def own(tmp_path):
    return str(tmp_path / "restore.jsonl")


def undo_with_audit(client, path, own, **options):
    with Audit.open(own) as audit:
        return undo(client, path, audit=audit, **options)


def test_an_undo_is_recorded_before_and_after_and_can_be_undone_itself(path, own):
    client = FakeClient(SICK, LEFT, MARKED, STUCK)
    apply(client, path, *ENTRIES)
    done = dict(client.objects)
    undo_with_audit(client, path, own)
    records = [(each.object_ref.name, each.event, each.outcome) for each in read(own)]
    assert records == [
        (name, *about)
        for name in ("jupyter", "gpu-1", "b")
        for about in ((AuditEvent.INTENT, None), (AuditEvent.RESULT, ActionOutcome.DONE))
    ]
    assert {each.undo for each in restore(read(own), client, NoAudit(), clock=FakeTime())} == {
        Undo.DONE
    }
    for key, each in done.items():
        now = client.objects[key]
        assert replace(now, resource_version="") == replace(each, resource_version="")


def test_what_needs_no_undo_is_not_recorded(path, own):
    client = FakeClient(SICK, LEFT)
    apply(client, path, *ENTRIES[:2])
    client.annotate("b", **{"vgpu.dev/left": "theirs"})
    undo_with_audit(client, path, own)
    assert list(read(own)) == []


def test_a_dry_run_records_nothing(path, own):
    client = FakeClient(LEFT)
    apply(client, path, ENTRIES[1])
    assert undo_with_audit(client, path, own, dry_run=True) == [("b", Undo.DRY_RUN)]
    assert list(read(own)) == []


def test_an_undo_that_cannot_be_recorded_is_not_done(path):
    class Full:
        def write(self, record):
            raise AuditError("--audit x", "disk full")

    client = FakeClient(LEFT)
    apply(client, path, ENTRIES[1])
    before = dict(client.objects)
    with pytest.raises(AuditError):
        undo(client, path, audit=Full())
    assert client.objects == before


def test_a_refused_undo_is_recorded_with_its_outcome(path, own):
    client = FakeClient(LEFT)
    apply(client, path, ENTRIES[1])
    client.refuse("patch_pod", BUSY)
    undo_with_audit(client, path, own)
    assert [each.outcome for each in read(own)] == [None, ActionOutcome.THROTTLED]


# ---------------------------------------------------------------- what counts


@pytest.mark.parametrize(
    "outcome", sorted(set(ActionOutcome) - {ActionOutcome.DONE, ActionOutcome.UNKNOWN})
)
def test_what_was_not_done_is_not_undone(outcome):
    records = [record(AuditEvent.INTENT), record(AuditEvent.RESULT, outcome)]
    assert list(effective(records)) == []


def test_what_was_begun_when_a_process_died_is_looked_at():
    client = FakeClient(LEFT)
    entry = ENTRIES[1]
    begun = [record(AuditEvent.INTENT, entry=entry)]
    assert undoing(begun, client) == [Undo.NOTHING]
    client.annotate("b", **{"vgpu.dev/left": None, "vgpu.dev/mine": "2", "vgpu.dev/new": "3"})
    assert undoing(begun, client) == [Undo.DONE]
    assert client.get("b").annotations == LEFT.annotations


def test_an_edit_whose_answer_was_lost_and_that_could_not_be_read_again_is_looked_at(path):
    """A proxy went away with the answer, and came back a minute later."""
    client = FakeClient(LEFT)
    client.refuse("patch_pod", after=UNREACHABLE)
    client.first("patch_pod", lambda: client.refuse("pod", UNREACHABLE))
    apply(client, path, ENTRIES[1])
    assert [each.outcome for each in read(path)] == [None, ActionOutcome.UNKNOWN]
    assert client.get("b").annotations != LEFT.annotations
    assert undo(client, path) == [("b", Undo.DONE)]
    assert client.get("b").annotations == LEFT.annotations


def test_an_unknown_edit_that_was_never_done_needs_no_undoing():
    records = [record(AuditEvent.INTENT), record(AuditEvent.RESULT, ActionOutcome.UNKNOWN)]
    client = FakeClient(LEFT)
    assert undoing(records, client) == [Undo.NOTHING]
    assert client.count("patch_pod") == 0


def test_an_unknown_eviction_is_reported_as_possibly_not_done():
    records = [record(AuditEvent.RESULT, ActionOutcome.UNKNOWN, entry=ENTRIES[0])]
    (restored,) = restore(records, FakeClient(), NoAudit(), clock=FakeTime())
    assert (restored.undo, restored.detail) == (Undo.IRREVERSIBLE, "it may not have been done")


def test_an_eviction_that_was_begun_is_reported_as_uncertain():
    (restored,) = restore(
        [record(AuditEvent.INTENT, entry=ENTRIES[0])], FakeClient(), NoAudit(), clock=FakeTime()
    )
    assert (restored.undo, restored.detail) == (Undo.IRREVERSIBLE, "it may not have been done")


def test_an_action_counts_once_and_at_its_place():
    first, second = ENTRIES[1], ENTRIES[2]
    records = [
        record(AuditEvent.INTENT, entry=first),
        record(AuditEvent.INTENT, entry=second),
        record(AuditEvent.RESULT, ActionOutcome.DONE, entry=second),
        record(AuditEvent.INTENT, entry=first),
        record(AuditEvent.RESULT, ActionOutcome.DONE, entry=first),
    ]
    assert list(effective(records)) == [records[0], records[2], records[4]]


def record(event, outcome=None, entry=ENTRIES[1]):
    finding = entry.finding
    return AuditRecord(
        time=datetime.fromtimestamp(NOW, UTC),
        plan="plan-1",
        event=event,
        rule=finding.rule,
        cause=finding.cause,
        object_ref=finding.object_ref,
        action=finding.action,
        outcome=outcome,
    )


PAGE = Path(__file__).parents[2] / "docs" / "upgrading.md"


def test_repairs_of_gpu_drift_on_gpu_manager_nodes_are_found_and_undone_as_documented(tmp_path):
    """The page's own filter keeps its edits out of an audit with others, in the log's order."""
    gaia, other = pod("gaia-pod", style="gaia"), pod("share-pod", style="gpushare")
    client = FakeClient(gaia, other, MARKED)
    entries = (
        editing(gaia, {"tencent.com/predicate-gpu-idx-0": "3"}, Rule.GPU_DRIFT),
        editing(other, {"ALIYUN_COM_GPU_MEM_IDX": "1"}, Rule.GPU_DRIFT),
        editing(MARKED, {"vgpu.dev/m": None}, Rule.STALE_LOCK),
    )
    apply(client, str(tmp_path / "audit.jsonl"), *entries)
    (filter_line,) = re.findall(r"^ *\$ (grep .* audit\.jsonl .*)$", PAGE.read_text(), re.MULTILINE)
    subprocess.run(["sh", "-c", filter_line], cwd=tmp_path, check=True)
    assert undo(client, str(tmp_path / "gpu-manager.jsonl")) == [("gaia-pod", Undo.DONE)]
    assert client.get("gaia-pod").annotations == gaia.annotations
    assert client.get("share-pod").annotations["ALIYUN_COM_GPU_MEM_IDX"] == "1"
