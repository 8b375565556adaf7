"""How Kueue's objects are read: from dumps, or from the API server as far as the rights go."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from vgpu.kube.api_kind import ApiKind
from vgpu.kube.dump import Dump
from vgpu.kube.kueue_kinds import (
    CLUSTER_QUEUES,
    COHORTS,
    LOCAL_QUEUES,
    RESOURCE_FLAVORS,
    WORKLOADS,
)
from vgpu.quota.kueue_config import CONFIG_MAP, NAMESPACE, KueueConfig, kueue_config
from vgpu.quota.kueue_tree import KueueObjects

if TYPE_CHECKING:
    from vgpu.apiserver.client import ApiClient

_Kept = TypeVar("_Kept")

KUEUE_CONFIG: Final = (NAMESPACE, CONFIG_MAP)

UNKNOWN_CONFIG: Final = "transformations unknown: amounts before transformation"


def kueue_in_dumps(dumps: Iterable[Dump]) -> KueueObjects:
    """The objects of Kueue in dumps that were read with its kinds."""
    dumps = tuple(dumps)

    def of(kind: ApiKind[Any]) -> tuple[Any, ...]:
        return tuple(each for dump in dumps for each in dump.also.get(kind.name, ()))

    queues = of(CLUSTER_QUEUES)
    data = next((dump.config_maps[KUEUE_CONFIG] for dump in dumps if dump.config_maps), None)
    lacking = [kind for kind in (WORKLOADS, LOCAL_QUEUES) if queues and not of(kind)]
    return _with_config_note(
        KueueObjects(
            queues,
            of(LOCAL_QUEUES),
            of(COHORTS),
            of(RESOURCE_FLAVORS),
            of(WORKLOADS),
            KueueConfig(problem="it is not in the dump") if data is None else kueue_config(data),
            tuple(f"there are no {kind.name}s in the dump" for kind in lacking),
            is_read=bool(queues),
        )
    )


def kueue_at(cluster: "ApiClient") -> KueueObjects:
    """The objects of Kueue at the API server; a note for each that could not be read.

    A cluster without Kueue has no ClusterQueues, and is asked for nothing else. Raises
    ClusterError if the API server cannot be reached.
    """
    notes: list[str] = []
    queues = _listed(cluster, CLUSTER_QUEUES, notes)
    if not queues:
        return KueueObjects(notes=tuple(notes))
    kueue = KueueObjects(
        queues,
        _listed(cluster, LOCAL_QUEUES, notes),
        _listed(cluster, COHORTS, notes),
        _listed(cluster, RESOURCE_FLAVORS, notes),
        _listed(cluster, WORKLOADS, notes),
        _config(cluster),
        is_read=True,
    )
    return _with_config_note(msgspec.structs.replace(kueue, notes=tuple(notes)))


def _with_config_note(kueue: KueueObjects) -> KueueObjects:
    """The objects, with what is unknown of the configuration among the notes."""
    if not (kueue.is_read and kueue.config.problem):
        return kueue
    note = f"{UNKNOWN_CONFIG} ({kueue.config.problem})"
    return msgspec.structs.replace(kueue, notes=(*kueue.notes, note))


def _listed(cluster: "ApiClient", kind: ApiKind[_Kept], notes: list[str]) -> tuple[_Kept, ...]:
    from vgpu.apiserver.connection import ClusterError  # noqa: PLC0415  # slow to import

    try:
        pages = cluster.optional_pages(kind)
    except ClusterError as error:
        if error.status is None:
            raise
        notes.append(f"{kind.name}s could not be read: {error.message}")
        return ()
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
