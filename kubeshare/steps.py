"""The next step for one SharePod, and for one holder pod. Pure.

A step is one write to the API server. Each is decided from objects alone, and its result shows in
objects: a controller that is killed after any step goes on with the next one.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from kubeshare.model import (
    FALSE,
    TRUE,
    ClusterNode,
    ClusterPod,
    ConditionType,
    SharePod,
    SharePodCondition,
    VirtualGpuName,
)
from kubeshare.reasons import SharePodReason
from kubeshare.virtual_gpu import VirtualGpuState, memory_of
from vgpu.kube.merge_patches import is_stored
from vgpu.model.names import PodRef
from vgpu.schemes.kubeshare.sharepod import is_made_up

DETAILED: Final = 200
"""Maximum length of a detail in a condition's message, in characters."""


class PatchSharePod(msgspec.Struct, frozen=True):
    """Write what differs between two states of a SharePod, if it is still in the first.

    Attributes:
        before, after: the states.
        reason: why.
        detail: the message of the event; "" for the reason's own.
    """

    before: SharePod
    after: SharePod
    reason: SharePodReason
    detail: str = ""


class CreateSharePodPod(msgspec.Struct, frozen=True):
    """Create the pod of a SharePod."""

    share_pod: SharePod


class CreateHolder(msgspec.Struct, frozen=True):
    """Create the holder pod of a virtual GPU."""

    name: VirtualGpuName


class DeletePod(msgspec.Struct, frozen=True):
    """Delete exactly this pod, which a controller of KubeShare has created."""

    ref: PodRef
    reason: SharePodReason


class BindPod(msgspec.Struct, frozen=True):
    """Bind a pod with labels to the GPU and the port that ``after`` has, if it has not changed."""

    after: SharePod


class EvictPod(msgspec.Struct, frozen=True):
    """Evict exactly this pod in this state."""

    ref: PodRef
    resource_version: str
    reason: SharePodReason


Step = PatchSharePod | CreateSharePodPod | CreateHolder | DeletePod | EvictPod | BindPod


class TenantView(msgspec.Struct, frozen=True):
    """All that decides about a SharePod.

    Attributes:
        share_pod: the SharePod.
        pod: the pod of its name; None if there is none.
        gpu: its virtual GPU; None if it is placed on none.
        node: its node; None if there is none of that name.
        next_port: the port that a bind uses; None if none is free.
        may_create: False for a while after a pod has failed.
        refusal: why the API server refused the pod the last time; "" if it did not.
        now: unix seconds.
    """

    share_pod: SharePod
    pod: ClusterPod | None
    gpu: VirtualGpuState | None
    node: ClusterNode | None
    next_port: int | None
    now: float
    may_create: bool = True
    refusal: str = ""

    @property
    def own_pod(self) -> ClusterPod | None:
        """The pod, if it is the SharePod's."""
        is_own = self.pod is not None and self.pod.share_pod_uid == self.share_pod.ref.uid
        return self.pod if is_own else None

    @property
    def is_node_lost(self) -> bool:
        """Whether the node is gone or not ready."""
        return self.node is None or not self.node.is_ready


def tenant_step(view: TenantView) -> Step | None:
    """The next write for a SharePod that has a place; None if none is due."""
    share_pod, pod = view.share_pod, view.own_pod
    if share_pod.pod.deleted_at is not None or share_pod.needs_place:
        return None  # its pod goes by its owner reference; or the placement writes next
    if pod is not None:
        return _step_with_pod(view, pod)
    if view.pod is not None or share_pod.is_finished or share_pod.problem:
        return status_step(view)
    if view.is_node_lost:
        return _moved(view, SharePodReason.NODE_LOST) if share_pod.may_move else status_step(view)
    if share_pod.request is None:
        return _create(view)
    return _step_on_gpu(view, view.gpu) if view.gpu is not None else status_step(view)


def _create(view: TenantView) -> Step | None:
    if not view.may_create:
        return status_step(view)
    told = status_step(view) if view.refusal else None  # before it is tried again
    return told or CreateSharePodPod(view.share_pod)


def _step_with_pod(view: TenantView, pod: ClusterPod) -> Step | None:
    """The next step for a SharePod with its pod: copy its status first, since it may be its end."""
    share_pod, gpu = view.share_pod, view.gpu
    if pod.is_deleting or (share_pod.pod.phase, share_pod.pod_uid) != (pod.pod.phase, pod.ref.uid):
        return status_step(view)
    if pod.pod.terminal:
        is_over = share_pod.is_finished
        return status_step(view) if is_over else DeletePod(pod.ref, SharePodReason.POD_FAILED)
    reason = _displaced(view)
    if reason is not None:
        return EvictPod(pod.ref, pod.pod.resource_version, reason)
    if gpu is not None and gpu.uuid and pod.uuid == gpu.uuid and pod.port:
        after = msgspec.structs.replace(share_pod, bound=pod.uuid, port=pod.port)
        if after != share_pod and not (share_pod.bound and share_pod.port):
            return _patched(view, after, SharePodReason.BOUND)
    return status_step(view)


def _displaced(view: TenantView) -> SharePodReason | None:
    """Why the pod may not use its GPU any more; None if it may."""
    gpu, pod, share_pod = view.gpu, view.own_pod, view.share_pod
    if gpu is None or pod is None:
        return None
    uuids = {share_pod.bound, pod.uuid, gpu.uuid} - {""}
    if len(uuids) > 1 or pod.pod.node not in {"", share_pod.node}:
        return SharePodReason.GPU_CHANGED
    return SharePodReason.GPU_TAKEN if gpu.lacks_gpu(view.now) else None


def _step_on_gpu(view: TenantView, gpu: VirtualGpuState) -> Step | None:
    """The next step for a SharePod without pod: move, bind, unbind, or create the pod."""
    share_pod = view.share_pod
    reason = None
    if gpu.lacks_gpu(view.now):
        reason = SharePodReason.GPU_TAKEN
    elif not share_pod.bound and not has_room(view, gpu):
        reason = SharePodReason.RESOURCE_EXCEEDED
    if reason is not None:
        return _moved(view, reason) if share_pod.may_move else status_step(view)
    return _step_of_bound(view, gpu.uuid) if share_pod.bound else _bind_step(view, gpu)


def _bind_step(view: TenantView, gpu: VirtualGpuState) -> Step | None:
    if not gpu.uuid or gpu.is_torn or view.next_port is None:
        return status_step(view)
    after = msgspec.structs.replace(view.share_pod, bound=gpu.uuid, port=view.next_port)
    return _patched(view, after, SharePodReason.BOUND)


def _step_of_bound(view: TenantView, uuid: str) -> Step | None:
    share_pod = view.share_pod
    if uuid and uuid != share_pod.bound:
        after = msgspec.structs.replace(share_pod, bound="", port=0)
        return _patched(view, after, SharePodReason.GPU_CHANGED)
    if uuid and share_pod.port:
        return _create(view)
    if not uuid or view.next_port is None:
        return status_step(view)
    after = msgspec.structs.replace(share_pod, port=view.next_port)
    return _patched(view, after, SharePodReason.BOUND)


def has_room(view: TenantView, gpu: VirtualGpuState) -> bool:
    """Whether the tenant fits on its virtual GPU beside those that are bound."""
    gpu_bytes = view.node.gpu_bytes if view.node is not None else {}
    return gpu.has_room_for(view.share_pod, memory_of(gpu, gpu_bytes))


def _moved(view: TenantView, reason: SharePodReason) -> Step:
    """The SharePod as it was before a scheduler placed it."""
    before = view.share_pod
    pod = msgspec.structs.replace(before.pod, node="", phase="")
    after = msgspec.structs.replace(
        before, pod=pod, gpuid="", bound="", port=0, pod_uid="", copied=None
    )
    return _patched(view, after, reason)


def _patched(view: TenantView, after: SharePod, reason: SharePodReason) -> PatchSharePod:
    changed = msgspec.structs.replace(view, share_pod=after, gpu=view.gpu if after.gpuid else None)
    conditions = _renewed(view.share_pod, tuple(_conditions(changed, reason)))
    after = msgspec.structs.replace(after, conditions=conditions)
    return PatchSharePod(view.share_pod, after, reason)


def placed_patch(share_pod: SharePod, name: VirtualGpuName) -> PatchSharePod:
    """The write that places a SharePod."""
    pod = msgspec.structs.replace(share_pod.pod, node=name.node)
    reason = SharePodReason.CHOSEN_BY_USER if share_pod.node else SharePodReason.PLACED
    after = msgspec.structs.replace(share_pod, pod=pod, gpuid=name.gpuid)
    return _scheduled(share_pod, after, TRUE, reason, reason.explanation)


def refused_patch(share_pod: SharePod, reason: SharePodReason, detail: str) -> PatchSharePod | None:
    """The write that reports why a SharePod is not placed; None if it is reported already."""
    patch = _scheduled(share_pod, share_pod, FALSE, reason, detail)
    return None if patch.after.conditions == share_pod.conditions else patch


def _scheduled(
    before: SharePod, after: SharePod, status: str, reason: SharePodReason, message: str
) -> PatchSharePod:
    condition = SharePodCondition(ConditionType.SCHEDULED, status, reason, message[:DETAILED])
    conditions = _renewed(before, (condition,))
    after = msgspec.structs.replace(after, conditions=conditions)
    return PatchSharePod(before, after, reason, detail=message)


# ---------------------------------------------------------------- conditions


def status_step(view: TenantView) -> PatchSharePod | None:
    """The write of the pod's status and of the conditions; None if both are written already."""
    before, pod = view.share_pod, view.own_pod
    after = before
    if pod is not None and not _is_copied(before, pod):
        seen = msgspec.structs.replace(before.pod, phase=pod.pod.phase)
        after = msgspec.structs.replace(before, pod=seen, pod_uid=pod.ref.uid, copied=pod.status)
    changed = msgspec.structs.replace(view, share_pod=after)
    conditions = _renewed(before, tuple(_conditions(changed)))
    after = msgspec.structs.replace(after, conditions=conditions)
    reason = _ready_reason(changed)
    return None if after == before else PatchSharePod(before, after, reason)


def _is_copied(share_pod: SharePod, pod: ClusterPod) -> bool:
    """Whether the SharePod has its pod's status, as far as the API server keeps it."""
    return share_pod.pod_uid == pod.ref.uid and is_stored(pod.status, share_pod.copied)


def _conditions(
    view: TenantView, reason: SharePodReason | None = None
) -> Iterator[SharePodCondition]:
    """The conditions as they are; ``reason`` is why the SharePod is not bound any more."""
    share_pod = view.share_pod
    yield from _is_scheduled(share_pod, reason)
    if not share_pod.is_finished:  # the record of where it was stays
        bound = _bound_reason(view, reason)
        good = {SharePodReason.BOUND, SharePodReason.NOT_SHARED}
        yield _condition(ConditionType.BOUND, bound, is_true=bound in good)
    ready = _ready_reason(view)
    yield _condition(
        ConditionType.READY,
        ready,
        is_true=ready is SharePodReason.POD_READY,
        detail=view.refusal if ready is SharePodReason.POD_REFUSED else "",
    )


def _is_scheduled(
    share_pod: SharePod, reason: SharePodReason | None
) -> Iterator[SharePodCondition]:
    if share_pod.problem:
        yield _condition(
            ConditionType.SCHEDULED,
            SharePodReason.INVALID_REQUEST,
            is_true=False,
            detail=share_pod.problem,
        )
    elif share_pod.node:
        known = share_pod.condition(ConditionType.SCHEDULED)
        is_known = known is not None and known.status == TRUE
        if not is_known:
            is_ours = is_made_up(share_pod.gpuid)
            why = SharePodReason.PLACED if is_ours else SharePodReason.CHOSEN_BY_USER
            yield _condition(ConditionType.SCHEDULED, why, is_true=True)
    elif reason is not None:
        yield _condition(ConditionType.SCHEDULED, reason, is_true=False)


def _bound_reason(view: TenantView, reason: SharePodReason | None) -> SharePodReason:
    share_pod, gpu = view.share_pod, view.gpu
    if share_pod.problem or not share_pod.node:
        return reason or SharePodReason.NOT_PLACED
    if share_pod.request is None:
        return SharePodReason.NOT_SHARED
    if gpu is None:
        return SharePodReason.NOT_PLACED
    if (displaced := _displaced(view)) is not None:
        return displaced
    if share_pod.bound:
        has_port = share_pod.port or view.next_port is not None
        return SharePodReason.BOUND if has_port else SharePodReason.NO_PORT
    checks = (
        (reason is SharePodReason.GPU_CHANGED or gpu.is_torn, SharePodReason.GPU_CHANGED),
        (view.is_node_lost, SharePodReason.NODE_LOST),
        (gpu.lacks_gpu(view.now), SharePodReason.GPU_TAKEN),
        (not has_room(view, gpu), SharePodReason.RESOURCE_EXCEEDED),
        (not gpu.uuid, SharePodReason.HOLDER_PENDING),
        (view.next_port is None, SharePodReason.NO_PORT),
    )
    return next((why for is_so, why in checks if is_so), SharePodReason.HOLDER_PENDING)


def _ready_reason(view: TenantView) -> SharePodReason:
    if view.share_pod.is_finished:
        return SharePodReason.FINISHED
    if view.pod is None:
        return SharePodReason.POD_REFUSED if view.refusal else SharePodReason.POD_MISSING
    if view.own_pod is None:
        return SharePodReason.POD_EXISTS
    is_ready = view.pod.is_ready and not view.pod.is_deleting
    return SharePodReason.POD_READY if is_ready else SharePodReason.POD_NOT_READY


def _condition(
    type_: ConditionType, reason: SharePodReason, *, is_true: bool, detail: str = ""
) -> SharePodCondition:
    message = f"{reason.explanation}: {detail[:DETAILED]}" if detail else reason.explanation
    return SharePodCondition(type_, TRUE if is_true else FALSE, reason, message)


def _renewed(
    before: SharePod, conditions: tuple[SharePodCondition, ...]
) -> tuple[SharePodCondition, ...]:
    """The SharePod's conditions with these in place of those of the same type.

    The time of a transition stays while the status is the same; a new one is "".
    """
    known = {each.type: each for each in before.conditions}
    for condition in conditions:
        old = known.get(condition.type)
        since = old.since if old is not None and old.status == condition.status else ""
        known[condition.type] = msgspec.structs.replace(condition, since=since)
    return tuple(known.values())


# ---------------------------------------------------------------- holder pods


def holder_step(
    gpu: VirtualGpuState, *, node_exists: bool, may_create: bool, is_kept: bool
) -> Step | None:
    """The next write for the holder pod of a virtual GPU; None if there is none.

    ``may_create`` is False for a while after a holder has failed; ``is_kept`` keeps an idle one.
    """
    holder = gpu.holder
    if holder is None:
        wanted = bool(gpu.tenants) and node_exists and may_create
        return CreateHolder(gpu.name) if wanted else None
    if holder.is_deleting:
        return None
    if holder.pod.terminal:
        return DeletePod(holder.ref, SharePodReason.HOLDER_FAILED)
    if gpu.users or gpu.pods or gpu.has_unread or is_kept:
        return None
    return DeletePod(holder.ref, SharePodReason.IDLE)
