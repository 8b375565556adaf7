"""Clients that ask for much and read nothing: they keep nobody else from an answer."""

import socket
import subprocess
import sys
from contextlib import contextmanager

import pytest

from tests.support.environment import ROOT
from tests.support.waiting import WAIT_SECONDS, wait_until
from tests.support.web_helpers import ConfigFile, connect, drain, endpoint, fetch
from vgpu.web.connection import ConnectionWait
from vgpu.web.connections import first_to_go
from vgpu.web.server import HttpResponse, Timeouts

PAGE = HttpResponse(200, (("Content-Type", "text/plain"),), b"m" * 60_000)
GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
CLIENTS = 240
SCRAPES, MORE_SCRAPES = 8, 50
PATIENT = Timeouts(head=3600, idle=3600, write=3600)
"""No place becomes free by itself."""

SOURCES = {
    "one address": ["127.0.1.1"] * CLIENTS,
    "the client's own address": ["127.0.0.1"] * CLIENTS,
    "an address each": [f"127.0.1.{number}" for number in range(1, CLIENTS + 1)],
}


@contextmanager
def deaf_clients(address, sources):
    """They have all asked at least once, and come again as often as they are closed."""
    command = [sys.executable, "-m", "tests.support.deaf_clients", address, "/", *sources]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            assert child.stdout.readline()
            yield child
            assert child.poll() is None
        finally:
            child.kill()


@pytest.mark.slow
@pytest.mark.thorough("soak", smaller=True)
@pytest.mark.parametrize("sources", SOURCES.values(), ids=SOURCES)
def test_every_scrape_is_answered_beside_many_clients_that_do_not_read(serve, sources, full):
    (address,) = serve({"/": lambda request: PAGE}, timeouts=PATIENT).addresses
    with deaf_clients(address, sources):
        for _ in range(MORE_SCRAPES if full else SCRAPES):
            status, _, body = fetch(address)
            assert (status, len(body)) == (200, len(PAGE.body))


def asked(address, requests=1, source="127.0.0.1"):
    """A client with little room that has asked, and does not read yet."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    sock.settimeout(WAIT_SECONDS)
    sock.bind((source, 0))
    sock.connect(endpoint(address))
    sock.sendall(GET * requests)
    return sock


def waits(server, *, for_request):
    """The connections that wait for this."""
    found = [(connection, connection.waiting) for connection, _ in server._connections.all()]
    return [one for one, wait in found if wait is not None and wait.for_request is for_request]


def wait_unread(server, number=1):
    """Wait until so many responses are begun that their clients do not take."""

    def stuck():
        writing = waits(server, for_request=False)
        return len(writing) == number and not any(one.client_acted() for one in writing)

    wait_until(stuck, f"{number} responses stay unread")


def test_no_further_request_is_answered_while_a_response_is_unread(serve):
    handled = []

    def page(request):
        handled.append(request.path)
        return PAGE

    server = serve({"/": page}, timeouts=PATIENT)
    with asked(server.addresses[0], requests=5) as sock:
        wait_unread(server)
        assert len(handled) == 1
        sock.shutdown(socket.SHUT_WR)
        assert drain(sock).count(PAGE.body) == 5
    assert len(handled) == 5


@pytest.mark.parametrize("secure", [False, True])
def test_a_response_that_is_not_taken_makes_room(serve, pki, server_pair, tmp_path, secure):
    config, tls = None, None
    if secure:
        certificate, key = server_pair
        keys = f"tls_server_config:\n  cert_file: {certificate}\n  key_file: {key}\n"
        config, tls = ConfigFile(tmp_path / "web.yml", keys).loaded, pki.client()
    large = HttpResponse(200, (), b"m" * 8_000_000)
    server = serve({"/": lambda request: large}, config=config, timeouts=PATIENT, max_connections=2)
    (address,) = server.addresses
    deaf = []
    for number in (1, 2):
        sock = connect(address)
        if tls is not None:
            sock = tls.wrap_socket(sock, server_hostname="localhost")
        sock.sendall(GET)
        deaf.append(sock)
        wait_unread(server, number)
    assert fetch(address, tls=tls)[0] == 200
    wait_until(lambda: len(waits(server, for_request=False)) == 1, "one of them is left")
    for sock in deaf:
        sock.close()


def test_a_closed_connection_whose_client_does_not_close_makes_room(serve):
    address = serve(timeouts=PATIENT, max_connections=4).addresses[0]
    refused = [connect(address) for _ in range(4)]
    for sock in refused:
        sock.sendall(b"nonsense \r\n\r\n")
        assert sock.recv(12) == b"HTTP/1.1 400"
    assert fetch(address)[0] == 200
    for sock in refused:
        sock.close()


def test_an_address_with_all_its_places_takes_none_of_the_others(serve):
    server = serve(timeouts=PATIENT, max_connections=3, max_per_address=2)
    (address,) = server.addresses
    other = connect(address)
    many = []
    for number in range(1, 5):
        many.append(asked(address, source="127.0.1.1"))
        assert many[-1].recv(65536).endswith(b"hello\n")
        idle = 1 + min(number, 2)
        wait_until(lambda idle=idle: len(waits(server, for_request=True)) == idle, "it is idle")
    assert [sock.recv(1) for sock in many[:2]] == [b"", b""]
    for sock in (other, *many[2:]):
        sock.sendall(GET)
        assert sock.recv(65536).endswith(b"hello\n")
    for sock in (other, *many):
        sock.close()


# ---------------------------------------------------------------- who makes room


class Waiter:
    """A connection as far as the choice looks at it."""

    def __init__(self, since=0.0, for_request=True, acted=False, moves=False):
        self.waiting = None if since is None else ConnectionWait(since, for_request, moves)
        self._acted = acted

    def client_acted(self):
        return self._acted


NOW = 1000.0
WORKS, ACTED = Waiter(None), Waiter(1.0, acted=True)
IDLE, IDLER = Waiter(900.0), Waiter(800.0)
WRITES, STALLED = Waiter(NOW - 0.1, for_request=False), Waiter(NOW - 2.0, for_request=False)
MOVES = Waiter(NOW - 0.5, for_request=False, moves=True)


@pytest.mark.parametrize(
    ("present", "goes"),
    [
        ([], None),
        ([WORKS, ACTED], None),
        ([WORKS, ACTED, IDLE], IDLE),
        ([IDLE, IDLER, WORKS], IDLER),
        ([IDLER, STALLED, WRITES], STALLED),
        ([IDLER, IDLE, WRITES], IDLER),
        ([IDLE, WRITES, Waiter(NOW - 0.2, for_request=False)], "the longer writer"),
        ([IDLE, WRITES], IDLE),
        ([MOVES, WRITES], WRITES),
        ([MOVES, Waiter(NOW - 0.9, moves=True, for_request=False)], "the longer writer"),
    ],
)
def test_who_takes_no_response_makes_room_and_then_the_longest_of_the_larger_group(present, goes):
    chosen = first_to_go(present, NOW)
    assert chosen is (present[-1] if goes == "the longer writer" else goes)
