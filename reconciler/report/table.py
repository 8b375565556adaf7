"""A plan for people: actions, skipped objects with reasons, and findings that are report only.

On a terminal, the evidence is below its object where it does not fit beside it. Elsewhere, each
object is one whole line, which other programs can search and cut. Equal entries of many objects are
one line with their number; the JSON form has each.
"""

import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
from rich.console import Console
from rich.style import Style

from reconciler.apply.records import AuditRecord, Restored, Undo
from reconciler.model import ActionResult, Edit, Entry, ObjectKind, ObjectRef, Plan
from reconciler.reasons import ActionOutcome, Effect, SkipReason
from reconciler.report.document import AS_BEFORE, Most, ReportDocument, doing, moment
from reconciler.report.document import GOOD as ACHIEVED
from vgpu.model.durations import age
from vgpu.model.folding import examples_text, folded, masked
from vgpu.model.units import count
from vgpu.program.terminal import (
    BAD,
    BOLD,
    DIM,
    DOUBTFUL,
    GOOD,
    PLAIN,
    Line,
    Piece,
    text_width,
    write,
)

_EFFECTS: Final[Mapping[Effect, Style]] = {
    Effect.RECOVERY: GOOD,
    Effect.TIDYING: DIM,
    Effect.REPAIR: DOUBTFUL,
}

_KINDS: Final[Mapping[ObjectKind, str]] = {
    ObjectKind.POD: "",
    ObjectKind.SHARE_POD: "sharepod ",
    ObjectKind.NODE: "node ",
    ObjectKind.DEVICE: "device ",
    ObjectKind.FOLDER: "",
    ObjectKind.RESOURCE_QUOTA: "resourcequota ",
    ObjectKind.NAMESPACE: "namespace ",
    ObjectKind.RESOURCE_CLAIM: "resourceclaim ",
}
"""The prefix of an object's name."""

_NOUNS: Final[Mapping[str, str]] = {
    ObjectKind.POD: "pod",
    ObjectKind.NODE: "node",
    ObjectKind.FOLDER: "folder",
}

_LONGEST_TEXT: Final = 60
"""Maximum number of shown characters of an annotation; the JSON form has all."""


def show_plan(console: Console, plan: Plan, command: str = "") -> None:
    """Print the plan; ``command`` is the command that would apply it."""
    write(console, _plan_lines(plan, _width(console), command))


def show_result(console: Console, result: ActionResult) -> None:
    """Print the result of one action."""
    finding = result.entry.finding
    style = GOOD if result.outcome in ACHIEVED else BAD
    pieces: list[Piece] = [(f"  {result.outcome.value:<14} ", style)]
    verb = doing(finding.action) if finding.action else ""
    pieces.append((f"{finding.rule.value}: {verb} {object_text(finding.object_ref)}", PLAIN))
    detail = result.detail or ("" if style is GOOD else result.outcome.explanation)
    if detail:
        pieces.append((f": {_flat(detail)}", PLAIN))
    write(console, [pieces])


def show_undoable(console: Console, records: Iterable[AuditRecord]) -> None:
    """Print the actions that are about to be undone."""
    for record in records:
        verb = doing(record.action)
        undo_text = f"  {record.rule.value}: {verb} {object_text(record.object_ref)}"
        write(console, [[(undo_text, PLAIN), (f"  {record.time:%Y-%m-%d %H:%M:%S %Z}", DIM)]])


def show_restored(console: Console, restored: Restored) -> None:
    """Print the outcome of undoing one action."""
    record = restored.record
    style = GOOD if restored.undo in AS_BEFORE else BAD
    outcome = restored.undo.explanation + (f" ({restored.detail})" if restored.detail else "")
    text = f"{record.rule.value}: {object_text(record.object_ref)}: {_flat(outcome)}"
    write(console, [[(f"  {restored.undo.value:<14} ", style), (text, PLAIN)]])


def show_outcomes(console: Console, outcomes: Iterable[ActionOutcome | Undo]) -> None:
    """Print the number of actions of each outcome."""
    counts = Counter(outcomes)
    parts = (f"{count} {outcome.value}" for outcome, count in counts.most_common())
    write(console, [[(", ".join(parts) or "Nothing was done.", BOLD)]])


def show_report(console: Console, plan: Plan, report: ReportDocument) -> None:
    """Print the report, and the plan below it."""
    write(console, _report_lines(report, _width(console)))
    show_plan(console, plan)


def object_text(object_ref: ObjectRef) -> str:
    """An object by its name: ``namespace/pod``, ``node gpu-1 [annotation]``."""
    is_in_namespace = object_ref.namespace and object_ref.kind is not ObjectKind.NAMESPACE
    name = f"{object_ref.namespace}/{object_ref.name}" if is_in_namespace else object_ref.name
    part = f" [{object_ref.part}]" if object_ref.part else ""
    return f"{_KINDS[object_ref.kind]}{name}{part}"


# ---------------------------------------------------------------- the plan


class _Row(msgspec.Struct, frozen=True):
    """One object: its cells, and the text after them."""

    cells: tuple[Piece, ...]
    text: str


def _plan_lines(plan: Plan, width: int | None, command: str) -> Iterator[Line]:
    for note in plan.all_notes:
        yield from _wrapped(f"note: {note}", width, "", "  ", DOUBTFUL)
    if plan.breaker.tripped:
        breaker = plan.breaker
        message = (
            f"Circuit breaker: actions are needed for {count(breaker.wanted, 'object')}, with"
            f" {count(breaker.pods, 'pod')} sharing GPUs; more than {breaker.allowed} are not"
            " allowed. Nothing will be done: find the common cause first."
        )
        yield from _wrapped(message, width, "", "  ", BAD)
    if plan.all_notes or plan.breaker.tripped:
        yield []
    if plan.actions:
        yield [(f"To be done: {len(plan.actions)}", BOLD)]
        yield from _table(_rows(plan.actions, _action_row, plan.made_at), width, "  ")
        yield []
    if plan.skipped:
        yield [(f"Skipped: {len(plan.skipped)}", BOLD)]
        yield from _skipped(plan, width)
        yield []
    if plan.findings:
        yield [(f"Report only: {len(plan.findings)}", BOLD)]
        yield from _table(_rows(plan.findings, _finding_row, plan.made_at), width, "  ")
        yield []
    yield from _wrapped(_summary(plan), width, "", "", BOLD)
    if command and plan.actions:
        yield from _wrapped(f"To do this: {command}", width, "", "  ", DIM)


def _skipped(plan: Plan, width: int | None) -> Iterator[Line]:
    """The skipped objects by reason, in the order in which reasons are checked."""
    by_reason: dict[SkipReason | None, list[Entry]] = {}
    for entry in plan.skipped:
        by_reason.setdefault(entry.skip, []).append(entry)
    for skip in SkipReason:
        if entries := by_reason.get(skip):
            heading = f"{skip.value}: {skip.explanation} ({len(entries)})"
            yield from _wrapped(heading, width, "  ", "    ", DOUBTFUL)
            yield from _table(_rows(entries, _skipped_row, plan.made_at), width, "    ")


def _rows(entries: Sequence[Entry], make: Callable[[Entry, float], _Row], now: float) -> list[_Row]:
    """A row for each entry; one for entries that differ in their objects and ages alone."""
    rows = [(entry, make(entry, now)) for entry in entries]
    return [_folded_row(equal, now) for equal in folded(rows, _likeness)]


def _likeness(made: tuple[Entry, _Row]) -> tuple[str, ...]:
    entry, row = made
    object_ref = entry.finding.object_ref
    names = (f"{object_ref.namespace}/{object_ref.name}", object_ref.name, object_ref.node)
    *own, _, _, _ = (text for text, _ in row.cells)
    return (*own, object_ref.kind, masked(row.text, *names, object_ref.uid))


def _folded_row(equal: Sequence[tuple[Entry, _Row]], now: float) -> _Row:
    (entry, row), *others = equal
    if not others:
        return row
    refs = [each.finding.object_ref for each, _ in equal]
    since = [each.finding.since for each, _ in equal if each.finding.since is not None]
    nodes = {ref.node for ref in refs}
    *own, _, (node, style), (_, dim) = row.cells
    noun = (
        _NOUNS.get(entry.finding.object_ref.kind) or _KINDS[entry.finding.object_ref.kind].strip()
    )
    cells = (
        *own,
        (_count(len(equal), noun), BOLD),
        (node if len(nodes) == 1 else "", style),
        (age(now - min(since)) if since else "", dim),
    )
    return _Row(cells, f"{examples_text(map(object_text, refs))}: {row.text}")


def _action_row(entry: Entry, now: float) -> _Row:
    finding = entry.finding
    effect = (finding.effect.value, _EFFECTS[finding.effect])
    action_text = finding.cause.explanation
    if finding.action is not None:
        action_text = f"{doing(finding.action)}: {action_text}"
    parts = (action_text, *finding.evidence, *_changes(entry), *_also(entry))
    return _row(entry, now, effect, text="; ".join(parts))


def _skipped_row(entry: Entry, now: float) -> _Row:
    parts = (entry.finding.cause.explanation, *entry.finding.evidence, *_also(entry))
    detail = f"{entry.detail}; " if entry.detail else ""
    return _row(entry, now, text=f"{detail}{'; '.join(parts)}")


def _finding_row(entry: Entry, now: float) -> _Row:
    parts = (entry.finding.cause.explanation, *entry.finding.evidence, *_also(entry))
    return _row(entry, now, text="; ".join(parts))


def _row(entry: Entry, now: float, *more: Piece, text: str) -> _Row:
    finding, object_ref = entry.finding, entry.finding.object_ref
    node = "" if object_ref.kind is ObjectKind.NODE else object_ref.node
    since = "" if finding.since is None else age(now - finding.since)
    rule = (finding.rule.value, PLAIN)
    name = (object_text(object_ref), BOLD)
    return _Row((rule, *more, name, (node, PLAIN), (since, DIM)), _flat(text))


def _changes(entry: Entry) -> Iterator[str]:
    action = entry.finding.action
    if not isinstance(action, Edit):
        return
    removed = [key for key in action.before if action.after.get(key) is None]
    if removed:
        yield f"removes {', '.join(removed)}"
    for key, after in action.after.items():
        if after is not None:
            yield f"{key} {_quoted(action.before.get(key))} becomes {_quoted(after)}"
    if action.unbind:
        yield f"removes spec.nodeName {_quoted(action.unbind)}"


def _also(entry: Entry) -> Iterator[str]:
    if entry.also:
        yield f"also found by {', '.join(rule.value for rule in entry.also)}"


def _summary(plan: Plan) -> str:
    effects = Counter(entry.finding.effect for entry in plan.actions)
    kinds = ", ".join(f"{effects[effect]} {effect.value}" for effect in Effect if effects[effect])
    what = f"{_count(len(plan.actions), 'action')}{f' ({kinds})' if kinds else ''}"
    looked = ", ".join(
        _count(count, _NOUNS.get(kind, kind)) for kind, count in plan.object_counts.items() if count
    )
    return (
        f"{what}, {len(plan.skipped)} skipped, {len(plan.findings)} report only;"
        f" looked at {looked or 'nothing'}, {moment(plan.made_at):%Y-%m-%d %H:%M:%S} UTC,"
        f" plan {plan.id}"
    )


# ---------------------------------------------------------------- the report


def _report_lines(report: ReportDocument, width: int | None) -> Iterator[Line]:
    yield [("Findings by rule", BOLD)]
    longest = max((len(row.rule) for row in report.rules), default=0)
    for row in report.rules:
        numbers = (
            (row.actions, "to be done"),
            (row.skipped, "skipped"),
            (row.findings, "report only"),
        )
        counts = ", ".join(f"{number} {what}" for number, what in numbers if number)
        head = f"  {row.rule:<{longest}}  {counts}"
        if width is None or len(head) + 2 + len(row.explanation) <= width:
            yield [(head, PLAIN), (f": {row.explanation}", DIM)]
        else:
            yield [(f"{head}:", PLAIN)]
            yield from _wrapped(row.explanation, width, " " * 6, " " * 6, DIM)
    if not report.rules:
        yield [("  nothing", PLAIN)]
    yield []
    for title, most in (("Nodes", report.nodes), ("Owners", report.owners)):
        yield from _most(title, most)
    if report.done is not None:
        yield [("Past actions", BOLD)]
        for done in report.done:
            last = f"{done.last:%Y-%m-%d %H:%M:%S} UTC"
            yield [(f"  {done.rule}: {done.count} {done.outcome}, the last {last}", PLAIN)]
        if not report.done:
            yield [("  nothing", PLAIN)]
        yield []


def _most(title: str, most: Sequence[Most]) -> Iterator[Line]:
    if not most:
        return
    yield [(f"{title} with the most findings", BOLD)]
    for counted in most:
        yield [(f"  {counted.count:>4}  {counted.name}", PLAIN)]
    yield []


# ---------------------------------------------------------------- text


def _width(console: Console) -> int | None:
    """Number of the terminal's columns, None without a terminal: then lines are not broken."""
    return text_width(console) if console.is_terminal else None


def _table(rows: Sequence[_Row], width: int | None, indent: str) -> Iterator[Line]:
    """The rows with their cells below one another.

    Where names are too long for the terminal, node and age are below them, with the text.
    """
    if width is not None and _taken(rows, indent) > width:
        rows = [_narrowed(row) for row in rows]
    taken = _taken(rows, indent) + 2
    beside = width is None or all(taken + len(row.text) <= width for row in rows)
    columns = _columns(rows)
    for row in rows:
        cells: list[Piece] = [(indent, PLAIN)]
        for (text, style), column in zip(row.cells, columns, strict=True):
            if column:
                cells.append((f"{text:<{column}}  ", style))
        if beside:
            yield [*cells, (row.text, PLAIN)]
        else:
            yield cells
            yield from _wrapped(row.text, width, f"{indent}    ", f"{indent}    ", PLAIN)


def _columns(rows: Sequence[_Row]) -> list[int]:
    """The width of each column."""
    cells = zip(*(row.cells for row in rows), strict=True)
    return [max(len(text) for text, _ in column) for column in cells]


def _taken(rows: Sequence[_Row], indent: str) -> int:
    """The width of all cells with the gaps between them."""
    columns = [column for column in _columns(rows) if column]
    return len(indent) + sum(columns) + 2 * (len(columns) - 1)


def _narrowed(row: _Row) -> _Row:
    *cells, (node, _), (since, _) = row.cells
    place = ", ".join(filter(None, (node, since)))
    return _Row(tuple(cells), f"{place}: {row.text}" if place else row.text)


def _wrapped(
    text: str, width: int | None, indent: str, further: str, style: Style
) -> Iterator[Line]:
    flat = _flat(text)
    if width is None:
        yield [(indent + flat, style)]
        return
    for line in textwrap.wrap(
        flat, width, initial_indent=indent, subsequent_indent=further, break_on_hyphens=False
    ):
        yield [(line, style)]


def _flat(text: str) -> str:
    """The text on one line."""
    return " ".join(text.split())


def _quoted(text: str | None) -> str:
    if text is None:
        return "(none)"
    cut = text if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT - 1]}…"
    return f'"{cut}"'


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
