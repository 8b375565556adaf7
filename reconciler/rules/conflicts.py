"""Conflicts of the ledger, and unreadable objects: no edit of allocation records repairs them.

These rules report. Only a rule that the operator has set to apply evicts a pod for each conflict:
the pod of the device, or of several holders the one that costs least. One of several holders is
evicted only if sources that are better than annotations and shims' files show all holders there:
tenants can write those, and a false annotation must not cost another tenant's pod.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from reconciler.cluster_index import PENDING, ClusterIndex
from reconciler.model import Coverage, Finding, ObjectKind, ObjectRef, Scope
from reconciler.policy import Mode, Policy
from reconciler.reasons import Cause, Rule, SkipReason
from reconciler.rules.findings import (
    PodIndex,
    at_most,
    evict,
    of_device,
    of_holding,
    of_pod,
    of_statements,
    quoted,
    without_claim_text,
)
from reconciler.rules.running_devices import TRUSTED
from vgpu.kube.errors import one_line
from vgpu.ledger import Conflict, ConflictKind, Holding, Ledger
from vgpu.ledger.from_api import registered
from vgpu.ledger.totals import exceeded
from vgpu.model.names import Scheme, Source
from vgpu.model.objects import Pod
from vgpu.schemes.registry import registry

CAUSES: Final[Mapping[ConflictKind, tuple[Rule, Cause]]] = {
    ConflictKind.DOUBLE_BOOKED: (Rule.DOUBLE_BOOKED, Cause.SAME_SLICE),
    ConflictKind.OVERCOMMITTED: (Rule.DOUBLE_BOOKED, Cause.OVERCOMMITTED),
    ConflictKind.RUNNING_WITHOUT_DEVICE: (Rule.RUNNING_WITHOUT_DEVICE, Cause.NO_GRANT),
    ConflictKind.DEVICE_MISSING: (Rule.LOST_DEVICE, Cause.DEVICE_MISSING),
    ConflictKind.DEVICE_UNHEALTHY: (Rule.LOST_DEVICE, Cause.DEVICE_UNHEALTHY),
    ConflictKind.PROCESS_WITHOUT_ALLOCATION: (
        Rule.UNOWNED_PROCESS,
        Cause.PROCESS_WITHOUT_ALLOCATION,
    ),
}
"""The rule and cause of each conflict; other conflicts belong to other rules or need no action."""


def double_booked(cluster_index: ClusterIndex, policy: Policy) -> Iterator[Finding]:
    """Devices of which containers hold more than there is, or the same slice twice."""
    return _found(Rule.DOUBLE_BOOKED, cluster_index, policy)


def running_without_device(cluster_index: ClusterIndex, policy: Policy) -> Iterator[Finding]:
    """Containers that run without the device that they ask for."""
    return _found(Rule.RUNNING_WITHOUT_DEVICE, cluster_index, policy)


def lost_device(cluster_index: ClusterIndex, policy: Policy) -> Iterator[Finding]:
    """Holders of devices that are gone or unhealthy."""
    return _found(Rule.LOST_DEVICE, cluster_index, policy)


def unowned_process(cluster_index: ClusterIndex, policy: Policy) -> Iterator[Finding]:
    """Processes on devices of which their container was allocated nothing."""
    return _found(Rule.UNOWNED_PROCESS, cluster_index, policy)


class _Wrong(msgspec.Struct, frozen=True):
    """One problem; ``pod`` is the pod whose eviction would help, None if none is known."""

    cause: Cause
    object_ref: ObjectRef
    evidence: tuple[str, ...]
    pod: Pod | None = None
    skip_reason: SkipReason | None = None


def _found(rule: Rule, cluster_index: ClusterIndex, policy: Policy) -> Iterator[Finding]:
    """The rule's findings: one for each cause and object."""
    pod_index = PodIndex(cluster_index)
    acts = policy.mode(rule) is Mode.APPLY
    by_object: dict[tuple[Cause, str], list[_Wrong]] = {}
    for name in sorted(cluster_index.snapshot.ledgers):
        ledger = cluster_index.snapshot.ledgers[name]
        wrongs = (
            *_conflicts(rule, ledger, pod_index, cluster_index),
            *_waiting(rule, ledger, pod_index, cluster_index),
        )
        for wrong in wrongs:
            by_object.setdefault((wrong.cause, wrong.object_ref.key), []).append(wrong)
    for wrong in _report_only(rule, cluster_index):
        by_object.setdefault((wrong.cause, wrong.object_ref.key), []).append(wrong)
    for (cause, _), wrongs_of_one in by_object.items():
        first = wrongs_of_one[0]
        pod = first.pod if acts else None
        yield Finding(
            rule=rule,
            cause=cause,
            object_ref=first.object_ref,
            evidence=tuple(
                dict.fromkeys(line for wrong in wrongs_of_one for line in wrong.evidence)
            ),
            grace=policy.ages.drift,
            action=None if pod is None else evict(pod),
            skip_reason=first.skip_reason,
        )


# ---------------------------------------------------------------- what is wrong


def _conflicts(
    rule: Rule, ledger: Ledger, pod_index: PodIndex, cluster_index: ClusterIndex
) -> Iterator[_Wrong]:
    # The plan shows why a pod of another GPU scheduler is not accused.
    of_others = (each for each in ledger.of_other_schedulers if each.pod is not None)
    for conflict in (*ledger.conflicts, *of_others):
        rule_of_kind, cause = _cause_of(conflict, pod_index, cluster_index)
        if rule_of_kind is not rule or cause is None:
            continue
        parties = _parties(conflict, ledger) if rule is Rule.DOUBLE_BOOKED else ()
        skip_reason = _skip_reason(conflict, parties, ledger, cluster_index)
        pod = None if _of_several_systems(parties) else _victim(parties, pod_index)
        if pod is not None:
            object_ref = of_pod(pod)
        elif conflict.pod is not None:
            object_ref, pod = (
                pod_index.object_ref(conflict.pod, ledger.node),
                None if _of_resource_claim(conflict) else pod_index.pod(conflict.pod.uid),
            )
        else:
            object_ref = ObjectRef(ObjectKind.DEVICE, "", conflict.device, "", node=ledger.node)
        evidence = tuple(_evidence(conflict, parties, ledger, skip_reason))
        yield _Wrong(cause, object_ref, evidence, pod, skip_reason)


def _cause_of(
    conflict: Conflict, pod_index: PodIndex, cluster_index: ClusterIndex
) -> tuple[Rule, Cause] | tuple[None, None]:
    """The rule and cause of a conflict; (None, None) if it is another rule's, or needs no action.

    Where a process uses another GPU than was allocated to its container, rule ``card_drift``
    corrects the annotation; a pod of a system that is only observed has none.
    """
    if conflict.kind is ConflictKind.GPU_DIFFERS and conflict.pod is not None:
        pod = pod_index.pod(conflict.pod.uid)
        runs = any(statement.source is Source.PROCESS for statement in conflict.statements)
        observed = pod is not None and cluster_index.observed_scheme(pod)
        if runs and (observed or _of_resource_claim(conflict)):
            return CAUSES[ConflictKind.PROCESS_WITHOUT_ALLOCATION]
    return CAUSES.get(conflict.kind, (None, None))


def _of_resource_claim(conflict: Conflict) -> bool:
    """Whether a container of a ResourceClaim uses another GPU: this is only reported."""
    return conflict.kind is ConflictKind.GPU_DIFFERS and any(
        statement.resource_claim_devices for statement in conflict.statements
    )


def _waiting(
    rule: Rule, ledger: Ledger, pod_index: PodIndex, cluster_index: ClusterIndex
) -> Iterator[_Wrong]:
    """Pods that run without a claim, as the API server reports them.

    On an unknown node this cannot be known: gpushare's plugin writes nothing if there is one GPU.
    """
    covered = cluster_index.snapshot.scope is Scope.CLUSTER and ledger.node in cluster_index.nodes
    if rule is not Rule.RUNNING_WITHOUT_DEVICE or not covered:
        return
    unread = {wrong.pod.uid: wrong.detail for wrong in ledger.malformed if wrong.pod is not None}
    for wanted in ledger.waiting:
        if not wanted.running:
            continue
        object_ref = pod_index.object_ref(wanted.pod, ledger.node)
        asks = f"{wanted.request.container} runs and asks for {wanted.resource or 'a GPU'}"
        if wanted.pod.uid in unread:
            yield _Wrong(Cause.MALFORMED, object_ref, (asks, unread[wanted.pod.uid]))
        else:
            evidence = (asks, "no annotation names a device")
            skip_reason = cluster_index.node_skip_reason(ledger.node)
            pod = pod_index.pod(wanted.pod.uid)
            yield _Wrong(Cause.NO_CLAIM, object_ref, evidence, pod, skip_reason)


def _report_only(rule: Rule, cluster_index: ClusterIndex) -> Iterator[_Wrong]:
    """Bound pods of which something is kept free, or nothing is counted: they are not evicted.

    Pods that request GPUs and wait for them are the rule assumed_expired's; pods that hold a GPU
    which the node does not have are the rule lost_device's.
    """
    snapshot = cluster_index.snapshot
    if rule is not Rule.RUNNING_WITHOUT_DEVICE or snapshot.scope is not Scope.CLUSTER:
        return
    for pod in snapshot.pods:
        without_gpu = cluster_index.without_gpu.get(pod.ref.uid)
        if without_gpu is not None:
            ledger = snapshot.ledgers[pod.node]
            is_waiting = any(wanted.pod.uid == pod.kubelet_uid for wanted in ledger.waiting)
            if pod.phase != PENDING and not is_waiting and not _lost(pod, ledger):
                cause = Cause.MALFORMED if without_gpu.is_unread else Cause.NO_CLAIM
                texts = (*without_claim_text(without_gpu), *_unread(pod, ledger))
                yield _Wrong(cause, of_pod(pod), texts)
        elif texts := cluster_index.empty_claim(pod):
            yield _Wrong(Cause.CLAIM_WITHOUT_REQUEST, of_pod(pod), texts)


def _lost(pod: Pod, ledger: Ledger) -> bool:
    """Whether the pod holds a GPU that the node does not have."""
    return any(
        conflict.kind is ConflictKind.DEVICE_MISSING
        and conflict.pod is not None
        and conflict.pod.uid == pod.kubelet_uid
        for conflict in ledger.conflicts
    )


def _unread(pod: Pod, ledger: Ledger) -> Iterator[str]:
    for wrong in ledger.malformed:
        if wrong.pod is not None and wrong.pod.uid == pod.kubelet_uid:
            yield wrong.detail


def _skip_reason(
    conflict: Conflict, parties: Iterable[Holding], ledger: Ledger, cluster_index: ClusterIndex
) -> SkipReason | None:
    """Why no pod is evicted: the API server's data of a node that is not ready is old.

    Only a node's registration shows whether it offers more than its GPUs have on purpose.
    """
    from_afar = cluster_index.snapshot.scope is Scope.CLUSTER
    if from_afar and (skip_reason := cluster_index.node_skip_reason(ledger.node)) is not None:
        return skip_reason
    if conflict.kind is ConflictKind.OVERCOMMITTED and not cluster_index.has(Coverage.NODES):
        return SkipReason.INCOMPLETE_VIEW
    proven = all(holding.source in TRUSTED for holding in parties)
    return None if proven else SkipReason.NO_NODE_EVIDENCE


# ---------------------------------------------------------------- of several holders


def _parties(conflict: Conflict, ledger: Ledger) -> tuple[Holding, ...]:
    """The holders of the slice, or of the resource that is exceeded."""
    if conflict.kind is ConflictKind.OVERCOMMITTED:
        return tuple(
            holding
            for entry in ledger.devices
            if entry.device.name == conflict.device
            for holding in entry.holdings
            if any(amount(holding) for amount in exceeded(entry.held, entry.device))
        )
    uids = {statement.pod.uid for statement in conflict.statements}
    return tuple(holding for holding in ledger.holdings if holding.pod.uid in uids)


def _others(conflict: Conflict, ledger: Ledger) -> Iterator[Holding]:
    """Of a process without an allocation: those to which its device is allocated."""
    about_process = (ConflictKind.PROCESS_WITHOUT_ALLOCATION, ConflictKind.GPU_DIFFERS)
    if conflict.kind in about_process:
        for entry in ledger.devices:
            for holding in entry.holdings if entry.device.name == conflict.device else ():
                if set(holding.sources) != {Source.PROCESS}:
                    yield holding


def _of_several_systems(parties: Iterable[Holding]) -> bool:
    """Whether a plugin without a scheduler allocates the GPU beside another sharing system.

    Then an eviction does not help: the next pods would meet there again.
    """
    schemes = {holding.scheme for holding in parties} - {Scheme.NONE}
    return len(schemes) > 1 and not registry().observed.isdisjoint(schemes)


def _victim(parties: Iterable[Holding], pod_index: PodIndex) -> Pod | None:
    """The holder that costs least: one being deleted, then the youngest of the lowest priority.

    So no second pod is evicted while the first is being deleted. None if the snapshot has none.
    """
    pods = (pod_index.pod(holding.pod.uid) for holding in parties)
    return min((pod for pod in pods if pod is not None), key=_cost, default=None)


def _cost(pod: Pod) -> tuple[bool, int, float, str]:
    return pod.deleted_at is None, pod.priority, -(pod.created_at or 0.0), pod.ref.uid


# ---------------------------------------------------------------- in words


def _evidence(
    conflict: Conflict, parties: tuple[Holding, ...], ledger: Ledger, skip_reason: SkipReason | None
) -> Iterator[str]:
    on = f" on {conflict.device}" if conflict.device else ""
    detail = f": {conflict.detail}" if conflict.detail else ""
    yield f"node {ledger.node}{on}: {conflict.kind.explanation}{detail}"
    for entry in ledger.devices:
        if entry.device.name == conflict.device:
            yield of_device(entry.device, conflict.device)
    if parties:
        yield from at_most([of_holding(holding, conflict.device) for holding in parties])
    else:
        yield from of_statements(conflict.statements, conflict.device)
        yield from at_most(
            [of_holding(holding, conflict.device) for holding in _others(conflict, ledger)]
        )
    if skip_reason is SkipReason.INCOMPLETE_VIEW and conflict.kind is ConflictKind.OVERCOMMITTED:
        yield "the node was not read: it may offer more than the device has, and mean to"


# ---------------------------------------------------------------- unreadable objects


def malformed_object(cluster_index: ClusterIndex, _: Policy) -> Iterator[Finding]:
    """One finding for each unreadable object or register; its author has to repair it."""
    for kind in ObjectKind:
        for malformed in cluster_index.malformed.get(kind, ()):
            ref = malformed.ref
            yield Finding(
                rule=Rule.MALFORMED_OBJECT,
                cause=Cause.MALFORMED,
                object_ref=ObjectRef(
                    kind, ref.namespace, ref.name, ref.uid, node=malformed.node or ""
                ),
                evidence=(f"it cannot be read: {quoted(malformed.detail)}",),
            )
    for name, ledger in sorted(cluster_index.snapshot.ledgers.items()):
        node = cluster_index.nodes.get(name)
        if node is None or all(each.pod is not None for each in ledger.malformed):
            continue
        unread = registered(node, cluster_index.codecs)[1]
        if unread:
            yield Finding(
                rule=Rule.MALFORMED_OBJECT,
                cause=Cause.UNREADABLE_REGISTER,
                object_ref=ObjectRef(ObjectKind.NODE, "", name, node.uid, node=name),
                evidence=tuple(one_line(each.detail) for each in unread),
            )
