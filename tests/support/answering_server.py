"""A server that gives prepared answers in place of Kubernetes, and the client that asks it.

with serving(answer({...}), status(404, "NotFound")) as (cluster, server):
    cluster.node("a")
server.requests  # (method, path, query, body) of each
"""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import urllib3

from tests.support.waiting import wait_ended
from vgpu.apiserver.access import CONNECTIONS, Access, with_own_connections
from vgpu.apiserver.client import ApiClient


def anonymous_access(server):
    """Access to a server without authentication."""
    return Access(
        server.rstrip("/"), with_own_connections(urllib3.PoolManager(maxsize=CONNECTIONS))
    )


class Answers(ThreadingHTTPServer):
    """Gives the next of its answers to every request, and keeps the requests."""

    daemon_threads = True

    def __init__(self, answers, host="127.0.0.1"):
        super().__init__((host, 0), Handler)
        self.answers = list(answers)
        self.requests = []
        self.types = []

    def handle_error(self, request, client_address):
        """A client that has had enough is no news."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = urlsplit(self.path)
        self.server.requests.append((self.command, parts.path, parse_qs(parts.query), body))
        self.server.types.append(self.headers["Content-Type"])
        status, headers, body = self.server.answers.pop(0)
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | headers).items():
            if value is not None:
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        if headers.get("Connection") == "close":
            self.close_connection = True

    do_DELETE = do_PATCH = do_POST = do_PUT = do_GET  # noqa: N815  # http.server's names

    def log_message(self, *_):
        """Silence."""


def answer(content, status=200, **headers):
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return status, {name.replace("_", "-"): value for name, value in headers.items()}, body


def status(code, reason, message="", **metadata):
    return answer(
        {"kind": "Status", "reason": reason, "message": message, "metadata": metadata}, code
    )


@contextmanager
def serving(*answers, **options):
    """A client of a server with these answers, and the server."""
    with Answers(answers) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/"
        try:
            with ApiClient(anonymous_access(url), **options) as cluster:
                yield cluster, server
        finally:
            server.shutdown()
            wait_ended(thread, "the server ends")
