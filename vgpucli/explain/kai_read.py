"""How `vgpu explain` reads what KAI Scheduler has written: from dumps, or from the API server."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property
from typing import Any, Final

import msgspec

from vgpu.apiserver.client import ApiClient
from vgpu.apiserver.connection import ClusterError
from vgpu.kube.api_kind import ApiKind
from vgpu.kube.documents import Keep
from vgpu.kube.dump import items_of
from vgpu.kube.kai_groups import (
    KAI_GROUPS,
    KAI_KINDS,
    KAI_PODS,
    KAI_QUEUES,
    KaiGroup,
    KaiPod,
    KaiQueue,
)
from vgpu.kube.kai_kinds import BIND_REQUESTS, BindRequest
from vgpu.model.names import PodRef
from vgpu.model.reasons import SourceError
from vgpu.program.kube_flags import ReadDump
from vgpucli.explain.kai_objects import KaiObjects, ReadKai
from vgpucli.queue_objects import listed

_MOST_LEVELS: Final = 16
"""Maximum number of queues above each other that are read."""


class _AllOfKai(msgspec.Struct, frozen=True, dict=True):
    """All objects of KAI Scheduler by the name of their kind; of ``unread`` ones some may miss."""

    objects: Mapping[str, tuple[Any, ...]]
    unread: frozenset[str]

    def of_pod(self, ref: PodRef) -> KaiObjects:
        """What is written about a pod."""
        pod = self._pods.get((ref.namespace, ref.name))
        pod = None if pod is None or pod.uid != ref.uid else pod
        requests: tuple[BindRequest, ...] = self.objects.get(BIND_REQUESTS.name, ())
        named = [each for each in requests if each.is_of(ref)]
        group_ref = (ref.namespace, "" if pod is None else pod.group)
        group = self._groups.get(group_ref)
        return KaiObjects(
            pod,
            next(iter(named), None),
            group,
            _levels(group, self._queues.get),
            self.unread,
            members=None if group is None else self._members[group_ref],
        )

    @cached_property
    def _pods(self) -> Mapping[tuple[str, str], KaiPod]:
        pods: tuple[KaiPod, ...] = self.objects.get(KAI_PODS.name, ())
        return {(each.namespace, each.name): each for each in pods}

    @cached_property
    def _groups(self) -> Mapping[tuple[str, str], KaiGroup]:
        groups: tuple[KaiGroup, ...] = self.objects.get(KAI_GROUPS.name, ())
        return {(each.namespace, each.name): each for each in groups}

    @cached_property
    def _queues(self) -> Mapping[str, KaiQueue]:
        queues: tuple[KaiQueue, ...] = self.objects.get(KAI_QUEUES.name, ())
        return {each.name: each for each in queues}

    @cached_property
    def _members(self) -> Counter[tuple[str, str]]:
        pods = (each for each in self._pods.values() if not each.has_ended)
        return Counter((each.namespace, each.group) for each in pods)


def dumped_kai(paths: Sequence[str], file: ReadDump) -> ReadKai:
    """How to read them from dumps; ``file`` reads one of the paths, again."""
    kinds: tuple[ApiKind[Any], ...] = (KAI_PODS, *KAI_KINDS)
    by_kind = {(kind.name, kind.api_version): kind for kind in kinds}
    by_kind |= {(kind.name, ""): kind for kind in (KAI_PODS, BIND_REQUESTS)}

    @cache
    def parsed() -> _AllOfKai:
        found: dict[str, dict[tuple[str, str], Any]] = {kind.name: {} for kind in kinds}
        bad: set[str] = set()
        for path in paths:
            content, _ = file(path)
            for name, about, item in items_of(content, path):
                kind = by_kind.get((name, about.api_version))
                if kind is None:
                    continue
                try:
                    for each in kind.kept(item, path, Keep.ALL):
                        found[name][getattr(each, "namespace", ""), each.name] = each
                except SourceError:
                    bad.add(name)
        objects = {name: tuple(of_kind.values()) for name, of_kind in found.items()}
        unread = bad | {kind.name for kind in KAI_KINDS if not objects[kind.name]}
        return _AllOfKai(objects, frozenset(unread))

    return lambda ref: parsed().of_pod(ref)


def all_kai_at(cluster: ApiClient) -> tuple[ReadKai, tuple[str, ...]]:
    """The same at the API server: all objects are listed now, and none for a pod; with notes.

    A cluster without KAI does not have its kinds, and its pods are not listed. Raises ClusterError
    if the API server cannot be reached.
    """
    notes: list[str] = []
    unread: set[str] = set()
    lists = {kind.name: listed(cluster, kind, notes, unread) for kind in KAI_KINDS}
    if any(objects is not None for objects in lists.values()):
        lists[KAI_PODS.name] = listed(cluster, KAI_PODS, notes, unread)
    found = _AllOfKai({name: each or () for name, each in lists.items()}, frozenset(unread))
    return found.of_pod, tuple(notes)


def kai_at(cluster: ApiClient, ref: PodRef) -> KaiObjects:
    """The same at the API server, as far as they may be read. Raises ClusterError."""
    unread: set[str] = set()

    def find(kind: ApiKind[Any], namespace: str, name: str) -> Any:
        try:
            return cluster.find(kind, namespace, name)
        except ClusterError as error:
            if error.status is None:
                raise
        except SourceError:
            pass
        unread.add(kind.name)
        return None

    pod: KaiPod | None = find(KAI_PODS, ref.namespace, ref.name)
    request: BindRequest | None = find(BIND_REQUESTS, ref.namespace, ref.name)
    group: KaiGroup | None = None
    if pod is not None and pod.group:
        group = find(KAI_GROUPS, ref.namespace, pod.group)
    queues = _levels(group, lambda name: find(KAI_QUEUES, "", name))
    own = request if request is not None and request.is_of(ref) else None
    members = None
    if group is not None and group.least > 1 and own is None:
        try:
            pages = cluster.pages(KAI_PODS, namespace=ref.namespace)
            members = sum(each.is_in(group) for page in pages for each in page.objects)
        except ClusterError as error:
            if error.status is None:
                raise
    return KaiObjects(pod, own, group, queues, frozenset(unread), members=members)


def _levels(group: KaiGroup | None, find: Callable[[str], KaiQueue | None]) -> tuple[KaiQueue, ...]:
    """The queue of the group and those above it; each once, whatever a circle of them names."""
    queues: dict[str, KaiQueue] = {}
    name = "" if group is None else group.queue
    while name and name not in queues and len(queues) < _MOST_LEVELS:
        queue = find(name)
        if queue is None:
            break
        queues[name] = queue
        name = queue.parent
    return tuple(queues.values())
