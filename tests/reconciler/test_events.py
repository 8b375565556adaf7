"""The events of an action on pods, owners and nodes."""

import pytest

from reconciler.apply.records import event_notes
from reconciler.model import ActionResult, ObjectKind, ObjectRef, RemoveFolder
from reconciler.reasons import ActionOutcome, Cause, Rule
from tests.reconciler.samples import NOW, ended, node, owner, pod, refused, replace, share_pod
from tests.support.reconcile_plans import editing, evicting
from tests.support.reconcile_plans import entry as made
from vgpu.kube.events import NoteType

SICK = refused(pod("a"))
LEFT = ended(pod("b", annotations={"left": "over"}))
MARKED = node("gpu-1", annotations={"m": "1"}, uid="uid-of-gpu-1")


def notes(entry, outcome=ActionOutcome.DONE, about=None):
    return event_notes(ActionResult(entry, outcome, "as said", NOW), about)


def test_an_eviction_is_explained_in_a_sentence():
    (note,) = notes(evicting(SICK))
    assert (note.kind, note.api_version, note.namespace, note.name) == ("Pod", "v1", "ml", "a")
    assert (note.uid, note.reason, note.type) == (SICK.ref.uid, "VgpuEvicted", NoteType.NORMAL)
    assert note.happened_at == NOW
    assert note.message == (
        f"the pod was evicted: {Rule.REFUSED.explanation}: "
        f"{Cause.UNEXPECTED_ADMISSION_ERROR.explanation} (refused/unexpected_admission_error)"
    )


def test_a_refused_action_is_explained_in_a_sentence():
    (note,) = notes(evicting(SICK), ActionOutcome.BLOCKED_BY_PDB)
    assert note.message.startswith(
        f"the pod was not evicted, since {ActionOutcome.BLOCKED_BY_PDB.explanation}: "
    )


def test_its_owner_hears_of_it_without_the_pods_name():
    _, note = notes(evicting(SICK), about=SICK)
    assert (note.kind, note.api_version, note.name) == ("ReplicaSet", "apps/v1", "train")
    assert (note.namespace, note.uid) == ("ml", owner().uid)
    assert note.message.startswith("one of its pods on gpu-1: the pod was evicted: ")
    again = replace(SICK, ref=replace(SICK.ref, uid="other", name="another"))
    assert notes(evicting(again), about=again)[1] == note


def test_a_pod_without_an_owner_has_no_event_on_an_owner():
    bare = refused(pod("a", kind=None))
    assert len(notes(evicting(bare), about=bare)) == 1


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (ActionOutcome.DONE, "VgpuEvicted"),
        (ActionOutcome.BLOCKED_BY_PDB, "VgpuEvictionBlocked"),
        (ActionOutcome.SEVERAL_PDBS, "VgpuEvictionBlocked"),
        (ActionOutcome.THROTTLED, "VgpuEvictionFailed"),
        (ActionOutcome.FORBIDDEN, "VgpuEvictionFailed"),
        (ActionOutcome.FAILED, "VgpuEvictionFailed"),
        (ActionOutcome.DRY_RUN, None),
        (ActionOutcome.GONE, None),
        (ActionOutcome.CHANGED, None),
        (ActionOutcome.UNKNOWN, None),  # neither would be true
        (ActionOutcome.NOT_LEADER, None),
        (ActionOutcome.OUT_OF_TIME, None),
    ],
)
def test_only_done_or_refused_actions_have_events(outcome, reason):
    found_notes = notes(evicting(SICK), outcome, SICK)
    assert {note.reason for note in found_notes} == ({reason} if reason else set())
    expected = NoteType.NORMAL if outcome is ActionOutcome.DONE else NoteType.WARNING
    assert {note.type for note in found_notes} <= {expected}


def test_every_outcome_is_decided_here():
    """A new outcome must be thought of above."""
    assert len(ActionOutcome) == 12


def test_a_repeated_event_is_the_same():
    """So that it is counted: no time, no number of the refusal, is in the message."""
    first = event_notes(
        ActionResult(evicting(SICK), ActionOutcome.BLOCKED_BY_PDB, "1 healthy", NOW)
    )
    again = event_notes(
        ActionResult(evicting(SICK), ActionOutcome.BLOCKED_BY_PDB, "2 healthy", NOW)
    )
    assert first == again
    assert "as said" not in first[0].message


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (editing(LEFT, {"left": None}), ("Pod", "ml", "b", "VgpuClaimCleared")),
        (editing(LEFT, {"left": "1"}, Rule.RECOVER), ("Pod", "ml", "b", "VgpuClaimRecovered")),
        (editing(MARKED, {"m": None}, Rule.STALE_LOCK), ("Node", "", "gpu-1", "VgpuLockCleared")),
        (
            editing(MARKED, {"m": None}, Rule.STALE_HANDSHAKE),
            ("Node", "", "gpu-1", "VgpuHandshakeCleared"),
        ),
        (
            editing(share_pod("jupyter"), {"m": None}, Rule.KUBESHARE),
            ("SharePod", "ml", "jupyter", "VgpuSharePodReset"),
        ),
        (
            editing(LEFT, {"left": None}, Rule.DOUBLE_BOOKED),
            ("Pod", "ml", "b", "VgpuRepaired"),
        ),
    ],
)
def test_each_edit_has_a_word(entry, expected):
    (note,) = notes(entry)
    assert (note.kind, note.namespace, note.name, note.reason) == expected


def test_a_nodes_event_is_of_the_node_not_of_its_annotation():
    (note,) = notes(editing(MARKED, {"m": None}, Rule.STALE_LOCK))
    assert note.uid == "uid-of-gpu-1"


def folder(name_of_node):
    object_ref = ObjectRef(ObjectKind.FOLDER, "", "/x/uid_main", "uid", node=name_of_node)
    action = RemoveFolder("/x/uid_main", "uid", (1, 2, 3))
    return made(object_ref, action, Rule.ORPHAN_SHIM_DIR, Cause.POD_GONE)


def test_a_removed_folder_is_an_event_of_its_node():
    (note,) = notes(folder("gpu-1"))
    assert (note.kind, note.name, note.reason) == ("Node", "gpu-1", "VgpuFolderRemoved")
    assert notes(folder("")) == ()


def test_what_is_only_reported_is_no_event():
    found = evicting(SICK)
    only = replace(found, finding=replace(found.finding, action=None))
    assert notes(only) == ()
