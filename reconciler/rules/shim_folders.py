"""A shim's folders whose pods no longer exist. Pure.

The originals remove such a folder when it is five minutes old and its pod is not in their list, so
that one empty answer of the API server removes the folders of living pods (HAMi#576). Here a pod
must have been gone all the time, without a cgroup on the node, and no process may use the files.
"""

from collections.abc import Iterator, Mapping

from reconciler.cluster_index import ClusterIndex
from reconciler.model import Finding, ObjectKind, ObjectRef, RemoveFolder, ShimFolder
from reconciler.policy import Policy
from reconciler.reasons import Cause, Effect, Rule, SkipReason
from vgpu.ledger.liveness import node_uid
from vgpu.model.objects import Pod


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
            objection=_objection(folder, cluster_index, ended),
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


def _objection(
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
