"""The owners of Failed pods, read again at each look: only theirs, and only if a policy decides."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, zip_longest
from typing import Final, TypeVar

from reconciler.owners.eviction import OwnerId, OwnerSeen, owner_id
from reconciler.owners.reader import Read, read_owner
from vgpu.kube.connection import ClusterError
from vgpu.kube.objects import Pod
from vgpu.reasons import SourceError

MOST: Final = 200
"""Owners that are read at one look: about as many as a cycle can tidy the pods of."""

_T = TypeVar("_T")


def read_owners(read: Read, pods: Iterable[Pod], turn: int = 0) -> Mapping[OwnerId, OwnerSeen]:
    """The owners of these pods, each once; never raises.

    Of too many another ``turn`` reads others: those whose policy speaks against a deletion stay,
    and would keep the rest from ever being read. Where the API server does not answer for one, the
    rest is not asked for.
    """
    found: dict[OwnerId, OwnerSeen] = {}
    asked = list(_in_turns({each for pod in pods if (each := owner_id(pod)) is not None}, turn))
    for each in asked[:MOST]:
        try:
            found[each] = read_owner(read, each)
        except (ClusterError, SourceError) as error:
            found[each] = OwnerSeen(unread=str(error))
            if isinstance(error, ClusterError) and not error.status:
                break
    later = OwnerSeen(unread="too many owners at once, or no answer for another: a later cycle")
    return {each: found.get(each, later) for each in asked}


def _in_turns(asked: Iterable[OwnerId], turn: int) -> Iterator[OwnerId]:
    """One of each namespace, then the next: nobody's keep those of others from being read."""
    by_namespace: defaultdict[str, list[OwnerId]] = defaultdict(list)
    for each in sorted(asked):
        by_namespace[each.namespace].append(each)
    namespaces = _from(turn, list(by_namespace.values()))
    rounds = zip_longest(*(_from(turn, those) for those in namespaces))
    return (each for each in chain.from_iterable(rounds) if each is not None)


def _from(turn: int, those: list[_T]) -> list[_T]:
    start = turn % len(those) if those else 0
    return [*those[start:], *those[:start]]
