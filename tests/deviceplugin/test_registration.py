"""Registered through every restart, shown against a stub of the kubelet (stub_kubelet.py).

The stub has a real gRPC server and real clients, and registers as kubelets 1.34 and 1.37 do by
their source; it is no kubelet. What a real one does is shown in tests/cluster.
"""

import gc
import socket
import threading
import time
from pathlib import Path

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.kubelet import registrar as keeping
from deviceplugin.kubelet import registrar as registering
from deviceplugin.kubelet.registrar import (
    LONGEST_PAUSE_SECONDS,
    Registrar,
    ResourceServer,
    identity,
    pause,
)
from deviceplugin.kubelet.registration import RegistrationOutcome, Unregistered, register
from deviceplugin.kubelet.server import Endpoint
from tests.deviceplugin.scripted_allocator import ScriptedAllocator
from tests.deviceplugin.stub_kubelet import StubKubelet
from tests.support.waiting import wait_for_tick, wait_until
from vgpu.model.names import Scheme
from vgpu.rpc import deviceplugin_pb2 as pb
from vgpu.schemes.codec import ContainerEdits

NUMBER, MEMORY = "volcano.sh/vgpu-number", "volcano.sh/vgpu-memory"
NAME = "0123456789abcdef01234567"


def listed(*ids):
    devices = [pb.Device(ID=each, health="Healthy") for each in ids]
    return pb.ListAndWatchResponse(devices=devices).SerializeToString()


@pytest.fixture
def folder(tmp_path_factory):
    """A short path: a socket's has 107 bytes."""
    return tmp_path_factory.mktemp("k")


@pytest.fixture
def kubelet(folder):
    with StubKubelet(folder) as running:
        yield running


@pytest.fixture(params=[True, False], ids=["1.37", "1.34"])
def any_kubelet(request, folder):
    """Of either generation, where they differ."""
    with StubKubelet(folder, per_socket=request.param) as running:
        yield running


@pytest.fixture
def absent_kubelet(folder):
    """One that has not been started yet."""
    stub = StubKubelet(folder)
    yield stub
    stub.stop()


@pytest.fixture
def allocator():
    return ScriptedAllocator()


@pytest.fixture
def registrar(folder, allocator):
    made = Registrar(str(folder), Scheme.VOLCANO, (NUMBER, MEMORY), allocator, cdi=True)
    made.start()
    yield made
    made.stop()


def state(registrar, resource=NUMBER):
    return next(each for each in registrar.states() if each.resource == resource)


def wait_registered(registrar, resource=NUMBER):
    return wait_until(
        lambda: (found := state(registrar, resource)).registered and found,
        f"{resource} is there",
        context=lambda: str(state(registrar, resource)),
    )


def wait_replaced(registrar, before):
    wait_until(lambda: state(registrar).socket not in ("", before), "another socket")
    return wait_registered(registrar)


def wait_read(kubelet, resource, ids):
    wait_until(
        lambda: kubelet.healthy(resource) == ids,
        f"{resource} is {ids} to the kubelet",
        context=lambda: f"{kubelet.devices}, {kubelet.attempts}",
    )


def own_sockets(folder):
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("vgpu-"))


# ---------------------------------------------------------------- the ordinary life


def test_what_is_offered_is_registered_once_and_its_list_is_read(
    kubelet, registrar, allocator, folder
):
    allocator.allocating = lambda resource, ids: (
        NAME,
        ContainerEdits({"IDS": ",".join(sorted(ids))}),
    )
    registrar.offer(NUMBER, listed("a", "b"))
    registrar.offer(MEMORY, listed("m"))
    wait_read(kubelet, NUMBER, {"a", "b"})
    wait_read(kubelet, MEMORY, {"m"})
    for resource in (NUMBER, MEMORY):
        wait_until(  # the list may be read before the registration is answered
            lambda resource=resource: state(registrar, resource).outcomes == {"registered": 1},
            f"{resource} is registered once",
        )
        found = wait_registered(registrar, resource)
        assert (found.offered, found.problem, found.outcomes) == (True, "", {"registered": 1})
    assert sorted(kubelet.attempts) == sorted(
        (resource, name)
        for resource, short in ((NUMBER, "number"), (MEMORY, "memory"))
        for name in own_sockets(folder)
        if name.startswith(f"vgpu-volcano-vgpu-{short}-")
    )
    answer = kubelet.allocate(NUMBER, ["b", "a"])
    assert [device.name for device in answer.cdi_devices] == [f"vgpu.dev/share={NAME}"]
    assert kubelet.plugin(NUMBER).options().pre_start_required
    assert not kubelet.plugin(MEMORY).options().pre_start_required
    kubelet.prestart(NUMBER, ["a", "b"])


def test_what_is_not_offered_is_not_registered(kubelet, registrar, folder):
    registrar.offer(NUMBER, listed("a"))
    wait_registered(registrar)
    assert not state(registrar, MEMORY).offered
    assert [resource for resource, _ in kubelet.attempts] == [NUMBER]


def test_another_list_reaches_the_kubelet_on_the_same_connection(kubelet, registrar):
    registrar.offer(NUMBER, listed("a"))
    wait_registered(registrar)
    registrar.offer(NUMBER, listed("a", "b"))
    wait_read(kubelet, NUMBER, {"a", "b"})
    assert len(kubelet.attempts) == 1


def test_what_is_withdrawn_is_served_no_more_and_may_come_back(kubelet, registrar, folder):
    registrar.offer(NUMBER, listed("a"))
    wait_read(kubelet, NUMBER, {"a"})
    registrar.offer(NUMBER, None)
    wait_read(kubelet, NUMBER, set())
    assert own_sockets(folder) == []
    assert not state(registrar).registered
    registrar.offer(NUMBER, listed("b"))
    wait_read(kubelet, NUMBER, {"b"})


def test_stopping_ends_the_lists_and_leaves_no_sockets(kubelet, registrar, folder):
    registrar.offer(NUMBER, listed("a"))
    wait_read(kubelet, NUMBER, {"a"})
    registrar.stop()
    wait_read(kubelet, NUMBER, set())
    assert own_sockets(folder) == []


# ---------------------------------------------------------------- restarts


def test_a_kubelet_that_comes_later_is_waited_for(absent_kubelet, registrar, folder):
    registrar.offer(NUMBER, listed("a"))
    wait_until(lambda: "kubelet.sock is not there" in state(registrar).problem, "it is reported")
    assert own_sockets(folder) == []
    absent_kubelet.start()
    wait_registered(registrar)
    assert len(absent_kubelet.attempts) == 1


def test_a_restarted_kubelet_is_registered_with_again_under_fresh_names(any_kubelet, registrar):
    registrar.offer(NUMBER, listed("a"))
    registrar.offer(MEMORY, listed("m"))
    for restarts in range(1, 3):
        wait_read(any_kubelet, NUMBER, {"a"})
        wait_read(any_kubelet, MEMORY, {"m"})
        assert len(any_kubelet.attempts) == 2 * restarts
        any_kubelet.restart()
    wait_until(lambda: len(any_kubelet.attempts) == 6, "both are there again")
    names = [name for _, name in any_kubelet.attempts]
    assert len(set(names)) == len(names)


def test_a_kubelet_that_is_down_for_a_while_finds_the_plugin_when_it_is_back(kubelet, registrar):
    registrar.offer(NUMBER, listed("a"))
    wait_registered(registrar)
    kubelet.stop()
    wait_until(lambda: not state(registrar).registered, "its end is seen")
    kubelet.start()
    wait_read(kubelet, NUMBER, {"a"})


@pytest.mark.slow
def test_many_restarts_leave_no_threads_behind(absent_kubelet, registrar):
    earlier = set(threading.enumerate())

    def serving():
        gc.collect()
        threads = set(threading.enumerate()) - earlier
        return sum(thread.name.startswith("vgpu-number") for thread in threads)

    registrar.offer(NUMBER, listed("a"))
    for _ in range(6):
        absent_kubelet.restart()
        wait_read(absent_kubelet, NUMBER, {"a"})
    wait_until(lambda: 0 < serving() < 6, "the threads of earlier servers end")


def test_an_own_socket_that_somebody_removes_is_replaced_by_a_fresh_one(any_kubelet, registrar):
    registrar.offer(NUMBER, listed("a"))
    for _ in range(2):
        wait_read(any_kubelet, NUMBER, {"a"})
        before = wait_registered(registrar).socket
        Path(before).unlink()
        wait_replaced(registrar, before)
    names = [name for _, name in any_kubelet.attempts]
    assert len(set(names)) == len(names)
    assert state(registrar).outcomes[RegistrationOutcome.REMOVED] >= 2


def test_an_own_socket_with_another_in_its_place_is_replaced(kubelet, registrar):
    registrar.offer(NUMBER, listed("a"))
    before = wait_registered(registrar).socket
    Path(before).unlink()
    with socket.socket(socket.AF_UNIX) as impostor:
        impostor.bind(before)
        wait_replaced(registrar, before)


def test_an_inode_that_is_used_again_is_another_socket(folder, tmp_path):
    """ext4 gives the next file the number of the last one that was removed."""
    path = folder / "x.sock"
    assert identity(str(path)) is None
    seen = set()
    for _ in range(10):
        with socket.socket(socket.AF_UNIX) as each:
            each.bind(str(path))
            seen.add(identity(str(path)))
        path.unlink()
        wait_for_tick(tmp_path)  # elsewhere: the number is to be free
    assert len(seen) == 10


# ---------------------------------------------------------------- what goes wrong


def test_a_refused_registration_is_tried_again_under_a_fresh_name(kubelet, registrar):
    kubelet.refuse = lambda request: (grpc.StatusCode.UNKNOWN, "the kubelet is not in the mood")
    registrar.offer(NUMBER, listed("a"))
    wait_until(lambda: len(kubelet.attempts) >= 3, "three tries")
    found = state(registrar)
    assert found.problem.endswith("UNKNOWN: the kubelet is not in the mood")
    assert not found.registered
    kubelet.refuse = lambda request: None
    wait_registered(registrar)
    names = [name for _, name in kubelet.attempts]
    assert len(set(names)) == len(names)
    assert state(registrar).problem == ""


def test_the_socket_of_a_killed_kubelet_gets_no_socket_of_ours(folder, registrar):
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(folder / "kubelet.sock"))
    registrar.offer(NUMBER, listed("a"))
    wait_until(
        lambda: state(registrar).outcomes.get(RegistrationOutcome.UNREACHABLE, 0) >= 2, "two tries"
    )
    assert own_sockets(folder) == []
    assert "connection refused" in state(registrar).problem
    with StubKubelet(folder):
        wait_registered(registrar)


def test_a_kubelet_that_answers_unavailable_is_not_reached(absent_kubelet, registrar):
    absent_kubelet.refuse = lambda request: (grpc.StatusCode.UNAVAILABLE, "shutting down")
    absent_kubelet.start()
    registrar.offer(NUMBER, listed("a"))
    wait_until(
        lambda: RegistrationOutcome.UNREACHABLE in state(registrar).outcomes, "it is reported"
    )
    assert state(registrar).problem.endswith("UNAVAILABLE: shutting down")


def test_a_kubelet_whose_socket_cannot_be_asked_is_reported(allocator, folder):
    deep = folder / ("x" * 110)
    deep.mkdir()
    (deep / "kubelet.sock").touch()
    made = Registrar(str(deep), Scheme.VOLCANO, (NUMBER,), allocator, cdi=True)
    made.start()
    made.offer(NUMBER, listed("a"))
    wait_until(lambda: "path too long" in state(made).problem, "it is reported")
    made.stop()


def test_a_defect_in_one_look_does_not_end_the_looking(kubelet, registrar, monkeypatch, caplog):
    look, broken = ResourceServer.check, [True]

    def broken_once(self, *args):
        if broken:
            broken.pop()
            raise KeyError("x")
        look(self, *args)

    monkeypatch.setattr(ResourceServer, "check", broken_once)
    registrar.offer(NUMBER, listed("a"))
    wait_registered(registrar)
    assert "unexpected error while keeping a resource registered" in caplog.text


def test_a_list_that_was_read_for_long_is_a_success_after_failures(kubelet, allocator, folder):
    """Or a plugin would come back ever more slowly, the longer it lives."""
    keeper = ResourceServer(folder, "vgpu-volcano-", NUMBER, allocator, binding=True, cdi=True)
    socket = identity(str(folder / "kubelet.sock"))
    keeper.offer(listed("a"))
    kubelet.refuse = lambda request: (grpc.StatusCode.UNKNOWN, "not yet")
    now = time.monotonic()
    for later in range(1, 7):
        keeper.check(socket, now + 10 * later)
    kubelet.refuse = lambda request: None
    keeper.check(socket, now + 70)
    wait_read(kubelet, NUMBER, {"a"})
    keeper.check(socket, now + 90)
    Path(keeper.state().socket).unlink()
    keeper.check(socket, now + 91)
    assert not keeper.state().registered
    keeper.check(socket, now + 91.2)
    wait_until(lambda: keeper.state().registered, "the first pause is a short one")
    keeper.stop(0).wait()


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (grpc.StatusCode.UNIMPLEMENTED, "unknown service v1beta1.Registration"),
        (
            grpc.StatusCode.UNKNOWN,
            'requested API version "v1beta1" is not supported by kubelet. Supported is ["v1"]',
        ),
    ],
)
def test_a_kubelet_of_another_version_is_reported_and_not_asked_again(
    absent_kubelet, registrar, status, text
):
    absent_kubelet.refuse = lambda request: (status, text)
    absent_kubelet.start()
    registrar.offer(NUMBER, listed("a"))
    wait_until(lambda: state(registrar).problem, "it is reported")
    assert (
        state(registrar).problem
        == f"{RegistrationOutcome.UNSUPPORTED.explanation}: {status.name}: {text}"
    )
    assert state(registrar).outcomes == {RegistrationOutcome.UNSUPPORTED: 1}
    absent_kubelet.refuse = lambda request: None
    absent_kubelet.restart()  # as another version
    wait_registered(registrar)


def test_a_kubelet_that_never_asks_for_the_list_is_registered_with_again(
    absent_kubelet, registrar, monkeypatch
):
    monkeypatch.setattr(keeping, "NEVER_READ_SECONDS", 0.3)
    absent_kubelet.reads_lists = False
    absent_kubelet.start()
    registrar.offer(NUMBER, listed("a"))
    wait_until(lambda: state(registrar).outcomes.get(RegistrationOutcome.NOT_READ), "it is noticed")
    assert not state(registrar).registered
    absent_kubelet.reads_lists = True
    wait_registered(registrar)
    names = [name for _, name in absent_kubelet.attempts]
    assert len(set(names)) == len(names)


@pytest.mark.slow
def test_a_list_that_the_kubelet_reads_no_more_is_registered_again(any_kubelet, registrar):
    registrar.offer(NUMBER, listed("a"))
    wait_read(any_kubelet, NUMBER, {"a"})
    any_kubelet.plugin(NUMBER).channel.close()
    wait_until(lambda: len(any_kubelet.attempts) == 2, "it is registered again")
    wait_read(any_kubelet, NUMBER, {"a"})


def test_a_folder_that_takes_no_socket_is_reported(absent_kubelet, allocator, folder):
    deep = folder / ("x" * (106 - len(f"{folder}//kubelet.sock")))  # as deep as a kubelet can be
    deep.mkdir()
    stub = StubKubelet(deep)
    made = Registrar(str(deep), Scheme.VOLCANO, (NUMBER,), allocator, cdi=True)
    with stub:
        made.start()
        made.offer(NUMBER, listed("a"))
        wait_until(
            lambda: state(made).outcomes.get(RegistrationOutcome.NOT_SERVED), "it is reported"
        )
        assert "longer than the 107 bytes" in state(made).problem
        made.stop()
        assert stub.attempts == []


@given(st.integers(1, 10_000), st.sampled_from(RegistrationOutcome))
def test_pauses_grow_and_have_an_end(failures, outcome):
    assert 0 < pause(failures, outcome) <= pause(failures + 1, outcome)
    if outcome is RegistrationOutcome.UNSUPPORTED:
        assert pause(failures, outcome) > LONGEST_PAUSE_SECONDS
    else:
        assert pause(1, outcome) == 0.1
        assert pause(failures, outcome) <= LONGEST_PAUSE_SECONDS


# ---------------------------------------------------------------- the two traps


def test_the_stub_of_1_37_is_wedged_by_a_name_that_is_used_twice(folder, allocator):
    """As the real one was: what all others do (one name, for ever) ends here."""
    with StubKubelet(folder) as kubelet:
        endpoint = Endpoint(
            NUMBER, str(folder / "one.sock"), allocator, b"", binding=True, cdi=True
        )
        endpoint.start()
        register(folder, "one.sock", NUMBER, binding=True)
        wait_until(lambda: endpoint.readers.count, "the list is read")
        with pytest.raises(Unregistered, match="device plugin already connected"):
            register(folder, "one.sock", NUMBER, binding=True)
        endpoint.stop(0).wait()
        kubelet.notice_ended()
        again = Endpoint(NUMBER, str(folder / "one.sock"), allocator, b"", binding=True, cdi=True)
        again.start()
        for _ in range(3):
            with pytest.raises(Unregistered, match="device plugin already connected"):
                register(folder, "one.sock", NUMBER, binding=True)
        again.stop(0).wait()
        kubelet.stop()


def test_a_plugin_that_starts_again_and_again_is_never_wedged(any_kubelet, allocator, folder):
    for number in range(10):
        made = Registrar(str(folder), Scheme.VOLCANO, (NUMBER,), allocator, cdi=True)
        made.start()
        made.offer(NUMBER, listed(str(number)))
        wait_registered(made)
        made.stop(0)
    made = Registrar(str(folder), Scheme.VOLCANO, (NUMBER,), allocator, cdi=True)
    made.start()
    made.offer(NUMBER, listed("last"))
    wait_read(any_kubelet, NUMBER, {"last"})
    made.stop()


@pytest.mark.slow
def test_a_plugin_whose_successor_is_there_already_takes_nothing_from_it_for_long(
    folder, allocator
):
    """1.34 closes the new connection when it sees the end of the old one."""
    with StubKubelet(folder, per_socket=False) as kubelet:
        old = Registrar(str(folder), Scheme.VOLCANO, (NUMBER,), allocator, cdi=True)
        new = Registrar(str(folder), Scheme.VOLCANO, (NUMBER,), allocator, cdi=True)
        old.start()
        old.offer(NUMBER, listed("old"))
        wait_read(kubelet, NUMBER, {"old"})
        new.start()
        new.offer(NUMBER, listed("new"))
        wait_read(kubelet, NUMBER, {"new"})
        old.stop()
        wait_until(lambda: len(kubelet.attempts) == 3, "the new one comes again")
        wait_read(kubelet, NUMBER, {"new"})
        new.stop()


# ---------------------------------------------------------------- what earlier lives left


def test_sockets_left_behind_are_removed_and_no_others(folder, allocator):
    def left(name):
        with socket.socket(socket.AF_UNIX) as gone:
            gone.bind(str(folder / name))

    for name in ("vgpu-volcano-vgpu-number-1.sock", "vgpu-gaia-vcuda-core-1.sock", "nvidia.sock"):
        left(name)
    (folder / "vgpu-volcano-notes.sock").write_text("no socket")
    with socket.socket(socket.AF_UNIX) as living:
        living.bind(str(folder / "vgpu-volcano-vgpu-memory-2.sock"))
        living.listen()
        made = Registrar(str(folder), Scheme.VOLCANO, (NUMBER,), allocator, cdi=True)
        made.start()
        made.offer(NUMBER, listed("a"))
        wait_until(lambda: state(made).problem, "it has looked")
        made.stop()
    assert sorted(path.name for path in folder.iterdir()) == [
        "nvidia.sock",
        "vgpu-gaia-vcuda-core-1.sock",
        "vgpu-volcano-notes.sock",
        "vgpu-volcano-vgpu-memory-2.sock",
    ]


def test_a_socket_left_behind_that_cannot_be_asked_keeps_nothing_from_being_registered(
    kubelet, allocator, folder, monkeypatch, caplog
):
    def refuse(path):
        raise PermissionError(13, "Permission denied", path)

    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(folder / "vgpu-volcano-old.sock"))
    monkeypatch.setattr(registering, "is_served", refuse)
    made = Registrar(str(folder), Scheme.VOLCANO, (NUMBER,), allocator, cdi=True)
    made.start()
    made.offer(NUMBER, listed("a"))
    wait_registered(made)
    made.stop()
    assert "cannot be removed" in caplog.text
    assert own_sockets(folder) == ["vgpu-volcano-old.sock"]
