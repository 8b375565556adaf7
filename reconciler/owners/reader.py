"""Owners' objects read from the API server, when their own policy decides."""

from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from reconciler.owners.eviction import OwnerId, OwnerSeen
from vgpu.kube.errors import ClusterError

Read = Callable[[str, str, str, str, str], bytes]
"""Group, version, plural, namespace, name -> the object; raises ClusterError, SourceError."""

_TOLD: Final = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.FORBIDDEN})


def read_owner(read: Read, asked: OwnerId) -> OwnerSeen:
    """The owner as it is now. Raises ClusterError, SourceError where that is not known.

    One that is not there, or that we may not read, is an answer: its pods are skipped.
    """
    try:
        parts = (asked.group, asked.version, asked.plural, asked.namespace, asked.name)
        return OwnerSeen(read(*parts))
    except ClusterError as error:
        if error.status not in _TOLD:
            raise
        gone = error.status == HTTPStatus.NOT_FOUND
        return OwnerSeen(unread="it is not there" if gone else error.message)
