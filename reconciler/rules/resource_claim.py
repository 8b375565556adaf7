"""ResourceClaims that keep devices for no pod, or that a node has otherwise: report only. Pure.

Kubernetes' controller removes the reservation of a pod that is gone, and then the allocation. What
a driver has prepared, and its CDI spec, only the node's reconciler sees.
"""

from collections.abc import Iterator
from typing import Final

from reconciler.cluster_index import ClusterIndex
from reconciler.model import Coverage, Finding, ObjectKind, ObjectRef, Scope, opted_out
from reconciler.policy import Policy
from reconciler.reasons import Cause, Rule
from reconciler.rules.evidence_text import at_most
from vgpu.ledger import ConflictKind
from vgpu.model.resource_claims import ResourceClaim

CAUSES: Final = {
    ConflictKind.RESOURCE_CLAIM_LEFT: Cause.LEFT_PREPARED,
    ConflictKind.CDI_SPEC_MISSING: Cause.SPEC_MISSING,
}
"""The cause of each conflict that only a node's own sources show."""


def resource_claim(cluster_index: ClusterIndex, policy: Policy) -> Iterator[Finding]:
    """One finding for each ResourceClaim, or for each device that a driver has prepared."""
    if cluster_index.snapshot.scope is Scope.CLUSTER:
        yield from _reservations(cluster_index, policy)
    else:
        yield from _of_node(cluster_index, policy)


def _reservations(cluster_index: ClusterIndex, policy: Policy) -> Iterator[Finding]:
    """ResourceClaims with devices whose pods do not exist.

    Nothing is reported of a namespace with a pod that cannot be read, nor of a ResourceClaim that
    something else than pods may use.
    """
    if not cluster_index.has(Coverage.PODS, Coverage.RESOURCE_CLAIMS):
        return
    known = cluster_index.snapshot.resource_claims
    pods = {pod.ref.uid for pod in (*cluster_index.all_pods, *known.pods) if not pod.terminal}
    unread = {malformed.ref.namespace for malformed in cluster_index.malformed[ObjectKind.POD]}
    for resource_claim in known.resource_claims:
        if (
            not resource_claim.results
            or resource_claim.reserved_otherwise
            or opted_out(resource_claim)
        ):
            continue
        if resource_claim.namespace in unread:
            continue
        gone = [pod for pod in resource_claim.reserved_for if pod.uid not in pods]
        if gone or not resource_claim.reserved_for:
            living = len(gone) < len(resource_claim.reserved_for)
            reserved = [
                f"it is reserved for pod {pod.name} ({pod.uid}), which is gone" for pod in gone
            ]
            yield Finding(
                rule=Rule.RESOURCE_CLAIM,
                cause=Cause.STALE_RESERVATION if living else Cause.RESERVED_FOR_NOBODY,
                object_ref=ObjectRef(
                    ObjectKind.RESOURCE_CLAIM,
                    resource_claim.namespace,
                    resource_claim.name,
                    resource_claim.uid,
                    node=resource_claim.node,
                ),
                evidence=(
                    _devices(resource_claim),
                    *at_most(reserved or ["it is reserved for no pod"]),
                ),
                grace=policy.ages.orphan,
            )


def _devices(resource_claim: ResourceClaim) -> str:
    names = [f"{result.driver}/{result.pool}/{result.device}" for result in resource_claim.results]
    return f"it has {', '.join(at_most(names))}"


def _of_node(cluster_index: ClusterIndex, policy: Policy) -> Iterator[Finding]:
    """What the node's own sources show."""
    for ledger in cluster_index.snapshot.ledgers.values():
        for conflict in ledger.conflicts:
            cause = CAUSES.get(conflict.kind)
            if cause is not None:
                yield Finding(
                    rule=Rule.RESOURCE_CLAIM,
                    cause=cause,
                    object_ref=ObjectRef(
                        ObjectKind.DEVICE,
                        "",
                        conflict.device,
                        "",
                        part=conflict.detail,
                        node=ledger.node,
                    ),
                    evidence=(
                        f"node {ledger.node}: {conflict.kind.explanation}: {conflict.detail}",
                    ),
                    grace=policy.ages.orphan,
                )
