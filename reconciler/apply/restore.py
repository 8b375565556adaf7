"""Undoes an audit's edits of annotations, locks and placements, from their before-images.

An edit is undone only where the object is still as the edit left it; a change that was changed back
since cannot be seen. Evictions and removals cannot be undone, and are reported. The newest edit is
undone first, so that an object that was edited several times ends as before the first. A second
restore changes nothing. Each undo is itself an action, the inverse edit, with records in an audit
of its own, from which it can be undone.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Protocol

import msgspec

from reconciler.apply.client import (
    ActionRefused,
    Annotations,
    ClusterClient,
    Editable,
    differing,
    patch,
    read,
    refused,
    send,
    uid,
)
from reconciler.apply.records import AuditEvent, AuditRecord, Restored, Undo
from reconciler.model import Edit, ObjectRef
from reconciler.reasons import ActionOutcome
from vgpu.apiserver.connection import ClusterError
from vgpu.kube.kept_keys import is_kept
from vgpu.model.objects import Pod
from vgpu.model.reasons import SourceError
from vgpu.sources.files import printable

_REFUSALS: Final[Mapping[ActionOutcome, Undo]] = {
    ActionOutcome.CHANGED: Undo.CHANGED,
    ActionOutcome.GONE: Undo.GONE,
    ActionOutcome.THROTTLED: Undo.THROTTLED,
    ActionOutcome.FORBIDDEN: Undo.FORBIDDEN,
    ActionOutcome.UNKNOWN: Undo.UNKNOWN,
}
"""Other outcomes are FAILED."""

_MAY_BE_DONE: Final = frozenset({ActionOutcome.DONE, ActionOutcome.UNKNOWN})


class UndoAuditSink(Protocol):
    """The audit of a restore; raises AuditError."""

    def write(self, record: AuditRecord) -> None:
        """Append the record, with the current time."""
        ...


def restore(
    records: Iterable[AuditRecord],
    client: ClusterClient,
    audit: UndoAuditSink,
    *,
    dry_run: bool = False,
    clock: Callable[[], float],
) -> Iterator[Restored]:
    """Undo all actions that are :func:`undoable`.

    Actions whose outcome is unknown are checked, too. With ``dry_run`` the API server keeps nothing
    and the ``audit`` gets no record. ``clock`` returns unix seconds. Raises AuditError where an
    undo could not be recorded: that undo was not begun, or it was the last.
    """
    restorer = _Restorer(client, audit, dry_run=dry_run)
    for record in undoable(records):
        undo, detail = restorer.undo(record)
        yield Restored(record, undo, detail, clock())


def undoable(records: Iterable[AuditRecord]) -> tuple[AuditRecord, ...]:
    """The records of :func:`effective`, the newest first."""
    return tuple(effective(records))[::-1]


def effective(records: Iterable[AuditRecord]) -> Iterator[AuditRecord]:
    """The actions that were done, or may have been, in their order.

    An action has the record of its result, or of its intent if a process died before the result.
    """
    begun: dict[tuple[str, str], AuditRecord] = {}
    recorded: list[tuple[int, AuditRecord]] = []
    places: dict[tuple[str, str], int] = {}
    for place, record in enumerate(records):
        if record.event is AuditEvent.INTENT:
            if record.key in begun:  # the earlier action was never finished
                recorded.append((places[record.key], begun[record.key]))
            begun[record.key], places[record.key] = record, place
            continue
        begun.pop(record.key, None)
        if record.outcome in _MAY_BE_DONE:
            recorded.append((place, record))
    recorded += [(places[key], record) for key, record in begun.items()]
    for _, record in sorted(recorded, key=lambda place_and_record: place_and_record[0]):
        yield record


def inverse(edit: Edit) -> Edit:
    """The edit that undoes this edit."""
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
        self._pretended: dict[ObjectRef, Editable] = {}
        """The objects as a dry run would have left them."""

    def undo(self, record: AuditRecord) -> tuple[Undo, str]:
        """The outcome, and its detail in words. Raises AuditError."""
        if not isinstance(record.action, Edit):
            sure = record.outcome is ActionOutcome.DONE
            return Undo.IRREVERSIBLE, "" if sure else "it may not have been done"
        edit = inverse(record.action)
        target = msgspec.structs.replace(edit.target, part="")
        try:
            current = self._pretended.get(target) or read(self._client, target)
        except (ClusterError, SourceError) as error:
            return _undo_result(refused(error))
        undo_record = msgspec.structs.replace(record, action=edit)
        return _skip_reason(current, edit) or self._recorded(undo_record, current, target, edit)

    def _recorded(
        self, record: AuditRecord, current: Editable, target: ObjectRef, edit: Edit
    ) -> tuple[Undo, str]:
        """The write, with an audit record before and after."""
        self._record(record, AuditEvent.INTENT)
        try:
            detail = self._write(current, target, edit)
        except ActionRefused as refusal:
            self._record(record, AuditEvent.RESULT, refusal.outcome, refusal.detail)
            return _undo_result(refusal)
        self._record(record, AuditEvent.RESULT, ActionOutcome.DONE, detail)
        if not self._dry_run:
            return Undo.DONE, detail
        self._pretended[target] = _edited(current, edit)
        return Undo.DRY_RUN, ""

    def _record(
        self,
        record: AuditRecord,
        event: AuditEvent,
        outcome: ActionOutcome | None = None,
        detail: str = "",
    ) -> None:
        if not self._dry_run:
            replaced = msgspec.structs.replace(record, event=event, outcome=outcome, detail=detail)
            self._audit.write(replaced)

    def _write(self, current: Editable, target: ObjectRef, edit: Edit) -> str:
        """Raises ActionRefused."""

        def write() -> None:
            patch(
                self._client,
                target,
                current.resource_version,
                edit.after,
                node=edit.bind or None if edit.moves else msgspec.UNSET,
                dry_run=self._dry_run,
            )

        def arrived() -> bool:
            left = read(self._client, target)
            return uid(left) == uid(current) and _stands(left, edit, edit.after, edit.bind)

        return send(write, arrived, dry_run=self._dry_run)


def _undo_result(refusal: ActionRefused) -> tuple[Undo, str]:
    return _REFUSALS.get(refusal.outcome, Undo.FAILED), refusal.detail


def _skip_reason(current: Editable, edit: Edit) -> tuple[Undo, str] | None:
    """Why the object stays as it is."""
    foreign = [key for key in edit.after if not is_kept(key)]
    if foreign:  # we do not read this annotation, so we cannot have changed it, nor compare it
        return Undo.FAILED, f"no annotation that is ever changed here: {printable(foreign[0])}"
    if edit.target.uid and uid(current) != edit.target.uid:
        return Undo.GONE, "another of its name is in its place"
    if _stands(current, edit, edit.after, edit.bind):
        return Undo.NOTHING, ""
    if not _stands(current, edit, edit.before, edit.unbind):
        return Undo.CHANGED, ", ".join(differing(current, edit.before)) or "spec.nodeName"
    return None


def _stands(current: Editable, edit: Edit, annotations: Annotations, node: str) -> bool:
    """Whether the object has these annotations, and this node if the edit changes the node."""
    placed = not edit.moves or (isinstance(current, Pod) and current.node == node)
    return placed and not differing(current, annotations)


def _edited(current: Editable, edit: Edit) -> Editable:
    after = {**current.annotations, **edit.after}
    annotations = {key: text for key, text in after.items() if text is not None}
    if isinstance(current, Pod):
        node = edit.bind if edit.moves else current.node
        return msgspec.structs.replace(current, annotations=annotations, node=node)
    return msgspec.structs.replace(current, annotations=annotations)
