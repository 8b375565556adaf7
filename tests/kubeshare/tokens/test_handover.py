"""A planned restart: the next process takes over, and no process of a pod notices it."""

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from contextlib import ExitStack

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeshare.tenant_identity import TenantEntry
from kubeshare.tokens import server as server_module
from kubeshare.tokens import takeover, takeover_record
from kubeshare.tokens.connections import Connection
from kubeshare.tokens.frames import LimitRequest, QuotaRequest, UpdateRequest, decode
from kubeshare.tokens.gpu_tokens import GpuTokens
from kubeshare.tokens.scheduler import TokenMode, TokenRules
from kubeshare.tokens.server import TokenServer
from tests.kubeshare.tokens.gemini_process import MIB, UUID, Client, own_address, pod, write
from tests.kubeshare.tokens.hook_model import MEM_LIMIT, QUOTA, HookProcess, KilledError, request
from tests.kubeshare.tokens.test_daemon import get, seen
from tests.support.environment import ROOT
from tests.support.waiting import wait_until


@pytest.fixture
def serve(tmp_path, clock):
    """Starts one daemon after the other, each of which takes over from the last one."""
    servers, failures = [], []

    def start():
        server = TokenServer(
            tmp_path,
            own_address(),
            TokenRules(),
            failures.append,
            takeover_path=tmp_path / "run" / "socket",
            clock=clock,
        )
        servers.append(server)
        server.start()
        return server

    yield start
    for server in reversed(servers):
        server.stop()
    assert failures == []


def test_no_process_notices_that_another_daemon_has_taken_over(serve, tmp_path, clock):
    """The holder uses 200 of its 300 ms, the next one 100; then the first one misses less."""
    write(tmp_path, [pod("a"), pod("b"), pod("c")])
    first = serve()
    clock.advance(1000)
    with (
        Client(50051) as holder,
        Client(50052, name="ns/b") as waiting,
        Client(50053, name="ns/c") as halfway,
        Client(50053, "-1", name="ns/c") as newer,
    ):
        assert holder.ask(f"allocate {600 * MIB}") == "allocate 1"
        assert holder.ask("quota 0 0") == "quota 300.000"
        waiting.send("quota 0 0")
        wait_until(lambda: seen(first, "b").waiting, "b waits")
        assert newer.ask("limit") == f"limit 0 {1024 * MIB}"
        assert newer.ask("allocate 7") == "allocate 1"
        whole = struct.pack("<Q5sii", 4, b"ns/c", 5, 1).ljust(80, b"\0")
        assert halfway.ask(f"raw {whole[:33].hex()}") == "raw"
        clock.advance(200)
        before = {name: seen(first, name).counts for name in "abc"}
        second = serve()
        assert first.view().tenants
        assert {name: seen(second, name).counts for name in "abc"} == before
        assert seen(second).held
        assert seen(second).booked == 600 * MIB
        assert seen(second, "c").booked == 7
        assert halfway.ask(f"raw {whole[33:].hex()}") == "raw"
        assert halfway.ask("limit") == f"limit 7 {1024 * MIB}"  # the answer to the two halves
        holder.send("quota 0 9000")
        assert waiting.answer() == "quota 300.000"
        clock.advance(100)
        waiting.send("quota 0 9000")
        assert holder.answer() == "quota 100.000"  # short: the other one waits
        assert holder.ask(f"allocate {600 * MIB}") == "allocate 0"
        assert newer.ask("free 7") == "free 1"
        with Client(50051) as late:
            assert late.ask("limit") == f"limit {600 * MIB} {1024 * MIB}"
        third = serve()
        assert holder.ask("limit") == f"limit {600 * MIB} {1024 * MIB}"
        assert seen(third, "c").booked == 0
        assert holder.end() == waiting.end() == newer.end() == 0


def test_answers_that_a_peer_has_not_read_are_sent_by_the_next_daemon(serve, tmp_path):
    """And more connections than one message carries."""
    write(tmp_path, [pod("a")])
    serve()
    with contextlib.ExitStack() as stack:
        peers = [
            stack.enter_context(socket.create_connection((own_address(), 50051)))
            for _ in range(300)
        ]
        first, next_one = (
            struct.pack("<Q5sii", 4, b"ns/a", id_, 1).ljust(80, b"\0") for id_ in (5, 6)
        )
        for peer in peers:
            peer.sendall(first + next_one[:5])
        second = serve()
        for peer in peers:
            peer.sendall(next_one[5:])
            answer = peer.recv(80, socket.MSG_WAITALL)
            assert answer == b"".join(struct.pack("<iQQ20x", id_, 0, 1024 * MIB) for id_ in (5, 6))
        assert seen(second).connections == 300


def test_a_damaged_file_takes_nobodys_share_also_by_a_restart(serve, tmp_path):
    write(tmp_path, [pod("a")])
    serve()
    (tmp_path / "config" / UUID).write_text("7\n")
    second = serve()
    with Client(50051) as client:
        assert client.ask("limit") == f"limit 0 {1024 * MIB}"
    assert "7 pods announced" in second.complaint()


def leaves_at_once(path):
    takeover.predecessor(path).__exit__(None, None, None)


def leaves_before_it_is_ready(path):
    with takeover.predecessor(path) as last:
        last.receive()


def sends_another_message(path):
    with takeover.predecessor(path) as last:
        last.receive()
        last._connection.send(b"never")
        assert last._connection.recv(1) == b""


@pytest.mark.parametrize(
    "other", [leaves_at_once, leaves_before_it_is_ready, sends_another_message]
)
def test_a_daemon_goes_on_if_the_next_one_fails(serve, tmp_path, other):
    write(tmp_path, [pod("a")])
    server = serve()
    with Client(50051) as client:
        assert client.ask("allocate 5") == "allocate 1"
        other(tmp_path / "run" / "socket")
        assert client.ask("allocate 5") == "allocate 1"
        assert seen(server).booked == 10
        assert seen(serve()).booked == 10


def test_a_daemon_that_ends_hands_nothing_over(tmp_path):
    """Those that wait are answered then, which the next daemon could not know."""
    write(tmp_path, [pod("a")])
    path = tmp_path / "run" / "socket"
    server = TokenServer(tmp_path, own_address(), TokenRules(), pytest.fail, takeover_path=path)
    server._take_over(path)
    with takeover.predecessor(path) as late:
        server.stop()
        with pytest.raises(takeover.TakeoverError):
            late.receive()


def test_a_daemon_does_not_take_over_what_it_cannot_read(serve, tmp_path, monkeypatch):
    write(tmp_path, [pod("a")])
    serve()
    with Client(50051) as client:
        assert client.ask("allocate 5") == "allocate 1"
        monkeypatch.setattr(takeover_record, "VERSION", 3)
        with pytest.raises(takeover.TakeoverError, match="version 2, and 3 is expected"):
            serve()
        assert client.ask("allocate 5") == "allocate 1"


def test_another_user_gets_nothing(serve, tmp_path, monkeypatch):
    write(tmp_path, [pod("a")])
    serve()
    path = tmp_path / "run" / "socket"
    assert path.parent.stat().st_mode & 0o77 == 0
    assert path.stat().st_mode & 0o77 == 0
    with Client(50051) as client:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        with pytest.raises(takeover.TakeoverError, match="closed the connection"):
            serve()
        assert client.ask("allocate 5") == "allocate 1"


ENTRIES = [
    TenantEntry(UUID, "ns", "a", 1, pod("a", 300, 600, 100)),
    TenantEntry(UUID, "ns", "b", 2, pod("b", 500, 1000, 100), "", ("10.0.0.1",)),
    TenantEntry(UUID, "ns", "c", 3, None),
]
TIMES = st.just(0.0) | st.floats(0, 400)
events = st.lists(
    st.tuples(
        st.integers(0, 500_000),
        st.integers(0, 7),
        st.just("close")
        | st.booleans().map(lambda at_own: ("files", at_own))
        | st.builds(QuotaRequest, st.just(b"ns/a"), st.integers(0, 9), TIMES, TIMES)
        | st.builds(LimitRequest, st.just(b"ns/a"), st.integers(0, 9))
        | st.builds(
            UpdateRequest,
            st.just(b"ns/b"),
            st.integers(0, 9),
            st.integers(0, 60),
            st.booleans(),
        ),
    ),
    max_size=40,
)


class Played:
    """The pods of a GPU, played by eight connections; every answer is noted."""

    def __init__(self, mode, restarts):
        self.restarts = restarts
        self.rules = TokenRules(mode)
        self.tokens = GpuTokens(self.rules, 0)
        self.tokens.configure(ENTRIES, 0)
        self.entries = {key: ENTRIES[key % 3] for key in range(8)}
        self.open, self.waiting, self.now, self.answers = set(), set(), 0, []

    def note(self, answers):
        self.answers += [(self.now, *each) for each in answers]
        self.waiting -= {key for key, *_ in answers}

    def play(self, delay, key, event):
        until = self.now + delay
        while self.tokens.wake_at <= until:
            self.now = max(self.now, self.tokens.wake_at)
            self.note(self.tokens.tick(self.now))
        self.now = until
        entry = self.entries[key]
        if event == "close":
            if key in self.open:
                self.open.discard(key)
                self.waiting.discard(key)
                self.note(self.tokens.disconnect(key, self.now))
        elif isinstance(event, tuple):
            addresses = ("10.0.0.1", "10.0.0.2") if event[1] else ("10.0.0.1",)
            b = TenantEntry(UUID, "ns", "b", 2, ENTRIES[1].share, "", addresses)
            self.note(self.tokens.configure([ENTRIES[0], b, ENTRIES[2]], self.now))
        elif key not in self.waiting:
            if key not in self.open:
                self.open.add(key)
                self.tokens.connect(entry, key, f"10.0.0.{key % 2 + 1}")
            self.waiting.add(key)
            self.note(self.tokens.request(key, event, self.now))
        if self.restarts:
            self.restart()

    def restart(self):
        keys = sorted(self.open)
        gpu = self.tokens.record({key: number for number, key in enumerate(keys)})
        files = takeover_record.FilesRecord()
        record = takeover_record.DaemonRecord(
            takeover_record.VERSION, (), (), {UUID: gpu}, files, 0, 0
        )
        record = takeover_record.decode_record(takeover_record.encode_record(record))
        self.tokens = GpuTokens.restored(record.gpus[UUID], self.rules, keys)


@given(st.sampled_from(TokenMode), events)
def test_a_restart_after_every_event_changes_no_answer_and_no_booking(mode, script):
    once, often = Played(mode, restarts=False), Played(mode, restarts=True)
    for event in script:
        once.play(*event)
        often.play(*event)
    assert often.answers == once.answers
    assert [*often.tokens.views(often.now)] == [*once.tokens.views(once.now)]


def test_a_daemon_takes_over_from_an_older_one_that_kept_less():
    """And the other way round: what a daemon does not know is skipped."""
    tokens = GpuTokens(TokenRules(), 0)
    tokens.configure(ENTRIES, 0)
    tokens.connect(ENTRIES[0], "key", "10.0.0.1")
    tokens.request("key", UpdateRequest(b"ns/a", 7, 60, True), 0)
    connection = takeover_record.ConnectionRecord(UUID, "ns/a", b"", b"", True, False, b"last")
    record = takeover_record.DaemonRecord(
        takeover_record.VERSION,
        (),
        (connection,),
        {UUID: tokens.record({"key": 0})},
        takeover_record.FilesRecord(),
        0,
        0,
    )
    content = msgspec.msgpack.decode(takeover_record.encode_record(record))
    del content["connections"][0]["last"]
    for each in content["gpus"][UUID]["pods"]:
        for name in ("first_ids", "unattributed"):
            del each[name]
        for name in ("messages", "replaced", "repeated"):
            del each["counts"][name]
        each["another"] = 1
    older = takeover_record.decode_record(msgspec.msgpack.encode(content))
    assert older.connections[0].last == b""
    restored = GpuTokens.restored(older.gpus[UUID], TokenRules(), ["key"])
    view = next(restored.views(0))
    assert (view.booked, view.connections, view.counts.messages) == (60, 1, {})


def ends(server):
    """Whether the end of each connection of the pod a is a reset, by the id of its last message."""
    found = {}
    with server._lock:  # it has ended its round: also connections without a message are there
        connections = [*server._connections]
    for each in connections:
        value = each.socket.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8)
        found[decode(each.last or LAST).id] = struct.unpack("ii", value) == (1, 0)
    return found


LAST = request("ns/a", 0, MEM_LIMIT)


def ask(connection, id_, kind=MEM_LIMIT):
    connection.sendall(request("ns/a", id_, kind, *(0.0, 9000.0) * (kind == QUOTA)))
    assert len(connection.recv(40, socket.MSG_WAITALL)) == 40


@pytest.fixture
def upgraded(serve, tmp_path, monkeypatch):
    """Takes over from a daemon that resets no connection and keeps no ids of first messages."""
    write(tmp_path, [pod("a")])
    encode, reset = takeover_record.encode_record, Connection.reset_at_close

    def encode_less(record):
        gpu = record.gpus[UUID]
        pods = tuple(msgspec.structs.replace(each, first_ids=None) for each in gpu.pods)
        gpus = {UUID: msgspec.structs.replace(gpu, pods=pods)}
        return encode(msgspec.structs.replace(record, gpus=gpus))

    def upgrade():
        monkeypatch.setattr(Connection, "reset_at_close", reset)
        return serve()

    monkeypatch.setattr(server_module, "encode_record", encode_less)
    monkeypatch.setattr(Connection, "reset_at_close", lambda *_, **__: None)
    serve()
    return upgrade


def peers(stack, number):
    return [
        stack.enter_context(socket.create_connection((own_address(), 50051), timeout=60))
        for _ in range(number)
    ]


def test_connections_of_gemini_1_0_are_reset_whichever_daemon_has_accepted_them(upgraded):
    """From the next message on; it may be that of a process of Gemini 1.1 before."""
    with ExitStack() as stack:
        (process,) = peers(stack, 1)
        ask(process, 0)
        ask(process, 1)
        second = upgraded()
        assert ends(second) == {1: False}
        ask(process, 2)
        assert ends(second) == {2: True}


def test_a_pod_with_more_tokens_than_connections_has_gemini_1_0(upgraded):
    """Its processes may wait for a token, and so send nothing more before a kill."""
    with ExitStack() as stack:
        (process,) = peers(stack, 1)
        for id_ in range(2):
            ask(process, id_, QUOTA)
        assert ends(upgraded()) == {1: True}


def test_connections_of_gemini_1_1_end_in_order_at_a_kill(serve, tmp_path):
    """Also one through which several threads have sent before the version was known."""
    write(tmp_path, [pod("a")])
    server = serve()
    with ExitStack() as stack:
        threads, newer, older_one = peers(stack, 3)
        ask(threads, 0)
        ask(threads, 1)
        assert ends(server) == {0: False, 1: True}
        ask(newer, 3)
        assert ends(server) == {0: False, 1: False, 3: False}
        for id_ in range(20):
            ask(older_one, id_)
        assert ends(server) == {1: False, 3: False, 19: True}, "of 1.0 beside it"


@given(st.binary())
def test_any_record_is_read_or_refused(content):
    with contextlib.suppress(takeover_record.RecordError):
        takeover_record.decode_record(content)


# ---------------------------------------------------------------- processes


def start(folder, log, *flags):
    """The command, with its log in a file."""
    address = own_address()
    command = [
        *(sys.executable, "-m", "vgpu", "tokens", "--kubeshare-dir", folder),
        *("--tenant-address", address, "--web.listen-address", f"{address}:9402"),
        *("--handover-socket", folder / "run" / "handover.sock", *flags),
    ]
    with log.open("w") as stderr:
        return subprocess.Popen(command, cwd=ROOT, stderr=stderr)


@pytest.fixture
def programs(tmp_path):
    """Starts the program; ends all that are left."""
    with contextlib.ExitStack() as stack:
        logs = []

        def started(*flags):
            log = tmp_path / f"log-{len(logs)}"
            logs.append(log)
            program = stack.enter_context(start(tmp_path, log, *flags))
            stack.callback(program.kill)
            return program, log

        yield started


def connections(name="a"):
    page = get(f"http://{own_address()}:9402/metrics")
    return next(
        int(line.split()[1])
        for line in page.splitlines()
        if line.startswith(f'vgpu_token_connections{{uuid="{UUID}",namespace="ns",pod="{name}"}}')
    )


@pytest.mark.parametrize("is_ended_early", [False, True])
def test_the_next_process_serves_before_the_last_one_ends(programs, tmp_path, is_ended_early):
    write(tmp_path, [pod("a"), pod("b")])
    last, last_log = programs("--handover-wait=1h")
    ready = f"http://{own_address()}:9402/-/ready"
    wait_until(lambda: get(ready), "it is ready", failures=(OSError,))
    with Client(50051) as client, Client(50052, name="ns/b") as waiting:
        assert client.ask("quota 0 0") == "quota 300.000"
        waiting.send("quota 0 0")
        if is_ended_early:  # it serves on until the next one has taken over
            last.send_signal(signal.SIGTERM)
        next_one, log = programs()
        wait_until(lambda: "ports=2" in log.read_text(), "it took over")
        wait_until(lambda: "only waits for its end" in last_log.read_text(), "the last one waits")
        assert waiting.answer() == "quota 300.000"
        assert client.ask("allocate 5") == "allocate 1"
        wait_until(lambda: get(ready), "its page is served", failures=(OSError,))
        assert connections() == 1
        if not is_ended_early:
            assert last.poll() is None, "the kubelet would start it again"
            last.send_signal(signal.SIGTERM)
        assert last.wait() == 0
        assert client.ask("allocate 5") == "allocate 1"
        next_one.send_signal(signal.SIGTERM)
        assert next_one.wait() == 0
    assert not (tmp_path / "run" / "handover.sock").exists()


def test_after_an_unclean_death_only_the_newer_hook_goes_on(programs, tmp_path):
    write(tmp_path, [pod("a")])
    killed, _ = programs()
    ready = f"http://{own_address()}:9402/-/ready"
    wait_until(lambda: get(ready), "it is ready", failures=(OSError,))
    with Client(50051) as older, Client(50051, "-1") as newer:
        assert older.ask("allocate 5") == "allocate 1"
        assert newer.ask("allocate 5") == "allocate 1"
        killed.kill()
        killed.wait()
        programs()
        wait_until(lambda: get(ready), "another one is ready", failures=(OSError,))
        assert newer.ask("allocate 5") == "allocate 1"
        older.send("limit")
        older.send("limit")
        assert older.process.wait() == -signal.SIGPIPE
        assert connections() == 1


def test_after_an_unclean_death_no_process_computes_without_a_token(programs, tmp_path):
    """All wait: 1.0 is killed, and 1.1 finds no port, and asks the next daemon after 10 s."""
    write(tmp_path, [pod("a"), pod("b")])
    killed, _ = programs("--quota=1h", "--max-quota=1h", "--window=1h")
    url = f"http://{own_address()}:9402"
    wait_until(lambda: get(f"{url}/-/ready"), "it is ready", failures=(OSError,))
    again = threading.Event()
    ends = {}

    def tokens(version, process):
        try:
            ends[version] = process.token(burst_ms=9000.0), process.token()
        except KilledError:
            ends[version] = "SIGPIPE"

    port = own_address(), 50052
    with ExitStack() as stack:
        holder = stack.enter_context(HookProcess((own_address(), 50051), "ns/a"))
        older, newer = (
            stack.enter_context(HookProcess(port, "ns/b", version, sleep=lambda _: again.wait()))
            for version in ("v1.0", "v1.1")
        )
        holder.begin()
        for process in (older, newer):
            process._has_begun = True
            for _ in range(100):
                process.memory_info()
        threads = [
            threading.Thread(target=tokens, args=each)
            for each in (("v1.0", older), ("v1.1", newer))
        ]
        for thread in threads:
            thread.start()
        both = f'vgpu_token_messages_total{{uuid="{UUID}",namespace="ns",pod="b",type="token"}} 2'
        wait_until(lambda: both in get(f"{url}/metrics"), "the messages of both are read")
        killed.kill()
        killed.wait()
        programs()
        wait_until(lambda: get(f"{url}/-/ready"), "another one is ready", failures=(OSError,))
        again.set()
        for thread in threads:
            thread.join()
    assert ends == {"v1.0": "SIGPIPE", "v1.1": (0.0, 300.0)}
