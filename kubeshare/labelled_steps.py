"""The next step for a pod with KubeShare 2's labels. Pure."""

import msgspec

from kubeshare.reasons import SharePodReason
from kubeshare.steps import (
    BindPod,
    EvictPod,
    PatchSharePod,
    Step,
    TenantView,
    has_room,
    refused_patch,
)
from kubeshare.virtual_gpu import VirtualGpuState


def labelled_step(view: TenantView) -> Step | None:
    """The next write for a pod with labels; None if none is due."""
    pod, gpu = view.share_pod, view.gpu
    if pod.pod.deleted_at is not None or pod.is_finished:
        return None
    if pod.bound:
        reason = None if gpu is None else _displaced(view, gpu)
        return None if reason is None else EvictPod(pod.ref, pod.pod.resource_version, reason)
    if pod.problem:
        return refused_patch(pod, SharePodReason.INVALID_REQUEST, pod.problem)
    return None if pod.needs_place or gpu is None else _step_on_gpu(view, gpu)


def _step_on_gpu(view: TenantView, gpu: VirtualGpuState) -> Step | None:
    """The next step for a pod that is placed and not bound: move, wait, or bind it."""
    pod = view.share_pod
    checks = (
        (view.is_node_lost, SharePodReason.NODE_LOST),
        (gpu.lacks_gpu(view.now), SharePodReason.GPU_TAKEN),
        (not has_room(view, gpu), SharePodReason.RESOURCE_EXCEEDED),
    )
    lost = next((reason for is_so, reason in checks if is_so), None)
    if lost is not None:
        return _moved(view, lost)
    if not gpu.uuid or gpu.is_torn:
        reason = SharePodReason.HOLDER_PENDING
        return refused_patch(pod, reason, reason.explanation)
    if view.next_port is None:
        return refused_patch(pod, SharePodReason.NO_PORT, SharePodReason.NO_PORT.explanation)
    return BindPod(msgspec.structs.replace(pod, bound=gpu.uuid, port=view.next_port))


def _displaced(view: TenantView, gpu: VirtualGpuState) -> SharePodReason | None:
    """Why a bound pod may not use its GPU any more; None if it may."""
    if gpu.uuid and gpu.uuid != view.share_pod.bound:
        return SharePodReason.GPU_CHANGED
    return SharePodReason.GPU_TAKEN if gpu.lacks_gpu(view.now) else None


def _moved(view: TenantView, reason: SharePodReason) -> PatchSharePod | None:
    """The pod as it was before it was placed; a place that its user has chosen stays."""
    before = view.share_pod
    patch = refused_patch(before, reason, reason.explanation)
    if not before.may_move:
        return patch
    pod = msgspec.structs.replace(before.pod, node="")
    after = before if patch is None else patch.after
    after = msgspec.structs.replace(after, pod=pod, gpuid="")
    return PatchSharePod(before, after, reason, reason.explanation)
