"""Makes the plan of a snapshot: evaluates every rule, gives each object one entry. Pure."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from reconciler.cluster_index import ClusterIndex, is_holder
from reconciler.model import Entry, Finding, ObjectKind, Plan, Snapshot
from reconciler.plan.budget import Budget, breaker_of
from reconciler.plan.demand import namespace_demands, queues_of
from reconciler.plan.eligibility import other_schedulers, skip_reason, with_guards
from reconciler.plan.order import in_turns, place, precedence, urgency
from reconciler.policy import Mode, Policy
from reconciler.reasons import Rule, SkipReason
from reconciler.reconciler_state import ReconcilerState, remember
from reconciler.rules import RULES, RuleEntry
from reconciler.rules.findings import changed_at
from vgpu.schemes.codec import SchemeCodec


def make_plan(
    snapshot: Snapshot, policy: Policy, state: ReconcilerState, codecs: Sequence[SchemeCodec]
) -> tuple[Plan, ReconcilerState]:
    """The plan for a snapshot, and the reconciler's state with the findings in it."""
    cluster_index = ClusterIndex(snapshot, codecs)
    findings = tuple(find(cluster_index, policy))
    remembered = remember(state, findings, snapshot.now)
    return resolve(cluster_index, policy, remembered, findings), remembered


def find(cluster_index: ClusterIndex, policy: Policy) -> Iterator[Finding]:
    """The findings of all rules that are on."""
    for entry in RULES:
        yield from run_rule(entry, cluster_index, policy)


def run_rule(entry: RuleEntry, cluster_index: ClusterIndex, policy: Policy) -> Iterator[Finding]:
    """The findings of one rule, if it is on.

    Where a part of the snapshot that the rule needs is incomplete, the skip reason of its findings
    is INCOMPLETE_VIEW.
    """
    if policy.mode(entry.rule) is Mode.OFF or cluster_index.snapshot.scope not in entry.scopes:
        return
    blind = not cluster_index.has(*entry.needs)
    for undated in entry.find(cluster_index, policy):
        if entry.rule not in _ABOUT_FRAMES and is_frame(undated, cluster_index):
            continue
        finding = _with_service(_dated(undated, cluster_index), cluster_index)
        if blind and finding.skip_reason is None:
            yield replace(finding, skip_reason=SkipReason.INCOMPLETE_VIEW)
        else:
            yield finding


_ABOUT_FRAMES: Final = frozenset({Rule.KAI, Rule.KUBESHARE})
"""Rules about pods that keep a GPU for other pods."""


def is_frame(finding: Finding, cluster_index: ClusterIndex) -> bool:
    """Whether the finding is about a pod that keeps a GPU for others: no other rule judges it.

    Such a pod uses nothing, and the pods that share its GPU end when it is gone.
    """
    pod = cluster_index.pod_of(finding.object_ref)
    return pod is not None and is_holder(pod)


def _dated(finding: Finding, cluster_index: ClusterIndex) -> Finding:
    """The finding; in a dump one without a time has that of its pod's last known change."""
    if finding.since is not None or not cluster_index.snapshot.dated_by_status:
        return finding
    pod = cluster_index.pod_of(finding.object_ref)
    return finding if pod is None else replace(finding, since=changed_at(pod))


def _with_service(finding: Finding, cluster_index: ClusterIndex) -> Finding:
    """The finding with what shows that a new pod will be served, where the original would not."""
    pod = cluster_index.pod_of(finding.object_ref) if finding.replaces else None
    service = None if pod is None else cluster_index.plugin_service(pod)
    if service is None or not service.ours:
        return finding
    lines = (service.limit, f"vgpu's plugin serves such pods: {service.ours}")
    return replace(finding, evidence=(*finding.evidence, *lines))


def resolve(
    cluster_index: ClusterIndex,
    policy: Policy,
    state: ReconcilerState,
    findings: Iterable[Finding],
) -> Plan:
    """The plan for these findings."""
    findings = (_with_its_condition(finding, state, cluster_index.now) for finding in findings)
    entries = [
        _entry(of_subject, cluster_index, policy, state)
        for of_subject in _by_object(findings).values()
    ]
    reported = [entry for entry in entries if not (entry.finding.action or entry.skip)]
    skipped = [entry for entry in entries if entry.skip]
    eligible = sorted(
        (entry for entry in entries if entry.finding.action and not entry.skip),
        key=lambda entry: urgency(entry, state, cluster_index.now),
    )
    breaker = breaker_of(eligible, cluster_index, policy.limits)
    if breaker.tripped:
        detail = (
            f"{breaker.wanted} planned actions exceed the limit {breaker.allowed}"
            f" ({breaker.pods} running GPU pods)"
        )
        skipped += [_skipped(entry, SkipReason.BREAKER_TRIPPED, detail) for entry in eligible]
        eligible = []
    budget = Budget(cluster_index, policy)
    actions = []
    for entry in in_turns(eligible, cluster_index, state):
        limit = budget.take(entry)
        if limit is None:
            actions.append(entry)
        else:
            skipped.append(_skipped(entry, *limit))
    return Plan(
        id=_plan_id(actions),
        made_at=cluster_index.now,
        scope=cluster_index.snapshot.scope,
        actions=tuple(actions),
        skipped=tuple(sorted(skipped, key=place)),
        findings=tuple(sorted(reported, key=place)),
        breaker=breaker,
        object_counts={
            ObjectKind.POD: len(cluster_index.all_pods),
            ObjectKind.SHARE_POD: len(cluster_index.snapshot.share_pods),
            ObjectKind.NODE: len(cluster_index.snapshot.nodes),
            ObjectKind.FOLDER: len(cluster_index.snapshot.folders),
        },
        notes=cluster_index.snapshot.notes,
        unit_doubts=cluster_index.snapshot.unit_doubts,
        namespaces=namespace_demands(cluster_index, policy.team_key),
        queues=queues_of(cluster_index),
    )


def _with_its_condition(finding: Finding, state: ReconcilerState, now: float) -> Finding:
    """The finding; one that is the consequence of a condition has its time, for people."""
    return replace(finding, since=state.since(finding, now)) if finding.condition else finding


def _by_object(findings: Iterable[Finding]) -> dict[str, list[Finding]]:
    by_object: dict[str, list[Finding]] = {}
    for finding in findings:
        by_object.setdefault(finding.object_ref.key, []).append(finding)
    return by_object


def _entry(
    findings: list[Finding], cluster_index: ClusterIndex, policy: Policy, state: ReconcilerState
) -> Entry:
    """The entry of one object: the first rule that may act, else the first that would."""
    ordered = sorted(findings, key=precedence) if len(findings) > 1 else findings
    verdicts = [
        (finding, skip_reason(finding, cluster_index, policy, state))
        for finding in ordered
        if finding.action
    ]
    allowed = (judged for judged in verdicts if judged[1] is None)
    report_only = ordered[0], other_schedulers(ordered[0], cluster_index)
    leading, verdict = next(allowed, verdicts[0] if verdicts else report_only)
    rules = dict.fromkeys(finding.rule for finding in ordered)
    also = tuple(rule for rule in rules if rule is not leading.rule)
    pod = cluster_index.pod_of(leading.object_ref)
    owner = pod.owner.uid if pod and pod.owner else ""
    return Entry(with_guards(leading, cluster_index, policy), also, owner, *(verdict or ()))


def _skipped(entry: Entry, skip: SkipReason, detail: str) -> Entry:
    return replace(entry, skip=skip, detail=detail)


def _plan_id(actions: Iterable[Entry]) -> str:
    """The same for the same actions in the same order."""
    text = msgspec.json.encode([entry.finding.action for entry in actions], order="sorted")
    return hashlib.sha256(text).hexdigest()[:12]
