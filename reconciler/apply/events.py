"""What is told of an action as Kubernetes Events: to the pod's owner, since the pod is gone. Pure.

Messages name the rule and its cause in words, and nothing that differs from one time to the next,
so that the same said again is counted instead of listed.
"""

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from reconciler.model import ActionResult, Edit, Evict, ObjectKind, ObjectRef, RemoveFolder
from reconciler.reasons import ActionOutcome, Rule
from vgpu.kube.objects import EventNote, NoteType, OwnerReference, Pod


class _Word(msgspec.Struct, frozen=True):
    """The reason of an event if the action is done, and if it is not; what it does, in words."""

    done: str
    not_done: str
    what: str
    deed: str


_EVICTED: Final = _Word("VgpuEvicted", "VgpuEvictionFailed", "the pod", "evicted")
_REMOVED: Final = _Word(
    "VgpuFolderRemoved", "VgpuFolderNotRemoved", "a sharing library's folder", "removed"
)
_EDITED: Final = _Word("VgpuRepaired", "VgpuNotRepaired", "its annotations", "repaired")
_CLEARED: Final = _Word("VgpuClaimCleared", "VgpuClaimNotCleared", "its claim", "cleared")
_EDITS: Final[Mapping[Rule, _Word]] = {
    Rule.ASSUMED_UNBOUND: _CLEARED,
    Rule.LEFTOVER_CLAIM: _CLEARED,
    Rule.STALE_LOCK: _Word("VgpuLockCleared", "VgpuLockNotCleared", "a lock", "cleared"),
    Rule.STALE_HANDSHAKE: _Word(
        "VgpuHandshakeCleared", "VgpuHandshakeNotCleared", "a handshake", "cleared"
    ),
    Rule.CARD_DRIFT: _Word("VgpuClaimCorrected", "VgpuClaimNotCorrected", "its claim", "corrected"),
    Rule.RECOVER: _Word("VgpuClaimRecovered", "VgpuClaimNotRecovered", "its claim", "recovered"),
    Rule.KUBESHARE: _Word("VgpuSharePodReset", "VgpuSharePodNotReset", "its placement", "reset"),
}
_BLOCKED: Final = "VgpuEvictionBlocked"

_BUDGETS: Final = frozenset({ActionOutcome.BLOCKED_BY_PDB, ActionOutcome.SEVERAL_PDBS})
_REFUSALS: Final = _BUDGETS | {
    ActionOutcome.THROTTLED,
    ActionOutcome.FORBIDDEN,
    ActionOutcome.FAILED,
}
"""Of these somebody should hear; that a subject was gone or had changed is nobody's trouble."""

_API_VERSIONS: Final[Mapping[ObjectKind, str]] = {
    ObjectKind.POD: "v1",
    ObjectKind.NODE: "v1",
    ObjectKind.SHARE_POD: "kubeshare.nthu/v1",
}


def event_notes(result: ActionResult, pod: Pod | None = None) -> tuple[EventNote, ...]:
    """The events of one result, none if nothing was tried; ``pod`` is its pod, if it was read."""
    return tuple(_notes(result, pod))


def _notes(result: ActionResult, pod: Pod | None) -> Iterator[EventNote]:
    finding = result.entry.finding
    subject = _home(finding.subject)
    word = _word(result)
    if word is None or subject is None:
        return
    if result.outcome is ActionOutcome.DONE:
        reason, type_ = word.done, NoteType.NORMAL
        deed = f"{word.what} was {word.deed}"
    elif result.outcome in _REFUSALS:
        reason = _BLOCKED if result.outcome in _BUDGETS else word.not_done
        type_ = NoteType.WARNING
        deed = f"{word.what} was not {word.deed}, since {result.outcome.explanation}"
    else:
        return
    why = (
        f"{finding.rule.explanation}: {finding.cause.explanation} ({finding.rule}/{finding.cause})"
    )
    note = EventNote(
        kind=subject.kind,
        api_version=_API_VERSIONS[subject.kind],
        namespace=subject.namespace,
        name=subject.name,
        uid=subject.uid,
        reason=reason,
        message=f"{deed}: {why}",
        at=result.at,
        type=type_,
    )
    yield note
    if pod is not None and pod.owner is not None:
        yield _to_owner(note, pod.owner, pod.node)


def _word(result: ActionResult) -> _Word | None:
    finding = result.entry.finding
    if isinstance(finding.action, Evict):
        return _EVICTED
    if isinstance(finding.action, Edit):
        return _EDITS.get(finding.rule, _EDITED)
    return _REMOVED if isinstance(finding.action, RemoveFolder) else None


def _home(subject: ObjectRef) -> ObjectRef | None:
    """The object that can be told something: for what is on a node only, the node."""
    if subject.kind in _API_VERSIONS:
        return subject
    if not subject.node:
        return None
    # The kubelet's own events of a node have its name as the UID: kubectl describe looks for it.
    return ObjectRef(ObjectKind.NODE, "", subject.node, subject.node)


def _to_owner(note: EventNote, owner: OwnerReference, node: str) -> EventNote:
    """The same to who made the pod, without its name: all its pods on a node count together."""
    where = f"one of its pods on {node}" if node else "one of its pods"
    return msgspec.structs.replace(
        note,
        kind=owner.kind,
        api_version=owner.api_version,
        name=owner.name,
        uid=owner.uid,
        message=f"{where}: {note.message}",
    )
