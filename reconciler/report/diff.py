"""What has changed from one plan to the next. Pure."""

from collections.abc import Iterator, Mapping
from datetime import datetime

import msgspec

from reconciler.report.document import EntryDocument, PlanDocument


class ChangeDocument(msgspec.Struct, frozen=True, rename="camel"):
    """An object that is in both plans: its rule, or what is done about it, is another now."""

    before: EntryDocument
    after: EntryDocument


class DiffDocument(msgspec.Struct, frozen=True, rename="camel"):
    """The objects that came, went and changed since an earlier plan."""

    since: datetime
    plan: str
    new: tuple[EntryDocument, ...]
    gone: tuple[EntryDocument, ...]
    changed: tuple[ChangeDocument, ...]


class ComparedPlan(PlanDocument, frozen=True, kw_only=True):
    """A plan with its differences from an earlier one."""

    diff: DiffDocument


def compared(plan: PlanDocument, before: PlanDocument) -> ComparedPlan:
    """The plan with what is different from the plan before it."""
    known, now = _by_object(before), _by_object(plan)
    diff = DiffDocument(
        since=before.made_at,
        plan=before.plan,
        new=tuple(entry for key, entry in now.items() if key not in known),
        gone=tuple(entry for key, entry in known.items() if key not in now),
        changed=tuple(
            ChangeDocument(known[key], entry)
            for key, entry in now.items()
            if key in known and decision(known[key]) != decision(entry)
        ),
    )
    return ComparedPlan(**msgspec.structs.asdict(plan), diff=diff)


def decision(entry: EntryDocument) -> str:
    """What the plan does about the object: the action, the reason to skip it, or to report."""
    if entry.action is None:
        return f"{entry.rule}: report only"
    return f"{entry.rule}: {entry.skip or entry.action.type}"


def diff_lines(diff: DiffDocument) -> Iterator[str]:
    """The differences for people, one a line."""
    counts = f"{len(diff.new)} new, {len(diff.gone)} gone, {len(diff.changed)} changed"
    yield f"Since {diff.since:%Y-%m-%d %H:%M:%S} UTC: {counts}"
    for entry in diff.new:
        yield f"  + {_name(entry)}  {decision(entry)}"
    for entry in diff.gone:
        yield f"  - {_name(entry)}  {decision(entry)}"
    for change in diff.changed:
        yield f"  ~ {_name(change.after)}  {decision(change.before)} -> {decision(change.after)}"


def _by_object(plan: PlanDocument) -> Mapping[tuple[str, ...], EntryDocument]:
    entries = (*plan.actions, *plan.skipped, *plan.findings)
    return {
        (entry.kind, entry.namespace, entry.name, entry.uid, entry.part): entry for entry in entries
    }


def _name(entry: EntryDocument) -> str:
    name = f"{entry.namespace}/{entry.name}" if entry.namespace else entry.name
    part = f" [{entry.part}]" if entry.part else ""
    return f"{entry.kind} {name}{part}"
