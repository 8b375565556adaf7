"""Writes to the API server and their results, as values."""

from collections.abc import Callable, Mapping
from enum import StrEnum

import msgspec


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
        self.at = 0.0

    def by(self, at: float) -> None:
        """A write is due at this time, unless one is due earlier."""
        self.at = min(self.at, at)


def as_text(patch: Mapping[str, object]) -> str:
    """Annotations, labels or counts as text for the log."""
    return ", ".join(f"{key}={value}" for key, value in patch.items())
