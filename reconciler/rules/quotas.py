"""Quotas of namespaces: who exceeds them, the mark of Namespaces, and ResourceQuotas. Pure.

A quota is enforced when a pod is placed. It is exceeded where it was lowered later, where another
scheduler placed the pods, or where several replicas of ours decided at the same moment. A Namespace
has the mark ``vgpu.dev/over-quota`` exactly while its pods hold more than its quota: an admission
policy refuses more pods by it.

Of ResourceQuotas whose ``status.used`` is not what their pods request and hold, the rule only
reports. Kubernetes counts what pods request, from their creation on. It counts neither pods that
have ended nor pods whose deletion has been due for a grace period (``QuotaV1Pod`` of Kubernetes'
``pkg/quota/v1/evaluator/core``)::

    used = Σ requested, over pods that have not ended and whose deletion is not due
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import structs

from reconciler.cluster_index import ClusterIndex
from reconciler.model import Coverage, Edit, Finding, ObjectKind, ObjectRef, opted_out
from reconciler.policy import Policy
from reconciler.reasons import Cause, Effect, Rule, SkipReason
from reconciler.rules.findings import at_most, evict, of_pod, quoted
from vgpu.kube.quantities import whole
from vgpu.model.allocation import Device
from vgpu.model.objects import Namespace, Node, Pod, ResourceQuota, holds_devices
from vgpu.model.units import count, exact_size
from vgpu.quota.check import OVER_QUOTA, mark, overruns, relief
from vgpu.quota.limits import NamespaceQuota
from vgpu.quota.resources import GPUS, MEMORY, Amounts, amount_text
from vgpu.quota.usage import (
    NamespaceUsage,
    PodUsage,
    counted_usage,
    node_model,
    observed_usage,
)
from vgpu.schemes.codec import ClaimError
from vgpu.schemes.counted_claims import counted_claim
from vgpu.schemes.registry import registry

# ---------------------------------------------------------------- holders


class QuotaHolder(msgspec.Struct, frozen=True):
    """A pod that holds or has reserved shares, and what it counts for its quota."""

    pod: Pod
    usage: PodUsage


def quota_holders(
    cluster_index: ClusterIndex, namespaces: Collection[str]
) -> dict[str, list[QuotaHolder]]:
    """The pods of these namespaces that hold shares, by namespace.

    Bound pods with GPUs of NVIDIA's own plugin hold the units that they request.
    """
    holders: dict[str, list[QuotaHolder]] = {}
    if not namespaces:
        return holders
    for name, pods in cluster_index.at_home.items():
        limited = [pod for pod in pods if pod.ref.namespace in namespaces and holds_devices(pod)]
        if not name or not limited:
            continue
        node = cluster_index.nodes.get(name)
        devices = _devices(cluster_index, node)
        for pod in limited:
            usage = _usage(cluster_index, pod, node, devices)
            if usage is not None:
                holders.setdefault(pod.ref.namespace, []).append(QuotaHolder(pod, usage))
    for pod in cluster_index.snapshot.nvidia_pods:
        if pod.ref.namespace in namespaces and pod.node and holds_devices(pod):
            usage = observed_usage(pod)
            holders.setdefault(pod.ref.namespace, []).append(QuotaHolder(pod, usage))
    return holders


def used_by(holders: Iterable[QuotaHolder]) -> Mapping[str, Amounts]:
    """What these pods count together, by the model of the GPUs."""
    used = NamespaceUsage()
    for holder in holders:
        used.set(holder.pod.ref.uid, holder.usage)
    return used.by_model


def _usage(
    cluster_index: ClusterIndex,
    pod: Pod,
    node: Node | None,
    devices: Mapping[str, tuple[Device, ...]],
) -> PodUsage | None:
    """What the pod counts; None if nothing shows that it holds a share.

    A bound pod counts what it requests also of GPUs that are not known, on a node of the system.
    """
    by_name = {
        name: device for each in devices.values() for device in each for name in device.names
    }
    advertised = None if node is None else node.advertised or None
    for codec in cluster_index.codecs:
        own = devices[codec.name]
        names = {name: device for device in own for name in device.names}
        counted = counted_claim(pod, codec, names, advertised, resolves_defaults=False)
        if node is None or not registry().row(codec).has_devices(node):
            counted = structs.replace(counted, missing=())
        if counted.claim is not None or counted.missing:
            return counted_usage(pod, codec, counted, names or by_name, node_model(node))
    return None


def _devices(cluster_index: ClusterIndex, node: Node | None) -> dict[str, tuple[Device, ...]]:
    """The node's GPUs by the name of the codec; none where they cannot be read."""
    devices: dict[str, tuple[Device, ...]] = {}
    for codec in cluster_index.codecs:
        try:
            devices[codec.name] = codec.devices(node) if node is not None else ()
        except ClaimError:
            devices[codec.name] = ()
    return devices


_JOB: Final = "Job"


# ---------------------------------------------------------------- namespaces over their quota


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
                skip_reason=SkipReason.SIZES_DIFFER if is_doubtful else None,
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


_WITHIN: Final = "its pods hold no more than its quota"


# ---------------------------------------------------------------- the mark of Namespaces


def quota_mark(cluster_index: ClusterIndex, _: Policy) -> Iterator[Finding]:
    """Set the mark of Namespaces over their quota, and remove it from those that are within it."""
    snapshot = cluster_index.snapshot
    holders = quota_holders(cluster_index, snapshot.quotas)
    doubtful = {doubt.node for doubt in snapshot.unit_doubts}
    unread = {malformed.ref.namespace for malformed in cluster_index.malformed[ObjectKind.POD]}
    for namespace in sorted(snapshot.quota_namespaces, key=lambda each: each.name):
        quota = snapshot.quotas.get(namespace.name) or NamespaceQuota(namespace.name)
        of_namespace = holders.get(namespace.name, [])
        used = used_by(of_namespace)
        wanted = mark(quota, used)
        if wanted == namespace.annotations.get(OVER_QUOTA):
            continue
        skip_reason = None
        if any(holder.pod.node in doubtful for holder in of_namespace):
            skip_reason = SkipReason.SIZES_DIFFER
        elif wanted is None and (quota.unreadable or namespace.name in unread):
            skip_reason = SkipReason.INCOMPLETE_VIEW
        exceeded = [f"it exceeds its quota: {each.text}" for each in overruns(quota, used)]
        yield _mark_finding(namespace, wanted, (*at_most(exceeded),), skip_reason)


def _mark_finding(
    namespace: Namespace,
    wanted: str | None,
    exceeded: tuple[str, ...],
    skip_reason: SkipReason | None,
) -> Finding:
    present = namespace.annotations.get(OVER_QUOTA)
    object_ref = ObjectRef(ObjectKind.NAMESPACE, namespace.name, namespace.name, namespace.uid)
    marked = f"{OVER_QUOTA}: {quoted(present)}" if present is not None else "it has no mark"
    return Finding(
        rule=Rule.QUOTA_MARK,
        cause=Cause.MARK_LEFT if wanted is None else Cause.MARK_MISSING,
        object_ref=object_ref,
        evidence=(*(exceeded or (_WITHIN,)), marked),
        effect=Effect.REPAIR,
        action=Edit(object_ref, "", {OVER_QUOTA: present}, {OVER_QUOTA: wanted}),
        skip_reason=skip_reason,
    )


_REQUESTS = "requests."


# ---------------------------------------------------------------- ResourceQuotas


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
            yield _drift_finding(quota, "", Cause.SHARE_PODS_UNCOUNTED, _of_share_pods(uncounted))


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
        return _drift_finding(quota, entry, cause, (counted, *_names(ended if is_of_ended else ())))
    if used < least:
        return _drift_finding(quota, entry, Cause.COUNT_DIFFERS, (counted,))
    holding = {holder.pod.ref.uid for holder in holders}
    still_held = [each for each in due if each.pod.ref.uid in holding]
    if used < least + _sum(still_held):
        return _drift_finding(quota, entry, Cause.TERMINATING_HOLDS, (counted, *_names(still_held)))
    return None


def _drift_finding(
    quota: ResourceQuota, entry: str, cause: Cause, evidence: Iterable[str]
) -> Finding:
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
