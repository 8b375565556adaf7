"""What is read of the API server: lists page by page, watches, single objects.

An answer that is not Kubernetes' is a :class:`~vgpu.reasons.SourceError` MALFORMED. In a list or a
watch an object that cannot be read is a :class:`~vgpu.kube.objects.MalformedObject` beside the
others.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final, Protocol, TypeVar

from vgpu.kube.connection import NOT_FOUND, ApiConnection, ClusterError, ExpiredError, Verb
from vgpu.kube.documents import (
    Keep,
    NodePage,
    PodPage,
    WatchEvent,
    decode_capacity,
    decode_config_map,
    decode_dump,
    decode_lease,
    decode_node,
    decode_node_event,
    decode_nodes,
    decode_pod,
    decode_pod_event,
    decode_pods,
    decode_share_pod,
    decode_share_pod_event,
    decode_share_pods,
)
from vgpu.kube.objects import Lease, Node, Pod
from vgpu.kube.paths import ApiKind, of_object
from vgpu.reasons import Reason, SourceError

PAGE_SIZE: Final = 500
"""Objects a page: what kubectl asks for."""

WATCH_SECONDS: Final = (240, 300)
"""So long the server keeps one watch open: a random time, lest all watches end at once."""


class _Page(Protocol):
    """A page of any list."""

    @property
    def continue_token(self) -> str: ...


_AnyPage = TypeVar("_AnyPage", bound=_Page)
_Object = TypeVar("_Object")


class Reader(ApiConnection):
    """One API server, as one user who reads.

    Lists take ``resource_version``: "" asks for the newest state; "0" is content with what the
    API server remembers, which costs etcd nothing, but may be of some time ago and may come in
    one answer, whatever ``limit`` (objects a page) says. A page's own resource version is where to
    watch from. Selectors are ``field_selector``, ``label_selector`` and, of what has one,
    ``namespace``.

    All raise ClusterError, and SourceError for an answer that is not what Kubernetes sends.
    """

    # ------------------------------------------------------------ lists

    def pods(
        self,
        *,
        keep: Keep = Keep.SHARING,
        resource_version: str = "",
        limit: int = PAGE_SIZE,
        **selectors: str,
    ) -> Iterator[PodPage]:
        """Pages of pods."""
        decode = partial(decode_pods, keep=keep)
        return self._pages(ApiKind.PODS, selectors, decode, resource_version, limit)

    def nodes(self, **selectors: str) -> Iterator[Node]:
        """All nodes that the selectors choose, as far as they can be read."""
        return (
            node for page in self.node_pages(limit=PAGE_SIZE, **selectors) for node in page.nodes
        )

    def node_pages(
        self, *, resource_version: str = "", limit: int = PAGE_SIZE, **selectors: str
    ) -> Iterator[NodePage]:
        """Pages of nodes."""
        return self._pages(ApiKind.NODES, selectors, decode_nodes, resource_version, limit)

    def sharepod_pages(
        self, *, resource_version: str = "", limit: int = PAGE_SIZE, **selectors: str
    ) -> Iterator[PodPage]:
        """Pages of SharePods; a ClusterError of status 404 where KubeShare is not installed."""
        return self._pages(
            ApiKind.SHARE_PODS, selectors, decode_share_pods, resource_version, limit
        )

    def unhealthy_gpus(self) -> Mapping[str, str]:
        """The text of gpushare's ``unhealthy-gpu-<node>`` ConfigMaps, by node.

        All ConfigMaps of kube-system in one answer: they are few, and names cannot be selected by
        how they begin. One of them that cannot be read is a SourceError: whose GPUs are unhealthy
        is not known then.
        """
        path = ApiKind.CONFIG_MAPS.all("kube-system")
        found = decode_dump(self._ask(Verb.LIST, path), self.server + path)
        for each in found.malformed:
            raise SourceError(Reason.MALFORMED, self.server + path, str(each))
        return found.unhealthy

    # ------------------------------------------------------------ watches

    def watch_pods(self, resource_version: str, **selectors: str) -> Iterator[WatchEvent[Pod]]:
        """What happens to the selected pods from ``resource_version`` on, until the server ends it.

        A ClusterError's status is 410 when the version is too old, so that the pods have to be
        listed anew; SourceError is for a line that is no event.
        """
        return self._watch(ApiKind.PODS, resource_version, selectors, decode_pod_event)

    def watch_nodes(self, resource_version: str, **selectors: str) -> Iterator[WatchEvent[Node]]:
        """What happens to the selected nodes; as :meth:`watch_pods`."""
        return self._watch(ApiKind.NODES, resource_version, selectors, decode_node_event)

    def watch_sharepods(self, resource_version: str, **selectors: str) -> Iterator[WatchEvent[Pod]]:
        """What happens to the SharePods; as :meth:`watch_pods`."""
        return self._watch(ApiKind.SHARE_PODS, resource_version, selectors, decode_share_pod_event)

    # ------------------------------------------------------------ single objects

    def pod(self, namespace: str, name: str) -> Pod:
        """One pod. NotFound if there is none of that name."""
        return self._get(ApiKind.PODS, namespace, name, decode_pod)

    def sharepod(self, namespace: str, name: str) -> Pod:
        """One SharePod. NotFound if there is none of that name."""
        return self._get(ApiKind.SHARE_PODS, namespace, name, decode_share_pod)

    def node(self, name: str) -> Node:
        """One node. NotFound if there is none of that name."""
        return self._get(ApiKind.NODES, "", name, decode_node)

    def capacity(self, name: str) -> Mapping[str, str]:
        """All that a node has, as it is written there. As :meth:`node`."""
        return self._get(ApiKind.NODES, "", name, decode_capacity)

    def config_map(self, namespace: str, name: str) -> Mapping[str, str] | None:
        """The data of a ConfigMap, None if there is none of that name."""
        found = self.versioned_config_map(namespace, name)
        return found and found[0]

    def versioned_config_map(
        self, namespace: str, name: str
    ) -> tuple[Mapping[str, str], str] | None:
        """The data of a ConfigMap and its resource version, None if there is none of that name."""
        return self._find(ApiKind.CONFIG_MAPS, namespace, name, decode_config_map)

    def object_text(
        self, group: str, version: str, plural: str, namespace: str, name: str
    ) -> bytes:
        """Any namespaced object as the server sends it. NotFound if there is none of that name."""
        return self._ask(Verb.GET, of_object(group, version, plural, namespace, name))

    def lease(self, namespace: str, name: str) -> Lease | None:
        """A Lease, None if there is none of that name."""
        return self._find(ApiKind.LEASES, namespace, name, decode_lease)

    # ------------------------------------------------------------ how

    def _get(
        self, kind: ApiKind, namespace: str, name: str, decode: Callable[[bytes, str], _Object]
    ) -> _Object:
        path = kind.one(namespace, name)
        return decode(self._ask(Verb.GET, path), self.server + path)

    def _find(
        self, kind: ApiKind, namespace: str, name: str, decode: Callable[[bytes, str], _Object]
    ) -> _Object | None:
        try:
            return self._get(kind, namespace, name, decode)
        except ClusterError as error:
            if error.status == NOT_FOUND:
                return None
            raise

    def _pages(
        self,
        kind: ApiKind,
        selectors: Mapping[str, str],
        decode: Callable[[bytes, str], _AnyPage],
        resource_version: str,
        limit: int,
    ) -> Iterator[_AnyPage]:
        """Every page of a list. When the token expires on the way, the rest is of a later time."""
        path, query = _selected(kind, selectors)
        query["limit"] = str(limit)
        place = {"resourceVersion": resource_version} if resource_version else {}
        while True:
            try:
                answer = self._ask(Verb.LIST, path, query | place)
            except ExpiredError as error:
                if not error.token or error.token == place.get("continue"):
                    raise
                place = {"continue": error.token}
                continue
            page = decode(answer, self.server + path)
            yield page
            if not page.continue_token:
                return
            place = {"continue": page.continue_token}

    def _watch(
        self,
        kind: ApiKind,
        resource_version: str,
        selectors: Mapping[str, str],
        decode: Callable[[bytes, str], WatchEvent[_Object]],
    ) -> Iterator[WatchEvent[_Object]]:
        path, query = _selected(kind, selectors)
        seconds = random.randint(*WATCH_SECONDS)  # noqa: S311  # no secret, only spread
        query |= {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds),
            "resourceVersion": resource_version,
        }
        subject = f"watch of {self.server}"
        for line in self._stream(path, query, seconds):
            event = decode(line, subject)
            if event.error is not None:
                raise ClusterError(event.error.code, event.error.reason, event.error.message)
            yield event


def _selected(kind: ApiKind, selectors: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """The path and the query of what the selectors choose."""
    names = {"field_selector": "fieldSelector", "label_selector": "labelSelector"}
    query = {names[name]: text for name, text in selectors.items() if text and name != "namespace"}
    return kind.all(selectors.get("namespace", "")), query
