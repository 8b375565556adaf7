"""What the API server answers, as values: pages of lists and lines of watches; pure.

Objects are read one by one: one that cannot be read is a
:class:`~vgpu.kube.objects.MalformedObject` beside the others, and costs nobody else.
:mod:`vgpu.kube.api_kind` makes these values from JSON.
"""

from enum import Enum, StrEnum
from typing import Generic, TypeVar

import msgspec

from vgpu.kube.objects import MalformedObject
from vgpu.reasons import SourceError

_Object = TypeVar("_Object")


class Keep(Enum):
    """Which pods of a list are kept."""

    SHARING = "sharing"  # those that ask for shared GPUs or carry a sharing system's marks
    ALL = "all"


class ObjectPage(msgspec.Struct, Generic[_Object], frozen=True):
    """One page of a list.

    Attributes:
        objects: those to be kept.
        continue_token: for the next page; "" if this is the last.
        resource_version: of the list, to watch from.
        total: objects on the page, those that are not kept included.
        malformed: those that cannot be read.
    """

    objects: tuple[_Object, ...]
    continue_token: str = ""
    resource_version: str = ""
    total: int = 0
    malformed: tuple[MalformedObject, ...] = ()

    @property
    def pods(self) -> tuple[_Object, ...]:
        """The objects of a list of pods: the name that the bed's own tests use."""
        return self.objects


class EventType(StrEnum):
    """What a line of a watch reports."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"  # nothing else happened up to this resource version
    ERROR = "ERROR"  # the watch has ended


class ApiError(msgspec.Struct, frozen=True):
    """A failure in the server's words; ``code`` is an HTTP status, 0 if there is none."""

    code: int = 0
    reason: str = ""
    message: str = ""


class WatchEvent(msgspec.Struct, Generic[_Object], frozen=True):
    """One line of a watch: an object as it is now, or was last; for ERROR the failure.

    An object that cannot be read is a :class:`~vgpu.kube.objects.MalformedObject`.
    A pod is reported whether it shares GPUs or not, since it may have ceased to:
    :func:`~vgpu.kube.kept_keys.shares_gpus` decides.
    """

    type: EventType
    resource_version: str = ""
    object: _Object | MalformedObject | None = None
    error: ApiError | None = None


class Expired(SourceError):  # noqa: N818  # it is what happened, and no fault of anybody's
    """The version to watch from is too old for the server: all objects have to be listed again."""
