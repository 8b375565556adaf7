"""Namespaces whose pods hold more of shared GPUs than their quota, and who would have to end.

A quota is enforced when a pod is placed. It is exceeded where it was lowered later, where another
scheduler placed the pods, or where several replicas of ours decided at the same moment.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from reconciler.cluster_index import ClusterIndex
from reconciler.model import Finding
from reconciler.policy import Policy
from reconciler.reasons import Cause, Rule, SkipReason
from reconciler.rules.evidence_text import at_most
from reconciler.rules.findings import evict, of_pod
from vgpu.kube.objects import Node, Pod, holds_devices
from vgpu.ledger.from_api import read_pod
from vgpu.model import Claim, Device
from vgpu.placement.node_view import peak_shares
from vgpu.quota.check import overruns
from vgpu.quota.limits import NamespaceQuota
from vgpu.quota.relief import relief
from vgpu.quota.resources import amount_text
from vgpu.quota.usage import NamespaceUsage, PodUsage, node_model, usage_of_shares
from vgpu.schemes.codec import ClaimError
from vgpu.units import count

_JOB: Final = "Job"


class _Holder(msgspec.Struct, frozen=True):
    """A pod that holds or has reserved shares, and what it counts for its quota."""

    pod: Pod
    usage: PodUsage


def over_quota(cluster_index: ClusterIndex, policy: Policy) -> Iterator[Finding]:
    """Evict the pods without which their namespace is within its quota.

    Pods that are being deleted are expected to leave. Those of Jobs come last; else the least
    important come first, then those that do not run, then the youngest.
    """
    for namespace, holders in sorted(_holders(cluster_index).items()):
        quota = cluster_index.snapshot.quotas[namespace]
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
            )


def _importance(holder: _Holder) -> tuple[bool, int, bool, float, str]:
    """The order in which pods are chosen."""
    pod = holder.pod
    is_of_job = pod.owner is not None and pod.owner.kind == _JOB
    runs = pod.phase == "Running"
    return is_of_job, pod.priority, runs, -(pod.created_at or 0.0), pod.ref.uid


def _exceeded(quota: NamespaceQuota, holders: Sequence[_Holder]) -> list[str]:
    used = NamespaceUsage()
    for holder in holders:
        used.set(holder.pod.ref.uid, holder.usage)
    return [overrun.text for overrun in overruns(quota, used.by_model)]


def _counted(quota: NamespaceQuota, holder: _Holder) -> str:
    """What the pod counts for the limits of its namespace, for people."""
    amounts = (
        (limit, amount) for limit in quota.limits if (amount := limit.of(holder.usage.by_model))
    )
    return ", ".join(
        f"{amount_text(limit.resource, amount)} of {limit.name}" for limit, amount in amounts
    )


# ---------------------------------------------------------------- who holds what


def _holders(cluster_index: ClusterIndex) -> dict[str, list[_Holder]]:
    """The pods that count for a quota, by namespace."""
    quotas = cluster_index.snapshot.quotas
    holders: dict[str, list[_Holder]] = {}
    if not quotas:
        return holders
    for name, pods in cluster_index.at_home.items():
        limited = [pod for pod in pods if pod.ref.namespace in quotas and holds_devices(pod)]
        if not name or not limited:
            continue
        node = cluster_index.nodes.get(name)
        devices = _devices(cluster_index, node)
        for pod in limited:
            usage = _usage(cluster_index, pod, node, devices)
            if usage is not None:
                holders.setdefault(pod.ref.namespace, []).append(_Holder(pod, usage))
    return holders


def _usage(
    cluster_index: ClusterIndex,
    pod: Pod,
    node: Node | None,
    devices: Mapping[str, tuple[Device, ...]],
) -> PodUsage | None:
    """What the pod counts; None if nothing shows that it holds a share."""
    claim = _claim(cluster_index, pod, devices)
    if claim is None:
        return None
    by_name = {
        name: device for each in devices.values() for device in each for name in device.names
    }
    units = pod.requested_units()
    return usage_of_shares(units, peak_shares(pod, claim), by_name, node_model(node))


def _claim(
    cluster_index: ClusterIndex, pod: Pod, devices: Mapping[str, tuple[Device, ...]]
) -> Claim | None:
    claims = read_pod(pod, cluster_index.codecs).claims
    if claims:
        return claims[0]
    for codec in cluster_index.codecs:
        try:
            claim = codec.sole_gpu(pod, devices[codec.name])
        except ClaimError:
            continue
        if claim is not None:
            return claim
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
