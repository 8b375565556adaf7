"""The container of a process, by the node's names. Pure."""

from collections.abc import Collection, Iterable, Mapping
from typing import Final, TypeVar

from vgpu.model.facts import ContainerName, ProcessOwner
from vgpu.model.names import PodRef

Place = tuple[str, str]
"""Pod UID and container."""

ID_DIGITS: Final = 64
"""Number of digits of a container id."""

MIN_ID_DIGITS: Final = 12
"""Minimum number of digits of an id that the kubelet has cut, so that they identify a container."""

T = TypeVar("T")


def container_name(owner: ProcessOwner, names: Mapping[str, ContainerName]) -> str:
    """The kubelet's name of the container; if unknown, "" in a pod, else the start of its id."""
    named = names.get(owner.container_id)
    if named is not None and named.pod_uid in ("", owner.pod_uid):
        return named.container
    return "" if owner.pod_uid else owner.container_id[:12]


def running_containers(
    uids: Collection[str],
    owners: Iterable[ProcessOwner | None],
    names: Mapping[str, ContainerName],
) -> frozenset[Place]:
    """The containers of these pods with a live process; a container without a name is ""."""
    if not uids:
        return frozenset()
    return frozenset(
        (owner.pod_uid, container_name(owner, names))
        for owner in owners
        if owner is not None and owner.pod_uid in uids
    )


def started_containers(
    uids: Iterable[str], pods: Mapping[str, PodRef], names: Mapping[str, ContainerName]
) -> frozenset[Place]:
    """The containers of these pods that have a log, and so have started at any time."""
    known = {(pods[uid].namespace, pods[uid].name): uid for uid in uids if uid in pods}
    if not known:
        return frozenset()
    return frozenset(
        (uid, named.container)
        for named in names.values()
        if (uid := known.get((named.namespace, named.pod))) and named.pod_uid in ("", uid)
    )


def pods_with_cgroups(pods: Iterable[PodRef], live_pods: Collection[str] | None) -> list[PodRef]:
    """The pods that a name in a file may mean: those with a cgroup, where that is known."""
    return [pod for pod in pods if live_pods is None or pod.uid in live_pods]


def is_cut(container_id: str) -> bool:
    """Whether it is the beginning of an id, from a link that the kubelet has cut."""
    return MIN_ID_DIGITS <= len(container_id) < ID_DIGITS


def with_whole_ids(names: Mapping[str, T], container_ids: Collection[str]) -> dict[str, T]:
    """The names of one pod's containers, with whole ids for cut ones.

    ``container_ids`` are the whole ids of the pod's containers. A cut id that begins several of
    them names none, and no id gets two names.
    """
    whole = {key: name for key, name in names.items() if not is_cut(key)}
    found: dict[str, list[T]] = {}
    for key in names.keys() - whole.keys():
        matches = [each for each in container_ids if each.startswith(key)]
        if len(matches) == 1:
            found.setdefault(matches[0], []).append(names[key])
    return {key: of_id[0] for key, of_id in found.items() if len(of_id) == 1} | whole
