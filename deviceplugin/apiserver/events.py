"""What the device plugin reports by Kubernetes Events, and how often. Pure.

Few words, and no more often than somebody would read them: a container that is refused is tried
again and again by its kubelet.
"""

from enum import StrEnum
from typing import Final

from vgpu.kube.events import EventNote, NoteType, event_note
from vgpu.kube.objects import Node, Pod
from vgpu.model import PodRef

COMPONENT: Final = "vgpu-device-plugin"

AGAIN_SECONDS: Final = 300.0
"""Minimum time between two events that say the same of the same object, in seconds."""


class EventReason(StrEnum):
    """The reasons of events."""

    REFUSED = "VgpuRefused"  # of a pod: a container of it is not given what was asked
    CONFLICT = "VgpuConflict"  # of a pod: what two sources say of it cannot both be
    NOT_REGISTERED = "VgpuResourceNotRegistered"  # of the node: its list would be too long


def note(about: Pod | PodRef | Node, reason: EventReason, message: str, now: float) -> EventNote:
    """A warning. ``now`` is unix seconds."""
    return event_note(
        about, reason.value, message, now, component=COMPONENT, type_=NoteType.WARNING
    )
