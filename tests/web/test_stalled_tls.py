"""Clients that begin a TLS handshake and stop."""

import socket
import threading

from tests.support.waiting import WAIT_SECONDS, wait_until
from tests.support.web_helpers import ConfigFile, Pki, connect, drain
from vgpu.web.message import plain
from vgpu.web.server import Timeouts, WebServer

HELLO = b"\x16\x03\x01"


def test_stalled_handshakes_cannot_pass_the_connection_cap_nor_hold_up_the_end(tmp_path):
    pki = Pki(tmp_path, "test")
    certificate, key = pki.issue("server")
    config = ConfigFile(
        tmp_path / "web.yml",
        f"tls_server_config:\n  cert_file: {certificate.name}\n  key_file: {key.name}\n",
    )
    routes = {"/": lambda request: plain(200, "fine")}
    earlier = set(threading.enumerate())

    def serving() -> int:
        threads = set(threading.enumerate()) - earlier
        return sum(thread.name == "web" for thread in threads)

    timeouts = Timeouts(head=3600)  # no handshake ends by itself
    server = WebServer(routes, ["127.0.0.1:0"], config.loaded, max_connections=8, timeouts=timeouts)
    server.start()
    clients: list[socket.socket] = []
    try:
        for _ in range(60):
            client = connect(server.addresses[0])
            client.sendall(HELLO)
            clients.append(client)
        for client in clients[:-8]:  # the longest idle ones made room
            drain(client)
        # Until none is left of those who made room: a thread ends a moment after its connection.
        wait_until(
            lambda: serving() == len(server._connections) == 8,
            "the cap holds",
            context=lambda: f"{serving()} threads, {len(server._connections)} connections",
        )
    finally:
        server.stop(grace=WAIT_SECONDS)
        # Their clients are still there; a thread ends a moment after its connection.
        wait_until(lambda: serving() == 0, "the threads of the stalled handshakes end")
        for client in clients:
            client.close()
