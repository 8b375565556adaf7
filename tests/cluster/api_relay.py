"""A relay before the API server, which a test cuts and restores.

    with ApiRelay(cluster) as relay, Extender(cluster, folder, relay=relay):
        relay.cut()

It listens on the address of the API server, for which the server's certificate is valid.
"""

import json
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from tests.support.bed.cluster import Cluster

_READ_BYTES = 64 * 1024


class ApiRelay:
    """Passes bytes on to the API server of a cluster, while the block lasts."""

    def __init__(self, cluster: Cluster) -> None:
        parts = urlsplit(cluster.address)
        assert parts.hostname is not None
        assert parts.port is not None
        self._target = parts.hostname, parts.port
        self._listener = socket.create_server((parts.hostname, 0))
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._is_cut = False

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()
        self._listener.close()

    def kubeconfig(self, original: Path, folder: Path) -> Path:
        """A copy of a kubeconfig whose server is the relay."""
        config = json.loads(original.read_text())
        host, port = self._listener.getsockname()[:2]
        config["clusters"][0]["cluster"]["server"] = f"https://{host}:{port}"
        copy = folder / f"relayed-{original.name}"
        copy.touch(mode=0o600)
        copy.write_text(json.dumps(config))
        return copy

    def cut(self) -> None:
        """Break every connection, and each new one."""
        with self._lock:
            self._is_cut = True
            for sock in self._open:
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def restore(self) -> None:
        """Pass new connections on again."""
        with self._lock:
            self._is_cut = False

    def _accept(self) -> None:
        with suppress(OSError):  # the listener is closed at the end
            while True:
                client, _ = self._listener.accept()
                with self._lock:
                    if self._is_cut:
                        client.close()
                        continue
                    server = socket.create_connection(self._target)
                    self._open |= {client, server}
                for source, sink in ((client, server), (server, client)):
                    threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(_READ_BYTES):
                sink.sendall(data)
        for sock in (source, sink):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        with self._lock:
            if source in self._open:
                self._open.discard(source)
                source.close()
