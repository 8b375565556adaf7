"""A small API server on loopback, for the demo and for tests: Kubernetes' HTTP over a store.

Discovery, lists, single objects, watches, creations, replacements, merge patches, JSON patches of
a node's status, bindings and evictions, of the few kinds that the product knows, with Kubernetes'
paths, status codes and ``Status`` bodies; every client may do everything. Tests with a real API
server show what a real one does.
"""

import json
import re
import ssl
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from simulator.store import EVERYTHING, Json, ObjectStore, Selector, StoreError
from vgpu.kube.api_kind import ApiKind
from vgpu.kube.installation_kinds import INSTALLATION_KINDS
from vgpu.kube.kinds import KINDS, NODES, PODS
from vgpu.kube.kueue_kinds import KUEUE_KINDS
from vgpu.kube.label_selector import parse_selector
from vgpu.kube.volcano_kinds import VOLCANO_KINDS

MOST_BODY: Final = 4 * 1024 * 1024
"""Maximum size of a request's body, in bytes; etcd keeps no object of more than 1.5 MiB."""

BOOKMARK_SECONDS: Final = 5.0
"""Silence on a watch before a bookmark, in seconds; a real server waits about a minute."""

WATCH_SECONDS: Final = 300.0
"""Maximum duration of a watch without timeoutSeconds, in seconds."""

_PATH: Final = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/(?P<version>[^/]+)"
    r"(?:/namespaces/(?P<namespace>[^/]+))?/(?P<plural>[^/]+)"
    r"(?:/(?P<name>[^/]+))?(?:/(?P<below>[^/]+))?"
)
_MERGE_PATCH: Final = "application/merge-patch+json"
_JSON_PATCH: Final = "application/json-patch+json"


ALL_KINDS: Final = (*KINDS, *INSTALLATION_KINDS, *KUEUE_KINDS, *VOLCANO_KINDS)
"""The kinds that the server has."""


class _Target(msgspec.Struct, frozen=True):
    """The target of a request: a kind, or one object, or a part of an object."""

    kind: ApiKind[Any]
    namespace: str
    name: str
    below: str
    query: Mapping[str, str]

    @property
    def dry_run(self) -> bool:
        """Whether nothing is stored."""
        return self.query.get("dryRun") == "All"

    @property
    def selector(self) -> Selector:
        """The selector of the request. Raises StoreError."""
        labels = self.query.get("labelSelector", "")
        fields, unequal = _field_terms(self.query.get("fieldSelector", ""))
        try:
            selects = parse_selector(labels) if labels else EVERYTHING.selects
            return Selector(self.namespace, fields, selects, unequal)
        except ValueError as error:
            raise _bad_request(str(error)) from error

    def number(self, name: str, default: float = 0) -> float:
        """A number of the query. Raises StoreError."""
        text = self.query.get(name, "")
        if not text:
            return default
        if not text.isascii() or not text.isdecimal():
            raise _bad_request(f"{name}: not a number: {text!r}")
        return float(text)


class ApiServer:
    """Serves a store from :meth:`start` to the end of the block."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        bookmark_seconds: float = BOOKMARK_SECONDS,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """It listens at once, on a port of the kernel's choice."""
        self._scheme = "https" if tls else "http"
        self._server = _Server(store, bookmark_seconds, tls)
        self._store = store
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            kwargs={"poll_interval": 0.05},
            name="simulated-apiserver",
            daemon=True,
        )

    @property
    def url(self) -> str:
        """Its URL."""
        return f"{self._scheme}://127.0.0.1:{self._server.server_port}"

    def kubeconfig(self) -> str:
        """A kubeconfig for this server."""
        name = "simulated"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": name, "cluster": {"server": self.url}}],
            "users": [{"name": name, "user": {}}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
            "current-context": name,
        }
        return json.dumps(config, indent=2) + "\n"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self._store.close()
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(
        self, store: ObjectStore, bookmark_seconds: float, tls: ssl.SSLContext | None
    ) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        if tls:
            self.socket = tls.wrap_socket(
                self.socket, server_side=True, do_handshake_on_connect=False
            )
        self.store = store
        self.bookmark_seconds = bookmark_seconds

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing for a client that left; any other error is a defect here."""
        if not isinstance(sys.exception(), ConnectionError | ssl.SSLError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # with a buffer: else an answer waits 40 ms for the client's ACK
    wbufsize = -1
    server: _Server

    def _handle(self) -> None:
        try:
            body = self._body()
            about_itself = _DISCOVERY.get(urlsplit(self.path).path)
            if self.command == "GET" and about_itself is not None:
                self._send(HTTPStatus.OK, about_itself)
                return
            target = self._target()
            if self.command == "GET" and target.query.get("watch") in ("true", "1"):
                self._watch(target)
            else:
                self._send(*self._answer(target, body))
        except StoreError as refusal:
            self._send(refusal.code, _status(refusal))

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _handle  # noqa: N815  # http.server's names

    def log_message(self, *_: Any) -> None:
        """Log nothing."""

    # ------------------------------------------------------------ requests

    def _body(self) -> Json:
        """The object; a JSON patch, which is a list, below "operations". Raises StoreError."""
        length = self.headers.get("Content-Length", "0")
        if not length.isascii() or not length.isdecimal() or int(length) > MOST_BODY:
            self.close_connection = True  # what follows is not read
            code = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
            raise StoreError(code, "RequestEntityTooLarge", f"at most {MOST_BODY} bytes")
        content = self.rfile.read(int(length))
        if not content:
            return {}
        try:
            body = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise _bad_request(f"the body is not JSON: {error}") from error
        if isinstance(body, list) and self.headers.get_content_type() == _JSON_PATCH:
            return {"operations": body}
        if not isinstance(body, dict) or not isinstance(body.get("metadata", {}), dict):
            raise _bad_request("the body is not an object")
        return body

    def _target(self) -> _Target:
        """Raises StoreError."""
        parts = urlsplit(self.path)
        match = _PATH.fullmatch(parts.path)
        pieces = match.groupdict(default="") if match else {}
        path = {key: unquote(text) for key, text in pieces.items()}
        group = "/".join(filter(None, (path.get("group"), path.get("version"))))
        for kind in ALL_KINDS:
            if (kind.api_version, kind.plural) == (group, path.get("plural")):
                query = dict(parse_qsl(parts.query, keep_blank_values=True))
                return _Target(kind, path["namespace"], path["name"], path["below"], query)
        message = "the server could not find the requested resource"
        raise StoreError(HTTPStatus.NOT_FOUND, "NotFound", message)

    def _answer(  # noqa: PLR0911  # one for each verb
        self, target: _Target, body: Json
    ) -> tuple[HTTPStatus, Json]:
        """Raises StoreError."""
        store, dry_run = self.server.store, target.dry_run
        match self.command, bool(target.name), target.below:
            case "GET", False, "":
                return HTTPStatus.OK, self._list(target)
            case "GET", True, "":
                return HTTPStatus.OK, store.get(target.kind, target.namespace, target.name)
            case "POST", False, "":
                made = store.create(target.kind, _whole(target, body), dry_run=dry_run)
                return HTTPStatus.CREATED, made
            case "PUT", True, "":
                whole = _whole(target, body)
                return HTTPStatus.OK, store.replace(target.kind, whole, dry_run=dry_run)
            case "PATCH", True, "":
                self._expect(_MERGE_PATCH)
                return HTTPStatus.OK, store.patch(
                    target.kind, target.namespace, target.name, body, dry_run=dry_run
                )
            case "PATCH", True, "status" if target.kind in (PODS, NODES):
                self._expect(_MERGE_PATCH, _JSON_PATCH)
                is_merge = self.headers.get_content_type() == _MERGE_PATCH
                patch = body if is_merge else body.get("operations", [])
                return HTTPStatus.OK, store.patch_status(
                    target.kind, target.namespace, target.name, patch, dry_run=dry_run
                )
            case "POST", True, "binding" if target.kind is PODS:
                target_node = body.get("target")
                if not isinstance(target_node, dict) or not target_node.get("name"):
                    raise _bad_request("the binding names no node")
                binding: Json = {"metadata": {}} | body
                store.bind(target.namespace, target.name, binding, dry_run=dry_run)
                return HTTPStatus.CREATED, _SUCCESS
            case "POST", True, "eviction" if target.kind is PODS:
                wanted = _preconditions(body)
                store.evict(target.namespace, target.name, wanted, dry_run=dry_run)
                return HTTPStatus.CREATED, _SUCCESS
            case _:
                message = "the server does not allow this method on the requested resource"
                raise StoreError(HTTPStatus.METHOD_NOT_ALLOWED, "MethodNotAllowed", message)

    def _expect(self, *content_types: str) -> None:
        """Raises StoreError for a body of another type."""
        if self.headers.get_content_type() not in content_types:
            code = HTTPStatus.UNSUPPORTED_MEDIA_TYPE
            message = f"only {' and '.join(content_types)}"
            raise StoreError(code, "UnsupportedMediaType", message)

    def _list(self, target: _Target) -> Json:
        token, limit = target.query.get("continue", ""), int(target.number("limit"))
        store = self.server.store
        page = (
            store.go_on(token, limit) if token else store.list(target.kind, target.selector, limit)
        )
        meta = {"resourceVersion": str(page.version)}
        return {
            "kind": f"{target.kind.name}List",
            "apiVersion": target.kind.api_version,
            "metadata": meta | ({"continue": page.token} if page.token else {}),
            "items": page.items,
        }

    # ------------------------------------------------------------ answers

    def _watch(self, target: _Target) -> None:
        """A line of JSON for each event, as chunks. Raises StoreError before the first."""
        since = int(target.number("resourceVersion"))
        deadline = time.monotonic() + target.number("timeoutSeconds", WATCH_SECONDS)
        server = self.server
        events = server.store.watch(target.kind, target.selector, since, server.bookmark_seconds)
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        for type_, document in events:
            line = msgspec.json.encode({"type": type_, "object": document}) + b"\n"
            self.wfile.write(b"%x\r\n%b\r\n" % (len(line), line))
            self.wfile.flush()
            if time.monotonic() >= deadline:
                break
        self.wfile.write(b"0\r\n\r\n")

    def _send(self, code: HTTPStatus, content: Json) -> None:
        body = msgspec.json.encode(content)
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


_CUSTOM: Final[Mapping[str, tuple[str, ...]]] = {
    "scheduling.volcano.sh/v1beta1": ("podgroups", "queues"),
    "batch.volcano.sh/v1alpha1": ("jobs",),
}
"""Kinds of Volcano, of which the server has the names alone."""

_VERBS: Final = ("create", "get", "list", "patch", "update", "watch")
"""What a client may do with the objects of each kind."""

_SHORT_NAMES: Final = {
    "configmaps": ("cm",),
    "namespaces": ("ns",),
    "nodes": ("no",),
    "pods": ("po",),
    "resourcequotas": ("quota",),
}
"""The short names of kubectl."""


def _resource(kind: ApiKind[Any]) -> Json:
    return {
        "name": kind.plural,
        "singularName": kind.name.lower(),
        "namespaced": kind.namespaced,
        "kind": kind.name,
        "verbs": _VERBS,
        "shortNames": _SHORT_NAMES.get(kind.plural, ()),
    }


_RESOURCES: Final[Mapping[str, tuple[Json, ...]]] = {
    **{
        version: tuple(_resource(kind) for kind in ALL_KINDS if kind.api_version == version)
        for version in sorted({kind.api_version for kind in ALL_KINDS})
    },
    **{
        version: tuple({"name": plural, "kind": plural, "verbs": ()} for plural in plurals)
        for version, plurals in _CUSTOM.items()
    },
}
"""The kinds, by the versions of their groups."""


def _groups() -> Iterator[Json]:
    """Each group with its versions; the first one is preferred."""
    versions = [tuple(version.split("/")) for version in _RESOURCES if "/" in version]
    for group in dict.fromkeys(group for group, _ in versions):
        listed = [
            {"groupVersion": f"{group}/{version}", "version": version}
            for name, version in versions
            if name == group
        ]
        yield {"name": group, "versions": listed, "preferredVersion": listed[0]}


_DISCOVERY: Final[Mapping[str, Json]] = {
    "/version": {"major": "1", "minor": "34", "gitVersion": "v1.34.4-simulated"},
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": list(_groups())},
    **{
        f"/{'apis' if '/' in version else 'api'}/{version}": {
            "kind": "APIResourceList",
            "groupVersion": version,
            "resources": resources,
        }
        for version, resources in _RESOURCES.items()
    },
}
"""The answers about the server itself."""

_SUCCESS: Final[Json] = {"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 201}


def _status(refusal: StoreError) -> Json:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {"continue": refusal.token} if refusal.token else {},
        "status": "Failure",
        "message": refusal.message,
        "reason": refusal.reason,
        "code": refusal.code,
    }


def _bad_request(message: str) -> StoreError:
    return StoreError(HTTPStatus.BAD_REQUEST, "BadRequest", message)


def _field_terms(text: str) -> tuple[dict[str, str], tuple[tuple[str, str], ...]]:
    """``a=b,c==d`` by key, and the pairs of ``e!=f``. Raises StoreError for any other selector."""
    equal: dict[str, str] = {}
    unequal: list[tuple[str, str]] = []
    for part in filter(None, text.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise _bad_request(f"this simulator selects fields by = and != only, not by {part!r}")
        if key.endswith("!"):
            unequal.append((key.removesuffix("!"), value))
        else:
            equal[key] = value.removeprefix("=")
    return equal, tuple(unequal)


def _whole(target: _Target, body: Json) -> Json:
    """The object of a request, which has to match its path. Raises StoreError."""
    meta = body.get("metadata", {})
    place = {"namespace": target.namespace} if target.kind.namespaced else {}
    name = target.name or meta.get("name")
    if not name or not isinstance(name, str):
        raise _bad_request("the object has no name")
    expected = place | {"name": name}
    if any(meta.get(key, text) != text for key, text in expected.items()):
        raise _bad_request("the object's name or namespace is not that of the request")
    return body | {"metadata": meta | expected}


def _preconditions(body: Json) -> Mapping[str, str]:
    """Raises StoreError."""
    options = body.get("deleteOptions") or {}
    wanted = (options.get("preconditions") if isinstance(options, dict) else None) or {}
    if not isinstance(wanted, dict) or not all(isinstance(text, str) for text in wanted.values()):
        raise _bad_request("these are no preconditions")
    return wanted
