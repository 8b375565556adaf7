"""A scheduler's leftover annotations on a node: its lock, and its mark of an abandoned node."""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec

from reconciler.cluster_index import ClusterIndex
from reconciler.model import Finding, Guard, NobodyWaitsGuard, ObjectKind, OwnerGuard, OwnerState
from reconciler.policy import Ages, Policy
from reconciler.reasons import Cause, Effect, Rule, SkipReason
from reconciler.rules.findings import is_due, of_node, quoted, remove_mark
from vgpu.model.names import PodRef
from vgpu.model.objects import Node
from vgpu.schemes.codec import ClaimError, HandshakeState, NodeLock, SchemeCodec
from vgpu.schemes.registry import registry

_NAMED: Final = 3
"""Maximum number of pods that evidence names."""

# ---------------------------------------------------------------- locks


class _Verdict(msgspec.Struct, frozen=True):
    """The result for a lock: the age at which it is a finding, and why it is kept."""

    cause: Cause
    grace: Callable[[Ages], float]
    objection: SkipReason | None = None


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
"""A pod that cannot be read may still be served."""

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
                    objection=verdict.objection or cluster_index.node_objection(node.name),
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
    if not waiting:
        return _NOBODY_WAITS, guard, f"no pod waits on {node.name}"
    names = sorted(f"{pod.ref.namespace}/{pod.ref.name}" for pod in waiting)
    evidence = f"{len(names)} waiting on {node.name}: {', '.join(names[:_NAMED])}"
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
