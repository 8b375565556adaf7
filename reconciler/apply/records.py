"""The records of an action: lines of the audit, Kubernetes Events, the outcome of its undo. Pure.

:mod:`.audit` writes and reads the lines. The pod's owner has the Events, too, since the pod is
gone. Their messages name the rule and its cause in words, and nothing that differs from one time to
the next, so that the same event reported again is counted instead of listed.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final

import msgspec

from reconciler.model import Action, ActionResult, Edit, Evict, ObjectKind, ObjectRef, RemoveFolder
from reconciler.reasons import ActionOutcome, Cause, Rule
from vgpu.kube.events import EventNote, NoteType
from vgpu.kube.kinds import API_VERSIONS
from vgpu.model.objects import OwnerReference, Pod
from vgpu.model.reasons import Explained

# ---------------------------------------------------------------- the audit


class AuditEvent(StrEnum):
    """The kind of a line."""

    INTENT = "intent"  # the action is about to begin
    RESULT = "result"  # the action's outcome


class AuditRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of the audit.

    Attributes:
        time: when the line was written.
        plan: the plan's id.
        event: the kind of the line.
        rule, cause, object_ref, evidence: as of the finding.
        action: what is done, with its preconditions; of an edit the before- and the after-image.
        outcome: of a result.
        detail: the message of the API server or file system.
        by: the acting user.
    """

    time: Annotated[datetime, msgspec.Meta(tz=True)]
    plan: str
    event: AuditEvent
    rule: Rule
    cause: Cause
    object_ref: ObjectRef = msgspec.field(name="subject")
    action: Action
    evidence: tuple[str, ...] = ()
    outcome: ActionOutcome | None = None
    detail: str = ""
    by: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """The same for an intent and its result."""
        return self.plan, self.object_ref.key


class AuditError(Exception):
    """The audit cannot be written or read.

    Attributes:
        path: the audit's path.
        line: the line that cannot be read, 0 for the file as a whole.
        detail: what is wrong.
    """

    def __init__(self, path: str, detail: str, line: int = 0) -> None:
        super().__init__(f"{path}, line {line}: {detail}" if line else f"{path}: {detail}")
        self.path = path
        self.line = line
        self.detail = detail


# ---------------------------------------------------------------- outcomes of undoing


class Undo(Explained):
    """The outcome of undoing an action."""

    DONE = "done", "the object is as it was before"
    DRY_RUN = "dry_run", "the object would be as it was before"
    NOTHING = "nothing", "the object is already as it was before"
    IRREVERSIBLE = "irreversible", "an eviction or removal cannot be undone"
    CHANGED = "changed", "the object has been changed since by another client"
    GONE = "gone", "the object no longer exists"
    THROTTLED = "throttled", "the API server is too busy: try again"
    FORBIDDEN = "forbidden", "the reconciler lacks a permission (RBAC)"
    FAILED = "failed", "the API server refused the change for another reason"
    UNKNOWN = "unknown", "the answer was lost and the object could not be read again: try again"


class Restored(msgspec.Struct, frozen=True):
    """The outcome of undoing one record; ``detail`` in words, ``ended_at`` in unix seconds."""

    record: AuditRecord
    undo: Undo
    detail: str = ""
    ended_at: float = 0.0


# ---------------------------------------------------------------- Events


class _Wording(msgspec.Struct, frozen=True):
    """The reasons of an event if the action is done, and if it is not; its object and verb."""

    done: str
    not_done: str
    object: str
    participle: str


_EVICTED: Final = _Wording("VgpuEvicted", "VgpuEvictionFailed", "the pod", "evicted")
_REMOVED: Final = _Wording(
    "VgpuFolderRemoved", "VgpuFolderNotRemoved", "a sharing library's folder", "removed"
)
_EDITED: Final = _Wording("VgpuRepaired", "VgpuNotRepaired", "its annotations", "repaired")
_CLEARED: Final = _Wording("VgpuClaimCleared", "VgpuClaimNotCleared", "its claim", "cleared")
_EDITS: Final[Mapping[Rule, _Wording]] = {
    Rule.ASSUMED_UNBOUND: _CLEARED,
    Rule.LEFTOVER_CLAIM: _CLEARED,
    Rule.STALE_LOCK: _Wording("VgpuLockCleared", "VgpuLockNotCleared", "a lock", "cleared"),
    Rule.STALE_HANDSHAKE: _Wording(
        "VgpuHandshakeCleared", "VgpuHandshakeNotCleared", "a handshake", "cleared"
    ),
    Rule.GPU_DRIFT: _Wording(
        "VgpuClaimCorrected", "VgpuClaimNotCorrected", "its claim", "corrected"
    ),
    Rule.RECOVER: _Wording("VgpuClaimRecovered", "VgpuClaimNotRecovered", "its claim", "recovered"),
    Rule.QUOTA_MARK: _Wording("VgpuQuotaMarked", "VgpuQuotaNotMarked", "its mark", "changed"),
    Rule.KUBESHARE: _Wording("VgpuSharePodReset", "VgpuSharePodNotReset", "its placement", "reset"),
}
_BLOCKED: Final = "VgpuEvictionBlocked"

_BUDGETS: Final = frozenset({ActionOutcome.BLOCKED_BY_PDB, ActionOutcome.SEVERAL_PDBS})
_REFUSALS: Final = _BUDGETS | {
    ActionOutcome.THROTTLED,
    ActionOutcome.FORBIDDEN,
    ActionOutcome.FAILED,
}
"""Outcomes that need an Event; an object that was gone or had changed needs none."""

COMPONENT: Final = "vgpu-reconciler"


def event_notes(result: ActionResult, pod: Pod | None = None) -> tuple[EventNote, ...]:
    """The events of one result, none if nothing was tried; ``pod`` is its pod, if it was read."""
    return tuple(_notes(result, pod))


def _notes(result: ActionResult, pod: Pod | None) -> Iterator[EventNote]:
    finding = result.entry.finding
    object_ref = _reported_on(finding.object_ref)
    wording = _wording(result)
    if wording is None or object_ref is None:
        return
    if result.outcome is ActionOutcome.DONE:
        reason, type_ = wording.done, NoteType.NORMAL
        outcome = f"{wording.object} was {wording.participle}"
    elif result.outcome in _REFUSALS:
        reason = _BLOCKED if result.outcome in _BUDGETS else wording.not_done
        type_ = NoteType.WARNING
        outcome = (
            f"{wording.object} was not {wording.participle}, since {result.outcome.explanation}"
        )
    else:
        return
    why = (
        f"{finding.rule.explanation}: {finding.cause.explanation} ({finding.rule}/{finding.cause})"
    )
    note = EventNote(
        kind=object_ref.kind,
        api_version=API_VERSIONS[object_ref.kind],
        namespace=object_ref.namespace,
        name=object_ref.name,
        uid=object_ref.uid,
        reason=reason,
        message=f"{outcome}: {why}",
        happened_at=result.ended_at,
        component=COMPONENT,
        type=type_,
    )
    yield note
    if pod is not None and pod.owner is not None:
        yield _to_owner(note, pod.owner, pod.node)


def _wording(result: ActionResult) -> _Wording | None:
    finding = result.entry.finding
    if isinstance(finding.action, Evict):
        return _EVICTED
    if isinstance(finding.action, Edit):
        return _EDITS.get(finding.rule, _EDITED)
    return _REMOVED if isinstance(finding.action, RemoveFolder) else None


def _reported_on(object_ref: ObjectRef) -> ObjectRef | None:
    """The object that has the event: the node for an object that only the node has."""
    if object_ref.kind in API_VERSIONS:
        return object_ref
    if not object_ref.node:
        return None
    # The kubelet's own events of a node have its name as the UID: kubectl describe looks for it.
    return ObjectRef(ObjectKind.NODE, "", object_ref.node, object_ref.node)


def _to_owner(note: EventNote, owner: OwnerReference, node: str) -> EventNote:
    """The same Event of the pod's owner, without the pod's name: pods of a node count together."""
    where = f"one of its pods on {node}" if node else "one of its pods"
    return msgspec.structs.replace(
        note,
        kind=owner.kind,
        api_version=owner.api_version,
        name=owner.name,
        uid=owner.uid,
        message=f"{where}: {note.message}",
    )
