"""Requests with a body: which routes take one, how large, and what follows on the connection."""

import http.client
import socket
import struct
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.waiting import WAIT_SECONDS, wait_until
from tests.support.web_helpers import (
    ConfigFile,
    basic,
    connect,
    drain,
    endpoint,
    exchange,
    fetch,
    hashed,
    status_of,
)
from vgpu.web.body_bytes import SMALL_BODY, BodyBytes
from vgpu.web.message import BadRequest
from vgpu.web.server import MAX_BODIES, HttpResponse, Route, Timeouts, WebServer, plain

MIB = 2**20
TCPI_SACKED = 28  # offset in struct tcp_info, linux/tcp.h; of a listening socket its backlog


def echo(request):
    return HttpResponse(200, (), request.body)


def failing(request):
    raise OSError("no space left")


def picky(request):
    raise BadRequest(400, "not JSON")


ROUTES = {
    "/": lambda request: plain(200, "hello"),
    "/echo": Route(echo, methods=("POST",), max_body=8 * MIB),
    "/small": Route(echo, methods=("GET", "PUT"), max_body=10),
    "/failing": Route(failing, methods=("POST",), max_body=10),
    "/picky": Route(picky, methods=("POST",), max_body=10),
}


@pytest.fixture
def start(serve):
    return lambda **limits: serve(ROUTES, **limits)


@pytest.fixture
def address(start):
    return start().addresses[0]


def post(path=b"/echo", body=b"", *fields, method=b"POST"):
    """The bytes of a request with this body."""
    head = (method + b" " + path + b" HTTP/1.1", b"Host: a", *fields)
    return b"\r\n".join((*head, b"Content-Length: %d" % len(body), b"", body))


def test_some_mebibytes_are_read_and_the_connection_is_kept(address):
    connection = http.client.HTTPConnection(*endpoint(address), timeout=WAIT_SECONDS)
    sockets = set()
    for size in (8 * MIB, 0, 1, 3 * MIB):
        body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
        connection.request("POST", "/echo", body)
        response = connection.getresponse()
        assert (response.status, response.read() == body) == (200, True)
        sockets.add(connection.sock.getsockname())
    connection.request("GET", "/")
    assert connection.getresponse().read() == b"hello\n"
    assert sockets == {connection.sock.getsockname()}
    connection.close()


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/echo", "POST"),
        ("HEAD", "/echo", "POST"),
        ("POST", "/small", "GET, PUT, HEAD"),
        ("POST", "/", "GET, HEAD"),
    ],
)
def test_a_route_has_methods_of_its_own(address, method, path, allowed):
    status, headers, _ = fetch(address, path, method=method)
    assert (status, headers["Allow"]) == (405, allowed)


def test_with_get_comes_head(address):
    assert fetch(address, "/small", method="HEAD")[0] == 200


REFUSED = {
    "too long": (b"Content-Length: 11\r\n\r\n", 413),
    "longer than a number": (b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n", 413),
    "in chunks": (b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", 411),
    "in chunks, packed": (b"Transfer-Encoding: gzip, Chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", 411),
    "without an end": (b"Transfer-Encoding: gzip\r\n\r\n", 400),
    "no chunks after all": (b"Transfer-Encoding: chunked, identity\r\n\r\n", 400),
    "nothing": (b"Transfer-Encoding:\r\n\r\n", 400),
    "both": (b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "two lengths": (b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", 400),
    "the same twice": (b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello", 400),
    "a list of lengths": (b"Content-Length: 5, 5\r\n\r\nhello", 400),
    "a sign": (b"Content-Length: +5\r\n\r\nhello", 400),
    "hexadecimal": (b"Content-Length: 0x5\r\n\r\nhello", 400),
}


@pytest.mark.parametrize(("rest", "status"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused_is_never_taken_for_the_next_request(address, rest, status):
    head = b"PUT /small HTTP/1.1\r\nHost: a\r\n"
    follow_up = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
    answer = exchange(address, head + rest + follow_up)
    assert status_of(answer) == status
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"\r\nConnection: close\r\n" in answer


def test_http_1_0_has_no_chunks(address):
    head = b"PUT /small HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    assert status_of(exchange(address, head)) == 400


def test_a_body_of_the_greatest_size_is_taken(address):
    assert exchange(address, post(b"/small", b"x" * 10, method=b"PUT")).endswith(
        b"\r\n\r\nxxxxxxxxxx"
    )


def test_a_client_that_expects_100_continue_gets_it(address):
    request = post(b"/echo", b"hello", b"Expect: 100-Continue", b"Connection: close")
    with connect(address) as sock:
        sock.sendall(request.removesuffix(b"hello"))
        assert sock.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(b"hello")
        answer = drain(sock)
    assert (status_of(answer), answer[-5:]) == (200, b"hello")


@pytest.mark.parametrize(
    "request_bytes",
    [
        post(b"/small", b"x" * 11, b"Expect: 100-continue", method=b"PUT"),
        post(b"/nowhere", b"x", b"Expect: 100-continue"),
    ],
)
def test_a_client_whose_body_is_refused_gets_no_100_continue(address, request_bytes):
    with connect(address) as sock:
        sock.sendall(request_bytes.partition(b"\r\n\r\n")[0] + b"\r\n\r\n")
        answer = drain(sock)
    assert status_of(answer) in (404, 413)
    assert answer.count(b"HTTP/1.1 ") == 1


def test_a_client_that_leaves_within_its_body_is_not_answered_and_harms_nobody(address, caplog):
    assert exchange(address, post(b"/echo", b"hello")[:-1]) == b""
    assert fetch(address)[0] == 200
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_a_client_that_drips_its_body_gets_408(start):
    (address,) = start(timeouts=Timeouts(body=0.2)).addresses
    with connect(address) as sock:
        sock.sendall(post(b"/echo", b"hello")[:-1])
        answer = drain(sock)
    assert status_of(answer) == 408
    assert b"\r\nConnection: close\r\n" in answer


def test_a_client_that_drips_its_body_without_end_is_dropped(start):
    """Each byte comes in time, and all of them do not."""
    (address,) = start(timeouts=Timeouts(body=0.3)).addresses
    with connect(address) as sock:
        sock.sendall(post(b"/echo", b"x" * MIB)[:-MIB])

        def dropped():
            try:
                sock.sendall(b"x")
            except OSError:
                return True
            return False

        wait_until(dropped, "the client is dropped", pause=0.01)
    assert fetch(address)[0] == 200


def test_a_handler_may_refuse_the_content_of_a_body(address):
    answer = exchange(address, post(b"/picky", b"{"))
    assert (status_of(answer), answer.endswith(b"not JSON\n")) == (400, True)


def test_what_a_handler_fails_on_is_no_fault_of_the_connection(address):
    assert status_of(exchange(address, post(b"/failing", b"{"))) == 500


@pytest.fixture
def uploads():
    """Clients that send all but the end of their bodies: ``uploads(server, count)``."""
    clients = []

    def begin(server, count):
        for _ in range(count):
            clients.append(connect(server.addresses[0]))
            clients[-1].sendall(post(b"/echo", b"hello")[:-1])
        wait_until(lambda: reading(server) == len(clients), "all send their bodies")
        return clients

    yield begin
    for client in clients:
        client.close()


def reading(server):
    return sum(
        wait is not None and wait.for_request and wait.moves
        for wait in (connection.waiting for connection, _ in server._connections.all())
    )


def test_many_slow_bodies_take_no_place_from_who_sends_none(start, uploads):
    server = start(max_requests=2, max_per_address=2 * MAX_BODIES)
    (address,) = server.addresses
    clients = uploads(server, MAX_BODIES)
    assert status_of(exchange(address, post(b"/echo", b"hello"))) == 503
    assert fetch(address)[0] == 200
    clients[0].sendall(b"o")
    assert clients[0].recv(65536).endswith(b"\r\n\r\nhello")
    assert status_of(exchange(address, post(b"/echo", b"hello"))) == 200


LARGE = 4 * MIB
ONE_AT_A_TIME = 8 * MIB
"""A limit of which large bodies have three quarters."""


@pytest.fixture
def held(serve):
    """A server whose handler waits: ``held(wait)`` is (server, what ends the handlers' wait)."""
    leave = threading.Event()

    def slow(request):
        assert leave.wait(WAIT_SECONDS)
        return HttpResponse(200, (), request.body[-1:])

    def start(body_wait):
        routes = {
            "/": lambda request: plain(200, "hello"),
            "/slow": Route(slow, methods=("POST",), max_body=LARGE),
            "/echo": Route(echo, methods=("POST",), max_body=LARGE),
        }
        return serve(routes, max_body_bytes=ONE_AT_A_TIME, body_wait=body_wait), leave

    yield start
    leave.set()


def test_a_body_beyond_the_bytes_in_flight_is_refused_unread_until_one_is_answered(held):
    server, leave = held(0.0)
    (address,) = server.addresses
    with connect(address) as first:
        first.sendall(post(b"/slow", b"x" * LARGE))
        wait_until(lambda: reserved(server) == LARGE, "the first is in flight")
        with connect(address) as second:  # it sends no byte of its body
            second.sendall(post(b"/echo", b"y" * LARGE)[:-LARGE])
            answer = drain(second)
        assert status_of(answer) == 503
        assert b"\r\nRetry-After: 1\r\n" in answer
        assert reserved(server) == LARGE
        assert exchange(address, post(b"/echo", b"hello")).endswith(b"hello")  # a small one
        assert fetch(address)[0] == 200
        leave.set()
        assert first.recv(65536).endswith(b"\r\n\r\nx")
    wait_until(lambda: reserved(server) == 0, "all are answered")
    assert status_of(exchange(address, post(b"/echo", b"y" * LARGE))) == 200


def test_a_body_waits_for_the_bytes_of_another(held):
    server, leave = held(WAIT_SECONDS)
    (address,) = server.addresses
    with connect(address) as first, connect(address) as second:
        first.sendall(post(b"/slow", b"x" * LARGE))
        wait_until(lambda: reserved(server) == LARGE, "the first is in flight")
        request = post(b"/echo", b"y" * LARGE, b"Expect: 100-continue", b"Connection: close")
        second.sendall(request[:-LARGE])
        wait_until(lambda: waiters(server) == 1, "the second waits")
        leave.set()
        assert first.recv(65536).endswith(b"\r\n\r\nx")
        assert second.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        second.sendall(request[-LARGE:])
        assert drain(second).endswith(b"y" * LARGE)


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (b"/failing", b"{", 500),
        (b"/picky", b"{", 400),
        (b"/echo", b"hello", 200),
        (b"/small", b"x" * 11, 405),
    ],
)
def test_whatever_becomes_of_a_request_its_bytes_are_free_again(start, path, body, status):
    server = start()
    assert status_of(exchange(server.addresses[0], post(path, body))) == status
    assert exchange(server.addresses[0], post(b"/echo", b"hello")[:-1]) == b""  # it left
    wait_until(lambda: reserved(server) == 0, "no body is in flight")


def test_the_largest_body_of_a_route_always_fits(serve):
    server = serve(ROUTES, max_body_bytes=1)
    body = b"x" * (8 * MIB)
    assert status_of(exchange(server.addresses[0], post(b"/echo", body))) == 200


def reserved(server):
    return server._body_bytes.reserved


def waiters(server):
    return len(server._body_bytes._changed._waiters)


SIZES = st.integers(0, 3 * SMALL_BODY)


@given(limit=st.integers(1, 8 * SMALL_BODY), sizes=st.lists(SIZES, max_size=20), data=st.data())
def test_reserved_bytes_stay_below_their_limits(limit, sizes, data):
    budget = BodyBytes(limit, 0)
    taken = []
    for size in sizes:
        if taken and data.draw(st.booleans()):
            budget.release(taken.pop())
        before, bound = sum(taken), limit if size <= SMALL_BODY else limit * 3 // 4
        assert budget.reserve(size, 0) is (before + size <= bound)
        if before + size <= bound:
            taken.append(size)
        assert budget.reserved == sum(taken) <= limit


def test_who_sends_a_body_keeps_its_place_before_who_sends_nothing(start, uploads):
    server = start(max_connections=2)
    (client,) = uploads(server, 1)
    with connect(server.addresses[0]) as idle:
        wait_until(lambda: len(server._connections) == 2, "both are there")
        assert fetch(server.addresses[0])[0] == 200
        assert drain(idle) == b""
    client.sendall(b"o")
    assert client.recv(65536).endswith(b"\r\n\r\nhello")


def test_the_stop_does_not_wait_for_a_body(start, uploads):
    server = start()
    (client,) = uploads(server, 1)
    server.stop(grace=600)  # the test would hang if it were waited for
    assert drain(client) == b""


def test_the_backlog_holds_a_burst_of_clients(start):
    (listener,) = start()._listeners
    info = listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    assert struct.unpack_from("I", info, TCPI_SACKED)[0] >= 128


def test_a_body_comes_over_tls_as_well(start, pki, server_pair, tmp_path):
    certificate, key = server_pair
    text = f"tls_server_config:\n  cert_file: {certificate}\n  key_file: {key}\n"
    server = start(config=ConfigFile(tmp_path / "web.yml", text).loaded)
    host, port = endpoint(server.addresses[0])
    connection = http.client.HTTPSConnection(host, port, timeout=WAIT_SECONDS, context=pki.client())
    for size in (3 * MIB, 1):
        connection.request("POST", "/echo", b"x" * size)
        assert connection.getresponse().read() == b"x" * size
    connection.close()


def test_without_a_password_no_body_is_read(start, tmp_path):
    text = f"basic_auth_users:\n  prometheus: {hashed('secret')}\n"
    server = start(config=ConfigFile(tmp_path / "web.yml", text).loaded)
    (address,) = server.addresses
    request = post(b"/echo", b"hello", b"Expect: 100-continue")
    with connect(address) as sock:
        sock.sendall(request.removesuffix(b"hello"))
        answer = drain(sock)
    assert (status_of(answer), answer.count(b"HTTP/1.1 ")) == (401, 1)
    headers = basic("prometheus", "secret")
    assert fetch(address, "/small", method="PUT", headers=headers)[0] == 200


@pytest.fixture(scope="module")
def hardy():
    server = WebServer(ROUTES, ["127.0.0.1:0"])
    server.start()
    yield server.addresses[0]
    server.stop(grace=1)


@given(
    bodies=st.lists(st.binary(max_size=40), min_size=1, max_size=5),
    cuts=st.sets(st.integers(1, 500), max_size=6),
)
def test_however_requests_are_cut_into_packets_each_is_answered_with_its_own_body(
    hardy, bodies, cuts
):
    stream = b"".join(post(b"/echo", body) for body in bodies)
    ends = [*sorted(cut for cut in cuts if cut < len(stream)), len(stream)]
    with connect(hardy) as sock:
        for begin, end in zip([0, *ends], ends, strict=False):
            sock.sendall(stream[begin:end])
        sock.shutdown(socket.SHUT_WR)
        answers = drain(sock)
    for body in bodies:
        head, _, answers = answers.partition(b"\r\n\r\n")
        assert status_of(head) == 200
        assert answers.startswith(body)
        answers = answers[len(body) :]
    assert answers == b""


FRAGMENTS = [
    b"Content-Length: 0", b"Content-Length: 3", b"Content-Length: 11", b"Content-Length: 03",
    b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip", b"Expect: 100-continue",
    b"Connection: close", b"content-length:3", b"Content-Length : 3", b" folded", b"X: a",
]  # fmt: skip


@given(
    fields=st.lists(st.sampled_from(FRAGMENTS), max_size=4),
    rest=st.sampled_from([b"", b"abc", b"3\r\nabc\r\n0\r\n\r\n", b"x" * 11]),
)
def test_what_follows_a_refused_request_is_not_answered(hardy, fields, rest):
    head = b"\r\n".join([b"PUT /small HTTP/1.1", b"Host: a", *fields, b"", b""])
    answer = exchange(hardy, head + rest + b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    answers = answer.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n").split(b"HTTP/1.1 ")[1:]
    statuses = [int(part[:3]) for part in answers]
    refused = [position for position, status in enumerate(statuses) if status >= 400]
    assert refused in ([], [len(statuses) - 1])
    assert fetch(hardy)[2] == b"hello\n"
