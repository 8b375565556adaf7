"""What the device plugin reports by Kubernetes Events, and how often. Pure.

Messages are short and repeated rarely, since the kubelet retries a refused container all the time.
"""

from enum import StrEnum
from typing import Final

from vgpu.kube.events import EventNote, NoteType, event_note
from vgpu.model.names import PodRef
from vgpu.model.objects import Node, Pod

COMPONENT: Final = "vgpu-device-plugin"

AGAIN_SECONDS: Final = 300.0
"""Minimum time between two equal events of the same object, in seconds."""


class EventReason(StrEnum):
    """The reasons of events."""

    REFUSED = "VgpuRefused"  # of a pod: a request of one of its containers is refused
    CONFLICT = "VgpuConflict"  # of a pod: two sources contradict each other about it
    NOT_REGISTERED = "VgpuResourceNotRegistered"  # of the node: its list would be too long


def note(about: Pod | PodRef | Node, reason: EventReason, message: str, now: float) -> EventNote:
    """A warning event. ``now`` is unix seconds."""
    return event_note(
        about, reason.value, message, now, component=COMPONENT, type_=NoteType.WARNING
    )
