"""Clients that begin a TLS handshake and stop."""

import socket
import threading
import time

from tests.support.web_helpers import ConfigFile, Pki, connect
from vgpu.web.message import plain
from vgpu.web.server import WebServer

HELLO = b"\x16\x03\x01"


def test_stalled_handshakes_cannot_pass_the_connection_cap_nor_hold_up_the_end(tmp_path):
    pki = Pki(tmp_path, "test")
    certificate, key = pki.issue("server")
    config = ConfigFile(
        tmp_path / "web.yml",
        f"tls_server_config:\n  cert_file: {certificate.name}\n  key_file: {key.name}\n",
    )
    routes = {"/": lambda request: plain(200, "fine")}
    server = WebServer(routes, ["127.0.0.1:0"], config.loaded, max_connections=8)
    server.start()
    clients: list[socket.socket] = []
    try:
        for _ in range(60):
            client = connect(server.addresses[0])
            client.sendall(HELLO)
            clients.append(client)
            time.sleep(0.005)
        deadline = time.monotonic() + 5  # less than the handshake may take
        while serving() > 12 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert serving() <= 12  # the cap, and those just about to go
    finally:
        server.stop(grace=30)  # were they waited for, the handshake's own 10 s would show below
        left = serving()
        for client in clients:
            client.close()
    assert left == 0


def serving() -> int:
    return sum(thread.name == "web" for thread in threading.enumerate())
