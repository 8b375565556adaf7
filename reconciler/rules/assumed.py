"""Claims that were never served: of bound pods that Allocate passed over, of pods never bound."""

from collections.abc import Iterator, Sequence
from typing import Final

from reconciler.cluster_index import PENDING, ClaimReading, ClusterIndex
from reconciler.model import Finding
from reconciler.policy import Policy
from reconciler.reasons import Cause, Effect, Rule, SkipReason
from reconciler.rules.evidence_text import without_claim_text
from reconciler.rules.findings import edit_pod, evict, is_due, latest, of_pod, quoted
from vgpu.model.allocation import Claim
from vgpu.model.names import Phase
from vgpu.model.objects import Pod
from vgpu.schemes.registry import registry

_NAMED: Final = 16
"""Maximum number of a container's devices that evidence names."""


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
        claims = [claim for _, claim in owed]
        if cluster_index.empty_claim(pod):
            continue  # rule running_without_device reports it
        if not claims:
            yield from _malformed(Rule.ASSUMED_EXPIRED, cluster_index, pod)
            yield from _without_claim(cluster_index, policy, pod)
            continue
        since = latest((*(claim.assumed_at for claim in claims), pod.scheduled_at, pod.started_at))
        if is_due(cluster_index, policy, since, policy.ages.assumed):
            yield Finding(
                rule=Rule.ASSUMED_EXPIRED,
                cause=Cause.NEVER_ASSIGNED,
                object_ref=of_pod(pod),
                evidence=tuple(line for claim in claims for line in _evidence(claim)),
                since=since,
                grace=policy.ages.assumed,
                action=evict(pod),
                objection=cluster_index.plugin_objection(pod)
                or _waits_for_others(cluster_index, pod, [reading for reading, _ in owed]),
            )


def assumed_unbound(cluster_index: ClusterIndex, policy: Policy) -> Iterator[Finding]:
    """Remove the claims of pods that were never bound: a claim is written just before binding.

    A pod may also be created with a copied claim: the claim counts as no older than the pod.
    """
    for pod in cluster_index.snapshot.pods:
        if pod.phase != PENDING or pod.node or pod.gated:
            continue
        readings = [reading for reading in cluster_index.readings(pod) if reading.claim is not None]
        claims = cluster_index.claims(pod)
        if not claims:
            yield from _malformed(Rule.ASSUMED_UNBOUND, cluster_index, pod)
            continue
        promised = latest(at for claim in claims for at in (claim.assumed_at, claim.assigned_at))
        since = None if promised is None else latest((promised, pod.created_at))
        if is_due(cluster_index, policy, since, policy.ages.assumed):
            scheduler = f"its scheduler: {quoted(pod.unschedulable)}"
            yield Finding(
                rule=Rule.ASSUMED_UNBOUND,
                cause=Cause.NEVER_BOUND,
                object_ref=of_pod(pod),
                evidence=(
                    *(line for claim in claims for line in _evidence(claim)),
                    *((scheduler,) if pod.unschedulable else ()),
                ),
                since=since,
                grace=policy.ages.assumed,
                effect=Effect.REPAIR,
                action=edit_pod(pod, dict.fromkeys(_claim_keys(readings, pod))),
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


def _evidence(claim: Claim) -> Iterator[str]:
    for allocation in claim.allocations:
        devices = ", ".join(share.device for share in allocation.shares[:_NAMED])
        yield f"{claim.scheme}: {allocation.phase} {allocation.container or 'pod'}: {devices}"
    if not claim.allocations:
        yield f"{claim.scheme}: reserved, but no device is named"
    if claim.failed:
        yield f"{claim.scheme}: the plugin reports that it could not serve the pod"
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
