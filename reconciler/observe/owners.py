"""Reads the owners of Failed pods at each view, only where the owner's own policy decides."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, zip_longest
from typing import Final, TypeVar

from reconciler.owners.eviction import OwnerId, OwnerSeen, owner_id
from reconciler.owners.reader import Read, read_owner
from vgpu.apiserver.connection import ClusterError
from vgpu.model.objects import Pod
from vgpu.model.reasons import SourceError

MOST: Final = 200
"""Maximum number of owners read at one view: about as many as a cycle can tidy the pods of."""

_T = TypeVar("_T")


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
