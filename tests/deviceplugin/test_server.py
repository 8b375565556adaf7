"""One resource's gRPC service, asked by a real client on a unix socket."""

import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from deviceplugin.kubelet import responses, server
from deviceplugin.kubelet.server import Endpoint
from deviceplugin.reasons import FINAL, BindRefusal, BindRefused
from tests.deviceplugin.scripted_allocator import ScriptedAllocator, raises
from tests.deviceplugin.stub_kubelet import Plugin
from tests.support.waiting import WAIT_SECONDS, wait_until
from vgpu.io.unix_socket import SocketError
from vgpu.model.names import PodRef
from vgpu.rpc import deviceplugin_pb2 as pb
from vgpu.schemes.codec import ContainerEdits

NUMBER, MEMORY = "volcano.sh/vgpu-number", "volcano.sh/vgpu-memory"
NAME = "0123456789abcdef01234567"
POD = PodRef("9a422c32-4fc2-11e9-bb64-505dac4c3a38", "ml", "train")


def listed(*ids):
    devices = [pb.Device(ID=each, health="Healthy") for each in ids]
    return pb.ListAndWatchResponse(devices=devices).SerializeToString()


def ids(message):
    return [device.ID for device in message.devices]


@pytest.fixture
def folder(tmp_path_factory):
    """A short path: a socket's has 107 bytes."""
    return tmp_path_factory.mktemp("s")


@pytest.fixture
def allocator():
    return ScriptedAllocator()


@pytest.fixture
def serve(folder, allocator):
    """Serves; gives the endpoint and a client of it."""
    opened = []

    def start(resource=NUMBER, *, binding=True, cdi=True):
        path = str(folder / f"{len(opened)}.sock")
        endpoint = Endpoint(resource, path, allocator, listed("a"), binding=binding, cdi=cdi)
        endpoint.start()
        opened.append((endpoint, Plugin(path)))
        return opened[-1]

    yield start
    for endpoint, plugin in opened:
        plugin.channel.close()
        endpoint.stop(0).wait()


def refusal(call, *args):
    with pytest.raises(grpc.RpcError) as refused:
        call(*args)
    return refused.value.code(), refused.value.details()


# ---------------------------------------------------------------- options and the list


@pytest.mark.parametrize("binding", [True, False])
def test_only_the_binding_resource_asks_for_prestart(serve, binding):
    _, plugin = serve(binding=binding)
    assert plugin.options() == pb.DevicePluginOptions(pre_start_required=binding)


def test_a_preference_is_not_offered(serve):
    _, plugin = serve()
    assert refusal(plugin.prefer)[0] is grpc.StatusCode.UNIMPLEMENTED


def test_the_list_comes_at_once_and_then_each_new_one(serve):
    endpoint, plugin = serve()
    lists = plugin.lists(WAIT_SECONDS)
    assert ids(next(lists)) == ["a"]
    endpoint.offer(listed("a"))  # the same: nothing to report
    endpoint.offer(listed("a", "b"))
    assert ids(next(lists)) == ["a", "b"]
    endpoint.offer(b"")
    assert ids(next(lists)) == []


def test_every_reader_gets_every_list_and_too_many_are_refused(serve):
    endpoint, plugin = serve()
    readers = [plugin.lists(WAIT_SECONDS) for _ in range(server.WATCHERS)]
    assert [ids(next(reader)) for reader in readers] == [["a"]] * len(readers)
    assert refusal(next, plugin.lists(WAIT_SECONDS))[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
    endpoint.offer(listed("b"))
    assert [ids(next(reader)) for reader in readers] == [["b"]] * len(readers)
    readers[0].cancel()
    wait_until(lambda: endpoint.readers.count < len(readers), "one reader less")
    assert ids(next(plugin.lists(WAIT_SECONDS))) == ["b"]


def test_it_is_known_whether_the_list_is_read(serve):
    endpoint, plugin = serve()
    assert (endpoint.readers.count, endpoint.readers.was_read) == (0, False)
    reader = plugin.lists(WAIT_SECONDS)
    next(reader)
    assert (endpoint.readers.count, endpoint.readers.was_read) == (1, True)
    reader.cancel()
    wait_until(lambda: endpoint.readers.count == 0, "the reader's end is seen")
    assert endpoint.readers.was_read


def test_readers_that_come_and_go_leave_room_for_others(serve):
    endpoint, plugin = serve()
    for _ in range(1 + server.THREADS // server.WATCHERS):
        readers = [plugin.lists(WAIT_SECONDS) for _ in range(server.WATCHERS)]
        for reader in readers:
            next(reader)
            reader.cancel()
        wait_until(lambda: endpoint.readers.count == 0, "the readers' end is seen")
    assert plugin.allocate(["a"])


def test_the_list_ends_when_the_endpoint_stops(serve):
    endpoint, plugin = serve()
    lists = plugin.lists(WAIT_SECONDS)
    next(lists)
    endpoint.stop()
    with pytest.raises(StopIteration):
        next(lists)


# ---------------------------------------------------------------- Allocate


@pytest.mark.parametrize("cdi", [True, False])
def test_every_container_is_answered_by_itself(serve, allocator, cdi):
    edits = ContainerEdits({"NVIDIA_VISIBLE_DEVICES": "void"})
    asked = []

    def allocate(resource, ids):
        asked.append((resource, ids))
        return f"{len(asked):024}", edits

    allocator.allocating = allocate
    _, plugin = serve(cdi=cdi)
    given = plugin.allocate(["a", "b"], ["c"])
    assert asked == [(NUMBER, frozenset("ab")), (NUMBER, frozenset("c"))]
    assert given == [responses.answer(f"{n:024}", edits, cdi=cdi) for n in (1, 2)]


def test_a_resource_that_binds_nothing_answers_empty(serve):
    _, plugin = serve(MEMORY, binding=False)
    assert plugin.allocate(["a"]) == [pb.ContainerAllocateResponse()]


@pytest.mark.parametrize("why", BindRefusal)
def test_a_refusal_is_a_status_with_its_message_and_its_reason(serve, allocator, why):
    allocator.allocating = allocator.prestarting = raises(
        BindRefused(why, "3 are asked for", POD, "main")
    )
    _, plugin = serve()
    text = f"ml/train main: 3 are asked for ({why})"
    lasting = why in FINAL or why is BindRefusal.NO_CANDIDATE
    code = grpc.StatusCode.FAILED_PRECONDITION if lasting else grpc.StatusCode.UNAVAILABLE
    assert refusal(plugin.allocate, ["a"]) == (code, text)
    marked = why in FINAL or why in {
        BindRefusal.NO_CLAIM,
        BindRefusal.NO_ROOM,
        BindRefusal.UNKNOWN_DEVICE,
        BindRefusal.UNHEALTHY_DEVICE,
    }
    expected = f"PreStartContainer check failed: {text}" if marked else text
    assert refusal(plugin.prestart, ["a"]) == (code, expected)


def test_a_refusal_of_many_words_still_arrives_with_its_reason(serve, allocator):
    allocator.allocating = raises(BindRefused(BindRefusal.NO_ROOM, "π" * 100_000, POD))
    _, plugin = serve()
    code, text = refusal(plugin.allocate, ["a"])
    assert code is grpc.StatusCode.UNAVAILABLE
    assert text.startswith("ml/train: πππ")
    assert text.endswith("π (no_room)")


def test_a_defect_is_internal_and_keeps_its_details_to_the_log(serve, allocator, caplog):
    allocator.allocating = raises(KeyError("token-5e1c"))
    _, plugin = serve()
    code, text = refusal(plugin.allocate, ["a"])
    assert code is grpc.StatusCode.INTERNAL
    assert text == BindRefusal.INTERNAL.explanation
    assert "token-5e1c" in caplog.text


def test_bytes_that_are_no_request_are_refused_and_the_next_call_is_served(serve):
    _, plugin = serve()
    refusal(plugin.raw, "Allocate", b"\x0a\xff")
    assert plugin.allocate(["a"])


# ---------------------------------------------------------------- PreStartContainer


def test_containers_that_wait_keep_neither_allocate_nor_the_list_waiting(serve, allocator):
    release, waiting = threading.Event(), threading.Semaphore(0)

    def wait(*_):
        waiting.release()
        release.wait(WAIT_SECONDS)

    allocator.prestarting = wait
    endpoint, plugin = serve()
    with ThreadPoolExecutor(server.PRESTARTS) as pool:
        starts = [pool.submit(plugin.prestart, [str(n)]) for n in range(server.PRESTARTS)]
        for _ in starts:
            wait_until(lambda: waiting.acquire(blocking=False), "all containers wait")
        try:
            assert plugin.allocate(["a"])
            lists = plugin.lists(WAIT_SECONDS)
            next(lists)
            endpoint.offer(listed("b"))
            assert ids(next(lists)) == ["b"]
            code, text = refusal(plugin.prestart, ["one more"])
            assert code is grpc.StatusCode.UNAVAILABLE
            assert str(server.PRESTARTS) in text
        finally:
            release.set()
        assert all(start.result() is not None for start in starts)
    allocator.prestarting = lambda *_: None
    assert plugin.prestart(["a"]) is not None


def test_prestart_is_asked_with_the_resource_and_the_ids(serve, allocator):
    asked = []
    allocator.prestarting = lambda *args: asked.append(args)
    _, plugin = serve()
    plugin.prestart(["a", "b"])
    assert asked == [(NUMBER, frozenset("ab"))]


# ---------------------------------------------------------------- the socket


def test_only_its_owner_may_ask(serve):
    endpoint, _ = serve()
    assert stat.S_IMODE(Path(endpoint.path).stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("name", "problem"),
    [("x" * 108, "longer than the 107 bytes of a socket's path"), ("none/x.sock", "Failed to")],
)
def test_a_socket_that_cannot_be_created_is_reported(folder, allocator, name, problem):
    endpoint = Endpoint(NUMBER, str(folder / name), allocator, b"", binding=True, cdi=True)
    with pytest.raises(SocketError) as error:
        endpoint.start()
    assert error.value.problem.startswith(problem)
    endpoint.stop(0).wait()
