"""Who owns the nodes' locks: pods that share no GPU as far as we know are in no list of ours.

A lock may be another vendor's pod's, or one's whose resource is new. Before it is planned as
nobody's, the API server is asked for its owner by name.
"""

from collections.abc import Callable, Iterable, Sequence
from http import HTTPStatus
from typing import Final

import msgspec

from vgpu.kube.connection import ClusterError
from vgpu.kube.objects import Node, Pod
from vgpu.reasons import SourceError
from vgpu.schemes.codec import SchemeCodec

MOST_ASKED: Final = 100
"""Owners that one look asks for: mostly there is none to be asked for."""

Named = tuple[str, str]
"""Namespace and name."""


class Owners(msgspec.Struct, frozen=True):
    """The owners that were asked for, None for one that does not exist.

    ``note`` has the reason others could not be asked for, "" if all were.
    """

    known: dict[Named, Pod | None]
    note: str = ""


def named_owners(nodes: Iterable[Node], codecs: Sequence[SchemeCodec]) -> tuple[Named, ...]:
    """Whom the nodes' locks name, in order."""
    locks = (lock for node in nodes for codec in codecs for lock in codec.locks(node))
    return tuple(sorted({lock.owner for lock in locks if lock.owner is not None}))


class LockOwnerReader:
    """Asks for them. One thread calls it."""

    def __init__(self, pod: Callable[[str, str], Pod]) -> None:
        """``pod`` reads one; it raises ClusterError and SourceError."""
        self._pod = pod
        self._asked = 0

    def ask(self, owners: Sequence[Named]) -> Owners:
        """What becomes of these; of too many the next ones at the next look."""
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
                else:  # it would say the same of the others
                    note = str(error)
                    break
            except SourceError as error:
                note = error.detail
        return Owners(known, note and f"not all owners of node locks are known: {note}")
