"""GPU groups of KAI Scheduler whose pods and reservation pods do not fit together. Pure.

The rule reports, and never acts: whoever deletes a reservation pod has KAI end the running pods of
its group (``pkg/binder/binding/resourcereservation``, ``deleteNonReservedPods``).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from reconciler.cluster_index import ClusterIndex
from reconciler.model import Finding, ObjectRef, opted_out
from reconciler.policy import Policy
from reconciler.reasons import Cause, Rule
from reconciler.rules.findings import PodIndex
from vgpu.ledger import Conflict, ConflictKind
from vgpu.ledger.from_kai import awaited_groups
from vgpu.model.names import PodRef
from vgpu.model.objects import Pod

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
    """One finding for each pod and cause; a pod that is being bound has its group for seconds.

    A plan has each pod once. So each conflict is about a pod of its group that no other names, if
    there is one, and else a further line of the evidence. A tenant that has opted out hides
    nothing from the others of its group.
    """
    pod_index = PodIndex(cluster_index)
    for ledger in cluster_index.snapshot.ledgers.values():
        found: dict[tuple[PodRef, Cause], list[Conflict]] = {}
        named: set[PodRef] = set()
        for conflict in ledger.conflicts:
            cause = CAUSES.get(conflict.kind)
            if cause is None or conflict.pod is None:
                continue
            if cause is Cause.RESERVATION_UNUSED and _is_awaited(conflict.group, cluster_index):
                continue
            about = (conflict.pod, *(each for each in conflict.members if each != conflict.pod))
            asking = [each for each in about if not _has_opted_out(pod_index.pod(each.uid))]
            if asking:
                pod = next((each for each in asking if each not in named), asking[0])
                named.add(pod)
                found.setdefault((pod, cause), []).append(conflict)
        for (pod, cause), conflicts in found.items():
            object_ref = pod_index.object_ref(pod, ledger.node)
            yield group_finding(conflicts, cause, object_ref, ledger.node, policy)


def _is_awaited(group: str, cluster_index: ClusterIndex) -> bool:
    """Whether a pod without a node has the group already, so that its binding is under way."""
    return group in awaited_groups(cluster_index.all_pods)


def group_finding(
    conflicts: Sequence[Conflict], cause: Cause, object_ref: ObjectRef, node: str, policy: Policy
) -> Finding:
    """The finding of conflicts of one kind about GPU groups on a node, about a pod of these."""
    return Finding(
        rule=Rule.KAI,
        cause=cause,
        object_ref=object_ref,
        evidence=tuple(f"node {node}: {conflict.detail}" for conflict in conflicts),
        grace=policy.ages.orphan,
        part=conflicts[0].group or conflicts[0].container,
    )


def _has_opted_out(pod: Pod | None) -> bool:
    return pod is not None and opted_out(pod)
