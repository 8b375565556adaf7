"""How Volcano's objects are read: from dumps, or from the API server as far as the rights go."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from vgpu.kube.api_kind import ApiKind
from vgpu.kube.dump import Dump
from vgpu.kube.volcano_kinds import POD_GROUPS, QUEUES, VOLCANO_KINDS
from vgpu.quota.volcano_scheduler import VolcanoScheduler, version_of, volcano_scheduler
from vgpu.quota.volcano_tree import VolcanoObjects
from vgpucli.queue_objects import listed, once, unreadable

if TYPE_CHECKING:
    from vgpu.apiserver.client import ApiClient
    from vgpucli.doctor.facts import ClusterFacts


def volcano_in_dumps(dumps: Iterable[Dump]) -> VolcanoObjects:
    """The objects of Volcano in dumps that were read with its kinds."""
    dumps = tuple(dumps)

    def of(kind: ApiKind[Any]) -> tuple[Any, ...]:
        return once(each for dump in dumps for each in dump.of(kind))

    lacking = [kind for kind in VOLCANO_KINDS if not of(kind)]
    has_some = len(lacking) < len(VOLCANO_KINDS)
    notes = tuple(f"there are no {kind.name}s in the dump" for kind in lacking if has_some)
    notes = (*notes, *unreadable(dumps, VOLCANO_KINDS))
    malformed = {bad.kind for dump in dumps for bad in dump.malformed}
    unread = {kind.name for kind in lacking} | malformed
    return VolcanoObjects(of(QUEUES), of(POD_GROUPS), notes=notes, unread=frozenset(unread))


def volcano_at(cluster: "ApiClient", namespace: str = "") -> VolcanoObjects:
    """The objects of Volcano at the API server; a note for each kind that could not be read.

    A cluster without Volcano does not have its kinds. With a namespace its PodGroups are read where
    those of all namespaces may not be. Raises ClusterError if the API server cannot be reached.
    """
    notes: list[str] = []
    unread: set[str] = set()
    queues = listed(cluster, QUEUES, notes, unread)
    if queues is None:
        return VolcanoObjects()
    partly: set[str] = set()
    groups = listed(cluster, POD_GROUPS, notes, unread, namespace=namespace, partly=partly) or ()
    return VolcanoObjects(queues, groups, notes=tuple(notes), unread=frozenset(unread | partly))


def with_scheduler_of(
    volcano: VolcanoObjects, read: "Callable[[], ClusterFacts | None] | None"
) -> VolcanoObjects:
    """The objects, with what the installation shows of the scheduler; without queues nothing."""
    facts = read() if read is not None and volcano.has_queues else None
    if facts is None:
        return volcano
    return msgspec.structs.replace(volcano, scheduler=scheduler_of(facts))


def scheduler_of(facts: "ClusterFacts") -> VolcanoScheduler:
    """Volcano's scheduler by its Deployment and its ConfigMap.

    Of several schedulers, or several versions, it is unknown which one decides about a queue.
    """
    rows = [each for each in facts.components if each.row.images == ("vc-scheduler",)]
    tags = {each.version for each in rows}
    tag = tags.pop() if len(tags) == 1 else ""
    texts = {each.place: each.text for each in facts.configs if "volcano-scheduler" in each.place}
    if len(texts) == 1:
        ((place, text),) = texts.items()
        return volcano_scheduler(text, place, tag)
    problem = "the configuration of Volcano's scheduler was not read"
    if texts:
        problem = f"there are several configurations: {', '.join(texts)}"
    return VolcanoScheduler(version=version_of(tag), problem=problem)
