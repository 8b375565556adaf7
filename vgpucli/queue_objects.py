"""How Kueue's objects are read: from dumps, or from the API server as far as the rights go."""

from collections.abc import Iterable, Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from vgpu.kube.api_kind import ApiKind
from vgpu.kube.documents import ObjectPage
from vgpu.kube.dump import Dump
from vgpu.kube.kueue_kinds import (
    CLUSTER_QUEUES,
    COHORTS,
    KUEUE_KINDS,
    LOCAL_QUEUES,
    RESOURCE_FLAVORS,
    WORKLOADS,
    places_in,
)
from vgpu.model.reasons import SourceError
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
        return once(each for dump in dumps for each in dump.of(kind))

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
            yield f"{bad.title} cannot be read: {bad.detail}"


def once(objects: Iterable[Any]) -> tuple[Any, ...]:
    """The objects of a kind, each once: that of the last dump that has it."""
    by_name = {(getattr(each, "namespace", ""), each.name): each for each in objects}
    return tuple(by_name.values())


def kueue_at(cluster: "ApiClient", namespace: str = "") -> KueueObjects:
    """The objects of Kueue at the API server; a note for each kind that could not be read.

    A cluster without Kueue does not have its kinds, and is asked for nothing else. LocalQueues and
    Workloads that may not be read of all namespaces are read of ``namespace``, if one is named.
    Raises ClusterError if the API server cannot be reached.
    """
    notes: list[str] = []
    unread: set[str] = set()
    partly: set[str] = set()

    def of_namespace(kind: ApiKind[_Kept]) -> tuple[_Kept, ...]:
        found = listed(cluster, kind, notes, unread, namespace=namespace, partly=partly)
        return found or ()

    queues = listed(cluster, CLUSTER_QUEUES, notes, unread)
    if queues is None:
        return KueueObjects()
    kueue = KueueObjects(
        queues,
        of_namespace(LOCAL_QUEUES),
        listed(cluster, COHORTS, notes, unread) or (),
        listed(cluster, RESOURCE_FLAVORS, notes, unread) or (),
        of_namespace(WORKLOADS),
        _config(cluster),
        is_read=bool(queues) or CLUSTER_QUEUES.name not in unread,
        unread=frozenset(unread),
        namespace=namespace if partly else "",
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
    *,
    namespace: str = "",
    partly: set[str] | None = None,
    **selectors: str,
) -> tuple[_Kept, ...] | None:
    """All objects of a kind; None if the server does not have the kind.

    Where these may not be read, those of ``namespace``: then the kind is in ``partly``.
    ``selectors`` are those of :meth:`vgpu.apiserver.reader.Reader.pages`.
    """
    from vgpu.apiserver.connection import ClusterError  # noqa: PLC0415  # slow to import

    try:
        served = cluster.served_pages(kind, **selectors)
    except ClusterError as error:
        if error.status is None:
            raise
        may_ask = bool(namespace) and error.status == HTTPStatus.FORBIDDEN
        served = _served_in(cluster, kind, namespace) if may_ask else None
        if served is None:
            notes.append(f"{kind.name}s could not be read: {error.message}")
            unread.add(kind.name)
            return ()
        notes.append(f"{kind.name}s of other namespaces than {namespace} were not read")
        if partly is not None:
            partly.add(kind.name)
    if served is None:
        return None
    _, pages = served
    if any(page.malformed for page in pages):
        unread.add(kind.name)
    notes += (
        f"{bad.title} cannot be read: {bad.detail}" for page in pages for bad in page.malformed
    )
    return tuple(each for page in pages for each in page.objects)


def _served_in(
    cluster: "ApiClient", kind: ApiKind[_Kept], namespace: str
) -> tuple[ApiKind[_Kept], tuple[ObjectPage[_Kept], ...]] | None:
    """All objects of a kind in a namespace; None if they may not be read, or are not served."""
    from vgpu.apiserver.connection import ClusterError  # noqa: PLC0415  # slow to import

    try:
        return cluster.served_pages(kind, namespace=namespace)
    except ClusterError as error:
        if error.status is None:
            raise
        return None
    except SourceError:
        return None


def with_places(cluster: "ApiClient", kueue: KueueObjects, namespace: str) -> KueueObjects:
    """The same with the places that Kueue reports of workloads that wait in the namespace.

    They are of its visibility API; without the right to read it there are none.
    """
    waiting = {each.queue for each in kueue.workloads if each.namespace == namespace and each.waits}
    places: dict[tuple[str, str], int] = {}
    for queue in sorted(waiting - {""}):
        served = _served_in(cluster, places_in(queue), namespace)
        if served is None:
            break
        objects = (each for page in served[1] for each in page.objects)
        places |= {(namespace, each.name): each.place for each in objects}
    return msgspec.structs.replace(kueue, places=places)


def _config(cluster: "ApiClient") -> KueueConfig:
    from vgpu.apiserver.connection import ClusterError  # noqa: PLC0415  # slow to import

    try:
        return kueue_config(cluster.config_map(*KUEUE_CONFIG))
    except ClusterError as error:
        if error.status is None:
            raise
        return KueueConfig(problem=error.message)
