"""What is written to the API server, and what came of it, as values."""

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
    """What came of a write."""

    TOLD = "told"
    MOVED_ON = "moved_on"  # it was not as we had seen it: it is looked at again
    GONE = "gone"
    FAILED = "failed"


class DroppedError(Exception):
    """The API server took annotations and has not kept them, as a webhook may have it."""

    def __init__(self, keys: str) -> None:
        super().__init__(f"the API server took these annotations and dropped them: {keys}")


class WriteKey(msgspec.Struct, frozen=True):
    """A target, and the UID of the pod where there are many."""

    target: WriteTarget
    uid: str = ""

    def fields(self) -> dict[str, str]:
        """For the log."""
        return {"subject": self.target.value} | ({"uid": self.uid} if self.uid else {})


class Write(msgspec.Struct, frozen=True):
    """Something that may have to be written; ``write`` returns whether it had to be.

    ``version`` is the resource version that was seen, "" where that does not count.
    """

    key: WriteKey
    version: str
    write: Callable[[], bool]


class DueTime:
    """When something may have to be written again, in monotonic seconds."""

    def __init__(self) -> None:
        self.at = 0.0

    def by(self, at: float) -> None:
        """At that time, unless it is earlier already."""
        self.at = min(self.at, at)


def as_text(patch: Mapping[str, object]) -> str:
    """Annotations, labels or counts, for the log."""
    return ", ".join(f"{key}={value}" for key, value in patch.items())
