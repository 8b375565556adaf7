"""A plan and its outcomes as a JSON document with a stable schema, and what changed since another.

Within a version, fields are only added. Unknown values are null, times are RFC 3339 in UTC.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Final

import msgspec

from reconciler.apply.records import Restored, Undo
from reconciler.model import Action, ActionResult, Edit, Entry, Evict, Plan
from reconciler.reasons import ActionOutcome, Effect, Rule

API_VERSION: Final = "vgpu.dev/v1alpha1"


class _Document(msgspec.Struct, frozen=True, rename="camel"):
    """The base of all parts."""


class ActionDocument(_Document, frozen=True):
    """An action: ``type`` is evict, edit or remove_folder.

    Of an edit, ``before`` and ``after`` are the annotations as they are and as they are to be, null
    where there is none; ``unbind`` is the node that a SharePod is removed from, "" if none.
    """

    type: str
    before: Mapping[str, str | None]
    after: Mapping[str, str | None]
    unbind: str = ""


class EntryDocument(_Document, frozen=True):
    """An object, its problem, and its action or why there is none.

    ``part`` is the annotation of a node; ``effect`` is null where no action is possible, ``skip``
    where the action is not skipped, ``outcome`` where no action was tried.
    """

    rule: str
    reason: str
    explanation: str
    effect: str | None
    kind: str
    namespace: str
    name: str
    uid: str
    part: str
    node: str
    since: datetime | None
    evidence: tuple[str, ...]
    also: tuple[str, ...]
    action: ActionDocument | None
    skip: str | None = None
    skip_explanation: str | None = None
    skip_detail: str | None = None
    outcome: str | None = None
    outcome_explanation: str | None = None
    outcome_detail: str | None = None


class BreakerDocument(_Document, frozen=True):
    """Number of needed actions, of at most ``allowed``, and number of GPU pods."""

    tripped: bool
    wanted: int
    allowed: int
    pods: int


class PlanDocument(_Document, frozen=True):
    """A plan; after it was applied, each action has its outcome."""

    api_version: str
    plan: str
    made_at: datetime
    scope: str
    object_counts: Mapping[str, int] = msgspec.field(name="subjects")
    breaker: BreakerDocument
    notes: tuple[str, ...]
    actions: tuple[EntryDocument, ...]
    skipped: tuple[EntryDocument, ...]
    findings: tuple[EntryDocument, ...]


def plan_document(plan: Plan, results: Iterable[ActionResult] = ()) -> PlanDocument:
    """The plan, with the outcomes of its actions that have one."""
    results_by_object = {result.entry.finding.object_ref.key: result for result in results}
    breaker = plan.breaker
    return PlanDocument(
        api_version=API_VERSION,
        plan=plan.id,
        made_at=moment(plan.made_at),
        scope=plan.scope.value,
        object_counts=plan.object_counts,
        breaker=BreakerDocument(breaker.tripped, breaker.wanted, breaker.allowed, breaker.pods),
        notes=plan.all_notes,
        actions=tuple(
            _entry(entry, results_by_object.get(entry.finding.object_ref.key))
            for entry in plan.actions
        ),
        skipped=tuple(map(_entry, plan.skipped)),
        findings=tuple(map(_entry, plan.findings)),
    )


def _entry(entry: Entry, result: ActionResult | None = None) -> EntryDocument:
    finding, object_ref, skip = entry.finding, entry.finding.object_ref, entry.skip
    outcome = None if result is None else result.outcome
    return EntryDocument(
        rule=finding.rule.value,
        reason=finding.cause.value,
        explanation=finding.cause.explanation,
        effect=finding.effect.value if finding.action else None,
        kind=object_ref.kind.value,
        namespace=object_ref.namespace,
        name=object_ref.name,
        uid=object_ref.uid,
        part=object_ref.part,
        node=object_ref.node,
        since=None if finding.since is None else moment(finding.since),
        evidence=finding.evidence,
        also=tuple(rule.value for rule in entry.also),
        action=None if finding.action is None else _action(finding.action),
        skip=skip and skip.value,
        skip_explanation=skip and skip.explanation,
        skip_detail=entry.detail or None,
        outcome=outcome and outcome.value,
        outcome_explanation=outcome and outcome.explanation,
        outcome_detail=(result and result.detail) or None,
    )


def _action(action: Action) -> ActionDocument:
    kind = str(action.__struct_config__.tag)
    if isinstance(action, Edit):
        return ActionDocument(kind, action.before, action.after, action.unbind)
    return ActionDocument(kind, {}, {})


def moment(seconds: float) -> datetime:
    """Unix seconds as a time; seconds out of the calendar's range give its nearest time."""
    return datetime.fromtimestamp(min(max(seconds, 0.0), _LAST), UTC)


_LAST: Final = datetime(9999, 12, 31, tzinfo=UTC).timestamp()


# ---------------------------------------------------------------- the report


class RuleCount(_Document, frozen=True):
    """Number of one rule's findings: actions, skipped, and report only."""

    rule: str
    explanation: str
    actions: int
    skipped: int
    findings: int


class Most(_Document, frozen=True):
    """A node, or a controller of pods, and the number of its objects in the plan."""

    name: str
    count: int


class Done(_Document, frozen=True):
    """Number of a rule's actions with this outcome, and the time of the last; from an audit."""

    rule: str
    outcome: str
    count: int
    last: datetime


class ReportDocument(_Document, frozen=True):
    """The problems, and the past actions.

    Attributes:
        effects: number of actions by effect: recovery makes a workload run again, tidying
            removes an object that is already replaced, repair corrects allocation records.
        rules: rules with findings.
        nodes, owners: those with the most findings; an owner is ``Kind namespace/name``.
        done: past actions by rule and outcome; null if no audit was read.
        plan: the plan itself.
    """

    api_version: str
    effects: Mapping[str, int]
    rules: tuple[RuleCount, ...]
    nodes: tuple[Most, ...]
    owners: tuple[Most, ...]
    done: tuple[Done, ...] | None
    plan: PlanDocument


TOP: Final = 10


def report_document(
    plan: Plan, owners: Mapping[str, str], done: Iterable[Done] | None = None
) -> ReportDocument:
    """The report on a fresh plan; ``owners`` are the names of controllers by UID."""
    sections = (plan.actions, plan.skipped, plan.findings)
    counts = [Counter(entry.finding.rule for entry in section) for section in sections]
    effects = Counter(entry.finding.effect for entry in plan.actions)
    return ReportDocument(
        api_version=API_VERSION,
        effects={effect.value: effects[effect] for effect in Effect},
        rules=tuple(
            RuleCount(rule.value, rule.explanation, *(count[rule] for count in counts))
            for rule in Rule
            if any(count[rule] for count in counts)
        ),
        nodes=_most(entry.finding.object_ref.node for entry in plan.entries),
        owners=_most(owners.get(entry.owner, "") for entry in plan.entries),
        done=None if done is None else tuple(done),
        plan=plan_document(plan),
    )


def _most(names: Iterable[str]) -> tuple[Most, ...]:
    counts = Counter(filter(None, names))
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return tuple(Most(name, count) for name, count in ordered[:TOP])


def done_of(outcomes: Iterable[tuple[Rule, ActionOutcome, datetime]]) -> tuple[Done, ...]:
    """Number of outcomes by rule and outcome, the largest number first."""
    counts: Counter[tuple[Rule, ActionOutcome]] = Counter()
    last: dict[tuple[Rule, ActionOutcome], datetime] = {}
    for rule, outcome, when in outcomes:
        counts[rule, outcome] += 1
        last[rule, outcome] = max(when, last.get((rule, outcome), when))
    return tuple(
        Done(rule.value, outcome.value, count, last[rule, outcome])
        for (rule, outcome), count in counts.most_common()
    )


# ---------------------------------------------------------------- what was undone


class RestoredDocument(_Document, frozen=True):
    """An action of an audit, and the outcome of undoing it."""

    plan: str
    time: datetime
    rule: str
    kind: str
    namespace: str
    name: str
    uid: str
    node: str
    action: ActionDocument
    undo: str
    explanation: str
    detail: str


def restored_document(restored: Restored) -> RestoredDocument:
    """The document of one undone action."""
    record = restored.record
    return RestoredDocument(
        plan=record.plan,
        time=record.time,
        rule=record.rule.value,
        kind=record.object_ref.kind.value,
        namespace=record.object_ref.namespace,
        name=record.object_ref.name,
        uid=record.object_ref.uid,
        node=record.object_ref.node,
        action=_action(record.action),
        undo=restored.undo.value,
        explanation=restored.undo.explanation,
        detail=restored.detail,
    )


# ---------------------------------------------------------------- in words, for both forms


GOOD: Final = frozenset(
    {ActionOutcome.DONE, ActionOutcome.DRY_RUN, ActionOutcome.GONE, ActionOutcome.CHANGED}
)
"""Outcomes after which nothing is left to be done: done, or no longer needed."""


AS_BEFORE: Final = frozenset({Undo.DONE, Undo.DRY_RUN, Undo.NOTHING})
"""Outcomes after which the object is as it was before the action."""


def succeeded(results: Iterable[ActionResult]) -> bool:
    """Whether every action was done, or was no longer needed."""
    return all(result.outcome in GOOD for result in results)


def doing(action: Action) -> str:
    """What an action does, in a few words."""
    if isinstance(action, Evict):
        return "evict"
    if isinstance(action, Edit):
        return "clear" if not any(action.after.values()) else "correct"
    return "remove"


# ---------------------------------------------------------------- differences between plans


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
