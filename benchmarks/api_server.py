"""A stand-in for the API server of one node: its pods as a list and a watch, over TLS.

    with ApiServer(folder, node) as server:
        server.environment()       # in which a program finds it as in a pod
        server.account             # the folder of the pod's ServiceAccount

A pod has what a real one has and the exporter has no use for: managed fields, environment, volumes.
Its first pod is reported as changed every five seconds.
"""

import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from benchmarks.real_node import RealNode
from simulator import tree
from tests.support.bed.pki import Authority

EVENT_SECONDS = 5.0
"""Interval between two events of a watch, in seconds."""

VARIABLES, MANAGERS = 40, 4
"""Number of environment variables and of managed fields' entries of a pod: about 10 KiB."""

_FIELDS = {f"f:field-{number}": {"f:value": {}, ".": {}} for number in range(40)}


def _as_real(pod: dict[str, Any], number: int) -> dict[str, Any]:
    """The pod with what its users and controllers write."""
    pod["metadata"]["resourceVersion"] = str(1000 + number)
    pod["metadata"]["managedFields"] = [
        {"manager": f"manager-{which}", "operation": "Update", "fieldsV1": _FIELDS}
        for which in range(MANAGERS)
    ]
    for container in pod["spec"]["containers"]:
        container["env"] = [
            {"name": f"VARIABLE_{which}", "value": f"{number}-{which}" * 8}
            for which in range(VARIABLES)
        ]
        container["volumeMounts"] = [
            {"name": f"volume-{which}", "mountPath": f"/data/{which}"} for which in range(8)
        ]
    return pod


class ApiServer:
    """Serves a node's pods from threads of this process until the end."""

    def __init__(self, folder: Path, node: RealNode) -> None:
        folder.mkdir()
        authority = Authority(folder / "pki")
        pair = authority.server("server", "127.0.0.1")
        self.account = folder / "account"
        self.account.mkdir()
        self.account.joinpath("ca.crt").write_bytes(authority.ca.certificate.read_bytes())
        self.account.joinpath("token").write_text("a-token")
        pods = json.loads(Path(node.node.folder, tree.PODS_FILE).read_bytes())["items"]
        self.pods = [_as_real(pod, number) for number, pod in enumerate(pods)]
        self.ended = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.certificate, pair.key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self._server.shutdown()
        self._server.socket.close()

    def environment(self) -> dict[str, str]:
        """The variables by which a program in a pod finds the server."""
        port = str(self._server.server_address[1])
        return {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": port}

    def answer(self, path: str) -> dict[str, Any]:
        """The list of pods, or the node."""
        if path.endswith("/pods"):
            metadata = {"resourceVersion": "5000"}
            return {"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": self.pods}
        name = path.rpartition("/")[2]
        return {"kind": "Node", "apiVersion": "v1", "metadata": {"name": name}, "status": {}}

    def event(self, number: int) -> bytes:
        """The line of an event of the watch: the first pod, with another resource version."""
        pod = self.pods[0]
        pod["metadata"]["resourceVersion"] = str(5001 + number)
        return json.dumps({"type": "MODIFIED", "object": pod}).encode() + b"\n"


def _handler(server: ApiServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            if "watch" in parse_qs(parts.query):
                self._stream()
                return
            body = json.dumps(server.answer(parts.path)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _stream(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            number = 0
            while not server.ended.wait(EVENT_SECONDS):
                line = server.event(number)
                self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                number += 1

        def log_message(self, *_: object) -> None:
            """Silence."""

    return Handler
