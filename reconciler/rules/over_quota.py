"""Namespaces whose pods hold more of shared GPUs than their quota, and who would have to end.

A quota is enforced when a pod is placed. It is exceeded where it was lowered later, where another
scheduler placed the pods, or where several replicas of ours decided at the same moment.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from reconciler.cluster_index import ClusterIndex
from reconciler.model import Finding
from reconciler.policy import Policy
from reconciler.reasons import Cause, Rule, SkipReason
from reconciler.rules.evidence_text import at_most
from reconciler.rules.findings import evict, of_pod
from reconciler.rules.quota_holders import QuotaHolder, quota_holders, used_by
from vgpu.model.units import count
from vgpu.quota.check import overruns, relief
from vgpu.quota.limits import NamespaceQuota
from vgpu.quota.resources import amount_text

_JOB: Final = "Job"


def over_quota(cluster_index: ClusterIndex, policy: Policy) -> Iterator[Finding]:
    """Evict the pods without which their namespace is within its quota.

    Pods that are being deleted are expected to leave. Those of Jobs come last; else the least
    important come first, then those that do not run, then the youngest.
    """
    quotas = cluster_index.snapshot.quotas
    for namespace, holders in sorted(quota_holders(cluster_index, quotas).items()):
        quota = quotas[namespace]
        ordered = sorted(holders, key=_importance)
        leaving = frozenset(each.pod.ref.uid for each in holders if each.pod.deleted_at is not None)
        usages = [(each.pod.ref.uid, each.usage) for each in ordered]
        chosen = relief(quota, usages, leaving)
        by_uid = {each.pod.ref.uid: each for each in holders}
        exceeded = _exceeded(quota, holders)
        doubtful = {doubt.node for doubt in cluster_index.snapshot.unit_doubts}
        is_doubtful = any(each.pod.node in doubtful for each in holders)
        for number, uid in enumerate(chosen, 1):
            holder = by_uid[uid]
            place = (
                f"it is number {number} of {count(len(chosen), 'pod')} that would have to end,"
                f" of {len(holders)} in the namespace"
            )
            yield Finding(
                rule=Rule.OVER_QUOTA,
                cause=Cause.QUOTA_EXCEEDED,
                object_ref=of_pod(holder.pod),
                evidence=(
                    *at_most(
                        [f"namespace {namespace} exceeds its quota: {text}" for text in exceeded]
                    ),
                    f"this pod counts {_counted(quota, holder)}",
                    place,
                ),
                grace=policy.ages.over_quota,
                action=evict(holder.pod),
                objection=SkipReason.SIZES_DIFFER if is_doubtful else None,
                place=number,
                condition=f"namespace/{namespace}",
            )


def _importance(holder: QuotaHolder) -> tuple[bool, int, bool, float, str]:
    """The order in which pods are chosen."""
    pod = holder.pod
    is_of_job = pod.owner is not None and pod.owner.kind == _JOB
    runs = pod.phase == "Running"
    return is_of_job, pod.priority, runs, -(pod.created_at or 0.0), pod.ref.uid


def _exceeded(quota: NamespaceQuota, holders: Sequence[QuotaHolder]) -> list[str]:
    return [overrun.text for overrun in overruns(quota, used_by(holders))]


def _counted(quota: NamespaceQuota, holder: QuotaHolder) -> str:
    """What the pod counts for the limits of its namespace, for people."""
    amounts = (
        (limit, amount) for limit in quota.limits if (amount := limit.of(holder.usage.by_model))
    )
    return ", ".join(
        f"{amount_text(limit.resource, amount)} of {limit.name}" for limit, amount in amounts
    )
