"""Reads owners by name: the owners of Failed pods, and of node locks.

The owner of a Failed pod is read at each view, only where the owner's own policy decides.

A lock's owner may be a pod of another vendor, or a pod with a new resource: our lists have only
pods that are known to share GPUs. Before a rule treats a lock as without an owner, the API server
is asked for the owner by name.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from itertools import chain, zip_longest
from typing import Final, TypeVar

import msgspec

from reconciler.owners.eviction import OwnerId, OwnerSeen, Read, owner_id, read_owner
from vgpu.apiserver.connection import ClusterError
from vgpu.model.objects import Node, Pod
from vgpu.model.reasons import SourceError
from vgpu.schemes.codec import SchemeCodec

MOST: Final = 200
"""Maximum number of owners read at one view: about as many as a cycle can tidy the pods of."""

_T = TypeVar("_T")


# ---------------------------------------------------------------- owners of Failed pods


def read_owners(read: Read, pods: Iterable[Pod], turn: int = 0) -> Mapping[OwnerId, OwnerSeen]:
    """The owners of these pods, each once; never raises.

    Of too many, another ``turn`` reads others: owners whose policy forbids a deletion stay, and
    would otherwise keep the rest from being read. After an owner for which the API server does not
    answer, no more are read.
    """
    owners: dict[OwnerId, OwnerSeen] = {}
    asked = list(_in_turns({owner for pod in pods if (owner := owner_id(pod)) is not None}, turn))
    for owner in asked[:MOST]:
        try:
            owners[owner] = read_owner(read, owner)
        except (ClusterError, SourceError) as error:
            owners[owner] = OwnerSeen(unread=str(error))
            if isinstance(error, ClusterError) and not error.status:
                break
    later = OwnerSeen(unread="too many owners at once, or no answer for another: a later cycle")
    return {owner: owners.get(owner, later) for owner in asked}


def _in_turns(asked: Iterable[OwnerId], turn: int) -> Iterator[OwnerId]:
    """One owner of each namespace, then the next: no namespace delays the owners of the others."""
    by_namespace: defaultdict[str, list[OwnerId]] = defaultdict(list)
    for owner in sorted(asked):
        by_namespace[owner.namespace].append(owner)
    namespaces = _from(turn, list(by_namespace.values()))
    rounds = zip_longest(*(_from(turn, owners_of_one) for owners_of_one in namespaces))
    return (owner for owner in chain.from_iterable(rounds) if owner is not None)


def _from(turn: int, items: list[_T]) -> list[_T]:
    start = turn % len(items) if items else 0
    return [*items[start:], *items[:start]]


MOST_ASKED: Final = 100
"""Maximum number of owners that one view asks for; usually there are none."""

Named = tuple[str, str]
"""Namespace and name."""


# ---------------------------------------------------------------- owners of node locks


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
