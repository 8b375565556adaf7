"""A stand-in for the API server of a large cluster: nodes and pods, page by page, over TLS.

    with PagedApi(folder, nodes, pods) as api:
        api.kubeconfig             # the path of a kubeconfig
        api.requests()             # number of requests since the last call

It runs in a process of its own, and whole lists are encoded before the first request, so that its
own costs are those of sending. A real API server also reads, authorizes and encodes. Field
selectors select by ``spec.nodeName`` alone.
"""

import json
import multiprocessing
import ssl
from collections import defaultdict
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

import yaml

from tests.support.bed.pki import Authority

_NODE = "spec.nodeName="


def _list(items: list[bytes], token: str = "") -> bytes:
    """A list of objects that are encoded already."""
    metadata = json.dumps({"resourceVersion": "1", "continue": token})
    return b'{"kind": "List", "apiVersion": "v1", "metadata": %s, "items": [%s]}' % (
        metadata.encode(),
        b",".join(items),
    )


class _Objects:
    """Nodes and pods as JSON texts, with the answers about them."""

    def __init__(self, nodes: list[dict[str, Any]], pods: list[dict[str, Any]], limit: int) -> None:
        """``limit`` is the size of a page in requests."""
        self.whole = {
            "/api/v1/nodes": [json.dumps(each).encode() for each in nodes],
            "/api/v1/pods": [json.dumps(each).encode() for each in pods],
        }
        self.single: dict[str, bytes] = {}
        self.by_node: dict[str, list[bytes]] = defaultdict(list)
        self.by_namespace: dict[str, list[bytes]] = defaultdict(list)
        for each, text in zip(nodes, self.whole["/api/v1/nodes"], strict=True):
            self.single[f"/api/v1/nodes/{each['metadata']['name']}"] = text
        for each, text in zip(pods, self.whole["/api/v1/pods"], strict=True):
            metadata = each["metadata"]
            place = f"/api/v1/namespaces/{metadata['namespace']}/pods"
            self.single[f"{place}/{metadata['name']}"] = text
            self.by_node[each["spec"].get("nodeName", "")].append(text)
            self.by_namespace[place].append(text)
        self.pages: dict[tuple[str, int, int], bytes] = {}
        for path, items in self.whole.items():
            for at in range(0, max(1, len(items)), limit):
                rest = str(at + limit) if at + limit < len(items) else ""
                self.pages[path, at, limit] = _list(items[at : at + limit], rest)

    def answer(self, target: str) -> bytes | None:
        """The body of a request; None if there is no such object."""
        parts = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if parts.path in self.whole:
            selector = query.get("fieldSelector", "")
            if selector:
                return _list(self.by_node.get(selector.removeprefix(_NODE), []))
            return self.pages.get((parts.path, int(query.get("continue", 0)), int(query["limit"])))
        if parts.path.endswith("/pods"):
            return _list(self.by_namespace.get(parts.path, []))
        if parts.path.endswith(("/resourcequotas", "/configmaps")):
            return _list([])
        return self.single.get(parts.path)


def _serve(folder: Path, objects: Callable[[], _Objects], ready: Any, count: Any) -> None:
    served = objects()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # as Go's servers do; else each answer waits 40 ms

        def do_GET(self) -> None:
            with count.get_lock():
                count.value += 1
            body = served.answer(self.path)
            missing = b'{"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404}'
            self.send_response(404 if body is None else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body or missing)))
            self.end_headers()
            self.wfile.write(body or missing)

        def log_message(self, *_: Any) -> None:
            pass

    authority = Authority(folder / "pki")
    pair = authority.server("server", "127.0.0.1")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    ready.put((server.server_address[1], str(authority.ca.certificate)))
    server.serve_forever()


class PagedApi:
    """Serves the objects that two functions return, until the end of the block."""

    def __init__(self, folder: Path, nodes: Any, pods: Any, limit: int = 500) -> None:
        """``nodes`` and ``pods`` are called in the server's process."""
        context = multiprocessing.get_context("fork")
        self._ready = context.Queue()
        self._count = context.Value("i", 0)

        def objects() -> _Objects:
            return _Objects(nodes(), pods(), limit)

        arguments = (folder, objects, self._ready, self._count)
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        self._folder = folder
        self.kubeconfig = ""

    def __enter__(self) -> Self:
        self._process.start()
        port, authority = self._ready.get()
        cluster = {"server": f"https://127.0.0.1:{port}", "certificate-authority": authority}
        path = self._folder / "kubeconfig"
        path.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "c",
                    "clusters": [{"name": "c", "cluster": cluster}],
                    "users": [{"name": "u", "user": {"token": "a-token"}}],
                    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                }
            )
        )
        self.kubeconfig = str(path)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.join()

    def requests(self) -> int:
        """Number of requests since the last call."""
        with self._count.get_lock():
            number, self._count.value = self._count.value, 0
        return number
