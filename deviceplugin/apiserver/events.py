"""What people are told by Kubernetes Events, and how often. Pure.

Few words, and no more often than somebody would read them: a container that is refused is tried
again and again by its kubelet.
"""

from enum import StrEnum
from typing import Final

import msgspec

from vgpu.kube.objects import EventNote, Node, NoteType, Pod
from vgpu.model import PodRef

COMPONENT: Final = "vgpu-device-plugin"

AGAIN_SECONDS: Final = 300.0
"""So long the same is not said again of the same object."""


class EventReason(StrEnum):
    """The reasons of events."""

    REFUSED = "VgpuRefused"  # of a pod: a container of it is not given what was asked
    CONFLICT = "VgpuConflict"  # of a pod: what two sources say of it cannot both be
    NOT_REGISTERED = "VgpuResourceNotRegistered"  # of the node: its list would be too long


def note(about: Pod | PodRef | Node, word: EventReason, message: str, now: float) -> EventNote:
    """A warning. ``now`` is unix seconds."""
    if isinstance(about, Node):
        # The kubelet's own events of a node have its name as the UID: kubectl describe looks there.
        kind, namespace, name, uid = "Node", "", about.name, about.name
    else:
        ref = about.ref if isinstance(about, Pod) else about
        kind, namespace, name, uid = "Pod", ref.namespace, ref.name, ref.uid
    return EventNote(
        kind=kind,
        api_version="v1",
        namespace=namespace,
        name=name,
        uid=uid,
        reason=word.value,
        message=message,
        at=now,
        type=NoteType.WARNING,
        component=COMPONENT,
    )


class EventDeduplicator:
    """Knows what was said lately."""

    def __init__(self) -> None:
        self._said: dict[EventNote, float] = {}

    def is_news(self, said: EventNote) -> bool:
        """Whether it was not said in the last minutes, by its own time; if so, it is now."""
        known = {note: at for note, at in self._said.items() if abs(said.at - at) < AGAIN_SECONDS}
        timeless = msgspec.structs.replace(said, at=0.0)
        news = timeless not in known
        self._said = {**known, timeless: said.at} if news else known
        return news
