"""Reads the owners of node locks by name: our lists have only pods that are known to share GPUs.

A lock's owner may be a pod of another vendor, or a pod with a new resource. Before a rule treats a
lock as without an owner, the API server is asked for the owner by name.
"""

from collections.abc import Callable, Iterable, Sequence
from http import HTTPStatus
from typing import Final

import msgspec

from vgpu.apiserver.connection import ClusterError
from vgpu.model.objects import Node, Pod
from vgpu.model.reasons import SourceError
from vgpu.schemes.codec import SchemeCodec

MOST_ASKED: Final = 100
"""Maximum number of owners that one view asks for; usually there are none."""

Named = tuple[str, str]
"""Namespace and name."""


class Owners(msgspec.Struct, frozen=True):
    """The owners that were read, None for an owner that does not exist.

    ``note`` has the reason why others were not read, "" if all were.
    """

    known: dict[Named, Pod | None]
    note: str = ""


def named_owners(nodes: Iterable[Node], codecs: Sequence[SchemeCodec]) -> tuple[Named, ...]:
    """The owners that the nodes' locks name, in order."""
    locks = (lock for node in nodes for codec in codecs for lock in codec.locks(node))
    return tuple(sorted({lock.owner for lock in locks if lock.owner is not None}))


class LockOwnerReader:
    """Reads owners by name. One thread calls it."""

    def __init__(self, pod: Callable[[str, str], Pod]) -> None:
        """``pod`` reads one pod; it raises ClusterError and SourceError."""
        self._pod = pod
        self._asked = 0

    def ask(self, owners: Sequence[Named]) -> Owners:
        """These owners; of too many, the rest at the next view."""
        start = self._asked % len(owners) if owners else 0
        turn = (*owners[start:], *owners[:start])[:MOST_ASKED]
        self._asked = start + len(turn)
        known: dict[Named, Pod | None] = {}
        note = "" if len(turn) == len(owners) else f"{len(owners) - len(turn)} are left for later"
        for namespace, name in turn:
            try:
                known[namespace, name] = self._pod(namespace, name)
            except ClusterError as error:
                if error.status == HTTPStatus.NOT_FOUND:
                    known[namespace, name] = None
                else:  # the other owners would have the same error
                    note = str(error)
                    break
            except SourceError as error:
                note = error.detail
        return Owners(known, note and f"not all owners of node locks are known: {note}")
