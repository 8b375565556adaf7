"""The container of a process, a region or a limit file, by the node's names. Pure."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, TypeVar

import msgspec

from vgpu.model.facts import (
    ContainerName,
    LimitFile,
    ProcessOwner,
    ProcessSample,
    RegionFile,
    ShimSample,
)
from vgpu.model.names import PodRef
from vgpu.model.reasons import Reason
from vgpu.schemes.kubeshare.gemini_config import client_name, split_name

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


def regions_on_node(shim: ShimSample | None) -> dict[Place, RegionFile]:
    """The region that counts for each container: the first that the plugin has created."""
    first: dict[Place, RegionFile] = {}
    for file in shim.files if shim else ():
        first.setdefault((file.pod_uid, file.container), file)
    return first


def regions_inside(
    process: ProcessSample | None,
    names: Mapping[str, ContainerName],
    on_node: Collection[Place],
) -> list[RegionFile]:
    """The first region inside of each container that has none ``on_node``.

    A container without a name may be any of its pod's, so each of its regions counts.
    """
    taken = set(on_node)
    inside: list[RegionFile] = []
    for owner, path, region in process.bare if process else ():
        place = owner.pod_uid, container_name(owner, names)
        if place not in taken:
            inside.append(RegionFile(path, *place, region))
        if place[1]:
            taken.add(place)
    return inside


def pods_with_cgroups(pods: Iterable[PodRef], live_pods: Collection[str] | None) -> list[PodRef]:
    """The pods that a name in a file may mean: those with a cgroup, where that is known."""
    return [pod for pod in pods if live_pods is None or pod.uid in live_pods]


class OwnedLimit(msgspec.Struct, frozen=True, gc=False):
    """A limit file with its container.

    Attributes:
        limit: the content of the file.
        pod_uid: its pod; "" if several pods have the name in the file.
        container: its container; "" if only the pod is known.
        error: why the file limits no container, as text; "" if it limits one.
        reason: the reason code of ``error``.
    """

    limit: LimitFile
    pod_uid: str
    container: str = ""
    error: str = ""
    reason: Reason | None = None


def owned_limits(
    limits: Iterable[LimitFile], pods: Iterable[PodRef], names: Mapping[str, ContainerName]
) -> Iterator[OwnedLimit]:
    """The limit files whose pod is known, each with its container.

    ``pods`` are the :func:`pods_with_cgroups`, ``names`` is by container id. A tenant can write
    the file, so a container that its pod does not have is an error.
    """
    uids: dict[tuple[str, str], set[str]] = {}
    full_names: dict[tuple[str, str], tuple[str, str]] = {}  # by key
    for pod in pods:
        full_name = pod.namespace, pod.name
        full_names[split_name(client_name(*full_name))] = full_name
        uids.setdefault(full_name, set()).add(pod.uid)
    containers: dict[str, set[str]] = {}
    for container in names.values():
        containers.setdefault(container.pod_uid, set()).add(container.container)
    for read in limits:
        limit = read
        if not read.namespace and ("", read.pod) in full_names:
            namespace, pod_name = full_names["", read.pod]
            limit = msgspec.structs.replace(read, namespace=namespace, pod=pod_name)
        candidates = {limit.pod_uid} - {""} or uids.get((limit.namespace, limit.pod), set())
        if len(candidates) > 1:
            error = f"{len(candidates)} pods {limit.namespace}/{limit.pod}"
            yield OwnedLimit(limit, "", "", error, Reason.AMBIGUOUS)
        for uid in candidates if len(candidates) == 1 else ():
            own_names = containers.get(uid, set())
            named = names.get(limit.container_id)
            only = min(own_names) if len(own_names) == 1 else ""
            name = named.container if named else limit.container or only
            if name and own_names and name not in own_names:
                yield OwnedLimit(limit, uid, name, f"no container {name}", Reason.FORGED)
            else:
                yield OwnedLimit(limit, uid, name)


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
