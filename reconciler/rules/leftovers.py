"""What is left of pods that need no device any more: claims, shims' folders, ResourceClaims. Pure.

Volcano's plugin finds the pod of a call of Allocate by the annotation ``devices-to-allocate``, and
checks neither the pod's phase nor whether it was served: the next pod on the node may be allocated
the devices of this one.

The originals remove a shim's folder when it is five minutes old and its pod is not in their list,
so that one empty answer of the API server removes the folders of living pods (HAMi#576). Here a pod
must have been gone all the time, without a cgroup on the node, and no process may use the files.

Of ResourceClaims that keep devices for no pod, or that a node has otherwise, the rule only reports.
Kubernetes' controller removes the reservation of a pod that is gone, and then the allocation. What
a driver has prepared, and its CDI spec, only the node's reconciler sees.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from reconciler.cluster_index import RUNNING, ClusterIndex
from reconciler.model import (
    Coverage,
    Finding,
    ObjectKind,
    ObjectRef,
    RemoveFolder,
    Scope,
    ShimFolder,
    opted_out,
)
from reconciler.policy import Policy
from reconciler.reasons import Cause, Effect, Rule, SkipReason
from reconciler.rules.findings import at_most, edit_pod, ended_at, of_pod, quoted
from vgpu.ledger import ConflictKind
from vgpu.ledger.liveness import node_uid
from vgpu.model.objects import ContainerState, Pod
from vgpu.model.resource_claims import ResourceClaim
from vgpu.schemes.codec import LeftoverClaim

# ---------------------------------------------------------------- claims


def leftover_claim(cluster_index: ClusterIndex, policy: Policy) -> Iterator[Finding]:
    """Clear the rest that is to be allocated, as the plugin does.

    The annotation stays, empty: all its readers expect that. Another annotation has the devices
    that the pod was allocated.
    """
    for pod in cluster_index.snapshot.pods:
        for codec in cluster_index.codecs:
            leftover = codec.leftover(pod)
            if leftover is not None:
                yield from _leftover(policy, pod, leftover)


def _leftover(policy: Policy, pod: Pod, leftover: LeftoverClaim) -> Iterator[Finding]:
    if pod.terminal:
        cause, evidence = Cause.ENDED_WITH_CLAIM, f"phase {pod.phase}"
        since, grace = ended_at(pod), policy.ages.failed
    elif leftover.served and _is_served(pod):
        cause, evidence = Cause.SERVED_WITH_CLAIM, f"{leftover.served}, and it runs"
        since, grace = None, policy.ages.drift
    else:
        return
    yield Finding(
        rule=Rule.LEFTOVER_CLAIM,
        cause=cause,
        object_ref=of_pod(pod),
        evidence=(f"{leftover.key}: {quoted(leftover.text)}", evidence),
        since=since,
        grace=grace,
        effect=Effect.REPAIR,
        action=edit_pod(pod, {leftover.key: leftover.struck}),
    )


def _is_served(pod: Pod) -> bool:
    """Whether all the pod's containers run, so that Allocate has served all of them."""
    if pod.phase != RUNNING:
        return False
    running = {status.name for status in pod.statuses if status.state is ContainerState.RUNNING}
    return running.issuperset(pod.apps)


# ---------------------------------------------------------------- shims' folders


def orphan_shim_dir(cluster_index: ClusterIndex, policy: Policy) -> Iterator[Finding]:
    """Remove folders whose pod's object is gone; an ended pod's folder stays.

    A plugin removes and creates the folder itself when it serves a container, and an ended pod's
    container may be started again.
    """
    snapshot = cluster_index.snapshot
    if not snapshot.folders:
        return
    living, ended = _uids(cluster_index)
    node = next(iter(cluster_index.nodes)) if len(cluster_index.nodes) == 1 else ""
    for folder in sorted(snapshot.folders, key=lambda each: each.path):
        if not _is_named_so(folder) or folder.pod_uid in living:
            continue
        if snapshot.live_pods is not None and folder.pod_uid in snapshot.live_pods:
            continue
        yield Finding(
            rule=Rule.ORPHAN_SHIM_DIR,
            cause=Cause.POD_GONE,
            object_ref=ObjectRef(ObjectKind.FOLDER, "", folder.path, folder.pod_uid, node=node),
            evidence=tuple(_evidence(folder, cluster_index, ended)),
            grace=policy.ages.orphan,
            effect=Effect.TIDYING,
            action=RemoveFolder(folder.path, folder.pod_uid, folder.identity),
            skip_reason=_skip_reason(folder, cluster_index, ended),
        )


def _uids(cluster_index: ClusterIndex) -> tuple[frozenset[str], Mapping[str, Pod]]:
    """UIDs that a folder's name may have: of living pods, and of pods that have ended.

    A static pod has two UIDs; the plugin's source decides which one it takes.
    """
    living: set[str] = set()
    ended: dict[str, Pod] = {}
    for pod in (*cluster_index.snapshot.pods, *cluster_index.snapshot.share_pods):
        for uid in {pod.ref.uid, node_uid(pod)}:
            if pod.terminal:
                ended[uid] = pod
            else:
                living.add(uid)
    return frozenset(living), ended


def _is_named_so(folder: ShimFolder) -> bool:
    """Whether the folder has a shim's name: ``<podUID>_<container>``."""
    name = f"{folder.pod_uid}_{folder.container}"
    return bool(folder.pod_uid and folder.container) and folder.path.rpartition("/")[2] == name


def _skip_reason(
    folder: ShimFolder, cluster_index: ClusterIndex, ended: Mapping[str, Pod]
) -> SkipReason | None:
    if folder.pod_uid in ended:
        return SkipReason.TERMINAL_POD_EXISTS
    if folder.mapped:
        return SkipReason.STILL_MAPPED
    if cluster_index.snapshot.live_pods is None:
        return SkipReason.INCOMPLETE_VIEW
    return None if cluster_index.snapshot.continuous else SkipReason.ONE_SHOT


def _evidence(
    folder: ShimFolder, cluster_index: ClusterIndex, ended: Mapping[str, Pod]
) -> Iterator[str]:
    pod = ended.get(folder.pod_uid)
    if pod is not None:
        yield f"its pod {pod.ref.namespace}/{pod.ref.name} is {pod.phase}"
        return
    yield f"no pod of UID {folder.pod_uid} on this node"
    seen = cluster_index.snapshot.live_pods is not None
    yield "no cgroup of that pod" if seen else "cgroups could not be read"
    yield "a process uses its files" if folder.mapped else "no process uses its files"


CAUSES: Final = {
    ConflictKind.RESOURCE_CLAIM_LEFT: Cause.LEFT_PREPARED,
    ConflictKind.CDI_SPEC_MISSING: Cause.SPEC_MISSING,
}
"""The cause of each conflict that only a node's own sources show."""


# ---------------------------------------------------------------- ResourceClaims


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
