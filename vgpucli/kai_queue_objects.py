"""How KAI Scheduler's queues are read: from dumps, or from the API server as far as rights go."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from vgpu.kube.dump import Dump
from vgpu.kube.kai_groups import KAI_GROUPS, KAI_QUEUE_KINDS, KAI_QUEUES
from vgpu.quota.kai_tree import KaiQueues
from vgpucli.queue_objects import listed, once

if TYPE_CHECKING:
    from vgpu.apiserver.client import ApiClient


def kai_queues_in_dumps(dumps: Iterable[Dump]) -> KaiQueues:
    """The queues and PodGroups of KAI in dumps that were read with their kinds.

    Volcano has kinds of the same names: what is unreadable is noted with those.
    """
    dumps = tuple(dumps)
    by_kind = {
        kind.name: once(each for dump in dumps for each in dump.of(kind))
        for kind in KAI_QUEUE_KINDS
    }
    lacking = [name for name, objects in by_kind.items() if not objects]
    has_some = len(lacking) < len(KAI_QUEUE_KINDS)
    notes = (f"there are no {name}s of KAI Scheduler in the dump" for name in lacking if has_some)
    malformed = {bad.kind for dump in dumps for bad in dump.malformed}
    return KaiQueues(
        by_kind[KAI_QUEUES.name],
        by_kind[KAI_GROUPS.name],
        tuple(notes),
        frozenset({*lacking, *malformed}),
    )


def kai_queues_at(cluster: "ApiClient") -> KaiQueues:
    """The same at the API server; a note for each kind that could not be read.

    A cluster without KAI does not have its kinds. Raises ClusterError if the API server cannot be
    reached.
    """
    notes: list[str] = []
    unread: set[str] = set()
    queues = listed(cluster, KAI_QUEUES, notes, unread)
    if queues is None:
        return KaiQueues()
    groups = listed(cluster, KAI_GROUPS, notes, unread) or ()
    return KaiQueues(queues, groups, tuple(notes), frozenset(unread))
