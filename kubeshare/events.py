"""The events that the controllers report, from conditions that change and pods that are ended."""

from collections.abc import Iterator
from typing import Final

from kubeshare.model import SharePod
from kubeshare.reasons import SharePodReason
from kubeshare.steps import (
    BindPod,
    CreateHolder,
    CreateSharePodPod,
    DeletePod,
    EvictPod,
    PatchSharePod,
)
from vgpu.kube.events import EventNote, NoteType, event_note
from vgpu.kube.kinds import PODS, SHARE_PODS
from vgpu.model.objects import NODE_KIND

COMPONENT: Final = "vgpu-kubeshare"

GOOD: Final = {
    SharePodReason.PLACED: "Scheduled",
    SharePodReason.BOUND: "Bound",
    SharePodReason.FINISHED: "Finished",
}
"""Reasons of conditions that are reported as normal events, and the events' own reasons."""

BAD: Final = {
    SharePodReason.UNSCHEDULABLE: "FailedScheduling",
    SharePodReason.INVALID_REQUEST: "InvalidRequest",
    SharePodReason.GPUID_WITHOUT_NODE: "GpuidWithoutNode",
    SharePodReason.GPU_CHANGED: "GpuChanged",
    SharePodReason.GPU_TAKEN: "GpuTaken",
    SharePodReason.RESOURCE_EXCEEDED: "ResourceExceeded",
    SharePodReason.NO_PORT: "NoPort",
    SharePodReason.NODE_LOST: "NodeLost",
    SharePodReason.POD_EXISTS: "PodExists",
}
"""Reasons of conditions that are reported as warnings, and the events' own reasons."""


def condition_events(step: PatchSharePod, at: float) -> Iterator[EventNote]:
    """An event for each condition whose reason or message is another one than before."""
    known = {(each.type, each.reason, each.message) for each in step.before.conditions}
    for each in step.after.conditions:
        if (each.type, each.reason, each.message) in known:
            continue
        name = BAD.get(each.reason) or GOOD.get(each.reason)  # type: ignore[call-overload]
        if name:
            type_ = NoteType.WARNING if each.reason in BAD else NoteType.NORMAL
            yield _of_share_pod(step.after, name, each.message, at, type_)


def pod_event(
    step: CreateSharePodPod | CreateHolder | DeletePod | EvictPod | BindPod, failure: str, at: float
) -> EventNote | None:
    """An event of a pod that was bound, deleted or evicted, or could not be created; or None."""
    match step:
        case BindPod():
            reason = SharePodReason.BOUND
            return _of_share_pod(step.after, reason, reason.explanation, at, NoteType.NORMAL)
        case CreateSharePodPod():
            return _of_share_pod(step.share_pod, "FailedCreate", failure, at, NoteType.WARNING)
        case CreateHolder():
            text = f"holder of virtual GPU {step.name.gpuid}: {failure}"
            node = step.name.node
            return EventNote(
                NODE_KIND,
                "v1",
                "",
                node,
                node,
                "FailedCreate",
                text,
                at,
                COMPONENT,
                NoteType.WARNING,
            )
        case DeletePod() | EvictPod():
            if step.reason is SharePodReason.IDLE:
                return None
            return event_note(
                step.ref,
                step.reason,
                step.reason.explanation,
                at,
                component=COMPONENT,
                type_=NoteType.WARNING,
            )


def _of_share_pod(
    share_pod: SharePod, reason: str, message: str, at: float, type_: NoteType
) -> EventNote:
    ref = share_pod.ref
    object_kind = PODS if share_pod.is_pod else SHARE_PODS
    kind, version = object_kind.name, object_kind.api_version
    return EventNote(
        kind, version, ref.namespace, ref.name, ref.uid, reason, message, at, COMPONENT, type_
    )
