"""Pods, nodes, SharePods and Namespaces at the API server; each kind reports whether all were seen.

Listed: every view reads them again, page by page. A list is whole only if all its pages have one
resource version: else objects may be missing that existed all the time. Watched: a view costs no
request; a kind is whole only while its watch is alive.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from http import HTTPStatus
from operator import attrgetter
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from vgpu.apiserver import list_watch
from vgpu.apiserver.client import ApiClient
from vgpu.apiserver.connection import ClusterError
from vgpu.apiserver.informer import STALE_SECONDS, Informer
from vgpu.apiserver.list_watch import ListWatch
from vgpu.kube.api_kind import ApiKind
from vgpu.kube.documents import Keep, ObjectPage
from vgpu.kube.kai_groups import KAI_QUEUE_KINDS
from vgpu.kube.kept_keys import shares_gpus
from vgpu.kube.kinds import NAMESPACES, RESOURCE_CLAIMS, RESOURCE_QUOTAS, RESOURCE_SLICES
from vgpu.kube.kueue_kinds import KUEUE_KINDS
from vgpu.kube.volcano_kinds import VOLCANO_KINDS
from vgpu.model.objects import MalformedObject, Namespace, Node, Pod, ResourceQuota
from vgpu.model.resource_claims import ResourceClaim, ResourceSlice

TRIES: Final = 3
"""Maximum number of tries to read a list that expires while it is read."""

FIRST_LISTS_SECONDS: Final = 60.0
"""Maximum time to wait for the first lists, in seconds: 100,000 pods take about ten seconds."""

QUEUE_KINDS: Final[tuple[ApiKind[Any], ...]] = (*KUEUE_KINDS, *VOLCANO_KINDS, *KAI_QUEUE_KINDS)
"""The kinds of systems with queues."""

_Object = TypeVar("_Object")


class Seen(msgspec.Struct, Generic[_Object], frozen=True):
    """The objects of one kind; ``note`` has the reason they are not all, "" if they are.

    ``malformed`` are objects that were seen and cannot be read.
    """

    objects: tuple[_Object, ...] = ()
    note: str = ""
    malformed: tuple[MalformedObject, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether these are all objects of the kind."""
        return not self.note


class Kinds(Protocol):
    """A cluster's objects; of pods those that share GPUs. Each raises ClusterError, SourceError."""

    def nodes(self) -> Seen[Node]:
        """The nodes."""
        ...

    def pods(self) -> Seen[Pod]:
        """The pods that share GPUs, KubeShare's holder pods among them, or use ResourceClaims."""
        ...

    def share_pods(self) -> Seen[Pod]:
        """KubeShare's SharePods; none, and complete, where KubeShare is not installed."""
        ...

    def namespaces(self) -> Seen[Namespace]:
        """The Namespaces, for their labels."""
        ...

    def resource_quotas(self) -> Seen[ResourceQuota]:
        """The ResourceQuotas."""
        ...

    def resource_claims(self) -> Seen[ResourceClaim]:
        """The ResourceClaims; none, and complete, where the server does not have the kind."""
        ...

    def resource_slices(self) -> Seen[ResourceSlice]:
        """The ResourceSlices; none, and complete, where the server does not have the kind."""
        ...

    def queues(self) -> Mapping[str, Seen[Any]]:
        """The objects of systems with queues, by the key of their kind.

        There are none, and they are complete, where the server does not have a kind.

        {} if they are not read. Never raises: a kind that cannot be read has a note.
        """
        ...

    def close(self) -> None:
        """End all watches."""
        ...


# ---------------------------------------------------------------- listed


class ListedKinds:
    """Lists the objects at each call."""

    def __init__(self, cluster: ApiClient, *, resource_claims: bool = False) -> None:
        """The caller closes ``cluster``. ``resource_claims``: also pods that use ResourceClaims."""
        self._cluster = cluster
        self._pods = (
            partial(cluster.pods, keep=Keep.RESOURCE_CLAIMS) if resource_claims else cluster.pods
        )

    def nodes(self) -> Seen[Node]:
        """The nodes; none where RBAC forbids reading them."""
        try:
            pages, note = whole("nodes", self._cluster.node_pages)
        except ClusterError as error:
            return _unseen("nodes", error)
        return Seen(tuple(node for page in pages for node in page.objects), note, _bad(pages))

    def pods(self) -> Seen[Pod]:
        """The pods; an error where RBAC forbids reading them: nothing can be judged without."""
        pages, note = whole("pods", self._pods)
        return Seen(tuple(pod for page in pages for pod in page.objects), note, _bad(pages))

    def share_pods(self) -> Seen[Pod]:
        """The SharePods; none where RBAC forbids reading them."""
        try:
            pages, note = whole("SharePods", self._cluster.sharepod_pages)
        except ClusterError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return Seen()
            return _unseen("SharePods", error)
        return Seen(tuple(pod for page in pages for pod in page.objects), note, _bad(pages))

    def namespaces(self) -> Seen[Namespace]:
        """The Namespaces; none where RBAC forbids reading them."""
        try:
            pages, note = whole("namespaces", partial(self._cluster.pages, NAMESPACES))
        except ClusterError as error:
            return _unseen("namespaces", error)
        return Seen(tuple(each for page in pages for each in page.objects), note, _bad(pages))

    def resource_quotas(self) -> Seen[ResourceQuota]:
        """The ResourceQuotas; none where RBAC forbids reading them."""
        try:
            pages, note = whole("ResourceQuotas", partial(self._cluster.pages, RESOURCE_QUOTAS))
        except ClusterError as error:
            return _unseen("ResourceQuotas", error)
        return Seen(tuple(each for page in pages for each in page.objects), note, _bad(pages))

    def resource_claims(self) -> Seen[ResourceClaim]:
        """The ResourceClaims; none where RBAC forbids reading them."""
        return self._optional(RESOURCE_CLAIMS, "ResourceClaims")

    def resource_slices(self) -> Seen[ResourceSlice]:
        """The ResourceSlices; none where RBAC forbids reading them."""
        return self._optional(RESOURCE_SLICES, "ResourceSlices")

    def queues(self) -> Mapping[str, Seen[Any]]:
        """None are read: only a loop has metrics, which alone need them."""
        return {}

    def _optional(self, kind: ApiKind[_Object], what: str) -> Seen[_Object]:
        try:
            pages, note = whole(what, lambda: iter(self._cluster.optional_pages(kind)))
        except ClusterError as error:
            return _unseen(what, error)
        return Seen(tuple(each for page in pages for each in page.objects), note, _bad(pages))

    def close(self) -> None:
        """Nothing is open."""


def whole(
    what: str, pages: Callable[[], Iterator[ObjectPage[_Object]]]
) -> tuple[tuple[ObjectPage[_Object], ...], str]:
    """All pages of one list, and why it is not whole, "" if it is. Raises as ``pages`` does."""
    read: tuple[ObjectPage[_Object], ...] = ()
    for _ in range(TRIES):
        try:
            read = tuple(pages())
        except ClusterError as error:
            if error.status != HTTPStatus.GONE:
                raise
            continue
        if len({page.resource_version for page in read}) <= 1:
            return read, ""
    return read, f"not all {what} are seen: their list expired while it was read, {TRIES} times"


def _bad(pages: Iterable[ObjectPage[_Object]]) -> tuple[MalformedObject, ...]:
    return tuple(malformed for page in pages for malformed in page.malformed)


def _unseen(what: str, error: ClusterError) -> Seen[_Object]:
    """No objects of a kind that we may not read. Raises any other error."""
    if error.status != HTTPStatus.FORBIDDEN:
        raise error
    return Seen((), f"{what} are not seen: {error.message}")


# ---------------------------------------------------------------- watched


class Watched:
    """Watches the objects from the start."""

    def __init__(
        self,
        cluster: ApiClient,
        *,
        namespaces: bool = False,
        quotas: bool = False,
        resource_claims: bool = False,
        queues: bool = False,
        stale_seconds: float = STALE_SECONDS,
        first_lists_seconds: float = FIRST_LISTS_SECONDS,
    ) -> None:
        """The caller closes ``cluster``, after this. ``namespaces``: watch Namespaces, too.
        ``quotas``: watch Namespaces and ResourceQuotas, too. ``resource_claims``: watch
        ResourceClaims and ResourceSlices, and pods that use ResourceClaims, too. ``queues``: watch
        the objects of systems with queues, too.

        ``stale_seconds`` is the maximum silence of the server, ``first_lists_seconds`` the maximum
        time to wait for all first lists together.
        """
        uid = attrgetter("ref.uid")
        self._pods = Informer(
            list_watch.pods(
                cluster, keep=Keep.RESOURCE_CLAIMS if resource_claims else Keep.SHARING
            ),
            "pods",
            key=uid,
            keep=_shares_or_uses_resource_claims if resource_claims else shares_gpus,
            stale_seconds=stale_seconds,
        )
        self._nodes = Informer(
            list_watch.nodes(cluster), "nodes", key=attrgetter("name"), stale_seconds=stale_seconds
        )
        self._share_pods = Informer(
            list_watch.sharepods(cluster), "SharePods", key=uid, stale_seconds=stale_seconds
        )
        self._namespaces = Informer(
            list_watch.namespaces(cluster),
            "namespaces",
            key=attrgetter("name"),
            stale_seconds=stale_seconds,
        )
        self._informers: tuple[Informer[Any], ...] = (self._pods, self._nodes, self._share_pods)
        self._quotas = Informer(
            list_watch.resource_quotas(cluster),
            "ResourceQuotas",
            key=_quota_key,
            keep=lambda quota: bool(quota.hard),
            stale_seconds=stale_seconds,
        )
        if namespaces or quotas:
            self._informers += (self._namespaces,)
        if quotas:
            self._informers += (self._quotas,)
        self._resource_claims = Informer(
            list_watch.resource_claims(cluster),
            "ResourceClaims",
            key=_resource_claim_key,
            keep=lambda resource_claim: bool(resource_claim.results),
            stale_seconds=stale_seconds,
        )
        self._resource_slices = Informer(
            list_watch.resource_slices(cluster),
            "ResourceSlices",
            key=attrgetter("name"),
            stale_seconds=stale_seconds,
        )
        if resource_claims:
            self._informers += (self._resource_claims, self._resource_slices)
        self._queues = [
            (
                kind,
                Informer(
                    ListWatch(cluster, kind),
                    f"{kind.name}s",
                    key=_queue_object_key,
                    stale_seconds=stale_seconds,
                ),
            )
            for kind in (QUEUE_KINDS if queues else ())
        ]
        self._informers += tuple(informer for _, informer in self._queues)
        self._deadline = time.monotonic() + first_lists_seconds
        for informer in self._informers:
            informer.start()

    def nodes(self) -> Seen[Node]:
        """The nodes as they were last heard of."""
        return self._seen("nodes", self._nodes)

    def pods(self) -> Seen[Pod]:
        """The pods as they were last heard of."""
        return self._seen("pods", self._pods)

    def share_pods(self) -> Seen[Pod]:
        """The SharePods as they were last heard of."""
        return self._seen("SharePods", self._share_pods)

    def namespaces(self) -> Seen[Namespace]:
        """The Namespaces as they were last heard of."""
        return self._seen("namespaces", self._namespaces)

    def resource_quotas(self) -> Seen[ResourceQuota]:
        """The ResourceQuotas as they were last heard of."""
        return self._seen("ResourceQuotas", self._quotas)

    def resource_claims(self) -> Seen[ResourceClaim]:
        """The ResourceClaims with devices as they were last heard of."""
        return self._seen("ResourceClaims", self._resource_claims)

    def resource_slices(self) -> Seen[ResourceSlice]:
        """The ResourceSlices as they were last heard of."""
        return self._seen("ResourceSlices", self._resource_slices)

    def queues(self) -> Mapping[str, Seen[Any]]:
        """The objects of systems with queues as they were last heard of."""
        return {kind.key: self._seen(f"{kind.name}s", informer) for kind, informer in self._queues}

    def close(self) -> None:
        """End all watches."""
        for informer in self._informers:
            informer.close()

    def _seen(self, what: str, informer: Informer[_Object]) -> Seen[_Object]:
        """The objects of one kind; complete only if its watch is alive at this moment."""
        informer.wait(max(0.0, self._deadline - time.monotonic()))
        state = informer.state()
        note = ""
        if state.failure is not None:
            note = f"some {what} could not be read: {state.failure}"
        elif not state.synced:
            silence = "yet" if state.silent is None else f"for {state.silent:.0f} s"
            note = f"some {what} could not be read: no answer from the API server {silence}"
        return Seen(tuple(state.objects.values()), note, state.malformed)


def _quota_key(quota: ResourceQuota | MalformedObject) -> str:
    namespace = quota.ref.namespace if isinstance(quota, MalformedObject) else quota.namespace
    return f"{namespace}/{quota.name}"


def _queue_object_key(queue_object: Any) -> str:
    if isinstance(queue_object, MalformedObject):
        return f"{queue_object.ref.namespace}/{queue_object.name}"
    return f"{getattr(queue_object, 'namespace', '')}/{queue_object.name}"


def _resource_claim_key(resource_claim: ResourceClaim | MalformedObject) -> str:
    return (
        resource_claim.ref.uid
        if isinstance(resource_claim, MalformedObject)
        else resource_claim.uid
    )


def _shares_or_uses_resource_claims(pod: Pod) -> bool:
    return pod.uses_resource_claims or shares_gpus(pod)
