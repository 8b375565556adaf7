"""The API server: pages and watches of pods and nodes, and the few writes of the product.

The official client finds the server and proves who we are; nothing else of it is used. Answers are
decoded by :mod:`vgpu.kube_json`: the client's models cost a hundred times as much a pod, and differ
between its releases. What the server refuses, and what does not reach it, is a
:class:`ClusterError`; an answer that is not Kubernetes' is a
:class:`~vgpu.reasons.SourceError` MALFORMED. Reads are tried again when the server is busy or a
connection breaks; writes that may have arrived never are.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeVar
from urllib.parse import quote, urlencode

import msgspec
import urllib3
from kubernetes import client, config

from vgpu.kube import Node, Pod
from vgpu.kube_json import (
    Event,
    Keep,
    NodePage,
    PodPage,
    decode_capacity,
    decode_config_map,
    decode_dump,
    decode_event,
    decode_node,
    decode_nodes,
    decode_pods,
    decode_share_pods,
)

PAGE_SIZE: Final = 500
"""Objects a page: what kubectl asks for."""

READ_TIMEOUT: Final = urllib3.Timeout(connect=10, read=60)
"""Seconds."""

WATCH_SECONDS: Final = 270
"""How long the server keeps one watch open."""

WATCH_TIMEOUT: Final = urllib3.Timeout(connect=10, read=WATCH_SECONDS + 30)
"""A watch may be silent to its end."""

MOST_WAIT_SECONDS: Final = 30
"""What is waited at most before a read is tried again, whatever the server asks for."""

_NOT_FOUND: Final = 404
_EXPIRED: Final = 410
_SUCCESSES: Final = range(200, 300)
_JSON_PATCH: Final = "application/json-patch+json"
_QUOTED: Final = 200
"""Bytes of an answer that are quoted where it is not a Status, such as a proxy's page."""


class ClusterError(Exception):
    """The API server cannot be found or reached, or has refused a request.

    Attributes:
        status: the HTTP status; 0 where there was no answer.
        reason: the server's word (``Forbidden``, ``NotFound``, ``Conflict`` …), or
            ``NoConfiguration``, ``Unreachable``.
        message: what it or the network said; of a Forbidden it names the missing right.
        retry_after: seconds that the server asks us to wait, None if it does not.
    """

    def __init__(
        self, status: int, reason: str, message: str, retry_after: float | None = None
    ) -> None:
        super().__init__(f"{reason}: {message}" if message else reason)
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after


class _ExpiredError(ClusterError):
    """A 410 for a page: ``token`` goes on from the same place at a later time, "" if it cannot."""

    def __init__(self, message: str, token: str) -> None:
        super().__init__(_EXPIRED, "Expired", message)
        self.token = token


class _Retry(urllib3.Retry):
    """How reads are tried again."""

    def get_retry_after(self, response: urllib3.BaseHTTPResponse) -> float | None:
        """What the server asks us to wait, within reason."""
        asked = super().get_retry_after(response)
        return None if asked is None else min(asked, MOST_WAIT_SECONDS)


_RETRIES: Final = _Retry(
    total=4,
    connect=1,  # an address where nobody listens rarely changes its mind
    status_forcelist=(429, 502, 503, 504),
    allowed_methods=frozenset({"GET"}),
    backoff_factor=0.3,
    backoff_jitter=0.3,
    backoff_max=10,
    raise_on_status=False,
)


class _ListMeta(msgspec.Struct, frozen=True):
    continue_token: str = msgspec.field(name="continue", default="")


class _Status(msgspec.Struct, frozen=True):
    """A Kubernetes Status, as a refusal's body."""

    reason: str = ""
    message: str = ""
    metadata: _ListMeta = _ListMeta()


class _Page(Protocol):
    """A page of any list."""

    @property
    def continue_token(self) -> str: ...


_AnyPage = TypeVar("_AnyPage", bound=_Page)


class Cluster:
    """One API server, as one user. A context manager: it closes its connections at the end."""

    def __init__(self, configuration: client.Configuration) -> None:
        """Speak to the server that the client library's configuration names."""
        self._configuration = configuration
        self._pool = client.ApiClient(configuration).rest_client.pool_manager
        self.server = configuration.host.rstrip("/")

    @classmethod
    def connect(cls, kubeconfig: str = "", context: str = "") -> Self:
        """The cluster of a kubeconfig, or of the pod that this runs in.

        In order: ``kubeconfig``; ``$KUBECONFIG``; ``~/.kube/config`` if there is one; the pod's
        ServiceAccount. A kubeconfig that is named and cannot be used is never passed over.

        Raises:
            ClusterError: NoConfiguration.
        """
        configuration = client.Configuration(host="")
        path = kubeconfig or os.environ.get("KUBECONFIG", "")
        home = Path.home() / ".kube" / "config"
        if not path and (context or home.exists()):
            path = str(home)
        if path:
            _from_kubeconfig(path, context, configuration)
        else:
            try:
                config.load_incluster_config(configuration)
            except config.ConfigException as error:
                hint = (
                    "no cluster is configured: pass --kubeconfig FILE or set KUBECONFIG"
                    f" ({home} does not exist, and this is not a pod)"
                )
                raise ClusterError(0, "NoConfiguration", hint) from error
        return cls(configuration)

    def close(self) -> None:
        """Close all connections."""
        self._pool.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.close()

    # ------------------------------------------------------------ reads

    def pods(self, *, keep: Keep = Keep.SHARING, **selectors: str) -> Iterator[PodPage]:
        """Pages of pods. Selectors: ``field_selector``, ``label_selector``, ``namespace``.

        Raises ClusterError, and SourceError for a page that is not what Kubernetes sends.
        """
        namespace = selectors.pop("namespace", "")
        path = f"/api/v1/namespaces/{quote(namespace)}/pods" if namespace else "/api/v1/pods"
        return self._pages(path, selectors, partial(decode_pods, keep=keep))

    def nodes(self, **selectors: str) -> Iterator[Node]:
        """All nodes that the selectors choose. Raises as :meth:`pods` does."""
        pages: Iterator[NodePage] = self._pages("/api/v1/nodes", selectors, decode_nodes)
        return (node for page in pages for node in page.nodes)

    def node(self, name: str) -> Node:
        """One node. Raises ClusterError NotFound if there is none of that name, or SourceError."""
        path = f"/api/v1/nodes/{quote(name, safe='')}"
        return decode_node(self._request("GET", path), self.server + path)

    def capacity(self, name: str) -> Mapping[str, str]:
        """All that a node has, as it is written there. Raises as :meth:`node` does."""
        path = f"/api/v1/nodes/{quote(name, safe='')}"
        return decode_capacity(self._request("GET", path), self.server + path)

    def sharepods(self) -> Iterator[Pod]:
        """KubeShare's SharePods as pods; none where KubeShare is not installed.

        Raises as :meth:`pods` does.
        """
        try:
            for page in self._pages("/apis/kubeshare.nthu/v1/sharepods", {}, decode_share_pods):
                yield from page.pods
        except ClusterError as error:
            if error.status != _NOT_FOUND:
                raise

    def unhealthy_gpus(self) -> Mapping[str, str]:
        """The text of gpushare's ``unhealthy-gpu-<node>`` ConfigMaps, by node.

        All ConfigMaps of kube-system in one answer: they are few, and names cannot be selected by
        how they begin. Raises as :meth:`pods` does.
        """
        path = "/api/v1/namespaces/kube-system/configmaps"
        return decode_dump(self._request("GET", path), self.server + path).unhealthy

    def config_map(self, namespace: str, name: str) -> Mapping[str, str] | None:
        """The data of a ConfigMap, None if there is none of that name. Raises as pods does."""
        path = f"/api/v1/namespaces/{quote(namespace, safe='')}/configmaps/{quote(name, safe='')}"
        try:
            return decode_config_map(self._request("GET", path), self.server + path)
        except ClusterError as error:
            if error.status == _NOT_FOUND:
                return None
            raise

    def watch_pods(self, resource_version: str, **selectors: str) -> Iterator[Event]:
        """What happens to the selected pods from ``resource_version`` on, until the server ends it.

        Raises ClusterError; its status is 410 when the version is too old, so that the pods have
        to be listed anew. Raises SourceError for a line that is no event.
        """
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
            "resourceVersion": resource_version,
            **_query(selectors),
        }
        response = self._open("GET", "/api/v1/pods", query, preload=False)
        try:
            for line in _lines(response):
                event = decode_event(line, f"watch of {self.server}")
                if event.error is not None:
                    raise ClusterError(event.error.code, event.error.reason, event.error.message)
                yield event
        except urllib3.exceptions.HTTPError as error:
            raise self._unreachable(error) from error
        finally:
            response.close()

    # ------------------------------------------------------------ writes

    def patch_node_status(
        self, name: str, operations: Sequence[Mapping[str, Any]], *, dry_run: bool = False
    ) -> Node:
        """Apply a JSON patch (RFC 6902) to a node's status subresource; the node as it then is.

        Raises ClusterError; a ``test`` operation that does not hold is an Invalid. Raises
        SourceError for an answer that is no node.
        """
        path = f"/api/v1/nodes/{quote(name, safe='')}/status"
        query = {"dryRun": "All"} if dry_run else {}
        answer = self._request("PATCH", path, query, operations, _JSON_PATCH)
        return decode_node(answer, self.server + path)

    # ------------------------------------------------------------ requests

    def _pages(
        self, path: str, selectors: Mapping[str, str], decode: Callable[[bytes, str], _AnyPage]
    ) -> Iterator[_AnyPage]:
        """Every page of a list. When the token expires on the way, the rest is of a later time."""
        query = {"limit": str(PAGE_SIZE), **_query(selectors)}
        token = ""
        while True:
            try:
                answer = self._request("GET", path, query | ({"continue": token} if token else {}))
            except _ExpiredError as error:
                if not error.token or error.token == token:
                    raise
                token = error.token
                continue
            page = decode(answer, self.server + path)
            yield page
            token = page.continue_token
            if not token:
                return

    def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = "application/json",
    ) -> bytes:
        return self._open(method, path, query or {}, body, content_type).data

    def _open(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: object = None,
        content_type: str = "application/json",
        *,
        preload: bool = True,
    ) -> urllib3.BaseHTTPResponse:
        headers = {"Accept": "application/json", "Accept-Encoding": "gzip", "User-Agent": "vgpu"}
        for auth in self._configuration.auth_settings().values():
            headers[auth["key"]] = auth["value"]
        if body is not None:
            headers["Content-Type"] = content_type
        url = f"{self.server}{path}" + (f"?{urlencode(query)}" if query else "")
        try:
            response = self._pool.request(
                method,
                url,
                body=None if body is None else json.dumps(body).encode(),
                headers=headers,
                retries=_RETRIES,
                redirect=False,  # an API server does not send us elsewhere; a login page would
                timeout=READ_TIMEOUT if preload else WATCH_TIMEOUT,
                preload_content=preload,
            )
            if response.status not in _SUCCESSES:
                raise _refusal(response)
        except urllib3.exceptions.HTTPError as error:
            raise self._unreachable(error) from error
        return response

    def _unreachable(self, error: urllib3.exceptions.HTTPError) -> ClusterError:
        cause = getattr(error, "reason", None) or error  # what lay behind the last of the tries
        return ClusterError(0, "Unreachable", f"{self.server}: {cause}")


def _from_kubeconfig(path: str, context: str, configuration: client.Configuration) -> None:
    """Raises ClusterError NoConfiguration."""
    try:
        config.load_kube_config(path, context or None, configuration, persist_config=False)
    except Exception as error:  # the library checks little of the file: anything may come of it
        missing = "" if any(map(os.path.exists, path.split(os.pathsep))) else "no such file: "
        raise ClusterError(0, "NoConfiguration", f"{path}: {missing}{error}") from error
    if not configuration.host:
        raise ClusterError(0, "NoConfiguration", f"{path}: the cluster has no server")


def _refusal(response: urllib3.BaseHTTPResponse) -> ClusterError:
    """The error in an answer; a body that is not a Status (a proxy's page) is quoted in part."""
    body = response.data
    try:
        status = msgspec.json.decode(body, type=_Status)
    except (msgspec.DecodeError, ValueError, RecursionError):
        status = _Status(message=body[:_QUOTED].decode("utf-8", "replace"))
    if response.status == _EXPIRED:
        return _ExpiredError(status.message, status.metadata.continue_token)
    retry_after = response.headers.get("Retry-After", "")
    return ClusterError(
        response.status,
        status.reason or f"HTTP {response.status}",
        status.message,
        float(retry_after) if retry_after.isdecimal() else None,
    )


def _query(selectors: Mapping[str, str]) -> dict[str, str]:
    names = {"field_selector": "fieldSelector", "label_selector": "labelSelector"}
    return {names[name]: text for name, text in selectors.items() if text}


def _lines(response: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    """The lines of a stream, each as soon as it is there; what follows the last is no line.

    Raises urllib3.exceptions.HTTPError where the stream breaks off.
    """
    rest = b""
    while chunk := response.read1(decode_content=True):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from filter(None, lines)
    if response.length_remaining:
        raise urllib3.exceptions.ProtocolError(f"{response.length_remaining} bytes are missing")
