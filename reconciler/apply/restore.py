"""Undoes what an audit tells: annotations, locks and placements, from their before-images.

Only where everything is still as the action left it: what somebody has changed since is theirs;
what was changed and changed back looks as if nobody had. Evictions and removals cannot be undone,
and it is said of each. The newest is undone first, so that what was changed several times ends as
it was before the first. Done twice it is done once.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import msgspec

from reconciler.apply.audit import Event, Record
from reconciler.apply.hands import Annotations, Hands, differing, patch, read, uid
from reconciler.apply.refusals import refused
from reconciler.model import Edit, Subject
from reconciler.reasons import Outcome
from vgpu.cluster import ClusterError
from vgpu.kube import Node, Pod
from vgpu.kube_projection import is_kept
from vgpu.reasons import Explained, SourceError
from vgpu.sources.files import printable


class Undo(Explained):
    """What became of an action that was to be undone."""

    DONE = "done", "it is as it was before"
    DRY_RUN = "dry_run", "it would be as it was before"
    NOTHING = "nothing", "it is as it was before already"
    IRREVERSIBLE = "irreversible", "an eviction or removal cannot be undone"
    CHANGED = "changed", "it has been changed since: that is somebody else's"
    GONE = "gone", "it is not there any more"
    THROTTLED = "throttled", "the API server is too busy: try again"
    FORBIDDEN = "forbidden", "a right is missing"
    FAILED = "failed", "the API server refused it otherwise"


_REFUSALS: Final[Mapping[Outcome, Undo]] = {
    Outcome.CHANGED: Undo.CHANGED,
    Outcome.GONE: Undo.GONE,
    Outcome.THROTTLED: Undo.THROTTLED,
    Outcome.FORBIDDEN: Undo.FORBIDDEN,
}
"""Others are FAILED."""


class Restored(msgspec.Struct, frozen=True):
    """What became of one; ``detail`` in words, ``at`` in unix seconds."""

    record: Record
    undo: Undo
    detail: str = ""
    at: float = 0.0


def restore(
    records: Iterable[Record],
    hands: Hands,
    *,
    dry_run: bool = False,
    clock: Callable[[], float],
) -> Iterator[Restored]:
    """Undo all that the records tell of, the newest first.

    Of what was done, and of what was about to be done when a process died: that is looked at, too.
    ``clock`` tells unix seconds.
    """
    pretended: dict[Subject, Pod | Node] = {}
    for record in reversed(tuple(effective(records))):
        undo, detail = _undo(record, hands, pretended, dry_run=dry_run)
        yield Restored(record, undo, detail, clock())


def effective(records: Iterable[Record]) -> Iterator[Record]:
    """The actions that were done or may have been, in their order.

    Each by its result; those of which no result is told, because a process died, by their intent.
    """
    begun: dict[tuple[str, str], Record] = {}
    told: list[tuple[int, Record]] = []
    places: dict[tuple[str, str], int] = {}
    for place, record in enumerate(records):
        if record.event is Event.INTENT:
            if record.key in begun:  # that one was never finished
                told.append((places[record.key], begun[record.key]))
            begun[record.key], places[record.key] = record, place
            continue
        begun.pop(record.key, None)
        if record.outcome is Outcome.DONE:
            told.append((place, record))
    told += [(places[key], record) for key, record in begun.items()]
    for _, record in sorted(told, key=lambda each: each[0]):
        yield record


def _undo(
    record: Record, hands: Hands, pretended: dict[Subject, Pod | Node], *, dry_run: bool
) -> tuple[Undo, str]:
    """``pretended`` are the objects as a dry run would have left them."""
    edit = record.action
    if not isinstance(edit, Edit):
        return Undo.IRREVERSIBLE, "" if record.outcome else "it may not have been done"
    target = msgspec.structs.replace(edit.target, part="")
    foreign = [key for key in edit.before if not is_kept(key)]
    if foreign:  # what we do not see we cannot have changed, nor tell whether somebody has since
        return Undo.FAILED, f"no annotation that is ever changed here: {printable(foreign[0])}"
    try:
        found = pretended.get(target) or read(hands, target)
        objection = _objection(found, edit)
        if objection is not None:
            return objection
        version = found.resource_version
        node = edit.unbind or msgspec.UNSET
        patch(hands, target, version, edit.before, node=node, dry_run=dry_run)
    except (ClusterError, SourceError) as error:
        refusal = refused(error)
        return _REFUSALS.get(refusal.outcome, Undo.FAILED), refusal.detail
    if not dry_run:
        return Undo.DONE, ""
    pretended[target] = _restored(found, edit)
    return Undo.DRY_RUN, ""


def _objection(found: Pod | Node, edit: Edit) -> tuple[Undo, str] | None:
    """Why it is left as it is."""
    if edit.target.uid and uid(found) != edit.target.uid:
        return Undo.GONE, "another of its name is in its place"
    if _stands(found, edit, edit.before, edit.unbind):
        return Undo.NOTHING, ""
    if not _stands(found, edit, edit.after, ""):
        return Undo.CHANGED, ", ".join(differing(found, edit.after)) or "spec.nodeName"
    return None


def _stands(found: Pod | Node, edit: Edit, annotations: Annotations, node: str) -> bool:
    """Whether the annotations are these, and it is bound there if the edit was about that."""
    placed = not edit.unbind or (isinstance(found, Pod) and found.node == node)
    return placed and not differing(found, annotations)


def _restored(found: Pod | Node, edit: Edit) -> Pod | Node:
    told = {**found.annotations, **edit.before}
    annotations = {key: text for key, text in told.items() if text is not None}
    if isinstance(found, Pod):
        node = edit.unbind or found.node
        return msgspec.structs.replace(found, annotations=annotations, node=node)
    return msgspec.structs.replace(found, annotations=annotations)
