"""Slow, idle and too many clients, and an orderly end."""

import http.client
import queue
import resource
import subprocess
import sys
import threading
import time

import pytest

from tests.support.web_helpers import PATIENCE, connect, drain, endpoint, exchange, fetch, status_of
from vgpu.web.server import Response, Timeouts, plain

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


class Gate:
    """A handler that says when it is at work and waits to be let go."""

    def __init__(self):
        self.entered = threading.Semaphore(0)
        self.open = threading.Event()

    def __call__(self, request):
        self.entered.release()
        self.open.wait(PATIENCE)
        return plain(200, "done")

    def ask(self, address):
        """Send a request in the background and wait until it is being handled."""
        answers = queue.Queue()
        threading.Thread(target=lambda: answers.put(fetch(address, "/gate"))).start()
        assert self.entered.acquire(timeout=PATIENCE)
        return answers


def test_requests_beyond_the_limit_are_told_to_come_back(serve):
    gate = Gate()
    routes = {"/gate": gate, "/": lambda request: plain(200, "hello")}
    address = serve(routes, max_requests=2).addresses[0]
    waiting = [gate.ask(address), gate.ask(address)]
    status, headers, _ = fetch(address)
    assert (status, headers["Retry-After"]) == (503, "1")
    gate.open.set()
    assert [answers.get(timeout=PATIENCE)[0] for answers in waiting] == [200, 200]
    assert fetch(address)[0] == 200


def test_a_client_that_drips_its_request_is_dropped(serve):
    address = serve(timeouts=Timeouts(head=0.3)).addresses[0]
    dropped = False
    with connect(address) as sock:
        for _ in range(1000):
            try:
                sock.sendall(b"G")
            except OSError:
                dropped = True
                break
            time.sleep(0.01)
    assert dropped
    assert fetch(address)[0] == 200


def test_a_client_that_says_nothing_is_dropped(serve):
    address = serve(timeouts=Timeouts(head=0.1)).addresses[0]
    with connect(address) as sock:
        assert sock.recv(1) == b""


def test_an_idle_connection_is_closed_after_its_time(serve):
    address = serve(timeouts=Timeouts(idle=0.1)).addresses[0]
    with connect(address) as sock:
        sock.sendall(GET)
        assert drain(sock).endswith(b"hello\n")  # without the time-out this would not end


def test_a_client_that_does_not_take_its_answer_is_dropped(serve):
    body = b"x" * 50_000_000
    server = serve({"/": lambda request: Response(200, (), body)}, timeouts=Timeouts(write=0.2))
    with connect(server.addresses[0]) as sock:
        sock.sendall(GET)
        deadline = time.monotonic() + PATIENCE
        while not server._connections and time.monotonic() < deadline:  # or came and went
            time.sleep(0.001)
        while server._connections:  # would never end without the time-out
            time.sleep(0.001)
        assert len(drain(sock)) < len(body)


def test_the_longest_idle_connection_makes_room(serve):
    address = serve(max_connections=3).addresses[0]
    idle = []
    for _ in range(3):
        sock = connect(address)
        sock.sendall(GET)
        assert sock.recv(65536).endswith(b"hello\n")
        idle.append(sock)
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
    assert [answers.get(timeout=PATIENCE)[0] for answers in waiting] == [200, 200]


SCARCE = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))
from vgpu.web.server import WebServer, plain
server = WebServer({"/": lambda request: plain(200, "hello")}, ["127.0.0.1:0"])
server.start()
print(server.addresses[0], flush=True)
sys.stdin.read()
server.stop()
"""


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
        assert child.wait(PATIENCE) == 0


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
    assert server._stopping.wait(PATIENCE)
    gate.open.set()
    status, headers, body = answers.get(timeout=PATIENCE)
    stopping.join(PATIENCE)
    assert (status, headers["Connection"], body) == (200, "close", b"done\n")


def test_idle_connections_do_not_delay_the_stop(serve):
    server = serve()
    address = server.addresses[0]
    connection = http.client.HTTPConnection(*endpoint(address), timeout=PATIENCE)
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
        assert gate.entered.acquire(timeout=PATIENCE)
        server.stop(grace=0.05)
        assert drain(sock) == b""
    gate.open.set()


def test_a_stopped_server_leaves_no_threads_and_its_port_free(serve):
    server = serve()
    (address,) = server.addresses
    fetch(address)
    server.stop()
    server.stop()
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("web")]
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads)
    again = serve(addresses=[address])
    assert status_of(exchange(again.addresses[0], GET)) == 200
