"""What a client sees over a real socket."""

import http.client
import logging
import socket
import struct
import subprocess
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.waiting import WAIT_SECONDS, wait_ended
from tests.support.web_helpers import connect, drain, endpoint, exchange, fetch, status_of
from vgpu.web.message import MAX_HEAD
from vgpu.web.server import HttpResponse, Timeouts, WebServer, plain

TCPI_DATA_SEGS_IN = 152  # offset in struct tcp_info, linux/tcp.h


def test_many_requests_share_one_connection(address):
    connection = http.client.HTTPConnection(*endpoint(address), timeout=WAIT_SECONDS)
    sockets = set()
    for number in range(5):
        connection.request("GET", f"/echo?{number}", headers={"X-Test": "yes"})
        assert connection.getresponse().read() == f"{number} yes\n".encode()
        sockets.add(connection.sock.getsockname())
    connection.close()
    assert len(sockets) == 1


def test_head_is_get_without_the_body(address):
    status, headers, body = fetch(address, "/large", method="HEAD")
    assert (status, headers["Content-Length"], body) == (200, "60000", b"")


def test_an_unknown_path_is_404(address):
    for path in ("/nope", "//", "/large/", "/LARGE", "/../large"):
        status, _, body = fetch(address, path)
        assert (status, body) == (404, b"404 page not found\n")


def test_a_path_below_another_finds_its_route(serve):
    """The exact route comes first, then the longest one; a folder alone is no path below it."""

    def named(name):
        return lambda request: plain(200, f"{name} {request.path}")

    routes = {"/a": named("exact"), "/a/*": named("below"), "/a/b/*": named("deeper")}
    address = serve(routes).addresses[0]
    answers = {
        "/a": "exact /a\n",
        "/a/x": "below /a/x\n",
        "/a/x/y": "below /a/x/y\n",
        "/a/b": "below /a/b\n",
        "/a/b/c": "deeper /a/b/c\n",
    }
    for path, text in answers.items():
        assert fetch(address, path)[2].decode() == text
    for path in ("/a/", "/b/x", "/"):
        assert fetch(address, path)[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "get"])
def test_another_method_is_405_and_names_the_allowed_ones(address, method):
    status, headers, _ = fetch(address, "/", method=method)
    assert (status, headers["Allow"]) == (405, "GET, HEAD")


def test_the_server_does_not_name_its_version(address):
    assert fetch(address)[1]["Server"] == "vgpu"


def errors(caplog):
    """A test before may have set the level of all loggers, so that servers log their start, too."""
    return [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_a_failing_handler_is_500_without_detail_and_logged_once(serve, caplog):
    works = threading.Event()

    def flaky(request):
        if not works.is_set():
            raise ValueError("secret detail")
        return plain(200, "fine")

    address = serve({"/flaky": flaky}).addresses[0]
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            status, _, body = fetch(address, "/flaky")
            assert (status, body) == (500, b"Internal Server Error\n")
        assert len(errors(caplog)) == 1
        works.set()
        assert fetch(address, "/flaky")[0] == 200
        works.clear()
        assert fetch(address, "/flaky")[0] == 500
    assert [record.path for record in errors(caplog)] == ["/flaky", "/flaky"]


def test_a_handler_that_answers_nonsense_is_500(serve):
    address = serve({"/": lambda request: HttpResponse(200, (("Név", "ő"),))}).addresses[0]
    assert fetch(address)[0] == 500
    assert fetch(address, method="HEAD")[2] == b""


def test_pipelined_requests_are_answered_in_order(address):
    requests = b"".join(b"GET /echo?%d HTTP/1.1\r\nHost: a\r\n\r\n" % n for n in range(20))
    answer = exchange(address, requests)
    bodies = [part for part in answer.split(b"\r\n") if part.endswith(b"None\nHTTP/1.1 200 OK")]
    assert len(bodies) == 19
    assert [int(body.split()[0]) for body in bodies] == list(range(19))
    assert answer.endswith(b"19 None\n")


def test_a_request_may_arrive_byte_by_byte(address):
    with connect(address) as sock:
        for byte in b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n":
            sock.sendall(bytes([byte]))
        assert drain(sock).endswith(b"hello\n")


def test_http_1_0_is_answered_and_closed(address):
    with connect(address) as sock:
        sock.sendall(b"GET / HTTP/1.0\r\n\r\n")
        answer = drain(sock)
    assert b"\r\nConnection: close\r\n" in answer
    assert answer.endswith(b"hello\n")


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello", 405),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello", 413),
        (b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", 413),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999\r\n\r\n" + b"x" * 99999, 413),
    ],
)
def test_a_body_is_refused_and_never_taken_for_a_request(address, request_bytes, status):
    follow_up = b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n"
    answer = exchange(address, request_bytes + follow_up)
    assert status_of(answer) == status
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"\r\nConnection: close\r\n" in answer


def test_a_refusal_is_not_overtaken_by_a_reset(address):
    with connect(address) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999\r\n\r\n" + b"x" * 99999)
        answer = b""
        while data := sock.recv(65536):  # a reset would raise here
            answer += data
    assert status_of(answer) == 413


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),  # a TLS client
        (b"\x00" * 1000, 400),
        (b"GET / HTTP/1.1\nHost: a\n\n", 400),
        (b"GET /" + b"a" * 2 * MAX_HEAD, 414),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * 2 * MAX_HEAD, 431),
        (b"GET / HTTP/1.1\r\n" + b"X: a\r\n" * 2000 + b"\r\n", 431),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    ],
)
def test_a_bad_request_gets_an_error_message_and_is_closed(address, request_bytes, status):
    with connect(address) as sock:
        sock.sendall(request_bytes)
        answer = drain(sock)
    assert status_of(answer) == status
    assert b"\r\nConnection: close\r\n" in answer
    assert b"\r\nContent-Type: text/plain; charset=utf-8\r\n" in answer


def test_a_response_leaves_in_one_segment_without_nagle(serve):
    server = serve()
    with connect(server.addresses[0]) as sock:
        sock.sendall(b"GET /echo?a HTTP/1.1\r\nHost: a\r\n\r\n")
        assert sock.recv(65536).endswith(b"a None\n")
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        assert struct.unpack_from("I", info, TCPI_DATA_SEGS_IN) == (1,)
        ((connection, _),) = server._connections.all()
        assert connection._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_twenty_clients_at_once_get_their_own_answers(serve):
    address = serve(max_per_address=20).addresses[0]  # with fewer places some have to come again
    failures = []

    def client(name):
        connection = http.client.HTTPConnection(*endpoint(address), timeout=WAIT_SECONDS)
        for number in range(10):
            connection.request("GET", f"/echo?{name}-{number}")
            if connection.getresponse().read() != f"{name}-{number} None\n".encode():
                failures.append((name, number))
        connection.close()

    threads = [threading.Thread(target=client, args=(name,)) for name in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        wait_ended(thread, "a client has all its answers")
    assert failures == []


@pytest.fixture(scope="module")
def hardy():
    server = WebServer({"/": lambda request: plain(200, "hello")}, ["127.0.0.1:0"])
    server.start()
    yield server
    server.stop(grace=1)


FRAGMENTS = [
    b"GET ", b"HEAD ", b"POST ", b"/", b" HTTP/1.1", b" HTTP/1.0", b"\r\n", b"\r\n\r\n", b"\n",
    b"\r", b"Host: a", b"Host:", b"Content-Length: 3", b"Transfer-Encoding: chunked", b": ", b" ",
    b"Authorization: Basic !!", b"Connection: close", b"\x00", b"\xff\xfe", b"http://", b"?", b"*",
]  # fmt: skip


@given(
    request_bytes=st.one_of(
        st.binary(max_size=300),
        st.lists(st.sampled_from(FRAGMENTS), max_size=20).map(b"".join),
        st.lists(st.sampled_from(FRAGMENTS), max_size=8).map(
            lambda parts: b"GET / HTTP/1.1\r\nHost: a\r\n" + b"".join(parts) + b"\r\n\r\n"
        ),
    )
)
def test_no_bytes_end_the_server(hardy, request_bytes):
    answer = exchange(hardy.addresses[0], request_bytes)
    assert answer == b"" or 200 <= status_of(answer) < 600
    assert fetch(hardy.addresses[0])[2] == b"hello\n"


def test_importing_the_server_loads_no_tls_no_yaml_and_no_bcrypt():
    program = (
        "import sys, vgpu.web.server, vgpu.web.config\n"
        "print(sorted({'ssl', 'yaml', 'bcrypt', 'email', 'hashlib'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_timeouts_outlast_the_usual_scrape_interval():
    assert Timeouts().idle > 60
