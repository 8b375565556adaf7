"""ResourceQuotas whose ``status.used`` is not what their pods request and hold: report only.

Kubernetes counts what pods request, from their creation on. It counts neither pods that have ended
nor pods whose deletion has been due for a grace period (``QuotaV1Pod`` of Kubernetes'
``pkg/quota/v1/evaluator/core``)::

    used = Σ requested, over pods that have not ended and whose deletion is not due
"""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from reconciler.cluster_index import ClusterIndex
from reconciler.model import Coverage, Finding, ObjectKind, ObjectRef, opted_out
from reconciler.policy import Policy
from reconciler.reasons import Cause, Rule
from reconciler.rules.evidence_text import at_most
from reconciler.rules.quota_holders import QuotaHolder, quota_holders
from vgpu.kube.quantities import whole
from vgpu.model.objects import Pod, ResourceQuota
from vgpu.model.units import count, exact_size
from vgpu.quota.resources import GPUS, MEMORY

_REQUESTS = "requests."


class _Requester(msgspec.Struct, frozen=True):
    """A pod, and the units of the resource that it requests."""

    pod: Pod
    units: int


def quota_drift(cluster_index: ClusterIndex, _: Policy) -> Iterator[Finding]:
    """The entries of ResourceQuotas that differ, with the pods that explain the difference.

    Nothing is compared that was not seen in full: ResourceQuotas with scopes, which are about some
    of the pods only, and namespaces with pods that cannot be read.
    """
    if not cluster_index.has(Coverage.PODS, Coverage.QUOTAS):
        return
    unread = {malformed.ref.namespace for malformed in cluster_index.malformed[ObjectKind.POD]}
    compared = [
        quota
        for quota in cluster_index.snapshot.resource_quotas
        if quota.used and not (quota.scoped or opted_out(quota)) and quota.namespace not in unread
    ]
    holders = quota_holders(cluster_index, {quota.namespace for quota in compared})
    pods: dict[str, list[Pod]] = {quota.namespace: [] for quota in compared}
    for pod in cluster_index.all_pods:
        if pod.ref.namespace in pods:
            pods[pod.ref.namespace].append(pod)
    for quota in compared:
        holding = holders.get(quota.namespace, [])
        for entry in sorted(quota.used):
            finding = _of_entry(quota, entry, pods[quota.namespace], holding, cluster_index.now)
            if finding is not None:
                yield finding
        uncounted = [each for each in holding if not each.pod.requested_units()]
        if uncounted:
            yield _finding(quota, "", Cause.SHARE_PODS_UNCOUNTED, _of_share_pods(uncounted))


def _of_entry(
    quota: ResourceQuota,
    entry: str,
    pods: Sequence[Pod],
    holders: Sequence[QuotaHolder],
    now: float,
) -> Finding | None:
    """The finding about one entry; None if what Kubernetes counts is what it should.

    Whether Kubernetes still counts a pod whose deletion is due depends on its grace period, so both
    are right.
    """
    used = whole(quota.used[entry])
    if used is None or not entry.startswith(_REQUESTS):
        return None
    resource = entry.removeprefix(_REQUESTS)
    requesters = [
        _Requester(pod, units) for pod in pods if (units := pod.requested_units().get(resource))
    ]
    ended = [each for each in requesters if each.pod.terminal]
    due = [each for each in requesters if not each.pod.terminal and _is_due(each.pod, now)]
    least = _sum(requesters) - _sum(ended) - _sum(due)
    most = least + _sum(due)
    counted = f"Kubernetes counts {used}, and its pods request {_range(least, most)}"
    if used > most:
        is_of_ended = used - most <= _sum(ended)
        cause = Cause.ENDED_COUNTED if is_of_ended else Cause.COUNT_DIFFERS
        return _finding(quota, entry, cause, (counted, *_names(ended if is_of_ended else ())))
    if used < least:
        return _finding(quota, entry, Cause.COUNT_DIFFERS, (counted,))
    holding = {holder.pod.ref.uid for holder in holders}
    still_held = [each for each in due if each.pod.ref.uid in holding]
    if used < least + _sum(still_held):
        return _finding(quota, entry, Cause.TERMINATING_HOLDS, (counted, *_names(still_held)))
    return None


def _finding(quota: ResourceQuota, entry: str, cause: Cause, evidence: Iterable[str]) -> Finding:
    return Finding(
        rule=Rule.QUOTA_DRIFT,
        cause=cause,
        object_ref=ObjectRef(
            ObjectKind.RESOURCE_QUOTA, quota.namespace, quota.name, "", part=entry
        ),
        evidence=tuple(evidence),
    )


def _is_due(pod: Pod, now: float) -> bool:
    return pod.deleted_at is not None and pod.deleted_at <= now


def _sum(requesters: Sequence[_Requester]) -> int:
    return sum(each.units for each in requesters)


def _range(least: int, most: int) -> str:
    return str(least) if least == most else f"{least} to {most}"


def _names(requesters: Sequence[_Requester]) -> Iterator[str]:
    return at_most(
        [
            f"pod {each.pod.ref.name} requests {each.units} and "
            + (f"has ended ({each.pod.phase})" if each.pod.terminal else "does not end")
            for each in requesters
        ]
    )


def _of_share_pods(holders: Sequence[QuotaHolder]) -> Iterator[str]:
    total = [holder.usage.total for holder in holders]
    memory = sum(amounts.get(MEMORY, 0) for amounts in total)
    gpus = sum(amounts.get(GPUS, 0) for amounts in total)
    pods = count(len(holders), "pod")
    yield f"{pods} of SharePods with {count(gpus, 'share')} and {exact_size(memory)}"
    yield from at_most([f"pod {holder.pod.ref.name}" for holder in holders])
