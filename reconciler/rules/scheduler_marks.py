"""A scheduler's marks that nobody serves or removes: claims of pods, locks and handshakes of nodes.

A claim is never served if Allocate passed over its pod, or if the pod was never bound. A lock stays
if the scheduler or the device plugin ended before it was removed. A handshake of an abandoned node
stays although the node's plugin is alive again. Pure.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from reconciler.cluster_index import PENDING, ClaimReading, ClusterIndex
from reconciler.model import (
    Coverage,
    Finding,
    Guard,
    NobodyWaitsGuard,
    ObjectKind,
    OwnerGuard,
    OwnerState,
)
from reconciler.policy import Ages, Policy
from reconciler.reasons import Cause, Effect, Rule, SkipReason
from reconciler.rules.findings import (
    edit_pod,
    evict,
    is_due,
    latest,
    of_node,
    of_pod,
    quoted,
    remove_mark,
    without_claim_text,
)
from vgpu.model.allocation import Claim
from vgpu.model.names import Phase, PodRef
from vgpu.model.objects import Node, Pod
from vgpu.schemes.codec import ClaimError, HandshakeState, NodeLock, SchemeCodec
from vgpu.schemes.registry import registry
from vgpu.schemes.system_titles import system_title

_MOST_DEVICES: Final = 16
"""Maximum number of a container's devices that evidence names."""


# ---------------------------------------------------------------- claims of pods


def assumed_expired(cluster_index: ClusterIndex, policy: Policy) -> Iterator[Finding]:
    """Evict bound pods that still wait for their reserved devices, once the plugin is ready.

    The kubelet calls Allocate when it admits a pod. A pod that waits for too long was passed over,
    mostly for another of the same size, and the kubelet will not ask for it again.
    """
    for pod in cluster_index.snapshot.pods:
        if pod.phase != PENDING or not pod.node:
            continue
        owed = [
            (reading, reading.claim)
            for reading in cluster_index.readings(pod)
            if reading.claim is not None and _is_owed(reading, reading.claim)
        ]
        if cluster_index.empty_claim(pod):
            continue  # rule running_without_device reports it
        if not owed:
            yield from _malformed(Rule.ASSUMED_EXPIRED, cluster_index, pod)
            yield from _without_claim(cluster_index, policy, pod)
            continue
        since = latest((*(claim.assumed_at for _, claim in owed), pod.scheduled_at, pod.started_at))
        if is_due(cluster_index, policy, since, policy.ages.assumed):
            yield Finding(
                rule=Rule.ASSUMED_EXPIRED,
                cause=Cause.NEVER_ASSIGNED,
                object_ref=of_pod(pod),
                evidence=tuple(line for each in owed for line in _evidence(*each)),
                since=since,
                grace=policy.ages.assumed,
                action=evict(pod),
                skip_reason=cluster_index.plugin_skip_reason(pod)
                or _waits_for_others(cluster_index, pod, [reading for reading, _ in owed]),
            )


def assumed_unbound(cluster_index: ClusterIndex, policy: Policy) -> Iterator[Finding]:
    """Remove the claims of pods that were never bound: a claim is written just before binding.

    A pod may also be created with a copied claim: the claim counts as no older than the pod.
    """
    for pod in cluster_index.snapshot.pods:
        if pod.phase != PENDING or pod.node or pod.gated:
            continue
        readings = cluster_index.readings(pod)
        readable = [(each, each.claim) for each in readings if each.claim is not None]
        if not readable:
            yield from _malformed(Rule.ASSUMED_UNBOUND, cluster_index, pod)
            continue
        reserved_at = latest(
            time for _, claim in readable for time in (claim.assumed_at, claim.assigned_at)
        )
        since = None if reserved_at is None else latest((reserved_at, pod.created_at))
        if is_due(cluster_index, policy, since, policy.ages.assumed):
            scheduler = f"its scheduler: {quoted(pod.unschedulable)}"
            yield Finding(
                rule=Rule.ASSUMED_UNBOUND,
                cause=Cause.NEVER_BOUND,
                object_ref=of_pod(pod),
                evidence=(
                    *(line for each in readable for line in _evidence(*each)),
                    *((scheduler,) if pod.unschedulable else ()),
                ),
                since=since,
                grace=policy.ages.assumed,
                effect=Effect.REPAIR,
                action=edit_pod(
                    pod, dict.fromkeys(_claim_keys([each for each, _ in readable], pod))
                ),
            )


def _is_owed(reading: ClaimReading, claim: Claim) -> bool:
    """Whether Allocate still has to serve a part of the claim."""
    if not registry().row(reading.codec).has_allocate:
        return False
    return claim.failed or any(
        allocation.phase is Phase.ASSUMED for allocation in claim.allocations
    )


def _waits_for_others(
    cluster_index: ClusterIndex, pod: Pod, readings: Sequence[ClaimReading]
) -> SkipReason | None:
    """Why a pod that the kubelet has admitted may be served without an annotation that shows it."""
    node = cluster_index.nodes.get(pod.node)
    admitted = bool(pod.statuses)
    served = admitted and all(reading.codec.marks_late(node) for reading in readings)
    return SkipReason.WAITS_FOR_OTHERS if served else None


def _claim_keys(readings: Sequence[ClaimReading], pod: Pod) -> list[str]:
    return sorted({key for reading in readings for key in reading.codec.claim_keys(pod)})


def _evidence(reading: ClaimReading, claim: Claim) -> Iterator[str]:
    system = system_title(registry().row(reading.codec).name)
    for allocation in claim.allocations:
        devices = ", ".join(share.device for share in allocation.shares[:_MOST_DEVICES])
        yield f"{system}: {allocation.phase} {allocation.container or 'pod'}: {devices}"
    if not claim.allocations:
        yield f"{system}: reserved, but no device is named"
    if claim.failed:
        yield f"{system}: the plugin reports that it could not serve the pod"
    yield from claim.remarks


def _without_claim(cluster_index: ClusterIndex, policy: Policy, pod: Pod) -> Iterator[Finding]:
    """Reports a bound pod that waits for GPUs that no annotation names."""
    without_gpu = cluster_index.without_gpu.get(pod.ref.uid)
    if without_gpu is None or without_gpu.is_unread:
        return
    since = latest((pod.scheduled_at, pod.started_at))
    if is_due(cluster_index, policy, since, policy.ages.assumed):
        yield Finding(
            Rule.ASSUMED_EXPIRED,
            Cause.WITHOUT_CLAIM,
            of_pod(pod),
            without_claim_text(without_gpu),
            since=since,
            grace=policy.ages.assumed,
        )


def _malformed(rule: Rule, cluster_index: ClusterIndex, pod: Pod) -> Iterator[Finding]:
    """Reports a waiting pod whose claim is unreadable: no program should guess its meaning."""
    errors = tuple(
        str(reading.error) for reading in cluster_index.readings(pod) if reading.error is not None
    )
    if errors:
        yield Finding(rule, Cause.MALFORMED, of_pod(pod), errors)


_MOST_PODS: Final = 3
"""Maximum number of pods that evidence names."""

# ---------------------------------------------------------------- locks


class _Verdict(msgspec.Struct, frozen=True):
    """The result for a lock: the age at which it is a finding, and why it is kept."""

    cause: Cause
    grace: Callable[[Ages], float]
    skip_reason: SkipReason | None = None


def _time_out(ages: Ages) -> float:
    """Longer than the time-out of the schedulers: they give the lock up before us."""
    return ages.assumed


_BY_OWNER: Final[Mapping[OwnerState, _Verdict]] = {
    OwnerState.GONE: _Verdict(Cause.OWNER_GONE, lambda ages: ages.lock),
    OwnerState.ENDED: _Verdict(Cause.OWNER_ENDED, lambda _: 0.0),
    OwnerState.SERVED: _Verdict(Cause.OWNER_SERVED, _time_out),
    OwnerState.WAITS: _Verdict(Cause.LOCK_EXPIRED, _time_out, SkipReason.OWNER_WAITS),
    OwnerState.TERMINATING: _Verdict(Cause.LOCK_EXPIRED, _time_out, SkipReason.OWNER_TERMINATES),
}
"""The owner's state decides, not time alone: a lock that is taken from a pod which Allocate may
still serve gives that pod's devices to the next one."""

_HIDDEN: Final = _Verdict(Cause.LOCK_EXPIRED, _time_out, SkipReason.INCOMPLETE_VIEW)
"""A pod that cannot be read, or that was not read, may still be served."""

_NOBODY_WAITS: Final = _Verdict(Cause.NOBODY_WAITS, _time_out)


def stale_lock(cluster_index: ClusterIndex, policy: Policy) -> Iterator[Finding]:
    """Remove locks that their owner does not need any more; report overdue locks that are kept."""
    for node in cluster_index.snapshot.nodes:
        locks = {lock.key: lock for codec in cluster_index.codecs for lock in codec.locks(node)}
        for lock in locks.values():
            judge = _anonymous if lock.owner is None else _owned
            verdict, guard, evidence = judge(cluster_index, node, lock)
            grace = verdict.grace(policy.ages)
            if is_due(cluster_index, policy, lock.since, grace):
                yield Finding(
                    rule=Rule.STALE_LOCK,
                    cause=verdict.cause,
                    object_ref=of_node(node, lock.key),
                    evidence=(f"{lock.key}: {quoted(lock.text)}", evidence),
                    since=lock.since,
                    grace=grace,
                    effect=Effect.REPAIR,
                    action=remove_mark(node, lock.key, guard),
                    skip_reason=verdict.skip_reason or cluster_index.node_skip_reason(node.name),
                )


def _owned(cluster_index: ClusterIndex, _: Node, lock: NodeLock) -> tuple[_Verdict, Guard, str]:
    """A lock that names its owner: HAMi's."""
    namespace, name = lock.owner or ("", "")
    if hidden := [
        pod for pod in cluster_index.malformed[ObjectKind.POD] if _is(pod.ref, namespace, name)
    ]:
        return _HIDDEN, OwnerGuard(namespace, name, OwnerState.WAITS), str(hidden[0])
    owner = cluster_index.pods_by_name.get((namespace, name))
    asked = cluster_index.snapshot.lock_owners
    if owner is None and asked is not None:
        if (namespace, name) not in asked:
            evidence = f"whether its owner {quoted(f'{namespace}/{name}')} exists is not known"
            return _HIDDEN, OwnerGuard(namespace, name, OwnerState.WAITS), evidence
        owner = asked[namespace, name]
    state = cluster_index.owner_state(owner)
    evidence = f"its owner {quoted(f'{namespace}/{name}')} is: {state}"
    return _BY_OWNER[state], OwnerGuard(namespace, name, state), evidence


def _is(pod: PodRef, namespace: str, name: str) -> bool:
    return (pod.namespace, pod.name) == (namespace, name)


def _anonymous(cluster_index: ClusterIndex, node: Node, _: NodeLock) -> tuple[_Verdict, Guard, str]:
    """A lock with only a time, or with nothing readable: Volcano's locks, and malformed ones."""
    guard = NobodyWaitsGuard(node.name)
    waiting = cluster_index.waiting_on_node.get(node.name, ())
    if not waiting and (hidden := cluster_index.hidden_pods(node.name)):
        return _HIDDEN, guard, str(hidden[0])
    if not waiting and not cluster_index.has(Coverage.PODS):
        return _HIDDEN, guard, f"whether a pod waits on {node.name} is not known"
    if not waiting:
        return _NOBODY_WAITS, guard, f"no pod waits on {node.name}"
    names = sorted(f"{pod.ref.namespace}/{pod.ref.name}" for pod in waiting)
    evidence = f"{len(names)} waiting on {node.name}: {', '.join(names[:_MOST_PODS])}"
    return _BY_OWNER[OwnerState.WAITS], guard, evidence


# ---------------------------------------------------------------- handshakes


def stale_handshake(cluster_index: ClusterIndex, policy: Policy) -> Iterator[Finding]:
    """Remove the scheduler's mark that the node is abandoned, where the node's plugin is alive.

    The scheduler places no pod there until the mark is gone; then it checks the plugin again. Where
    the plugin does not offer its resource, the mark is right; where the resource has another name,
    what is offered under the known one is no evidence of this plugin.
    """
    for node in cluster_index.snapshot.nodes:
        for codec in cluster_index.codecs:
            if node.ready:
                yield from _handshake(cluster_index, policy, node, codec)


def _handshake(
    cluster_index: ClusterIndex, policy: Policy, node: Node, codec: SchemeCodec
) -> Iterator[Finding]:
    resource = next(iter(codec.resources), "")
    is_renamed = registry().row(codec).is_renamed
    offered = 0 if is_renamed and is_renamed(node) else node.allocatable.get(resource, 0)
    try:
        handshake = codec.handshake(node) if offered > 0 else None
    except ClaimError:  # an unreadable handshake does not abandon the node
        return
    if handshake is None or handshake.state is not HandshakeState.DELETED:
        return
    if is_due(cluster_index, policy, handshake.written_at, policy.ages.handshake):
        yield Finding(
            rule=Rule.STALE_HANDSHAKE,
            cause=Cause.PLUGIN_LIVES,
            object_ref=of_node(node, handshake.key),
            evidence=(
                f"{handshake.key}: {quoted(node.annotations[handshake.key])}",
                f"the node is ready and offers {offered} of {resource}",
            ),
            since=handshake.written_at,
            grace=policy.ages.handshake,
            effect=Effect.REPAIR,
            action=remove_mark(node, handshake.key),
        )
