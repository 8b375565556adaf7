"""A proxy before the API server that kills a program after its write of a number.

    with KillingProxy(cluster) as proxy:
        proxy.kill, proxy.kill_after = kill_the_program, 3

The API server has answered the write, and the program never learns of it. Events are no writes.
It can also stop a list after the first page, until the program is killed.
"""

import json
import re
import socketserver
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self

import urllib3

from tests.support.bed.cluster import Cluster

_HOP = {"connection", "transfer-encoding", "content-length", "host", "keep-alive"}
_WRITES = {"POST", "PATCH", "PUT", "DELETE"}


class KillingProxy:
    """Passes requests on in plain HTTP, while the block lasts.

    Attributes:
        writes: number of writes that were answered with success since ``kill_after`` was set.
        kill: what kills the program.
        kill_after: the write after which the program is killed; 0 for none.
        uncounted: ends of the paths whose writes do not count.
        counts: whether a write counts, by its method and path.
        killed_after: method and path of each write after which the program was killed.
        stopped_list: path of the list of which only the first page is answered, with one object;
            "" for none.
        has_stopped: whether the second page was asked for.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._target = cluster.address
        self.kill: Callable[[], None] = lambda: None
        self.uncounted: tuple[str, ...] = ()
        self.counts: Callable[[str, str], bool] = lambda *_: True
        self.killed_after: list[tuple[str, str]] = []
        self.stopped_list = ""
        self.has_stopped = threading.Event()
        self._pool = urllib3.PoolManager(
            ca_certs=str(cluster.authority.ca.certificate), retries=False, maxsize=16
        )
        self._lock = threading.Lock()
        self.writes = self._kill_after = 0
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _pass(self) -> None:
                proxy.serve(self)

            do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _pass  # noqa: N815

            def log_message(self, *_: object) -> None:
                """Nothing."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                """A client that was killed."""

        self._server: socketserver.BaseServer = Server(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]

    @property
    def kill_after(self) -> int:
        """The write after which the program is killed; 0 for none."""
        return self._kill_after

    @kill_after.setter
    def kill_after(self, number: int) -> None:
        with self._lock:
            self.writes, self._kill_after = 0, number

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._pool.clear()

    def kubeconfig(self, original: Path, folder: Path) -> Path:
        """A copy of a kubeconfig whose server is the proxy."""
        config = json.loads(original.read_text())
        config["clusters"][0]["cluster"] = {"server": f"http://127.0.0.1:{self.port}"}
        copy = folder / f"proxied-{original.name}"
        copy.touch(mode=0o600)
        copy.write_text(json.dumps(config))
        return copy

    def serve(self, request: BaseHTTPRequestHandler) -> None:
        """Pass a request on, and its answer back as it comes."""
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        headers = {key: text for key, text in request.headers.items() if key.lower() not in _HOP}
        is_watch = "watch=" in request.path
        path = request.path.partition("?")[0]
        target = self._target + request.path
        if path == self.stopped_list and not is_watch:
            if "continue=" in request.path:
                self.has_stopped.set()
                request.close_connection = True
                request.rfile.read(1)  # until the program's end closes the connection
                return
            target = re.sub(r"\blimit=\d+", "limit=1", target)
        answer = self._pool.request(
            request.command,
            target,
            body=body or None,
            headers=headers,
            preload_content=False,
            decode_content=False,
        )
        content = b"" if is_watch else answer.read(decode_content=False)
        is_write = request.command in _WRITES and "/events" not in path
        is_counted = is_write and answer.status < 300 and not path.endswith(self.uncounted)
        if is_counted and self.counts(request.command, path) and self._is_last():
            self.killed_after.append((request.command, path))
            self.kill()
            request.close_connection = True
            return
        request.send_response(answer.status)
        for key, text in answer.headers.items():
            if key.lower() not in _HOP:
                request.send_header(key, text)
        if is_watch:
            request.send_header("Transfer-Encoding", "chunked")
            request.end_headers()
            with suppress(OSError, urllib3.exceptions.HTTPError):
                while data := answer.read1():
                    request.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                request.wfile.write(b"0\r\n\r\n")
            answer.close()
            return
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        request.wfile.write(content)

    def _is_last(self) -> bool:
        with self._lock:
            self.writes += 1
            return self.writes == self._kill_after
