"""The daemon and Gemini's hook: recorded streams of the real one, and a model of each version."""

import socket
import struct
from contextlib import ExitStack
from threading import Thread

import pytest

from kubeshare.tokens.gpu_tokens import MAX_CONNECTIONS
from kubeshare.tokens.scheduler import TokenRules
from kubeshare.tokens.server import TokenServer
from tests.kubeshare.tokens.gemini_process import MIB, own_address, pod, write
from tests.kubeshare.tokens.hook_model import (
    CONNECTS_EACH_TIME,
    MEM_LIMIT,
    OUT_OF_MEMORY,
    VERSIONS,
    ExitedError,
    HookProcess,
    KilledError,
    request,
)
from tests.kubeshare.tokens.recorded_streams import QUOTA, Replay, lines, type_of
from tests.kubeshare.tokens.recorded_streams import VERSIONS as RECORDED
from tests.kubeshare.tokens.test_daemon import seen
from tests.support.waiting import wait_until


def hook(version, port=50051, **options):
    return HookProcess((own_address(), port), version=version, **options)


@pytest.mark.parametrize("step", [None, 1])
@pytest.mark.parametrize("version", RECORDED)
def test_the_real_hook_gets_the_bytes_of_its_pod_manager(serve, tmp_path, version, step):
    """But for the lengths of tokens, which depend on the time."""
    write(tmp_path, [pod("a")])
    serve()
    asked = {}
    with Replay(50051, step) as replay:
        for number, sign, content in lines("hook", version):
            if sign == ">":
                replay.send(number, content)
                asked[number] = type_of(content)
            elif asked[number] == QUOTA:
                assert replay.receive(number)[:4] == content[:4]
            else:
                assert replay.receive(number) == content


@pytest.mark.parametrize("version", VERSIONS)
def test_memory_above_the_limit_is_never_allocated(serve, tmp_path, version):
    """The hook compares with what is free, allocates, and frees nothing that is refused then."""
    write(tmp_path, [pod("a")])
    server = serve()
    with hook(version) as one:
        assert [one.allocate(600 * MIB) for _ in range(5)] == [0, *[OUT_OF_MEMORY] * 4]
        assert one.memory_info() == (424 * MIB, 1024 * MIB)
        with hook(version) as two:
            assert [two.allocate(300 * MIB) for _ in range(2)] == [0, OUT_OF_MEMORY]
            assert two.memory_info() == (124 * MIB, 1024 * MIB)
            assert (one.real, two.real) == (600 * MIB, 300 * MIB)
            assert seen(server).booked == 900 * MIB
            assert seen(server).counts.refused == 0, "nothing was refused after its allocation"
    wait_until(lambda: seen(server).booked == 0, "the ends of both are seen")


def test_a_limit_that_is_lowered_below_what_is_used_leaves_nothing(serve, tmp_path):
    write(tmp_path, [pod("a")])
    server = serve()
    with hook("v1.0") as process:
        assert process.allocate(600 * MIB) == 0
        write(tmp_path, [pod("a", memory=500 * MIB)])
        wait_until(lambda: seen(server).entry.share.memory_bytes == 500 * MIB, "the new limit")
        assert process.memory_info() == (0, 500 * MIB)
        assert process.allocate(1) == OUT_OF_MEMORY
        assert process.real == 600 * MIB


@pytest.mark.parametrize("version", CONNECTS_EACH_TIME)
def test_a_process_that_opens_a_connection_for_each_message_lives_on(serve, tmp_path, version):
    write(tmp_path, [pod("a")])
    server = serve()
    with hook(version) as one, hook(version) as two:
        assert one.allocate(400 * MIB) == two.allocate(500 * MIB) == 0
        for _ in range(MAX_CONNECTIONS):
            assert one.memory_info() == two.memory_info() == (124 * MIB, 1024 * MIB)
        two.end()
        wait_until(lambda: seen(server).booked == 400 * MIB, "the end of one is seen")
        with hook(version) as again:
            assert again.allocate(500 * MIB) == 0
            assert again.memory_info() == (124 * MIB, 1024 * MIB)
        assert seen(server).connections <= MAX_CONNECTIONS
        assert seen(server).counts.replaced > MAX_CONNECTIONS
        assert server.view().refused_connections == 0


def test_a_pod_with_many_processes_of_gemini_1_0_loses_none(serve, tmp_path):
    write(tmp_path, [pod("a")])
    server = serve()
    with ExitStack() as stack:
        processes = [stack.enter_context(hook("v1.0")) for _ in range(300)]
        for _ in range(2):
            assert {process.allocate(MIB) for process in processes} == {0}
        assert {process.memory_info() for process in processes} == {(424 * MIB, 1024 * MIB)}
        assert seen(server).connections == 300
        assert server.view().refused_connections == seen(server).counts.replaced == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_a_process_stays_in_step_when_a_daemon_has_stood_still(serve, tmp_path, version):
    """It sends the same message again, and takes every answer for that of the last one."""
    write(tmp_path, [pod("a")])
    server = serve()
    with hook(version) as process:
        assert process.memory_info() == (1024 * MIB, 1024 * MIB)
        process.timeout, sent = (0.02, 0.02, 60, 60, 60), process.sent
        asks = Thread(target=process.memory_info)
        with server._lock:
            asks.start()
            wait_until(lambda: process.sent >= sent + 3, "it has sent the message three times")
            process.timeout = 60  # of the next messages
        asks.join()
        assert process.allocate(600 * MIB) == 0
        assert process.memory_info() == (424 * MIB, 1024 * MIB)
        process.free(600 * MIB)
        assert process.memory_info() == (1024 * MIB, 1024 * MIB)
    assert seen(server).counts.repeated >= 2
    assert seen(server).counts.refused == 0


@pytest.mark.parametrize("version", ["v1.0", "v1.0-kubeshare"])
def test_what_the_real_hook_has_sent_again_is_answered_once(serve, tmp_path, version):
    write(tmp_path, [pod("a")])
    server = serve()
    requests = [content for _, _, content in lines("late", version)]
    ids = [*dict.fromkeys(struct.unpack_from("<i", each, 13)[0] for each in requests)]
    assert len(ids) == len(requests) - 1
    with Replay(50051) as replay:
        for each in requests:
            replay.send("0", each)
        assert [struct.unpack_from("<i", replay.receive("0"))[0] for _ in ids] == ids
    assert seen(server).counts.repeated == 1


@pytest.mark.parametrize("version", VERSIONS)
def test_a_process_that_waits_is_answered_before_the_daemon_ends(tmp_path, version, clock):
    """An end of the connection is an answer to the hook, with any quota that was on its stack."""
    write(tmp_path, [pod("a"), pod("b")])
    server = TokenServer(tmp_path, own_address(), TokenRules(), pytest.fail, clock=clock)
    server.start()
    quotas = []
    with hook("v1.0") as holder, hook(version, 50052, name="ns/b") as waiting:
        holder.begin()
        waiting._has_begun = True
        asks = Thread(target=lambda: quotas.append(waiting.token(burst_ms=1.0)))
        asks.start()
        wait_until(lambda: seen(server, "b").waiting, "b waits")
        server.stop()
        asks.join()
        assert quotas == [20.0 if waiting.traits.obeys else 6000.0]
        assert server.view().end_grants == 1
        waiting.sleep = lambda _: None
        ends = KilledError if waiting.traits.one_socket else ExitedError
        with pytest.raises(ends):
            waiting.token(burst_ms=1.0)


def test_what_has_come_before_the_daemon_ends_is_answered(tmp_path):
    """Also through connections that it has not accepted yet, more of them than fit into a round."""
    write(tmp_path, [pod("a")])
    server = TokenServer(tmp_path, own_address(), TokenRules(), pytest.fail)
    server.start()
    with ExitStack() as stack:
        opened = [
            stack.enter_context(socket.create_connection((own_address(), 50051), timeout=60))
            for _ in range(2)
        ]
        wait_until(lambda: seen(server).connections == 2, "they are accepted")
        ends = Thread(target=server.stop)
        with server._lock:
            opened += [
                stack.enter_context(socket.create_connection((own_address(), 50051), timeout=60))
                for _ in range(60)
            ]
            for id_, connection in enumerate(opened):
                connection.sendall(request("ns/a", id_, MEM_LIMIT))
            ends.start()
            wait_until(lambda: server._ending, "it has to end")
        ends.join()
        for id_, connection in enumerate(opened):
            answer = connection.recv(40, socket.MSG_WAITALL)
            assert answer == struct.pack("<iQQ20x", id_, 0, 1024 * MIB)


def test_listening_sockets_are_closed_first_whoever_closes(serve, tmp_path):
    """At the end of a process the kernel closes its highest descriptors first."""
    write(tmp_path, [pod("a"), pod("b")])
    server = serve()
    with hook("v1.1") as process:
        process.memory_info()
        highest = max(each.socket.fileno() for each in server._connections)
        assert min(each.listening.fileno() for each in server._ports.values()) > highest + 100
