"""Servers that are stopped, and certificates that are made once."""

import pytest

from tests.support.web_helpers import Pki
from vgpu.web.server import HttpResponse, WebServer, plain

ROUTES = {
    "/": lambda request: plain(200, "hello"),
    "/echo": lambda request: plain(200, f"{request.query} {request.headers.get('x-test')}"),
    "/large": lambda request: HttpResponse(200, (("Content-Type", "text/plain"),), b"m" * 60_000),
}


@pytest.fixture
def serve():
    """Start a server on loopback: ``serve(config=…, **limits)``; it is stopped after the test."""
    started = []

    def start(routes=ROUTES, addresses=("127.0.0.1:0",), config=None, **limits):
        server = WebServer(routes, addresses, config, **limits)
        server.start()
        started.append(server)
        return server

    yield start
    for server in started:
        server.stop(grace=1)


@pytest.fixture
def address(serve):
    return serve().addresses[0]


@pytest.fixture(scope="session")
def pki(tmp_path_factory):
    return Pki(tmp_path_factory.mktemp("pki"), "good")


@pytest.fixture(scope="session")
def server_pair(pki):
    return pki.issue("server")
