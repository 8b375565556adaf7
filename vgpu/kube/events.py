"""Kubernetes Events that programs report: their fields, and their deduplication; pure."""

from enum import StrEnum

import msgspec

from vgpu.model.names import PodRef
from vgpu.model.objects import NODE_KIND, POD_KIND, Node, Pod


class NoteType(StrEnum):
    """The type of an event; Kubernetes has no others."""

    NORMAL = "Normal"
    WARNING = "Warning"


class EventNote(msgspec.Struct, frozen=True, gc=False):
    """A report about an object, to be written as a Kubernetes Event.

    Attributes:
        kind, api_version, namespace, name, uid: the object; its namespace is "" if it has none.
        reason: one word in CamelCase, for programs.
        message: for people; no more than 1,024 bytes of it are written.
        happened_at: when it happened, in unix seconds.
        component: the program that reports it.
    """

    kind: str
    api_version: str
    namespace: str
    name: str
    uid: str
    reason: str
    message: str
    happened_at: float
    component: str
    type: NoteType = NoteType.NORMAL


def event_note(
    about: Pod | PodRef | Node,
    reason: str,
    message: str,
    happened_at: float,
    *,
    component: str,
    type_: NoteType = NoteType.NORMAL,
) -> EventNote:
    """An event of a pod or node; the arguments are those of :class:`EventNote`."""
    if isinstance(about, Node):
        # The kubelet's own events of a node have its name as the UID, as kubectl describe expects.
        object_ = NODE_KIND, "v1", "", about.name, about.name
    else:
        ref = about.ref if isinstance(about, Pod) else about
        object_ = POD_KIND, "v1", ref.namespace, ref.name, ref.uid
    return EventNote(*object_, reason, message, happened_at, component, type_)


class EventDeduplicator:
    """Remembers which events were reported recently."""

    def __init__(self, seconds: float) -> None:
        """``seconds`` is the time in which an event counts as repeated; with 0 none does."""
        self._seconds = seconds
        self._reported: dict[EventNote, float] = {}

    def __len__(self) -> int:
        """Number of events that are remembered."""
        return len(self._reported)

    def is_news(self, note: EventNote) -> bool:
        """Whether the event is not a recent one, by the events' times; remembers it."""
        known = {
            other: seconds
            for other, seconds in self._reported.items()
            if abs(note.happened_at - seconds) < self._seconds
        }
        timeless = msgspec.structs.replace(note, happened_at=0.0)
        news = timeless not in known
        self._reported = {**known, timeless: note.happened_at} if news else known
        return news
