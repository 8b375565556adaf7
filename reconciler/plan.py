"""Findings in, plan out: who may be acted on, in what order, and how many at a time. Pure.

Every subject appears once: as an action, or skipped with the first reason that applies, or as
something that can only be reported. The order of the input does not matter. Reasons are asked in
this order: what protects the subject, what the rule itself objects, whether its node could do any
better, its age, its owner's back-off, the rule's mode; then, for all together, the circuit breaker
and the limits.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from reconciler.cluster_index import RUNNING, SUCCEEDED, ClusterIndex
from reconciler.model import (
    Breaker,
    Coverage,
    Edit,
    Entry,
    Evict,
    Finding,
    ObjectKind,
    ObjectRef,
    Plan,
    PolicyGuard,
    Scope,
    Snapshot,
)
from reconciler.owners import eviction
from reconciler.policy import REPORTED, Limits, Mode, Policy
from reconciler.reasons import Cause, Effect, Rule, SkipReason
from reconciler.reconciler_state import ReconcilerState, attempt_key, remember
from reconciler.rules import RULES, RuleEntry
from vgpu.kube.objects import MIRROR, Node, Pod
from vgpu.schemes.codec import SchemeCodec

OPT_OUT: Final = "vgpu.dev/reconcile"
"""With the value ``false`` a pod is never touched, nor is a node and anything on it."""


def make_plan(
    snapshot: Snapshot, policy: Policy, memory: ReconcilerState, codecs: Sequence[SchemeCodec]
) -> tuple[Plan, ReconcilerState]:
    """The plan for what is seen, and the memory with what was found."""
    cluster_index = ClusterIndex(snapshot, codecs)
    findings = tuple(find(cluster_index, policy))
    remembered = remember(memory, findings, snapshot.now)
    return resolve(cluster_index, policy, remembered, findings), remembered


def find(cluster_index: ClusterIndex, policy: Policy) -> Iterator[Finding]:
    """Everything that the rules that are on find; what they could not see well enough, too."""
    for entry in RULES:
        yield from found_by(entry, cluster_index, policy)


def found_by(entry: RuleEntry, cluster_index: ClusterIndex, policy: Policy) -> Iterator[Finding]:
    """What one rule finds, if it is on."""
    if policy.mode(entry.rule) is Mode.OFF or cluster_index.snapshot.scope not in entry.scopes:
        return
    blind = not cluster_index.has(*entry.needs)
    for finding in entry.find(cluster_index, policy):
        if blind and finding.objection is None:
            yield replace(finding, objection=SkipReason.INCOMPLETE_VIEW)
        else:
            yield finding


def resolve(
    cluster_index: ClusterIndex,
    policy: Policy,
    memory: ReconcilerState,
    findings: Iterable[Finding],
) -> Plan:
    """The plan for these findings."""
    entries = [
        _lead(of_subject, cluster_index, policy, memory)
        for of_subject in _by_subject(findings).values()
    ]
    reported = [entry for entry in entries if entry.finding.action is None]
    refused = [entry for entry in entries if entry.finding.action and entry.skip]
    wanted = sorted(
        (entry for entry in entries if entry.finding.action and not entry.skip),
        key=lambda entry: _urgency(entry, memory, cluster_index.now),
    )
    breaker = _breaker(wanted, cluster_index, policy.limits)
    if breaker.tripped:
        detail = (
            f"{breaker.wanted} troubles; at most {breaker.allowed}, with {breaker.pods} living GPU"
            " pods"
        )
        refused += [_skipped(entry, SkipReason.BREAKER_TRIPPED, detail) for entry in wanted]
        wanted = []
    budget = _Budget(cluster_index, policy.limits)
    actions = []
    for entry in _in_turns(wanted, cluster_index, memory):
        limit = budget.take(entry)
        if limit is None:
            actions.append(entry)
        else:
            refused.append(_skipped(entry, *limit))
    return Plan(
        id=_plan_id(actions),
        made_at=cluster_index.now,
        scope=cluster_index.snapshot.scope,
        actions=tuple(actions),
        skipped=tuple(sorted(refused, key=_place)),
        findings=tuple(sorted(reported, key=_place)),
        breaker=breaker,
        subjects={
            ObjectKind.POD: len(cluster_index.all_pods),
            ObjectKind.SHARE_POD: len(cluster_index.snapshot.share_pods),
            ObjectKind.NODE: len(cluster_index.snapshot.nodes),
            ObjectKind.FOLDER: len(cluster_index.snapshot.folders),
        },
        notes=cluster_index.snapshot.notes,
    )


# ---------------------------------------------------------------- one subject

_ORDER: Final[Mapping[Rule, int]] = {rule: number for number, rule in enumerate(Rule)}

_Verdict = tuple[SkipReason, str] | None
"""Why not, and the rest of it in words; None if it may be done."""


def _by_subject(findings: Iterable[Finding]) -> dict[str, list[Finding]]:
    found: dict[str, list[Finding]] = {}
    for finding in findings:
        found.setdefault(finding.subject.key, []).append(finding)
    return found


def _lead(
    findings: list[Finding], cluster_index: ClusterIndex, policy: Policy, memory: ReconcilerState
) -> Entry:
    """The entry of one subject: the first rule that may act, else the first that would."""
    ordered = sorted(findings, key=_precedence) if len(findings) > 1 else findings
    verdicts = [
        (each, objection(each, cluster_index, policy, memory)) for each in ordered if each.action
    ]
    free = (each for each in verdicts if each[1] is None)
    leading, verdict = next(free, verdicts[0] if verdicts else (ordered[0], None))
    also = tuple(dict.fromkeys(each.rule for each in ordered if each.rule is not leading.rule))
    pod = _pod(leading.subject, cluster_index)
    owner = pod.owner.uid if pod and pod.owner else ""
    return Entry(guarded(leading, cluster_index, policy), also, owner, *(verdict or ()))


def _precedence(finding: Finding) -> tuple[int, bytes]:
    """By rule; the rest only makes the order the same each time."""
    return _ORDER[finding.rule], msgspec.json.encode(finding, order="deterministic")


def _pod(subject: ObjectRef, cluster_index: ClusterIndex) -> Pod | None:
    """The pod or SharePod that the subject is; None if it is none, or is not there."""
    pods = {ObjectKind.POD: cluster_index.pods, ObjectKind.SHARE_POD: cluster_index.share_pods}.get(
        subject.kind, {}
    )
    return pods.get(subject.uid)


def objection(
    finding: Finding, cluster_index: ClusterIndex, policy: Policy, memory: ReconcilerState
) -> _Verdict:
    """Why the finding's action may not be taken for itself, None if it may."""
    protection = _protection(finding, cluster_index, policy)
    if protection is not None:
        return protection
    moot = finding.objection or _no_better(finding, cluster_index)
    if moot is not None:
        return moot, ""
    wait = _seconds_to_ripe(finding, memory, cluster_index.now, policy.ages.clock_skew)
    if wait > 0:
        return SkipReason.TOO_YOUNG, f"{wait:.0f} s to go"
    pause = _pause(finding, cluster_index, policy, memory)
    if pause > 0:
        return SkipReason.BACKING_OFF, f"{pause:.0f} s to go"
    if policy.mode(finding.rule) is Mode.PLAN:
        return SkipReason.RULE_MODE_PLAN, f"rules.{finding.rule}.mode: apply"
    return None


def _no_better(finding: Finding, cluster_index: ClusterIndex) -> SkipReason | None:
    """Why the pod that its owner makes in its place would fare no better.

    While a node or its plugin is away, the API server shows its devices as gone and its pods as
    stuck, which is no evidence against them; and a pod that is nowhere yet can still go anywhere.
    What has failed for good will not change any more, and on the node itself there is better
    evidence.
    """
    pod = _pod(finding.subject, cluster_index)
    if pod is None or pod.owner is None or pod.terminal:
        return None
    from_afar = cluster_index.snapshot.scope is Scope.CLUSTER
    return cluster_index.plugin_objection(pod) if finding.replaces and from_afar else None


def _seconds_to_ripe(finding: Finding, memory: ReconcilerState, now: float, skew: float) -> float:
    """How long it must still have been so."""
    if finding.grace <= 0:
        return 0.0
    return finding.grace + skew - (now - memory.since(finding, now))


def _pause(
    finding: Finding, cluster_index: ClusterIndex, policy: Policy, memory: ReconcilerState
) -> float:
    """Tidying makes nobody create a pod, so that it cannot loop."""
    pod = _pod(finding.subject, cluster_index)
    if not finding.replaces or pod is None or pod.owner is None:
        return 0.0
    key = attempt_key(pod.owner.uid, finding.subject.node)
    return memory.pause(key, cluster_index.now, policy.backoff)


# ---------------------------------------------------------------- what protects a pod

_Guards = tuple[tuple[SkipReason, Callable[[Pod, Policy], bool]], ...]

_ANY_POD: Final[_Guards] = (
    (SkipReason.OPTED_OUT, lambda pod, _: opted_out(pod)),
    (
        SkipReason.OTHER_NAMESPACE,
        lambda pod, policy: bool(policy.namespaces) and pod.ref.namespace not in policy.namespaces,
    ),
    (
        SkipReason.PROTECTED_NAMESPACE,
        lambda pod, policy: pod.ref.namespace in policy.protected_namespaces,
    ),
    (SkipReason.STATIC_POD, lambda pod, _: MIRROR in pod.annotations or _is_static(pod)),
    (SkipReason.TERMINATING, lambda pod, _: pod.deleted_at is not None),
)
"""For every change of a pod."""

_EVICTED_POD: Final[_Guards] = (
    (SkipReason.COMPLETED, lambda pod, _: pod.phase == SUCCEEDED),
    (SkipReason.BARE_POD, lambda pod, policy: pod.owner is None and not policy.evict_bare),
)
"""For evictions, after those; then its owner is asked."""

_OWNED_POD: Final[_Guards] = (
    (SkipReason.HIGH_PRIORITY, lambda pod, policy: pod.priority > policy.priority_ceiling),
    (SkipReason.RUNNING, lambda pod, policy: pod.phase == RUNNING and not policy.evict_running),
)
"""For evictions, last of all."""

_HOLDER: Final = frozenset(
    {SkipReason.BARE_POD, SkipReason.PROTECTED_NAMESPACE, SkipReason.RUNNING}
)
"""KubeShare's holder pods are bare, in kube-system, and run."""


def _exempt(finding: Finding) -> frozenset[SkipReason]:
    """What does not protect from this finding's action."""
    if finding.cause is Cause.ORPHANED_HOLDER:
        return _HOLDER
    return frozenset(
        {SkipReason.RUNNING} if finding.rule in REPORTED else ()
    )  # what these find runs


def opted_out(thing: Pod | Node) -> bool:
    """Whether somebody wants it skipped."""
    return thing.annotations.get(OPT_OUT) == "false"


def _is_static(pod: Pod) -> bool:
    return pod.owner is not None and pod.owner.kind == "Node"


def _protection(finding: Finding, cluster_index: ClusterIndex, policy: Policy) -> _Verdict:
    subject = finding.subject
    of_node = _of_node(subject, cluster_index)
    if of_node is not None:
        return of_node, ""
    if subject.kind not in (ObjectKind.POD, ObjectKind.SHARE_POD):
        return (SkipReason.OTHER_NAMESPACE, "") if policy.namespaces else None
    pod = _pod(subject, cluster_index)
    if pod is None:
        return SkipReason.INCOMPLETE_VIEW, ""
    exempt = _exempt(finding)

    def first(guards: _Guards) -> _Verdict:
        holding = (skip for skip, holds in guards if skip not in exempt and holds(pod, policy))
        return next(((skip, "") for skip in holding), None)

    if isinstance(finding.action, Edit):
        return first(_ANY_POD)
    of_pod = first((*_ANY_POD, *_EVICTED_POD))
    of_owner = of_pod or eviction.objection(pod, policy.owners, cluster_index.reaction)
    return of_owner or first(_OWNED_POD)


def _of_node(subject: ObjectRef, cluster_index: ClusterIndex) -> SkipReason | None:
    """Why nothing that is at home there is touched."""
    node = cluster_index.nodes.get(subject.home)
    if node is None and subject.kind is ObjectKind.NODE:
        return SkipReason.NODE_UNKNOWN
    seen = cluster_index.has(Coverage.NODES) and subject.home not in cluster_index.malformed_nodes
    if node is None and subject.home and not seen:
        return SkipReason.INCOMPLETE_VIEW  # it may have opted out
    return SkipReason.OPTED_OUT if node is not None and opted_out(node) else None


def guarded(finding: Finding, cluster_index: ClusterIndex, policy: Policy) -> Finding:
    """With a guard on the owner's own policy, where only that allows the eviction."""
    action, pod = finding.action, _pod(finding.subject, cluster_index)
    asked = None if pod is None else eviction.owner_id(pod)
    if pod is None or asked is None or not isinstance(action, Evict):
        return finding
    if eviction.is_allowed(pod, policy.owners):
        return finding
    guard = PolicyGuard(f"{asked.plural}.{asked.group} {asked.namespace}/{asked.name}")
    return replace(finding, action=replace(action, guards=(*action.guards, guard)))


# ---------------------------------------------------------------- all together

_EFFECTS: Final[Mapping[Effect, int]] = {effect: number for number, effect in enumerate(Effect)}


def _urgency(
    entry: Entry, memory: ReconcilerState, now: float
) -> tuple[float, int, float, int, ObjectRef]:
    """Recovery first, then the oldest; but what came to nothing stands behind all the rest.

    Else a few pods that the API server never lets go would use up the limits in every cycle.
    """
    finding = entry.finding
    failed = memory.failed.get(finding.key, 0.0)
    since = memory.since(finding, now)
    return failed, _EFFECTS[finding.effect], since, _ORDER[finding.rule], finding.subject


def _is_ended(entry: Entry, cluster_index: ClusterIndex) -> bool:
    """Whether it evicts a pod that can never run again: nobody is disrupted by that."""
    pod = _pod(entry.finding.subject, cluster_index)
    return isinstance(entry.finding.action, Evict) and pod is not None and pod.terminal


def _in_turns(
    wanted: Iterable[Entry], cluster_index: ClusterIndex, memory: ReconcilerState
) -> Iterator[Entry]:
    """Pods that have ended come last, one of each namespace, then the next: they may be thousands.

    Else one tenant's would use up the limit and the time of everybody's; and so would those whose
    eviction came to nothing before.
    """
    turns: Counter[str] = Counter()
    ended: list[tuple[float, int, Entry]] = []
    for entry in wanted:
        if _is_ended(entry, cluster_index):
            namespace = entry.finding.subject.namespace
            failed = memory.failed.get(entry.finding.key, 0.0)
            ended.append((failed, turns[namespace], entry))
            turns[namespace] += 1
        else:
            yield entry
    yield from (entry for *_, entry in sorted(ended, key=lambda each: each[:2]))


def _place(entry: Entry) -> tuple[int, ObjectRef]:
    return _ORDER[entry.finding.rule], entry.finding.subject


def _skipped(entry: Entry, skip: SkipReason, detail: str) -> Entry:
    return replace(entry, skip=skip, detail=detail)


def _breaker(wanted: Iterable[Entry], cluster_index: ClusterIndex, limits: Limits) -> Breaker:
    """What is evicted to recover counts one by one, against the living pods that share GPUs.

    Tidying and repairs take nothing away from anybody, and one tenant can ask for thousands with
    one template: what a rule wants of them in one namespace counts once, and so do all folders that
    a node was left over the months. So nobody can trip the breaker for all, and a controller whose
    pods are refused again and again does not stop the tidying that it needs.
    """
    troubles = len({_trouble(entry.finding) for entry in wanted})
    pods = cluster_index.living
    allowed = max(limits.breaker_floor, int(pods * limits.breaker))
    return Breaker(troubles, allowed, pods)


def _trouble(finding: Finding) -> tuple[str, ...]:
    """The same for what counts once."""
    subject = finding.subject
    if finding.effect is Effect.RECOVERY:
        return (subject.key,)
    if subject.kind is ObjectKind.FOLDER:
        return (finding.rule,)
    return (finding.rule, subject.namespace) if subject.namespace else (subject.key,)


class _Tally:
    """Actions of one cycle, against three limits; ``of`` says of what, in words."""

    def __init__(self, per_cycle: int, per_node: int, per_namespace: int, of: str = "") -> None:
        self._limits = per_cycle, per_node, per_namespace
        self._of = of
        self._total = 0
        self._nodes: Counter[str] = Counter()
        self._namespaces: Counter[str] = Counter()

    def reached(self, node: str, namespace: str) -> _Verdict:
        """Which limit is."""
        per_cycle, per_node, per_namespace = self._limits
        if node and self._nodes[node] >= per_node:
            return SkipReason.NODE_LIMIT, f"{per_node}{self._of} on {node}"
        if namespace and self._namespaces[namespace] >= per_namespace:
            return SkipReason.NAMESPACE_LIMIT, f"{per_namespace}{self._of} in {namespace}"
        if self._total >= per_cycle:
            return SkipReason.CYCLE_LIMIT, f"{per_cycle}{self._of} in one cycle"
        return None

    def count(self, node: str, namespace: str) -> None:
        """One more."""
        self._total += 1
        self._nodes[node] += 1
        self._namespaces[namespace] += 1


class _Budget:
    """What may still be done in this cycle; pods that have ended are counted apart."""

    def __init__(self, cluster_index: ClusterIndex, limits: Limits) -> None:
        self._cluster_index = cluster_index
        self._limits = limits
        self._rest = _Tally(limits.per_cycle, limits.per_node, limits.per_namespace)
        self._ended = _Tally(
            limits.ended_per_cycle,
            limits.ended_per_node,
            limits.ended_per_namespace,
            " pods that have ended",
        )
        self._crossed: set[str] = set()
        self._owners: Counter[str] = Counter()

    def take(self, entry: Entry) -> _Verdict:
        """Count the action, or say which limit is reached."""
        node, namespace = entry.finding.subject.home, entry.finding.subject.namespace
        disrupts = self._disrupts(entry)
        if disrupts and self._owners[entry.owner] >= (most := self._of_owner(entry.owner)):
            return SkipReason.OWNER_LIMIT, f"{most} of its owner's pods"
        crossed = entry.finding.cause is Cause.CROSSED
        if crossed and node in self._crossed:  # replaced together they may cross again
            return SkipReason.ONE_AT_A_TIME, f"on {node}"
        tally = self._ended if _is_ended(entry, self._cluster_index) else self._rest
        limit = tally.reached(node, namespace)
        if limit is not None:
            return limit
        tally.count(node, namespace)
        if crossed:
            self._crossed.add(node)
        self._owners[entry.owner] += disrupts
        return None

    def _disrupts(self, entry: Entry) -> bool:
        """Whether it takes away a replica that may be of use."""
        pod = _pod(entry.finding.subject, self._cluster_index)
        evicts = isinstance(entry.finding.action, Evict)
        return evicts and bool(entry.owner) and pod is not None and not pod.terminal

    def _of_owner(self, owner: str) -> int:
        return max(1, int(self._cluster_index.replicas[owner] * self._limits.per_owner))


def _plan_id(actions: Iterable[Entry]) -> str:
    """The same for the same actions in the same order."""
    said = msgspec.json.encode([entry.finding.action for entry in actions], order="sorted")
    return hashlib.sha256(said).hexdigest()[:12]
