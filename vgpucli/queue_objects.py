"""How Kueue's objects are read: from dumps, or from the API server as far as the rights go."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from vgpu.kube.api_kind import ApiKind
from vgpu.kube.dump import Dump
from vgpu.kube.kueue_kinds import (
    CLUSTER_QUEUES,
    COHORTS,
    KUEUE_KINDS,
    LOCAL_QUEUES,
    RESOURCE_FLAVORS,
    WORKLOADS,
)
from vgpu.quota.kueue_config import (
    CONFIG_MAP,
    NAMESPACE,
    UNKNOWN_CONFIG,
    KueueConfig,
    kueue_config,
)
from vgpu.quota.kueue_tree import KueueObjects

if TYPE_CHECKING:
    from vgpu.apiserver.client import ApiClient

_Kept = TypeVar("_Kept")

KUEUE_CONFIG: Final = (NAMESPACE, CONFIG_MAP)


def kueue_in_dumps(dumps: Iterable[Dump]) -> KueueObjects:
    """The objects of Kueue in dumps that were read with its kinds."""
    dumps = tuple(dumps)

    def of(kind: ApiKind[Any]) -> tuple[Any, ...]:
        return once(each for dump in dumps for each in dump.also.get(kind.name, ()))

    queues, cohorts = of(CLUSTER_QUEUES), of(COHORTS)
    lacking = [kind for kind in (CLUSTER_QUEUES, WORKLOADS, LOCAL_QUEUES) if not of(kind)]
    has_some = any(map(of, KUEUE_KINDS))
    notes = [f"there are no {kind.name}s in the dump" for kind in lacking if has_some]
    if not cohorts and any(each.cohort for each in queues):
        notes.append("there are no Cohorts in the dump: none adds a quota or a limit")
    notes += unreadable(dumps, KUEUE_KINDS)
    malformed = {bad.kind for dump in dumps for bad in dump.malformed}
    data = next((dump.config_maps[KUEUE_CONFIG] for dump in dumps if dump.config_maps), None)
    return _with_config_note(
        KueueObjects(
            queues,
            of(LOCAL_QUEUES),
            cohorts,
            of(RESOURCE_FLAVORS),
            of(WORKLOADS),
            KueueConfig(problem="it is not in the dump") if data is None else kueue_config(data),
            tuple(notes),
            is_read=bool(queues),
            unread=frozenset(kind.name for kind in lacking) | malformed,
        )
    )


def unreadable(dumps: Iterable[Dump], kinds: Iterable[ApiKind[Any]]) -> Iterator[str]:
    """A note for each object of these kinds that cannot be read."""
    names = {kind.name for kind in kinds}
    for bad in {(bad.kind, bad.ref): bad for dump in dumps for bad in dump.malformed}.values():
        if bad.kind in names:
            yield f"{bad.kind} {bad.name} cannot be read: {bad.detail}"


def once(objects: Iterable[Any]) -> tuple[Any, ...]:
    """The objects of a kind, each once: that of the last dump that has it."""
    by_name = {(getattr(each, "namespace", ""), each.name): each for each in objects}
    return tuple(by_name.values())


def kueue_at(cluster: "ApiClient") -> KueueObjects:
    """The objects of Kueue at the API server; a note for each kind that could not be read.

    A cluster without Kueue does not have its kinds, and is asked for nothing else. Raises
    ClusterError if the API server cannot be reached.
    """
    notes: list[str] = []
    unread: set[str] = set()
    queues = listed(cluster, CLUSTER_QUEUES, notes, unread)
    if queues is None:
        return KueueObjects()
    kueue = KueueObjects(
        queues,
        listed(cluster, LOCAL_QUEUES, notes, unread) or (),
        listed(cluster, COHORTS, notes, unread) or (),
        listed(cluster, RESOURCE_FLAVORS, notes, unread) or (),
        listed(cluster, WORKLOADS, notes, unread) or (),
        _config(cluster),
        is_read=bool(queues) or CLUSTER_QUEUES.name not in unread,
        unread=frozenset(unread),
    )
    return _with_config_note(msgspec.structs.replace(kueue, notes=tuple(notes)))


def _with_config_note(kueue: KueueObjects) -> KueueObjects:
    """The objects, with what is unknown of the configuration among the notes."""
    if not (kueue.config.problem and (kueue.has_queues or kueue.workloads)):
        return kueue
    note = f"{UNKNOWN_CONFIG} ({kueue.config.problem})"
    return msgspec.structs.replace(kueue, notes=(*kueue.notes, note))


def listed(
    cluster: "ApiClient",
    kind: ApiKind[_Kept],
    notes: list[str],
    unread: set[str],
    namespace: str = "",
) -> tuple[_Kept, ...] | None:
    """All objects of a kind, or those of a namespace; None if the server does not have the kind."""
    from vgpu.apiserver.connection import ClusterError  # noqa: PLC0415  # slow to import

    try:
        served = cluster.served_pages(kind, namespace=namespace)
    except ClusterError as error:
        if error.status is None:
            raise
        notes.append(f"{kind.name}s could not be read: {error.message}")
        unread.add(kind.name)
        return ()
    if served is None:
        return None
    _, pages = served
    if any(page.malformed for page in pages):
        unread.add(kind.name)
    notes += (
        f"{kind.name} {bad.ref.name} cannot be read: {bad.detail}"
        for page in pages
        for bad in page.malformed
    )
    return tuple(each for page in pages for each in page.objects)


def _config(cluster: "ApiClient") -> KueueConfig:
    from vgpu.apiserver.connection import ClusterError  # noqa: PLC0415  # slow to import

    try:
        return kueue_config(cluster.config_map(*KUEUE_CONFIG))
    except ClusterError as error:
        if error.status is None:
            raise
        return KueueConfig(problem=error.message)
