"""An action's Kubernetes Events; the pod's owner has them too, since the pod is gone. Pure.

Messages name the rule and its cause in words, and nothing that differs from one time to the next,
so that the same event reported again is counted instead of listed.
"""

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from reconciler.model import ActionResult, Edit, Evict, ObjectKind, ObjectRef, RemoveFolder
from reconciler.reasons import ActionOutcome, Rule
from vgpu.kube.events import EventNote, NoteType
from vgpu.kube.kinds import API_VERSIONS
from vgpu.model.objects import OwnerReference, Pod


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
        happened_at=result.at,
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
