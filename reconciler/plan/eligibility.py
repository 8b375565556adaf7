"""Whether the action of a finding may be taken, by its object, its rule and its age alone. Pure."""

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from reconciler.cluster_index import RUNNING, SUCCEEDED, ClusterIndex
from reconciler.model import (
    Coverage,
    Edit,
    Evict,
    Finding,
    ObjectKind,
    ObjectRef,
    OwnerGuard,
    PolicyGuard,
    Scope,
    opted_out,
)
from reconciler.owners import eviction
from reconciler.owners.policies import Reaction
from reconciler.policy import PLAN_ONLY, REPORTED, UNREAD, Mode, Policy, policy_of
from reconciler.reasons import Cause, Rule, SkipReason
from reconciler.reconciler_state import ReconcilerState, attempt_key
from vgpu.model.objects import MIRROR, Pod
from vgpu.schemes.other_schedulers import other_scheduler

Verdict = tuple[SkipReason, str] | None
"""Why an action is skipped, with the detail for people; None if it may be taken."""


def other_schedulers(finding: Finding, cluster_index: ClusterIndex) -> Verdict:
    """That the finding's pod, or the owner of its lock, is another GPU scheduler's; None if not.

    Nothing about such a pod is judged, and no lock is taken from it. A rule about that scheduler's
    own objects reports.
    """
    if finding.rule is Rule.KAI:
        return None
    pods = [cluster_index.pod_of(finding.object_ref)]
    guards = getattr(finding.action, "guards", ())
    pods += [
        cluster_index.lock_owner(guard.namespace, guard.name)
        for guard in guards
        if isinstance(guard, OwnerGuard)
    ]
    found = (other_scheduler(pod) for pod in pods if pod is not None)
    first = next(filter(None, found), None)
    if first is None:
        return None
    return SkipReason.OTHER_SCHEDULER, f"{first.scheduler}, by {first.key}"


def skip_reason(
    finding: Finding, cluster_index: ClusterIndex, policy: Policy, state: ReconcilerState
) -> Verdict:
    """Why the finding's action may not be taken, without regard to others; None if it may."""
    others = other_schedulers(finding, cluster_index)
    object_skip_reason = others or _object_skip_reason(finding, cluster_index, policy)
    if object_skip_reason is not None:
        return object_skip_reason
    finding_skip_reason = (
        (finding.skip_reason, "")
        if finding.skip_reason
        else _replacement_skip_reason(finding, cluster_index)
    )
    if finding_skip_reason is not None:
        return finding_skip_reason
    wait = _seconds_to_ripe(finding, state, cluster_index.now, policy.ages.clock_skew)
    if wait > 0:
        return SkipReason.TOO_YOUNG, f"{wait:.0f} s to go"
    pause = _pause(finding, cluster_index, policy, state)
    if pause > 0:
        return SkipReason.BACKING_OFF, f"{pause:.0f} s to go"
    return _only_planned(finding, cluster_index, policy)


def _only_planned(finding: Finding, cluster_index: ClusterIndex, policy: Policy) -> Verdict:
    """Why the action is planned and not applied: by rule, sharing system or namespace."""
    if policy.mode(finding.rule) is Mode.PLAN:
        return SkipReason.RULE_MODE_PLAN, f"rules.{finding.rule}.mode: apply"
    pod = cluster_index.pod_of(finding.object_ref)
    is_judged = pod is not None and (not pod.terminal or bool(pod.group_gpus))
    system = cluster_index.observed_scheme(pod) if pod is not None and is_judged else ""
    if system and system not in policy.act_on_schemes:
        return SkipReason.SCHEME_MODE_PLAN, f"act_on_schemes: [{system}]"
    namespace = finding.object_ref.namespace
    if namespace in policy.plan_namespaces:
        return SkipReason.NAMESPACE_MODE_PLAN, "plan_namespaces"
    own = policy_of(policy.policies, namespace, cluster_index.snapshot.namespaces)
    if own is UNREAD:
        return SkipReason.NAMESPACE_UNREAD, ""
    if own is not None and own.mode == PLAN_ONLY:
        return SkipReason.NAMESPACE_MODE_PLAN, f"policy {own.name}"
    return None


def _replacement_skip_reason(finding: Finding, cluster_index: ClusterIndex) -> Verdict:
    """Why a replacement pod would fail, too.

    The node's device plugin may never be able to serve such a pod. And while a node or its plugin
    is away, the API server shows its devices as gone and its pods as stuck, which is no evidence
    against them; but a pod without a node can still go anywhere, a pod that has ended will not
    change any more, and on the node itself there is better evidence.
    """
    pod = cluster_index.pod_of(finding.object_ref)
    if pod is None or pod.owner is None or not finding.replaces:
        return None
    service = cluster_index.plugin_service(pod)
    if service is not None and not service.ours:
        return SkipReason.PLUGIN_CANNOT_SERVE, service.limit
    if pod.terminal or cluster_index.snapshot.scope is not Scope.CLUSTER:
        return None
    skip_reason = cluster_index.plugin_skip_reason(pod)
    return None if skip_reason is None else (skip_reason, "")


def _seconds_to_ripe(finding: Finding, state: ReconcilerState, now: float, skew: float) -> float:
    """Seconds until the finding is old enough; not positive if it is."""
    if finding.grace <= 0:
        return 0.0
    return finding.grace + skew - (now - state.since(finding, now))


def _pause(
    finding: Finding, cluster_index: ClusterIndex, policy: Policy, state: ReconcilerState
) -> float:
    """Seconds of the owner's back-off that are left; none for tidying, which makes no new pods."""
    pod = cluster_index.pod_of(finding.object_ref)
    if not finding.replaces or pod is None or pod.owner is None:
        return 0.0
    key = attempt_key(pod.owner.uid, finding.object_ref.node)
    return state.pause(key, cluster_index.now, policy.backoff)


# ---------------------------------------------------------------- conditions of a pod

_Conditions = tuple[tuple[SkipReason, Callable[[Pod, Policy], bool]], ...]

_ANY_POD: Final[_Conditions] = (
    (SkipReason.OTHER_SCHEDULER, lambda pod, _: other_scheduler(pod) is not None),
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

_EVICTED_POD: Final[_Conditions] = (
    (SkipReason.COMPLETED, lambda pod, _: pod.phase == SUCCEEDED),
    (SkipReason.BARE_POD, lambda pod, policy: pod.owner is None and not policy.evict_bare),
)
"""For evictions, after :data:`_ANY_POD`; then the owner's kind decides."""

_OWNED_POD: Final[_Conditions] = (
    (SkipReason.HIGH_PRIORITY, lambda pod, policy: pod.priority > policy.priority_ceiling),
    (SkipReason.RUNNING, lambda pod, policy: pod.phase == RUNNING and not policy.evict_running),
)
"""For evictions, last of all."""

_HOLDER: Final = frozenset(
    {SkipReason.BARE_POD, SkipReason.PROTECTED_NAMESPACE, SkipReason.RUNNING}
)
"""KubeShare's holder pods are bare, in kube-system, and run."""


def _ignored_reasons(finding: Finding) -> frozenset[SkipReason]:
    """The skip reasons that do not hold against this finding's action."""
    if finding.cause is Cause.ORPHANED_HOLDER:
        return _HOLDER
    # Rules that find running pods.
    return frozenset({SkipReason.RUNNING} if finding.rule in REPORTED else ())


def _is_static(pod: Pod) -> bool:
    return pod.owner is not None and pod.owner.kind == "Node"


def _object_skip_reason(finding: Finding, cluster_index: ClusterIndex, policy: Policy) -> Verdict:
    object_ref = finding.object_ref
    of_node = _of_node(object_ref, cluster_index)
    if of_node is not None:
        return of_node, ""
    if object_ref.kind is ObjectKind.NAMESPACE:
        return _of_namespace(object_ref.name, cluster_index, policy)
    if object_ref.kind not in (ObjectKind.POD, ObjectKind.SHARE_POD):
        return (SkipReason.OTHER_NAMESPACE, "") if policy.namespaces else None
    pod = cluster_index.pod_of(object_ref)
    if pod is None:
        return SkipReason.INCOMPLETE_VIEW, ""
    ignored = _ignored_reasons(finding)
    if isinstance(finding.action, Edit):
        return _first(_ANY_POD, pod, policy, ignored)
    return eviction_skip_reason(pod, policy, cluster_index.reaction, ignored)


def eviction_skip_reason(
    pod: Pod,
    policy: Policy,
    react: Callable[[Pod], Reaction],
    ignored: frozenset[SkipReason] = frozenset(),
) -> Verdict:
    """Why the policy forbids to evict the pod; None if it allows it.

    ``react`` returns what the pod's owner does when a Failed pod of it is deleted; the skip
    reasons ``ignored`` are not considered.
    """
    of_pod = _first((*_ANY_POD, *_EVICTED_POD), pod, policy, ignored)
    of_owner = of_pod or eviction.skip_reason(pod, policy.owners, react)
    return of_owner or _first(_OWNED_POD, pod, policy, ignored)


def _first(
    conditions: _Conditions, pod: Pod, policy: Policy, ignored: frozenset[SkipReason]
) -> Verdict:
    """The first of the conditions that holds for the pod."""
    holding = (skip for skip, holds in conditions if skip not in ignored and holds(pod, policy))
    return next(((skip, "") for skip in holding), None)


def _of_namespace(name: str, cluster_index: ClusterIndex, policy: Policy) -> Verdict:
    """Why the Namespace of this name is not changed."""
    namespaces = cluster_index.snapshot.quota_namespaces
    if any(each.name == name and opted_out(each) for each in namespaces):
        return SkipReason.OPTED_OUT, ""
    if policy.namespaces and name not in policy.namespaces:
        return SkipReason.OTHER_NAMESPACE, ""
    return (SkipReason.PROTECTED_NAMESPACE, "") if name in policy.protected_namespaces else None


def _of_node(object_ref: ObjectRef, cluster_index: ClusterIndex) -> SkipReason | None:
    """Why no object of the object's node is changed."""
    node = cluster_index.nodes.get(object_ref.home)
    if node is None and object_ref.kind is ObjectKind.NODE:
        return SkipReason.NODE_UNKNOWN
    seen = (
        cluster_index.has(Coverage.NODES) and object_ref.home not in cluster_index.malformed_nodes
    )
    if node is None and object_ref.home and not seen:
        return SkipReason.INCOMPLETE_VIEW  # it may have opted out
    return SkipReason.OPTED_OUT if node is not None and opted_out(node) else None


def with_guards(finding: Finding, cluster_index: ClusterIndex, policy: Policy) -> Finding:
    """The finding with a guard on the owner's policy, where only the policy allows the eviction."""
    action, pod = finding.action, cluster_index.pod_of(finding.object_ref)
    owner = None if pod is None else eviction.owner_id(pod)
    if pod is None or owner is None or not isinstance(action, Evict):
        return finding
    if eviction.is_allowed(pod, policy.owners):
        return finding
    guard = PolicyGuard(f"{owner.plural}.{owner.group} {owner.namespace}/{owner.name}")
    return replace(finding, action=replace(action, guards=(*action.guards, guard)))
