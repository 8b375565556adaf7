"""A flood of one pod delays no other one by more than a round."""

import socket
import struct
from contextlib import ExitStack

import pytest

from kubeshare.tokens.round_robin import QUANTUM
from kubeshare.tokens.scheduler import TokenRules
from kubeshare.tokens.server import TOKEN_COST, TokenServer
from tests.kubeshare.tokens.gemini_process import own_address, pod, write
from tests.kubeshare.tokens.hook_model import MEM_LIMIT, QUOTA, request
from tests.kubeshare.tokens.manual_clock import ManualClock
from tests.kubeshare.tokens.test_daemon import seen

PODS, CONNECTIONS, DEPTH = 3, 20, 8
"""Pods that flood, connections of each, and messages that wait on each connection."""


class Rounds:
    """A daemon whose rounds a test plays one after the other."""

    def __init__(self, folder):
        clock = ManualClock()
        self.server = TokenServer(folder, own_address(), TokenRules(), pytest.fail, clock=clock)
        self.server._configure(clock())

    def play(self):
        ready = self.server._poller.wait(0)
        self.server._serve(ready)
        return bool(ready)

    def messages(self, name):
        return sum(seen(self.server, name).counts.messages.values())


@pytest.fixture
def rounds(tmp_path):
    floods = [pod(f"f{number}") for number in range(PODS)]
    write(tmp_path, [pod("b"), *floods])
    rounds = Rounds(tmp_path)
    yield rounds
    rounds.server.stop()


def connections(stack, rounds, port, number):
    opened = [
        stack.enter_context(socket.create_connection((own_address(), port), timeout=60))
        for _ in range(number)
    ]
    while rounds.play():
        pass
    return opened


def asked(name, kind, number):
    payload = (0.0, 0.0) if kind == QUOTA else ()
    return b"".join(request(name, id_, kind, *payload) for id_ in range(number))


@pytest.mark.parametrize(("kind", "cost"), [(MEM_LIMIT, 1), (QUOTA, TOKEN_COST)])
def test_a_message_is_answered_in_the_first_round_whatever_floods(rounds, kind, cost):
    with ExitStack() as stack:
        (mine,) = connections(stack, rounds, 50051, 1)
        for number in range(PODS):
            name = f"f{number}"
            for each in connections(stack, rounds, 50052 + number, CONNECTIONS):
                each.sendall(asked(f"ns/{name}", kind, DEPTH))
        for count in range(5):
            before = [rounds.messages(f"f{number}") for number in range(PODS)]
            mine.sendall(request("ns/b", count, MEM_LIMIT))
            rounds.play()
            assert struct.unpack_from("<i", mine.recv(40, socket.MSG_DONTWAIT)) == (count,)
            after = [rounds.messages(f"f{number}") for number in range(PODS)]
            assert max(b - a for a, b in zip(before, after, strict=True)) <= -(-QUANTUM // cost)
        assert min(after) > 0, "the floods go on"


def test_every_message_of_a_flood_is_answered_in_its_order(rounds):
    with ExitStack() as stack:
        flood = connections(stack, rounds, 50052, CONNECTIONS)
        for each in flood:
            each.sendall(asked("ns/f0", MEM_LIMIT, DEPTH))
        while rounds.play():
            pass
        for each in flood:
            answers = each.recv(DEPTH * 40, socket.MSG_DONTWAIT)
            assert [id_ for (id_,) in struct.iter_unpack("<i36x", answers)] == [*range(DEPTH)]


def test_what_comes_while_a_process_waits_for_a_token_is_read_when_it_is_answered(rounds):
    """The daemon does not look at it in each round."""
    with ExitStack() as stack:
        (holder,) = connections(stack, rounds, 50051, 1)
        (waiting,) = connections(stack, rounds, 50052, 1)
        holder.sendall(request("ns/b", 0, QUOTA, 0.0, 9000.0))
        rounds.play()
        waiting.sendall(asked("ns/f0", QUOTA, 1) + request("ns/f0", 1, MEM_LIMIT))
        while rounds.play():
            pass
        assert rounds.messages("f0") == 1
        holder.sendall(request("ns/b", 1, QUOTA, 0.0, 9000.0))
        while rounds.play():
            pass
        answers = waiting.recv(80, socket.MSG_DONTWAIT)
        assert [id_ for (id_,) in struct.iter_unpack("<i36x", answers)] == [0, 1]


def test_a_storm_of_connections_is_accepted_by_rounds(rounds):
    with ExitStack() as stack:
        (mine,) = connections(stack, rounds, 50051, 1)
        for _ in range(50):
            stack.enter_context(socket.create_connection((own_address(), 50052), timeout=60))
        mine.sendall(request("ns/b", 0, MEM_LIMIT))
        rounds.play()
        assert len(mine.recv(40, socket.MSG_DONTWAIT)) == 40
        assert seen(rounds.server, "f0").connections == 1
        while rounds.play():
            pass
        assert seen(rounds.server, "f0").connections == 50
