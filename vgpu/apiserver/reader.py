"""The next page of a list is requested while the last one is decoded.

An API server writes the token of the next page in front of the objects, so it is known before they
are decoded. There is one request at a time, as without this.
"""

import random
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, TypeVar

import msgspec

from vgpu.apiserver.connection import NOT_FOUND, ApiConnection, ClusterError, ExpiredError
from vgpu.apiserver.paths import of_object, path_of
from vgpu.kube import wire
from vgpu.kube.api_kind import ApiKind
from vgpu.kube.decode import decode
from vgpu.kube.disruption import DisruptionBudget
from vgpu.kube.documents import Keep, ObjectPage, WatchEvent
from vgpu.kube.dump import decode_dump
from vgpu.kube.kinds import (
    BUDGETS,
    CONFIG_MAPS,
    LEASES,
    NAMESPACES,
    NODE_CAPACITIES,
    NODES,
    POD_LABELS,
    PODS,
    SHARE_PODS,
)
from vgpu.kube.verbs import GET, LIST
from vgpu.model.objects import Lease, Namespace, Node, Pod
from vgpu.model.reasons import Reason, SourceError

_TOKEN: Final = re.compile(rb'"continue"\s*:\s*"([^"\\]+)"')

_HEAD: Final = 16 * 1024
"""Maximum number of bytes in front of the objects; tokens have some hundred."""


def next_token(answer: bytes) -> str:
    """The token of the next page if it stands in front of the objects; "" if none is found."""
    head, items, _ = answer[:_HEAD].partition(b'"items"')
    match = _TOKEN.search(head) if items else None
    return match[1].decode(errors="replace") if match else ""


class ReadAhead:
    """Answers to queries of one list, of which the next one may be requested early."""

    def __init__(self, ask: Callable[[Mapping[str, str]], bytes]) -> None:
        """``ask`` is called in another thread for a query that was begun."""
        self._ask = ask
        self._pool: ThreadPoolExecutor | None = None
        self._begun: tuple[Mapping[str, str], Future[bytes]] | None = None

    def begin(self, query: Mapping[str, str]) -> None:
        """Request the answer to a query that comes next."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "read-ahead")
        self._begun = query, self._pool.submit(self._ask, query)

    def answer(self, query: Mapping[str, str]) -> bytes:
        """The answer, which may have been requested already. Raises what ``ask`` raises."""
        begun, self._begun = self._begun, None
        if begun is not None and begun[0] == query:
            return begun[1].result()
        return self._ask(query)

    def close(self) -> None:
        """Wait for no answer any more."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


PAGE_SIZE: Final = 500
"""Number of objects on a page, as kubectl requests them."""

WATCH_SECONDS: Final = (240, 300)
"""Bounds of the random time for which the server keeps one watch open, in seconds: watches should
not all end at once."""

_SELECTORS: Final = {"field_selector": "fieldSelector", "label_selector": "labelSelector"}

_VERSION: Final = msgspec.json.Decoder(wire.ServerVersion)
_GROUPS: Final = msgspec.json.Decoder(wire.ApiGroups)
_RESOURCES: Final = msgspec.json.Decoder(wire.ApiResources)

_Object = TypeVar("_Object")


class Reader(ApiConnection):
    """One API server, as one user who reads.

    Lists take ``resource_version``: "" requests the newest state; "0" requests the API server's
    cache, which costs etcd nothing, but may be older and may come in one answer, whatever ``limit``
    (objects on a page) is. A watch starts at a page's own resource version. Selectors are
    ``field_selector``, ``label_selector`` and, for namespaced kinds, ``namespace``.

    All methods raise ClusterError, and SourceError for an answer that is not Kubernetes'.
    """

    # ------------------------------------------------------------ any kind

    def get(self, kind: ApiKind[_Object], namespace: str, name: str) -> _Object:
        """One object; ``namespace`` is "" for a kind that has none. NotFound if there is none."""
        path = path_of(kind, GET, namespace, name)
        return kind.one(self._ask(GET, path), self.server + path)

    def find(self, kind: ApiKind[_Object], namespace: str, name: str) -> _Object | None:
        """One object, None if there is none of that name."""
        try:
            return self.get(kind, namespace, name)
        except ClusterError as error:
            if error.status == NOT_FOUND:
                return None
            raise

    def pages(
        self,
        kind: ApiKind[_Object],
        *,
        keep: Keep = Keep.ALL,
        resource_version: str = "",
        limit: int = PAGE_SIZE,
        ahead: bool = False,
        **selectors: str,
    ) -> Iterator[ObjectPage[_Object]]:
        """Every page of a list. If the token expires meanwhile, the rest has a later version.

        With ``ahead`` a page is requested while the page before it is decoded: for lists that are
        read to their end. Raises ClusterError of status 404 if the server does not have the kind.
        """
        path, query = _selected(kind, selectors)
        query["limit"] = str(limit)
        place = {"resourceVersion": resource_version} if resource_version else {}
        reading = ReadAhead(lambda query: self._ask(LIST, path, query))
        try:
            while True:
                try:
                    answer = reading.answer(query | place)
                except ExpiredError as error:
                    if not error.token or error.token == place.get("continue"):
                        raise
                    place = {"continue": error.token}
                    continue
                if ahead and (token := next_token(answer)):
                    reading.begin(query | {"continue": token})
                page = kind.page(answer, self.server + path, keep=keep)
                yield page
                if not page.continue_token:
                    return
                place = {"continue": page.continue_token}
        finally:
            reading.close()

    def served_pages(
        self, kind: ApiKind[_Object], *, resource_version: str = "", **selectors: str
    ) -> tuple[ApiKind[_Object], tuple[ObjectPage[_Object], ...]] | None:
        """The kind in the newest API version that the server has, with all pages of a list of it.

        None if the server has it in no version.
        """
        for version in kind.in_each_version():
            try:
                pages = self.pages(
                    version,
                    keep=Keep.ALL,
                    resource_version=resource_version,
                    limit=PAGE_SIZE,
                    ahead=False,
                    **selectors,
                )
                return version, tuple(pages)
            except ClusterError as error:
                if error.status != NOT_FOUND:
                    raise
        return None

    def optional_pages(
        self, kind: ApiKind[_Object], **selectors: str
    ) -> tuple[ObjectPage[_Object], ...]:
        """All pages of :meth:`served_pages`; () if the server does not have the kind."""
        served = self.served_pages(kind, **selectors)
        return served[1] if served else ()

    def watch(
        self,
        kind: ApiKind[_Object],
        resource_version: str,
        opened: Callable[[], object] = lambda: None,
        **selectors: str,
    ) -> Iterator[WatchEvent[_Object]]:
        """The events of the selected objects from ``resource_version`` on.

        ``opened`` is called when the server has accepted the watch, before the first event.
        The server ends the watch after some minutes. Raises ClusterError of status 410 if the
        version is too old, so that the objects have to be listed again, and SourceError for a line
        that is no event.
        """
        path, query = _selected(kind, selectors)
        seconds = random.randint(*WATCH_SECONDS)  # noqa: S311  # no secret, only spread
        query |= {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds),
            "resourceVersion": resource_version,
        }
        object_name = f"watch of {self.server}"
        for line in self._stream(path, query, seconds, opened):
            event = kind.event(line, object_name)
            if event.error is not None:
                raise ClusterError(event.error.code, event.error.reason, event.error.message)
            yield event

    def object_text(
        self, group: str, version: str, plural: str, namespace: str, name: str
    ) -> bytes:
        """A namespaced object of a kind without a row, as the server sends it, like :meth:`get`."""
        return self._ask(GET, of_object(group, version, plural, namespace, name))

    def version(self) -> str:
        """The version of the server, such as ``v1.34.4``."""
        version: str = decode(self._ask(GET, "/version"), _VERSION, self.server).git_version
        return version

    def api_groups(self) -> frozenset[str]:
        """The groups of the API that the server has, each with its version: ``apps/v1``."""
        groups = decode(self._ask(GET, "/apis"), _GROUPS, self.server).groups
        return frozenset(
            version.group_version for group in groups or () for version in group.versions or ()
        )

    def api_resources(self, group_version: str) -> frozenset[str]:
        """The plurals of the kinds in a version of a group, such as ``apps/v1``."""
        path = f"/apis/{group_version}"
        listed = decode(self._ask(GET, path), _RESOURCES, self.server + path).resources
        return frozenset(resource.name for resource in listed or ())

    # ------------------------------------------------------------ lists

    def pods(
        self,
        *,
        keep: Keep = Keep.SHARING,
        resource_version: str = "",
        limit: int = PAGE_SIZE,
        ahead: bool = False,
        **selectors: str,
    ) -> Iterator[ObjectPage[Pod]]:
        """Pages of pods."""
        return self.pages(
            PODS,
            keep=keep,
            resource_version=resource_version,
            limit=limit,
            ahead=ahead,
            **selectors,
        )

    def nodes(self, **selectors: str) -> Iterator[Node]:
        """All readable nodes that the selectors choose."""
        return (
            node
            for page in self.node_pages(limit=PAGE_SIZE, ahead=False, **selectors)
            for node in page.objects
        )

    def node_pages(
        self, *, limit: int = PAGE_SIZE, ahead: bool = False, **selectors: str
    ) -> Iterator[ObjectPage[Node]]:
        """Pages of nodes."""
        return self.pages(NODES, keep=Keep.ALL, limit=limit, ahead=ahead, **selectors)

    def sharepod_pages(self) -> Iterator[ObjectPage[Pod]]:
        """Pages of SharePods; raises ClusterError of status 404 if KubeShare is not installed."""
        return self.pages(SHARE_PODS)

    def unhealthy_gpus(self) -> Mapping[str, str]:
        """The text of gpushare's ``unhealthy-gpu-<node>`` ConfigMaps, by node.

        All ConfigMaps of kube-system come in one answer: they are few, and a selector cannot match
        a prefix of names. Raises SourceError if one is unreadable: the unhealthy GPUs are unknown
        then.
        """
        path = path_of(CONFIG_MAPS, LIST, "kube-system")
        dump = decode_dump(self._ask(LIST, path), self.server + path)
        for malformed in dump.malformed:
            raise SourceError(Reason.MALFORMED, self.server + path, str(malformed))
        return dump.unhealthy

    # ------------------------------------------------------------ single objects

    def pod(self, namespace: str, name: str) -> Pod:
        """One pod. NotFound if there is none of that name."""
        return self.get(PODS, namespace, name)

    def sharepod(self, namespace: str, name: str) -> Pod:
        """One SharePod. NotFound if there is none of that name."""
        return self.get(SHARE_PODS, namespace, name)

    def node(self, name: str) -> Node:
        """One node. NotFound if there is none of that name."""
        return self.get(NODES, "", name)

    def namespace(self, name: str) -> Namespace:
        """One Namespace. NotFound if there is none of that name."""
        return self.get(NAMESPACES, "", name)

    def capacity(self, name: str) -> Mapping[str, str]:
        """A node's whole capacity, as it is written there. Errors are those of :meth:`node`."""
        return self.get(NODE_CAPACITIES, "", name)

    def config_map(self, namespace: str, name: str) -> Mapping[str, str] | None:
        """The data of a ConfigMap, None if there is none of that name."""
        config = self.versioned_config_map(namespace, name)
        return config and config[0]

    def versioned_config_map(
        self, namespace: str, name: str
    ) -> tuple[Mapping[str, str], str] | None:
        """The data of a ConfigMap and its resource version, None if there is none of that name."""
        return self.find(CONFIG_MAPS, namespace, name)

    def budgets(self, namespace: str) -> list[DisruptionBudget]:
        """All readable PodDisruptionBudgets of a namespace.

        Raises SourceError if one is unreadable: what it protects is unknown then.
        """
        budgets: list[DisruptionBudget] = []
        for page in self.pages(BUDGETS, namespace=namespace):
            for malformed in page.malformed:
                raise SourceError(Reason.MALFORMED, self.server, str(malformed))
            budgets += page.objects
        return budgets

    def pod_labels(self, namespace: str, name: str) -> tuple[str, Mapping[str, str]]:
        """A pod's UID and all its labels. NotFound if there is none of that name."""
        return self.get(POD_LABELS, namespace, name)

    def lease(self, namespace: str, name: str) -> Lease | None:
        """A Lease, None if there is none of that name."""
        return self.find(LEASES, namespace, name)


def _selected(kind: ApiKind[Any], selectors: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """The path and the query of a list with these selectors."""
    query = {
        _SELECTORS[name]: text for name, text in selectors.items() if text and name != "namespace"
    }
    return path_of(kind, LIST, selectors.get("namespace", "")), query
