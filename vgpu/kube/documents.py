"""The API server's answers as values: pages of lists and lines of watches; pure.

An unreadable object is a :class:`~vgpu.model.objects.MalformedObject` beside the others, which stay
readable. :mod:`vgpu.kube.api_kind` makes these values from JSON.
"""

from enum import Enum, StrEnum
from typing import Generic, TypeVar

import msgspec

from vgpu.model.objects import MalformedObject
from vgpu.model.reasons import SourceError

_Object = TypeVar("_Object")


class Keep(Enum):
    """Which pods of a list are kept."""

    SHARING = (
        "sharing"  # pods that request shared GPUs or have a sharing system's annotations or labels
    )
    RESOURCE_CLAIMS = "resource_claims"  # these, and pods that use ResourceClaims
    ALL = "all"


class ObjectPage(msgspec.Struct, Generic[_Object], frozen=True):
    """One page of a list.

    Attributes:
        objects: the objects that are kept.
        continue_token: for the next page; "" if this is the last.
        resource_version: the version of the list, to watch from.
        total: number of objects on the page, including those that are not kept.
        malformed: the unreadable objects.
    """

    objects: tuple[_Object, ...]
    continue_token: str = ""
    resource_version: str = ""
    total: int = 0
    malformed: tuple[MalformedObject, ...] = ()

    @property
    def pods(self) -> tuple[_Object, ...]:
        """The objects of a list of pods, by the name that the test cluster's own tests use."""
        return self.objects


class EventType(StrEnum):
    """The type of a line of a watch."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"  # nothing else happened up to this resource version
    ERROR = "ERROR"  # the watch has ended


class ApiError(msgspec.Struct, frozen=True):
    """A failure as the server reports it; ``code`` is an HTTP status, 0 if there is none."""

    code: int = 0
    reason: str = ""
    message: str = ""


class WatchEvent(msgspec.Struct, Generic[_Object], frozen=True):
    """One line of a watch: an object in its newest state; for ERROR the failure.

    An unreadable object is a :class:`~vgpu.model.objects.MalformedObject`. Pods that share no GPUs
    are reported, too, since they may have shared one before:
    :func:`~vgpu.kube.kept_keys.shares_gpus` decides.
    """

    type: EventType
    resource_version: str = ""
    object: _Object | MalformedObject | None = None
    error: ApiError | None = None


class Expired(SourceError):  # noqa: N818  # an event, and no error of a program
    """The version to watch from is too old for the server: all objects have to be listed again."""
