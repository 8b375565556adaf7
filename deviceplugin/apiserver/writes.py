"""Writes to the API server, their results, and the plugin's events. Pure.

An object counts as our own write has left it until the watch shows the write (:class:`OwnWrites`).
Messages of events are short and repeated rarely, since the kubelet retries a refused container all
the time.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final

import msgspec
from msgspec.structs import replace

from deviceplugin.apiserver.desired_state import DesiredState
from vgpu.kube.events import EventNote, NoteType, event_note
from vgpu.model.names import PodRef
from vgpu.model.objects import Node, Pod

COMPONENT: Final = "vgpu-device-plugin"

AGAIN_SECONDS: Final = 300.0
"""Minimum time between two equal events of the same object, in seconds."""


class WriteTarget(StrEnum):
    """The kind of object that is written."""

    POD = "pod"
    NODE = "node"
    CAPACITY = "node_status"
    UNHEALTHY = "configmap"
    LOCK = "lock"
    EVENT = "event"


class WriteResult(StrEnum):
    """The result of a write."""

    WRITTEN = "told"
    MOVED_ON = "moved_on"  # the object has changed since we saw it: it is looked at again
    GONE = "gone"
    FAILED = "failed"


class DroppedError(Exception):
    """The API server accepted annotations and did not keep them; a webhook may cause this."""

    def __init__(self, keys: str) -> None:
        super().__init__(f"the API server took these annotations and dropped them: {keys}")


class WriteKey(msgspec.Struct, frozen=True):
    """A target, and the UID of the pod where there are many."""

    target: WriteTarget
    uid: str = ""

    def fields(self) -> dict[str, str]:
        """The key as fields of a log record."""
        return {"subject": self.target.value} | ({"uid": self.uid} if self.uid else {})


class Write(msgspec.Struct, frozen=True):
    """A write that may be necessary; ``write`` returns whether it was.

    ``version`` is the resource version that was seen, "" where the version does not count.
    """

    key: WriteKey
    version: str
    write: Callable[[], bool]


class DueTime:
    """When a write may be due again, in monotonic seconds."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def no_later_than(self, seconds: float) -> None:
        """A write is due at this time, unless one is due earlier."""
        self.seconds = min(self.seconds, seconds)


def as_text(patch: Mapping[str, object]) -> str:
    """Annotations, labels or counts as text for the log."""
    return ", ".join(f"{key}={value}" for key, value in patch.items())


class _Newer(msgspec.Struct, frozen=True):
    """An object after our write, kept until the watch shows a version other than those before."""

    before: frozenset[str]
    now: Pod | Node


class OwnWrites:
    """The objects of our own writes. Used by the status manager's thread alone."""

    def __init__(self) -> None:
        self._newer: dict[WriteKey, _Newer] = {}

    def over(self, desired: DesiredState) -> DesiredState:
        """The desired state with the objects of our writes where the watch is behind them."""
        pods = dict(desired.pods)
        for key in [key for key in self._newer if key.target is WriteTarget.POD]:
            newer = self._ahead(key, pods.get(key.uid))
            if isinstance(newer, Pod):
                pods[key.uid] = newer
        node = self._ahead(WriteKey(WriteTarget.NODE), desired.node)
        return replace(desired, pods=pods, node=node if isinstance(node, Node) else None)

    def add(self, key: WriteKey, seen: Pod | Node, written: Pod | Node) -> None:
        """The object was ``seen``, and is now as it was ``written``."""
        known = self._newer.get(key)
        before = known.before if known else frozenset()
        if written.resource_version != seen.resource_version:
            self._newer[key] = _Newer(before | {seen.resource_version}, written)

    def _ahead(self, key: WriteKey, seen: Pod | Node | None) -> Pod | Node | None:
        newer = self._newer.get(key)
        if newer is None:
            return seen
        if seen is not None and seen.resource_version in newer.before:
            return newer.now
        del self._newer[key]
        return seen


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
