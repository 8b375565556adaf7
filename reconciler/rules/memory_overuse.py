"""Containers that use more memory of a device than was allocated, at their neighbours' cost. Pure.

The driver reports the used memory, the kubelet or our own device plugin the allocated memory.
Annotations and shims' files have sizes, too, but a tenant can write them: they neither raise nor
lower the limit here. So the rule also finds containers for which no library enforces a limit.

Several containers, also of several pods, may use one ResourceClaim. Each of them may stay below
what the ResourceClaim consumes of its device while they are over it together.

The rule reports. It evicts the pod only where the operator has set it to apply.
"""

from collections.abc import Iterator, Sequence

import msgspec

from reconciler.cluster_index import ClusterIndex
from reconciler.model import Finding, ObjectKind, ObjectRef
from reconciler.policy import Mode, Policy
from reconciler.reasons import Cause, Rule, SkipReason
from reconciler.rules.findings import (
    MOST_NAMED,
    PodIndex,
    at_most,
    evict,
    of_holding,
    of_statements,
)
from reconciler.rules.running_devices import TRUSTED
from vgpu.ledger import Conflict, ConflictKind, Holding, Ledger
from vgpu.ledger.entries import ResourceClaimShare
from vgpu.ledger.usage import Usage, is_over
from vgpu.model.units import exact_size


class _Over(msgspec.Struct, frozen=True):
    """A container over its allocation on a device; ``doubt`` is a conflict about the allocation."""

    holding: Holding
    allocated_bytes: int
    usage: Usage
    doubt: Conflict | None


def over_limit(cluster_index: ClusterIndex, policy: Policy) -> Iterator[Finding]:
    """One finding for each container and device: each has its own time of being over the limit.

    Likewise for each ResourceClaim whose containers are over it together.
    """
    pod_index = PodIndex(cluster_index)
    acts = policy.mode(Rule.OVER_LIMIT) is Mode.APPLY
    for ledger in cluster_index.snapshot.ledgers.values():
        of_pod: dict[str, list[_Over]] = {}
        for over in _found(ledger, cluster_index.snapshot.usage):
            of_pod.setdefault(over.holding.pod.uid, []).append(over)
        for uid, overs in of_pod.items():
            pod = pod_index.pod(uid) if acts else None
            for over in overs:
                first = [
                    over,
                    *(container_over for container_over in overs if container_over is not over),
                ]
                yield Finding(
                    rule=Rule.OVER_LIMIT,
                    cause=Cause.MORE_THAN_ALLOCATED,
                    object_ref=pod_index.object_ref(over.holding.pod, ledger.node),
                    evidence=tuple(
                        line
                        for container_over in first
                        for line in _evidence(container_over, ledger.node)
                    ),
                    grace=policy.ages.over_limit,
                    action=None if pod is None else evict(pod),
                    skip_reason=None if over.doubt is None else SkipReason.SIZES_DIFFER,
                    part=f"{over.usage.container}/{over.usage.device}",
                )
        yield from more_than_consumed(ledger, cluster_index.snapshot.usage, policy)


# ---------------------------------------------------------------- what is wrong


def _found(ledger: Ledger, usage: Sequence[Usage]) -> Iterator[_Over]:
    """In the ledger's order. MIG instances are left out: they are always allocated whole."""
    used = {(one.pod_uid, one.container, one.device): one for one in usage}
    remarks = {
        (conflict.pod.uid, conflict.container, conflict.device): conflict
        for conflict in ledger.conflicts
        if conflict.pod is not None and _is_doubt(conflict)
    }
    for entry in ledger.devices:
        for holding in entry.holdings if not entry.device.parent else ():
            place = holding.pod.uid, holding.container, entry.device.name
            one, allocated = used.get(place), _allocated_bytes(holding)
            if one and one.used_bytes and allocated and is_over(one.used_bytes, allocated):
                yield _Over(holding, allocated, one, remarks.get(place))


def _allocated_bytes(holding: Holding) -> int | None:
    """Memory that was allocated, in bytes; None or 0 if no limit is known for certain.

    It must also be proven that the container is on the device.
    """
    proven = {holding.source, holding.sized_by} <= TRUSTED
    return holding.share.memory_bytes if proven else None


def _is_doubt(conflict: Conflict) -> bool:
    """Whether sources that tenants cannot write report different sizes, as with a wrong unit."""
    sizes = {
        tuple(sorted(share.memory_bytes or 0 for share in statement.shares))
        for statement in conflict.statements
        if statement.source in TRUSTED and any(share.memory_bytes for share in statement.shares)
    }
    return conflict.kind is ConflictKind.SIZE_DIFFERS and len(sizes) > 1


# ---------------------------------------------------------------- in words


def _evidence(over: _Over, node: str) -> Iterator[str]:
    usage, used = over.usage, over.usage.used_bytes or 0
    yield (
        f"node {node} on {usage.device}: {usage.container} uses {exact_size(used)} of"
        f" {exact_size(over.allocated_bytes)}, {used * 100 // over.allocated_bytes} %"
    )
    yield f"{of_holding(over.holding)}; its size is from {over.holding.sized_by}"
    more = len(usage.pids) - MOST_NAMED
    pids = ", ".join(map(str, usage.pids[:MOST_NAMED])) + f" and {more} more" * (more > 0)
    yield f"its processes on the device: pid {pids}"
    if over.doubt is not None:
        yield from of_statements(over.doubt.statements)


_Users = list[tuple[Holding, int]]
"""The containers that use a share of a device, each with its use in bytes."""


# ---------------------------------------------------------------- ResourceClaims


def more_than_consumed(ledger: Ledger, usage: Sequence[Usage], policy: Policy) -> Iterator[Finding]:
    """One finding for each share of a device that a ResourceClaim has; what is unknown counts as 0.

    A container that has more of the device than this share is left out: its use may be the rest's.
    One container alone is compared with what it holds (:mod:`reconciler.rules.memory_overuse`).
    """
    used = {(one.pod_uid, one.container, one.device): one.used_bytes or 0 for one in usage}
    for entry in ledger.devices:
        shares: dict[ResourceClaimShare, _Users] = {}
        for holding in entry.holdings:
            if (
                len(holding.resource_claim_shares) == 1
                and {holding.source, holding.sized_by} <= TRUSTED
            ):
                place = holding.pod.uid, holding.container, entry.device.name
                users = shares.setdefault(holding.resource_claim_shares[0], [])
                users.append((holding, used.get(place, 0)))
        for share, users in shares.items():
            total = sum(amount for _, amount in users)
            if len(users) > 1 and share.memory_bytes and is_over(total, share.memory_bytes):
                yield _finding(ledger.node, entry.device.name, share, users, policy)


def _finding(
    node: str, device: str, share: ResourceClaimShare, users: _Users, policy: Policy
) -> Finding:
    of_device, consumed = share.resource_claim_device, share.memory_bytes or 0
    namespace = users[0][0].pod.namespace
    total = sum(amount for _, amount in users)
    each = [
        f"{of_holding(holding, device)}, and uses {exact_size(amount)}" for holding, amount in users
    ]
    sums = (
        f"node {node} on {device}: {len(users)} containers use {exact_size(total)} of"
        f" {exact_size(consumed)}, {total * 100 // consumed} %"
    )
    return Finding(
        rule=Rule.OVER_LIMIT,
        cause=Cause.MORE_THAN_CONSUMED,
        object_ref=ObjectRef(
            ObjectKind.RESOURCE_CLAIM,
            namespace,
            of_device.resource_claim,
            of_device.resource_claim_uid,
            node=node,
        ),
        evidence=(
            sums,
            *at_most(each),
        ),
        grace=policy.ages.over_limit,
        part=f"{device}/{of_device.share_id}",
    )
