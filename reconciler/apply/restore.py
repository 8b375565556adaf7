"""Undoes what an audit tells: annotations, locks and placements, from their before-images.

Only where everything is still as the action left it: what somebody has changed since is theirs;
what was changed and changed back looks as if nobody had. Evictions and removals cannot be undone,
and it is said of each. The newest is undone first, so that what was changed several times ends as
it was before the first. Done twice it is done once. What is undone is itself an action, the inverse
one, and told in an audit of its own, from which it can be undone.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Protocol

import msgspec

from reconciler.apply.audit import AuditEvent, AuditRecord
from reconciler.apply.client import Annotations, ClusterClient, differing, patch, read, uid
from reconciler.apply.refusals import ActionRefused, refused
from reconciler.apply.writes import send
from reconciler.model import Edit, ObjectRef
from reconciler.reasons import ActionOutcome
from vgpu.kube.connection import ClusterError
from vgpu.kube.objects import Node, Pod
from vgpu.kube.projection import is_kept
from vgpu.reasons import Explained, SourceError
from vgpu.sources.files import printable


class Undo(Explained):
    """What became of an action that was to be undone."""

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


_REFUSALS: Final[Mapping[ActionOutcome, Undo]] = {
    ActionOutcome.CHANGED: Undo.CHANGED,
    ActionOutcome.GONE: Undo.GONE,
    ActionOutcome.THROTTLED: Undo.THROTTLED,
    ActionOutcome.FORBIDDEN: Undo.FORBIDDEN,
    ActionOutcome.UNKNOWN: Undo.UNKNOWN,
}
"""Others are FAILED."""

_MAY_BE_DONE: Final = frozenset({ActionOutcome.DONE, ActionOutcome.UNKNOWN})


class UndoAuditSink(Protocol):
    """Where it is told; raises AuditError."""

    def tell(self, record: AuditRecord) -> None:
        """Append it, as of now."""
        ...


class Restored(msgspec.Struct, frozen=True):
    """What became of one; ``detail`` in words, ``at`` in unix seconds."""

    record: AuditRecord
    undo: Undo
    detail: str = ""
    at: float = 0.0


def restore(
    records: Iterable[AuditRecord],
    client: ClusterClient,
    audit: UndoAuditSink,
    *,
    dry_run: bool = False,
    clock: Callable[[], float],
) -> Iterator[Restored]:
    """Undo all that is :func:`undoable`.

    What only may have been done is looked at, too. With ``dry_run`` nothing is
    kept, and nothing is told to the ``audit``. ``clock`` tells unix seconds. Raises AuditError
    where something could not be told: it was not begun, or it was the last.
    """
    restorer = _Restorer(client, audit, dry_run=dry_run)
    for record in undoable(records):
        undo, detail = restorer.undo(record)
        yield Restored(record, undo, detail, clock())


def undoable(records: Iterable[AuditRecord]) -> tuple[AuditRecord, ...]:
    """What was done or may have been, the newest first."""
    return tuple(effective(records))[::-1]


def effective(records: Iterable[AuditRecord]) -> Iterator[AuditRecord]:
    """The actions that were done or may have been, in their order.

    Each by its result; those of which no result is told, because a process died, by their intent.
    """
    begun: dict[tuple[str, str], AuditRecord] = {}
    told: list[tuple[int, AuditRecord]] = []
    places: dict[tuple[str, str], int] = {}
    for place, record in enumerate(records):
        if record.event is AuditEvent.INTENT:
            if record.key in begun:  # that one was never finished
                told.append((places[record.key], begun[record.key]))
            begun[record.key], places[record.key] = record, place
            continue
        begun.pop(record.key, None)
        if record.outcome in _MAY_BE_DONE:
            told.append((place, record))
    told += [(places[key], record) for key, record in begun.items()]
    for _, record in sorted(told, key=lambda each: each[0]):
        yield record


def inverse(edit: Edit) -> Edit:
    """The edit that undoes one."""
    return msgspec.structs.replace(
        edit,
        resource_version="",
        before=edit.after,
        after=edit.before,
        unbind=edit.bind,
        bind=edit.unbind,
        guards=(),
    )


class _Restorer:
    """Undoes one action at a time."""

    def __init__(self, client: ClusterClient, audit: UndoAuditSink, *, dry_run: bool) -> None:
        self._client = client
        self._audit = audit
        self._dry_run = dry_run
        self._pretended: dict[ObjectRef, Pod | Node] = {}
        """The objects as a dry run would have left them."""

    def undo(self, record: AuditRecord) -> tuple[Undo, str]:
        """What became of it, and the rest in words. Raises AuditError."""
        if not isinstance(record.action, Edit):
            sure = record.outcome is ActionOutcome.DONE
            return Undo.IRREVERSIBLE, "" if sure else "it may not have been done"
        edit = inverse(record.action)
        target = msgspec.structs.replace(edit.target, part="")
        try:
            found = self._pretended.get(target) or read(self._client, target)
        except (ClusterError, SourceError) as error:
            return _said(refused(error))
        told = msgspec.structs.replace(record, action=edit)
        return _objection(found, edit) or self._told(told, found, target, edit)

    def _told(
        self, record: AuditRecord, found: Pod | Node, target: ObjectRef, edit: Edit
    ) -> tuple[Undo, str]:
        """The write, told before and after."""
        self._tell(record, AuditEvent.INTENT)
        try:
            detail = self._write(found, target, edit)
        except ActionRefused as refusal:
            self._tell(record, AuditEvent.RESULT, refusal.outcome, refusal.detail)
            return _said(refusal)
        self._tell(record, AuditEvent.RESULT, ActionOutcome.DONE, detail)
        if not self._dry_run:
            return Undo.DONE, detail
        self._pretended[target] = _edited(found, edit)
        return Undo.DRY_RUN, ""

    def _tell(
        self,
        record: AuditRecord,
        event: AuditEvent,
        outcome: ActionOutcome | None = None,
        detail: str = "",
    ) -> None:
        if not self._dry_run:
            replaced = msgspec.structs.replace(record, event=event, outcome=outcome, detail=detail)
            self._audit.tell(replaced)

    def _write(self, found: Pod | Node, target: ObjectRef, edit: Edit) -> str:
        """Raises Refused."""

        def write() -> None:
            patch(
                self._client,
                target,
                found.resource_version,
                edit.after,
                node=edit.bind or None if edit.moves else msgspec.UNSET,
                dry_run=self._dry_run,
            )

        def arrived() -> bool:
            left = read(self._client, target)
            return uid(left) == uid(found) and _stands(left, edit, edit.after, edit.bind)

        return send(write, arrived, dry_run=self._dry_run)


def _said(refusal: ActionRefused) -> tuple[Undo, str]:
    return _REFUSALS.get(refusal.outcome, Undo.FAILED), refusal.detail


def _objection(found: Pod | Node, edit: Edit) -> tuple[Undo, str] | None:
    """Why it is left as it is."""
    foreign = [key for key in edit.after if not is_kept(key)]
    if foreign:  # what we do not see we cannot have changed, nor tell whether somebody has since
        return Undo.FAILED, f"no annotation that is ever changed here: {printable(foreign[0])}"
    if edit.target.uid and uid(found) != edit.target.uid:
        return Undo.GONE, "another of its name is in its place"
    if _stands(found, edit, edit.after, edit.bind):
        return Undo.NOTHING, ""
    if not _stands(found, edit, edit.before, edit.unbind):
        return Undo.CHANGED, ", ".join(differing(found, edit.before)) or "spec.nodeName"
    return None


def _stands(found: Pod | Node, edit: Edit, annotations: Annotations, node: str) -> bool:
    """Whether the annotations are these, and it is bound there if the edit is about that."""
    placed = not edit.moves or (isinstance(found, Pod) and found.node == node)
    return placed and not differing(found, annotations)


def _edited(found: Pod | Node, edit: Edit) -> Pod | Node:
    told = {**found.annotations, **edit.after}
    annotations = {key: text for key, text in told.items() if text is not None}
    if isinstance(found, Pod):
        node = edit.bind if edit.moves else found.node
        return msgspec.structs.replace(found, annotations=annotations, node=node)
    return msgspec.structs.replace(found, annotations=annotations)
