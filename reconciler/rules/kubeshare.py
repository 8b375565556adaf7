"""KubeShare's leftovers: holder pods that no SharePod needs, SharePods that are stuck. Pure.

KubeShare-Sched gives a SharePod a node and a GPUID; the device manager creates a holder pod that
keeps a GPU under that name, then the real pod. It removes the holder with the last SharePod, if it
runs at that time. (KubeShare branch release-1.0, ``pkg/scheduler``, ``pkg/devicemanager``.)

Our own controllers place a stuck SharePod again themselves, and report why one waits (its condition
``Bound``); a holder that they may keep idle is theirs to delete.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from reconciler.cluster_index import SUCCEEDED, ClusterIndex
from reconciler.model import Coverage, Edit, Finding, ObjectKind, UnusedGuard
from reconciler.policy import Policy
from reconciler.reasons import Cause, Effect, Rule
from reconciler.rules.findings import evict, of_pod, of_share_pod, quoted
from vgpu.model.objects import (
    BOUND_DEVICE,
    BOUND_REASON,
    COMPLETED,
    SHARE_POD,
    Container,
    ContainerState,
    MalformedObject,
    Pod,
    Status,
    holds_devices,
)
from vgpu.model.units import WHOLE_DEVICE_MILLI, count
from vgpu.schemes.codec import ClaimError
from vgpu.schemes.kubeshare import sharepod as kubeshare_sharepod
from vgpu.schemes.kubeshare.codec import GPU_RESOURCE
from vgpu.schemes.kubeshare.labels import placed_on
from vgpu.schemes.kubeshare.node import HOLDER_NAMESPACE, HOLDER_UUID, KEEP_IDLE, HolderPod, holder
from vgpu.schemes.kubeshare.sharepod import (
    GPUID,
    OWNER,
    PREFIX,
    is_finished,
    is_made_up,
)
from vgpu.schemes.kubeshare.text import REQUEST, decimal

_WHOLE: Final = 1.0
"""Maximum sum of the requests of one GPU for the device manager, in float64."""


class _Pool(msgspec.Struct, frozen=True):
    """The holder pods of all GPUs, and their users.

    Attributes:
        holders: the holder pods that report what they hold.
        unread: whether there are, or may be, other holder pods.
        hidden: pods and SharePods that cannot be read.
        users: the pods that use a virtual GPU, by its GPUID.
        share_pods: the live SharePods of a virtual GPU, by its GPUID.
        made: the pods that were created for a SharePod, by its UID.
    """

    holders: Sequence[tuple[HolderPod, Pod]]
    unread: bool
    hidden: Sequence[MalformedObject]
    users: Mapping[str, Sequence[Pod]]
    share_pods: Mapping[str, Sequence[Pod]]
    made: Mapping[str, Sequence[Pod]]

    def users_of(self, gpuid: str, node: str) -> Sequence[Pod | MalformedObject]:
        """Pods that use, or will use, a virtual GPU there; an unbound pod may mean any node."""
        named = (*self.share_pods.get(gpuid, ()), *self.users.get(gpuid, ()))
        return [
            *(user for user in named if user.node in ("", node)),
            *(user for user in self.hidden_users(gpuid) if user.may_be_on(node)),
        ]

    def hidden_users(self, gpuid: str) -> Sequence[MalformedObject]:
        """Objects that cannot be read, and use the virtual GPU or may."""
        return [
            unread
            for unread in self.hidden
            if unread.annotations is None or unread.annotations.get(GPUID) == gpuid
        ]


def kubeshare(cluster_index: ClusterIndex, policy: Policy) -> Iterator[Finding]:
    """Evict holders that no SharePod needs; return stuck SharePods to their scheduler.

    Without all SharePods nothing is found: every holder would look like an orphan.
    """
    if not cluster_index.has(Coverage.SHARE_PODS):
        return
    pool = survey(cluster_index)
    for holding, pod in pool.holders:
        yield from _orphan(holding, pod, pool, policy)
    for share_pod in cluster_index.snapshot.share_pods:
        yield from _split(share_pod, pool, policy)
        yield from _stuck(share_pod, pool, policy)
        yield from _restarting(share_pod, pool, policy)


def survey(cluster_index: ClusterIndex) -> _Pool:
    """The holder pods and their users, in an index with all SharePods."""
    holders: list[tuple[HolderPod, Pod]] = []
    hidden = (
        *cluster_index.malformed[ObjectKind.POD],
        *cluster_index.malformed[ObjectKind.SHARE_POD],
    )
    unread = any(
        unread_pod.ref.namespace == HOLDER_NAMESPACE
        for unread_pod in cluster_index.malformed[ObjectKind.POD]
    )
    users: dict[str, list[Pod]] = {}
    made: dict[str, list[Pod]] = {}
    for pod in cluster_index.snapshot.pods:
        node, placed_gpuid = placed_on(pod)
        gpuid = pod.annotations.get(GPUID) or placed_gpuid
        if gpuid and holds_devices(pod):
            placed = msgspec.structs.replace(pod, node=pod.node or node)
            users.setdefault(gpuid, []).append(placed)
        if pod.owner is not None and pod.owner.kind == OWNER:
            made.setdefault(pod.owner.uid, []).append(pod)
        if pod.ref.namespace == HOLDER_NAMESPACE:
            try:
                holding = holder(pod)
            except ClaimError:
                unread = True
                continue
            if holding is not None:
                holders.append((holding, pod))
    share_pods: dict[str, list[Pod]] = {}
    for share_pod in cluster_index.snapshot.share_pods:
        gpuid = share_pod.annotations.get(GPUID, "")
        if gpuid and not is_finished(share_pod):
            share_pods.setdefault(gpuid, []).append(share_pod)
    return _Pool(holders, unread, hidden, users, share_pods, made)


# ---------------------------------------------------------------- holders


def _orphan(holding: HolderPod, pod: Pod, pool: _Pool, policy: Policy) -> Iterator[Finding]:
    """A holder that keeps exactly one GPU, without a user. KubeShare creates no other holders.

    KubeShare's holders have no owner: one with an owner is a user's pod of a similar name or label.
    """
    alike = pod.owner is None and _asks_for_one_gpu(pod.containers)
    if pod.annotations.get(KEEP_IDLE) == "true":
        return
    if not holds_devices(pod) or not alike or pool.users_of(holding.gpuid, holding.node):
        return
    yield Finding(
        rule=Rule.KUBESHARE,
        cause=Cause.ORPHANED_HOLDER,
        object_ref=of_pod(pod),
        evidence=(
            f"it keeps a GPU of node {holding.node} as virtual GPU {quoted(holding.gpuid)}",
            "no SharePod that lives, and no pod, uses it there",
        ),
        grace=policy.ages.orphan,
        effect=Effect.RECOVERY,
        action=evict(pod, UnusedGuard(holding.node, holding.gpuid)),
    )


def _asks_for_one_gpu(containers: Sequence[Container]) -> bool:
    asked = [container.limits for container in containers if container.limits]
    broken = any(container.broken for container in containers)
    return asked == [{GPU_RESOURCE: 1}] and not broken


# ---------------------------------------------------------------- SharePods


def _split(share_pod: Pod, pool: _Pool, policy: Policy) -> Iterator[Finding]:
    """A SharePod on another GPU than its virtual GPU has, which another pod may have got.

    Our controllers evict its pod, unless a disruption budget forbids it; KubeShare does nothing.
    """
    gpuid, bound = share_pod.annotations.get(GPUID, ""), share_pod.annotations.get(BOUND_DEVICE, "")
    if not (gpuid and bound and share_pod.node) or is_finished(share_pod):
        return
    held = {
        pod.annotations.get(HOLDER_UUID, "")
        for holding, pod in pool.holders
        if (holding.node, holding.gpuid) == (share_pod.node, gpuid) and holds_devices(pod)
    } - {""}
    used = {
        other.annotations.get(BOUND_DEVICE, "")
        for other in pool.share_pods.get(gpuid, ())
        if other.node == share_pod.node
    } - {""}
    others = sorted((held or used) - {bound})
    if bound in held or not others:
        return
    who = "its holder pod has" if held else "other SharePods of it use"
    yield Finding(
        rule=Rule.KUBESHARE,
        cause=Cause.SPLIT_VIRTUAL_GPU,
        object_ref=of_share_pod(share_pod),
        evidence=(
            f"it uses GPU {bound} as virtual GPU {quoted(gpuid)} of node {share_pod.node}",
            f"{who} {', '.join(others)}",
        ),
        grace=policy.ages.orphan,
    )


def _stuck(share_pod: Pod, pool: _Pool, policy: Policy) -> Iterator[Finding]:
    """A SharePod that was placed, but for which the device manager does not create a pod."""
    gpuid = share_pod.annotations.get(GPUID, "")
    made = share_pod.annotations.get(SHARE_POD) or pool.made.get(share_pod.ref.uid)
    if not gpuid or not share_pod.node or made or is_finished(share_pod):
        return
    if BOUND_REASON in share_pod.annotations:
        return
    held = any(
        (holding.node, holding.gpuid) == (share_pod.node, gpuid) for holding, _ in pool.holders
    )
    if held:
        cause, evidence = Cause.FLOAT_SUM, _float_sum(share_pod, gpuid, pool)
    elif pool.unread:  # one of them may be its holder
        return
    else:
        cause, evidence = Cause.VANISHED_GPUID, ("no holder pod keeps a GPU under that name",)
    if not evidence:
        return
    place = f"virtual GPU {quoted(gpuid)} was allocated to it on node {share_pod.node}, but no pod"
    own = not is_made_up(gpuid)
    remark = ("the name is not one that KubeShare makes up: its user must decide",) if own else ()
    yield Finding(
        rule=Rule.KUBESHARE,
        cause=cause,
        object_ref=of_share_pod(share_pod),
        evidence=(place, *evidence, *remark),
        grace=policy.ages.assumed,
        effect=Effect.RECOVERY,
        action=None if own else _give_back(share_pod, gpuid),
    )


def _give_back(share_pod: Pod, gpuid: str) -> Edit:
    """The edit that restores the SharePod's state before KubeShare-Sched placed it."""
    return Edit(
        of_share_pod(share_pod),
        share_pod.resource_version,
        {GPUID: gpuid},
        {GPUID: None},
        unbind=share_pod.node,
    )


def _float_sum(share_pod: Pod, gpuid: str, pool: _Pool) -> tuple[str, ...]:
    """Evidence that the SharePod fits and the device manager refuses it; empty if it does not.

    The device manager adds float64 in the order of the SharePods, the scheduler adds thousandths:
    for the device manager, 20 times 0.05 is more than 1 (``pkg/devicemanager/gpupool.go``).
    """
    served = [
        party
        for party in pool.share_pods.get(gpuid, ())
        if party.node == share_pod.node and party.annotations.get(SHARE_POD)
    ]
    served.sort(key=lambda party: (party.created_at or 0.0, party.ref.uid))
    parties = [*served, share_pod]
    try:
        requests = [request for party in parties for request in kubeshare_sharepod.requests(party)]
    except ClaimError:
        return ()
    if pool.hidden_users(gpuid):  # what they request is in the sum, too
        return ()
    exact = sum(request.cores_milli for request in requests)
    texts = [party.annotations[PREFIX + REQUEST] for party in parties]
    # Not sum(): since Python 3.12 it adds more precisely than the device manager does.
    total = 0.0
    for text in texts:
        total += float(text)
    if exact > WHOLE_DEVICE_MILLI or total <= _WHOLE:
        return ()
    return (
        f"requests of {gpuid!r}: {' + '.join(texts)} = {decimal(exact)}, but {total!r} in float64",
        "it fits exactly, so it may be put there again: a request smaller by 0.001 ends that",
    )


def _restarting(share_pod: Pod, pool: _Pool, policy: Policy) -> Iterator[Finding]:
    """A SharePod whose work is done, and which runs again because of its restartPolicy."""
    if share_pod.restart_policy in {"OnFailure", "Never"}:
        return
    pods = (share_pod, *pool.made.get(share_pod.ref.uid, ()))
    ended = [
        f"container {status.name} has completed, and was restarted {count(status.restarts, 'time')}"
        for pod in pods
        for status in pod.statuses
        if _has_completed(status)
    ]
    ended += [f"its pod is {pod.phase}" for pod in pods if pod.phase == SUCCEEDED]
    if ended:
        yield Finding(
            rule=Rule.KUBESHARE,
            cause=Cause.COMPLETED_FOR_EVER,
            object_ref=of_share_pod(share_pod),
            evidence=(
                *dict.fromkeys(ended),
                f"restartPolicy is {share_pod.restart_policy}: OnFailure or Never lets it end",
            ),
            grace=policy.ages.orphan,
        )


def _has_completed(status: Status) -> bool:
    """Whether the container has succeeded and has not started since; mostly it backs off."""
    backs_off = status.state is ContainerState.WAITING and status.last_reason == COMPLETED
    return status.has_succeeded or backs_off
