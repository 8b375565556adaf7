"""Descriptors are divided by port, also when ports are added to those that have connections."""

import socket
from contextlib import ExitStack

import pytest

from kubeshare.tokens import descriptors
from kubeshare.tokens.scheduler import TokenRules
from kubeshare.tokens.server import TokenServer, now_us
from tests.kubeshare.tokens.gemini_process import own_address, pod, write
from tests.kubeshare.tokens.hook_model import MEM_LIMIT, request
from tests.kubeshare.tokens.test_daemon import seen

LATER = [pod(f"later-{number}") for number in range(6)]


class Rounds:
    """A daemon with 256 descriptors, 96 of them for connections; a test plays its rounds."""

    def __init__(self, folder):
        self.folder = folder
        self.server = TokenServer(folder, own_address(), TokenRules(), pytest.fail)
        self.stack = ExitStack()

    def configure(self, *pods):
        write(self.folder, pods)
        self.server._configure(now_us())

    def play(self):
        while ready := [each for each in self.server._poller.wait(0) if each[0] != "files"]:
            self.server._serve(ready)

    def connect(self, port):
        connection = socket.create_connection((own_address(), port), timeout=60)
        self.play()
        return self.stack.enter_context(connection)

    def ask(self, connection, id_):
        """Whether there is an answer."""
        connection.sendall(request("ns/a", id_, MEM_LIMIT))
        self.play()
        connection.setblocking(False)
        try:
            return len(connection.recv(40)) == 40
        except BlockingIOError:
            return False

    def used(self):
        server = self.server
        return len(server._connections) + len(server._ports)


@pytest.fixture
def rounds(tmp_path, monkeypatch):
    monkeypatch.setattr(descriptors, "limit", lambda: 256)
    rounds = Rounds(tmp_path)
    rounds.configure(pod("a"))
    with rounds.stack:
        yield rounds
        rounds.server.stop()


def test_a_pod_with_gemini_1_1_has_its_part_when_ports_are_added(rounds):
    for id_ in range(84):
        assert rounds.ask(rounds.connect(50051), id_)
    assert seen(rounds.server).connections == 84
    rounds.configure(pod("a"), *LATER)
    assert seen(rounds.server).connections == 96 // 7 - 1 - 1
    for number in range(6):
        assert rounds.ask(rounds.connect(50052 + number), 0)
    for id_ in range(84, 100):
        assert rounds.ask(rounds.connect(50051), id_)


def test_pods_with_gemini_1_0_leave_the_descriptors_of_pages(rounds):
    """They keep their connections; others wait until one ends."""
    processes = [rounds.connect(50051) for _ in range(84)]
    assert all(rounds.ask(process, id_) for id_ in range(2) for process in processes)
    rounds.configure(pod("a"), *LATER)
    later = [rounds.connect(50052 + number % 6) for number in range(20)]
    assert rounds.used() == 96
    answered = [rounds.ask(connection, 0) for connection in later]
    assert answered == [True] * 5 + [False] * 15
    assert all(rounds.ask(process, 2) for process in processes)
    for process in processes[:20]:
        process.close()
    rounds.play()
    rounds.server._tick(rounds.server._next_round)
    rounds.play()
    assert [len(connection.recv(40)) for connection in later[5:]] == [40] * 15
