"""Slow, idle and too many clients, and an orderly end."""

import http.client
import queue
import resource
import subprocess
import sys
import threading

import pytest

from tests.support.environment import own_loopback
from tests.support.waiting import WAIT_SECONDS, item_of, wait_ended, wait_until
from tests.support.web_helpers import connect, drain, endpoint, exchange, fetch, status_of
from vgpu.web.connection import ClientConnection
from vgpu.web.server import HttpResponse, Timeouts, plain

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


class Gate:
    """A handler that shows when it is at work and waits to be let go."""

    def __init__(self):
        self.entered = threading.Semaphore(0)
        self.open = threading.Event()

    def __call__(self, request):
        self.entered.release()
        self.open.wait(WAIT_SECONDS)
        return plain(200, "done")

    def ask(self, address):
        """Send a request in the background and wait until it is being handled."""
        answers = queue.Queue()
        threading.Thread(target=lambda: answers.put(fetch(address, "/gate"))).start()
        self.wait_entered()
        return answers

    def wait_entered(self):
        wait_until(lambda: self.entered.acquire(blocking=False), "the request is at work")


def status_in(answers):
    return item_of(answers, "an answer")[0]


def test_requests_beyond_the_limit_get_503_with_retry_after(serve):
    gate = Gate()
    routes = {"/gate": gate, "/": lambda request: plain(200, "hello")}
    address = serve(routes, max_requests=2).addresses[0]
    waiting = [gate.ask(address), gate.ask(address)]
    status, headers, _ = fetch(address)
    assert (status, headers["Retry-After"]) == (503, "1")
    gate.open.set()
    assert [status_in(answers) for answers in waiting] == [200, 200]
    assert fetch(address)[0] == 200


def test_a_client_that_drips_its_request_is_dropped(serve):
    address = serve(timeouts=Timeouts(head=0.3)).addresses[0]
    with connect(address) as sock:

        def dropped():
            try:
                sock.sendall(b"G")
            except OSError:
                return True
            return False

        wait_until(dropped, "the client is dropped", pause=0.01)

    def is_served():
        return fetch(address)[0] == 200

    # A client on a busy machine may be late with its own request.
    wait_until(is_served, "another client is served", failures=(ConnectionError,))


def test_a_client_that_sends_nothing_is_dropped(serve):
    address = serve(timeouts=Timeouts(head=0.1)).addresses[0]
    with connect(address) as sock:
        assert sock.recv(1) == b""


def test_an_idle_connection_is_closed_after_its_time(serve):
    address = serve(timeouts=Timeouts(idle=0.1)).addresses[0]
    with connect(address) as sock:
        sock.sendall(GET)
        assert drain(sock).endswith(b"hello\n")  # without the time-out this would not end


def test_a_client_that_does_not_take_its_answer_is_dropped(serve):
    body, asked = b"x" * 50_000_000, threading.Event()

    def large(request):
        asked.set()
        return HttpResponse(200, (), body)

    server = serve({"/": large}, timeouts=Timeouts(write=0.2))
    with connect(server.addresses[0]) as sock:
        sock.sendall(GET)
        wait_until(asked.is_set, "the request is at work")
        wait_until(lambda: not server._connections, "the client is dropped by the time-out")
        assert len(drain(sock)) < len(body)


def test_a_client_that_takes_its_answer_drop_by_drop_is_dropped(serve):
    body = b"x" * 50_000_000
    server = serve({"/": lambda request: HttpResponse(200, (), body)}, timeouts=Timeouts(write=0.3))
    taken = 0
    with connect(server.addresses[0]) as sock:
        sock.sendall(GET)

        def dropped():
            nonlocal taken
            taken += len(sock.recv(65536))
            assert taken < len(body) // 2, "it was waited for"
            return not server._connections

        wait_until(dropped, "the client is dropped by the time-out", pause=0.01)


def idle_ones(server):
    waiting = [connection.waiting for connection, _ in server._connections.all()]
    return sum(wait is not None and wait.for_request for wait in waiting)


def test_the_longest_idle_connection_makes_room(serve):
    server = serve(max_connections=3)
    (address,) = server.addresses
    idle = []
    for number in range(1, 4):
        sock = connect(address)
        sock.sendall(GET)
        assert sock.recv(65536).endswith(b"hello\n")
        idle.append(sock)
        wait_until(lambda number=number: idle_ones(server) == number, f"{number} are idle")
    assert fetch(address)[0] == 200
    assert idle[0].recv(1) == b""
    idle[2].sendall(GET)
    assert idle[2].recv(65536).endswith(b"hello\n")
    for sock in idle:
        sock.close()


def test_connections_at_work_do_not_make_room(serve):
    gate = Gate()
    address = serve({"/gate": gate}, max_connections=2).addresses[0]
    waiting = [gate.ask(address), gate.ask(address)]
    assert exchange(address, GET) == b""
    gate.open.set()
    assert [status_in(answers) for answers in waiting] == [200, 200]


SCARCE = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))
from vgpu.web.connection import ClientConnection
from vgpu.web.server import WebServer, plain
server = WebServer({"/": lambda request: plain(200, "hello")}, ["127.0.0.1:0"], max_per_address=64)
server.start()
print(server.addresses[0], flush=True)
sys.stdin.read()
server.stop()
"""


@pytest.mark.slow
def test_a_server_out_of_descriptors_goes_on(request):
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 100
    with subprocess.Popen(
        [sys.executable, "-c", SCARCE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        request.addfinalizer(child.kill)
        address = child.stdout.readline().strip()
        idle = [connect(address) for _ in range(30)]
        assert fetch(address)[0] == 200
        for sock in idle:
            sock.close()
        child.stdin.close()
        wait_until(lambda: child.poll() is not None, "the server ends")
        assert child.returncode == 0


def test_a_server_out_of_threads_goes_on(serve, monkeypatch):
    address = serve().addresses[0]

    def refuse(thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        assert exchange(address, GET) == b""
    assert fetch(address)[0] == 200


def test_a_request_in_flight_is_finished_on_stop(serve):
    gate = Gate()
    server = serve({"/gate": gate})
    answers = gate.ask(server.addresses[0])
    stopping = threading.Thread(target=server.stop)
    stopping.start()
    wait_until(server._stopping.is_set, "the stop has begun")
    gate.open.set()
    status, headers, body = item_of(answers, "the answer")
    wait_ended(stopping, "the server has stopped")
    assert (status, headers["Connection"], body) == (200, "close", b"done\n")


def test_idle_connections_do_not_delay_the_stop(serve):
    server = serve(addresses=[f"{own_loopback()}:0"])
    address = server.addresses[0]
    connection = http.client.HTTPConnection(*endpoint(address), timeout=WAIT_SECONDS)
    connection.request("GET", "/")
    connection.getresponse().read()
    server.stop(grace=600)  # the test would hang if it were waited for
    assert connection.sock.recv(1) == b""
    connection.close()
    with pytest.raises(ConnectionRefusedError):
        connect(address)


def test_a_hung_handler_does_not_hang_the_stop(serve):
    gate = Gate()
    server = serve({"/gate": gate})
    with connect(server.addresses[0]) as sock:
        sock.sendall(b"GET /gate HTTP/1.1\r\nHost: a\r\n\r\n")
        gate.wait_entered()
        server.stop(grace=0.05)
        assert drain(sock) == b""
    gate.open.set()


def test_a_stopped_server_leaves_no_threads_and_its_port_free(serve):
    earlier = set(threading.enumerate())
    server = serve(addresses=[f"{own_loopback()}:0"])
    (address,) = server.addresses
    fetch(address)
    server.stop()
    server.stop()
    for thread in set(threading.enumerate()) - earlier:
        if thread.name.startswith("web"):
            wait_ended(thread, "the server's threads end")
    again = serve(addresses=[address])
    assert status_of(exchange(again.addresses[0], GET)) == 200


def test_a_connection_for_which_there_is_no_memory_costs_no_other(serve, monkeypatch):
    address = serve().addresses[0]
    full = [MemoryError()]

    def connection(*args):
        if full:
            raise full.pop()
        return ClientConnection(*args)

    monkeypatch.setattr("vgpu.web.server.ClientConnection", connection)
    with connect(address) as sock:
        assert drain(sock) == b""
    assert fetch(address)[0] == 200
