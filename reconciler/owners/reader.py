"""Reads owners' objects from the API server, where the owner's own policy decides."""

from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from reconciler.owners.eviction import OwnerId, OwnerSeen
from vgpu.kube.errors import ClusterError

Read = Callable[[str, str, str, str, str], bytes]
"""Group, version, plural, namespace, name -> the object; raises ClusterError, SourceError."""

_ANSWERS: Final = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.FORBIDDEN})


def read_owner(read: Read, asked: OwnerId) -> OwnerSeen:
    """The owner as it is now. Raises ClusterError, SourceError if it cannot be read.

    An owner that does not exist, or that we may not read, is an answer: its pods are skipped.
    """
    try:
        parts = (asked.group, asked.version, asked.plural, asked.namespace, asked.name)
        return OwnerSeen(read(*parts))
    except ClusterError as error:
        if error.status not in _ANSWERS:
            raise
        gone = error.status == HTTPStatus.NOT_FOUND
        return OwnerSeen(unread="it is not there" if gone else error.message)
