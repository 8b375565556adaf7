"""How `vgpu explain` reads what KAI Scheduler has written: from dumps, or from the API server."""

from collections.abc import Callable, Sequence
from typing import Any, Final

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

_MOST_LEVELS: Final = 16
"""Maximum number of queues above each other that are read."""


def dumped_kai(paths: Sequence[str], file: ReadDump) -> ReadKai:
    """How to read them from dumps; ``file`` reads one of the paths, again."""
    kinds: tuple[ApiKind[Any], ...] = (KAI_PODS, *KAI_KINDS)
    by_kind = {(kind.name, kind.api_version): kind for kind in kinds}
    by_kind |= {(kind.name, ""): kind for kind in (KAI_PODS, BIND_REQUESTS)}

    def read(ref: PodRef) -> KaiObjects:
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
        objects = {name: list(of_kind.values()) for name, of_kind in found.items()}
        unread = bad | {kind.name for kind in KAI_KINDS if not objects[kind.name]}
        pods: list[KaiPod] = objects[KAI_PODS.name]
        own = [each for each in pods if (each.uid, each.name) == (ref.uid, ref.name)]
        pod = next(iter(own), None)
        requests: list[BindRequest] = objects[BIND_REQUESTS.name]
        named = [each for each in requests if each.is_of(ref)]
        groups: list[KaiGroup] = objects[KAI_GROUPS.name]
        group_ref = (ref.namespace, "" if pod is None else pod.group)
        own_groups = (each for each in groups if (each.namespace, each.name) == group_ref)
        group = next(own_groups, None)
        queues = {each.name: each for each in objects[KAI_QUEUES.name]}
        return KaiObjects(
            pod,
            next(iter(named), None),
            group,
            _levels(group, queues.get),
            frozenset(unread),
            members=None if group is None else sum(each.is_in(group) for each in pods),
        )

    return read


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
