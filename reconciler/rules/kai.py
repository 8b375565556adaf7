"""GPU groups of KAI Scheduler whose pods and reservation pods do not fit together. Pure.

The rule reports, and never acts: whoever deletes a reservation pod has KAI end the running pods of
its group (``pkg/binder/binding/resourcereservation``, ``deleteNonReservedPods``).
"""

from collections.abc import Iterator, Mapping
from typing import Final

from reconciler.cluster_index import ClusterIndex
from reconciler.model import Finding, opted_out
from reconciler.policy import Policy
from reconciler.reasons import Cause, Rule
from reconciler.rules.findings import PodIndex
from vgpu.ledger import ConflictKind

CAUSES: Final[Mapping[ConflictKind, Cause]] = {
    ConflictKind.GROUP_UNRESERVED: Cause.GROUP_UNRESERVED,
    ConflictKind.GROUP_SPLIT: Cause.GROUP_SPLIT,
    ConflictKind.GPU_IN_GROUPS: Cause.GPU_IN_GROUPS,
    ConflictKind.RESERVATION_ENDED: Cause.RESERVATION_ENDED,
    ConflictKind.RESERVATION_UNUSED: Cause.RESERVATION_UNUSED,
    ConflictKind.RESERVATION_MOVED: Cause.RESERVATION_MOVED,
    ConflictKind.PORTION_ZERO: Cause.PORTION_ZERO,
}
"""The cause of each conflict about a GPU group."""


def kai(cluster_index: ClusterIndex, policy: Policy) -> Iterator[Finding]:
    """One finding for each pod and cause; a pod that is being bound has its group for seconds."""
    pod_index = PodIndex(cluster_index)
    for ledger in cluster_index.snapshot.ledgers.values():
        for conflict in ledger.conflicts:
            cause = CAUSES.get(conflict.kind)
            if cause is None or conflict.pod is None:
                continue
            pod = pod_index.pod(conflict.pod.uid)
            if pod is not None and opted_out(pod):
                continue
            yield Finding(
                rule=Rule.KAI,
                cause=cause,
                object_ref=pod_index.object_ref(conflict.pod, ledger.node),
                evidence=(f"node {ledger.node}: {conflict.detail}",),
                grace=policy.ages.orphan,
                part=conflict.container,
            )
