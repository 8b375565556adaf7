"""Pods with the labels of KubeShare 2, as the controllers decide about them. Pure.

Such a pod is its own SharePod: nothing else is created for it, and it is never created again.

    created with labels and scheduler's name
      → placed: annotation vgpu.dev/virtual-gpu, written with the pod's status
      → bound: one Binding with the node, and with the GPU and the port as annotations

A pod's environment cannot be changed. So its variables name these annotations (downward API), and
the kubelet fills them in when the containers start. An admission policy adds the variables.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from kubeshare.model import (
    FALSE,
    TRUE,
    ConditionType,
    GpuRequest,
    NodeNeeds,
    SharePod,
    SharePodCondition,
)
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
from vgpu.kube import wire
from vgpu.model.go_json import decode_go
from vgpu.model.objects import Pod
from vgpu.schemes.codec import VISIBLE_DEVICES, ClaimError
from vgpu.schemes.kubeshare import labels as kubeshare_labels
from vgpu.schemes.kubeshare.codec import PORT_VARIABLE
from vgpu.schemes.kubeshare.labels import GPU_UUID, MANAGER_PORT, PREFIX, VIRTUAL_GPU, placed_on
from vgpu.schemes.kubeshare.sharepod import is_gpuid
from vgpu.schemes.kubeshare.text import MEMORY, is_uuid

SCHEDULER_NAME: Final = "kubeshare-scheduler"
"""``schedulerName`` of pods of KubeShare 2: no other scheduler binds them."""

VARIABLES: Final = {VISIBLE_DEVICES: GPU_UUID, PORT_VARIABLE: MANAGER_PORT}
"""Variables of a container by which it finds its GPU -> the annotation that has the value."""

_UNSUPPORTED: Final = ("gpu_model", "group_name")
"""Labels that would choose other GPUs, or hold the pod back: it is refused, not misunderstood."""

POD_SCHEDULED: Final = "PodScheduled"
"""The condition of a pod that stands for ``Scheduled`` of a SharePod."""


class FieldRef(wire.Wire, frozen=True):
    """``fieldRef`` of a variable."""

    field_path: str = ""


class ValueFrom(wire.Wire, frozen=True):
    """``valueFrom`` of a variable."""

    field_ref: FieldRef | None = None


class VariableFields(wire.Wire, frozen=True):
    """One of a container's ``env``, with its source."""

    name: str = ""
    value_from: ValueFrom | None = None


_VARIABLES: Final = msgspec.json.Decoder(list[VariableFields] | None)


def labelled_share_pod(
    pod: Pod,
    containers: Iterable[wire.ContainerFields],
    needs: NodeNeeds,
    problem: str,
    status: Any,
) -> SharePod:
    """A pod that names KubeShare 2's scheduler, as a SharePod.

    ``problem`` is why its amounts cannot be read; ``status`` is a JSON value.
    """
    request, gpuid, node = None, "", pod.node
    try:
        request = _request(pod)
        node, gpuid = _place(pod)
    except ClaimError as error:
        problem = f"{error.key}: {error.detail}"
    bound, port = pod.annotations.get(GPU_UUID, ""), pod.annotations.get(MANAGER_PORT, "")
    is_bound = bool(pod.node and gpuid and is_uuid(bound))
    if pod.node and not is_bound:  # its user, or another scheduler, has bound it
        request, gpuid, problem = None, "", ""
    if not problem and not pod.node:
        problem = next(filter(None, map(_wiring_problem, containers)), "")
    return SharePod(
        msgspec.structs.replace(pod, node=node, restart_policy="Never"),
        bound if is_bound else "",
        int(port) if is_bound and port.isdecimal() and len(port) <= 5 else 0,
        pod.ref.uid,
        request,
        problem,
        needs=NodeNeeds() if pod.node else needs,
        conditions=tuple(_conditions(status_conditions(status))),
        gpuid=gpuid,
        copied=status,
        is_pod=True,
    )


def _request(pod: Pod) -> GpuRequest:
    """The share in the labels. Raises ClaimError, also for what the controllers cannot do."""
    object_name = f"{pod.ref.namespace}/{pod.ref.name}"
    for name in _UNSUPPORTED:
        if pod.labels.get(PREFIX + name):
            detail = "vgpu's controllers do not support it"
            raise ClaimError(object_name, PREFIX + name, "", detail)
    for request in kubeshare_labels.requests(pod):
        if request.count != 1:
            detail = "whole GPUs are requested by nvidia.com/gpu, and from the default scheduler"
            raise ClaimError(object_name, PREFIX + "gpu_limit", "", detail)
        if request.memory_bytes is None:
            raise ClaimError(object_name, PREFIX + MEMORY, "", "missing: its amount in bytes")
        limit = request.limit_milli or request.cores_milli
        return GpuRequest(request.cores_milli, limit, request.memory_bytes)
    detail = "missing: a pod without a share of a GPU needs another scheduler"
    raise ClaimError(object_name, PREFIX + "gpu_limit", "", detail)


def _place(pod: Pod) -> tuple[str, str]:
    """Node and GPUID of a pod; the GPUID is "" before it is placed. Raises ClaimError."""
    text = pod.annotations.get(VIRTUAL_GPU, "")
    node, gpuid = placed_on(pod)
    if not text or (pod.node and pod.node != node):
        return pod.node, ""
    if not is_gpuid(gpuid):
        object_name = f"{pod.ref.namespace}/{pod.ref.name}"
        raise ClaimError(object_name, VIRTUAL_GPU, text, "not <node>/<virtual GPU>")
    return node, gpuid


def _wiring_problem(container: wire.ContainerFields) -> str:
    """Why a container would not find its GPU; "" if it will."""
    try:
        variables = decode_go(container.env, _VARIABLES) or ()
    except (msgspec.DecodeError, ValueError, RecursionError):
        variables = ()
    sources = {
        variable.name: variable.value_from.field_ref.field_path
        for variable in variables
        if variable.value_from is not None and variable.value_from.field_ref is not None
    }
    for name, annotation in VARIABLES.items():
        if sources.get(name) != f"metadata.annotations['{annotation}']":
            return (
                f"env of container {container.name}: {name} is not from the annotation"
                f" {annotation}, so that the container would not find its GPU"
            )
    return ""


_CONDITIONS: Final = {
    (POD_SCHEDULED, FALSE): ConditionType.SCHEDULED,
    ("Ready", TRUE): ConditionType.READY,
}
"""Type and status of a pod's condition -> the condition of a SharePod that it stands for."""


def status_conditions(status: Any) -> list[dict[str, Any]]:
    """The conditions in a pod's status, a JSON value."""
    conditions = status.get("conditions") if isinstance(status, dict) else None
    return [each for each in conditions or () if isinstance(each, dict)]


def _conditions(conditions: Iterable[dict[str, Any]]) -> Iterator[SharePodCondition]:
    """The conditions ``Scheduled``, while the pod is not bound, and ``Ready``, while it is."""
    for each in conditions:
        status = str(each.get("status"))
        type_ = _CONDITIONS.get((str(each.get("type")), status))
        if type_ is not None:
            texts = (each.get(key) for key in ("reason", "message", "lastTransitionTime"))
            yield SharePodCondition(type_, status, *(str(text or "") for text in texts))


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
