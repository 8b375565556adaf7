"""The daemon serves processes with Gemini's hook: clients in C, over TCP."""

import contextlib
import errno
import signal
import socket
import struct
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from click import UsageError
from click.testing import CliRunner

from kubeshare.tokens.connections import READ, Connection, DescriptorPoller
from kubeshare.tokens.frames import MalformedMessage
from kubeshare.tokens.main import command, rules_in
from kubeshare.tokens.scheduler import TokenMode
from tests.kubeshare.tokens.gemini_process import MIB, UUID, Client, own_address, pod, write
from tests.support.environment import ROOT
from tests.support.waiting import WAIT_SECONDS, wait_until
from vgpu.schemes.kubeshare.gemini_config import client_name


def seen(server, name="a"):
    return next(view for view in server.view().tenants if view.entry.pod == name)


@pytest.mark.parametrize("options", [(), ("-s",), ("-1",), ("-1", "-s")])
def test_memory_is_booked_up_to_the_limit(serve, tmp_path, options):
    write(tmp_path, [pod("a")])
    server = serve()
    with Client(50051, *options) as client:
        assert client.ask("limit") == f"limit 0 {1024 * MIB}"
        assert client.ask(f"allocate {600 * MIB}") == "allocate 1"
        assert client.ask(f"allocate {600 * MIB}") == "allocate 0"
        assert client.ask("limit") == f"limit {600 * MIB} {1024 * MIB}"
        assert seen(server).booked == 600 * MIB
        assert client.ask(f"free {500 * MIB}") == "free 1"
        assert client.ask(f"allocate {600 * MIB}") == "allocate 1"
        assert seen(server).counts.refused == 1
        assert client.end() == 0
    wait_until(lambda: seen(server).connections == 0, "the connections are closed")
    assert seen(server).booked == 0


def test_processes_of_a_pod_share_its_memory_and_its_token(serve, tmp_path):
    write(tmp_path, [pod("a"), pod("b")])
    serve()
    with Client(50051) as one, Client(50051) as two:
        assert one.ask(f"allocate {600 * MIB}") == "allocate 1"
        assert two.ask(f"allocate {600 * MIB}") == "allocate 0"
        assert one.ask("quota 0 0") == "quota 300.000"
        answer = two.ask("quota 0 0")
        assert answer.startswith("quota ")
        assert 0 < float(answer.split()[1]) <= 300


def test_the_token_goes_to_the_next_pod_when_it_is_returned(serve, tmp_path, clock):
    write(tmp_path, [pod("a"), pod("b")])
    server = serve(clock=clock)
    clock.advance(1000)
    with Client(50051) as one, Client(50052, name="ns/b") as two:
        assert one.ask("quota 0 0") == "quota 300.000"
        two.send("quota 0 0")
        wait_until(lambda: seen(server, "b").waiting, "b waits")
        one.send("quota 0 9000")  # more than is left: returns the token
        assert two.answer() == "quota 300.000"
        token_switches = server.view().token_switches
        first, second = seen(server), seen(server, "b")
    assert (first.held, second.held, second.quota) == (False, True, 300_000)
    assert first.waiting, "it asks again"
    assert not second.waiting
    assert (second.counts.grants, second.counts.granted) == (1, 300_000)
    assert second.window_share > 0
    assert second.counts.waits.histogram().count == 1
    assert token_switches.count == 2


def test_a_process_that_ends_returns_the_token(serve, tmp_path, clock):
    write(tmp_path, [pod("a"), pod("b")])
    server = serve(clock=clock)
    with Client(50051) as one, Client(50052, name="ns/b") as two:
        assert one.ask("quota 0 0") == "quota 300.000"
        two.send("quota 0 0")
        wait_until(lambda: seen(server, "b").waiting, "b waits")
        one.process.kill()
        assert two.answer() == "quota 300.000"


def test_a_token_that_is_not_returned_goes_on_after_quota_and_grace(serve, tmp_path, clock):
    write(tmp_path, [pod("a"), pod("b")])
    server = serve(clock=clock)
    with Client(50051) as one, Client(50052, name="ns/b") as two:
        assert one.ask("quota 0 0") == "quota 300.000"
        clock.advance(599)
        two.send("quota 0 0")
        wait_until(lambda: seen(server, "b").waiting, "b waits")
        assert seen(server).held
        clock.advance(1)
        assert two.answer() == "quota 300.000"
        assert seen(server).counts.unreturned == 1
        assert server.view().lags.count == 1


def test_gemini_1_1_sends_its_burst_as_overuse(serve, tmp_path):
    write(tmp_path, [pod("a")])
    server = serve()
    with Client(50051, "-1") as client:
        assert client.ask("limit") == f"limit 0 {1024 * MIB}"
        assert client.ask("quota 0 400") == "quota 350.000"  # half the burst and half the base
    assert seen(server).counts.malformed == {MalformedMessage.SWAPPED: 1}
    assert seen(server).counts.overused == 0


def test_a_pod_is_identified_by_its_port(serve, tmp_path):
    write(tmp_path, [pod("a"), pod("b", memory=MIB)])
    server = serve()
    with Client(50052, name="ns/a") as client:
        assert client.ask("limit") == f"limit 0 {MIB}"
        assert seen(server, "b").counts.other_names == 1


def test_a_message_from_another_address_than_the_pods_waits_for_the_files(serve, tmp_path, clock):
    """As that of a pod that was created again, whose new address the files do not have yet."""
    write(tmp_path, [pod("a")], addresses=("10.1.2.3",))
    server = serve(clock=clock)
    with Client(50051) as client, Client(50051) as other:
        client.send("quota 0 0")
        other.send("limit")
        wait_until(lambda: seen(server).counts.other_addresses == 2, "both messages wait")
        assert not seen(server).held
        write(tmp_path, [pod("a")], addresses=("10.1.2.3", "127.0.0.1"))
        assert client.answer() == "quota 300.000"
        assert other.answer() == f"limit 0 {1024 * MIB}"
        assert client.ask("allocate 1") == "allocate 1"
    assert seen(server).counts.other_addresses == 2


def test_others_cannot_use_up_a_pods_connections(serve, tmp_path):
    write(tmp_path, [pod("a")], addresses=("10.1.2.3",))
    server = serve()
    with contextlib.ExitStack() as stack:
        for _ in range(70):
            stack.enter_context(socket.create_connection((own_address(), 50051)))
        wait_until(lambda: server.view().refused_connections == 6, "the others are closed")
        write(tmp_path, [pod("a")], addresses=("127.0.0.1",))
        wait_until(lambda: seen(server).entry.addresses == ("127.0.0.1",), "the new address")
        with Client(50051) as client:
            assert client.ask("limit") == f"limit 0 {1024 * MIB}"


def test_a_pod_with_a_long_name_has_a_key_and_loses_nothing(serve, tmp_path):
    name = "trainer-of-a-model-with-a-long-name-7d9c5b7f4-x2x7k"
    write(tmp_path, [pod(name)])
    server = serve()
    key = client_name("ns", name)
    assert (tmp_path / "config" / UUID).read_text() == f"1\n{key} 0.500000 1.000000 1073741824\n"
    with Client(50051, name=key) as client:
        assert client.ask("quota 0 400") == "quota 350.000"  # the burst came whole
        assert seen(server, name).entry.name == f"ns/{name}"
    with Client(50051, name=f"ns/{name}") as client:  # created before its name had a key
        assert client.ask("limit") == f"limit 0 {1024 * MIB}"
    assert seen(server, name).counts.other_names == 0


def test_a_late_answer_leaves_a_process_in_step(serve, tmp_path, clock):
    """Gemini sends a memory message again, and takes a second answer for that of the next one."""
    write(tmp_path, [], {"a": 50051})
    server = serve(clock=clock)
    record = tmp_path / "record"
    with Client(50051, "-t", "100,60000", "-r", str(record)) as client, Client(50051) as other:
        client.send("limit")
        wait_until(lambda: record.exists() and record.read_text().count(">") > 1, "it sent twice")
        write(tmp_path, [pod("a")])
        assert client.answer() == f"limit 0 {1024 * MIB}"
        assert client.ask("allocate 1") == "allocate 1"
        assert other.ask("allocate 1") == "allocate 1"
        assert seen(server).booked == 2
        assert seen(server).counts.repeated > 0


def test_an_invalid_message_closes_a_new_connection_and_no_other(serve, tmp_path):
    write(tmp_path, [pod("a")])
    server = serve()
    with socket.create_connection((own_address(), 50051)) as stranger:
        stranger.sendall(b"\xff" * 80)
        assert stranger.recv(1) == b""
    with Client(50051) as client:
        assert client.ask("limit") == f"limit 0 {1024 * MIB}"
        assert client.ask("raw " + "ff" * 80) == "raw"
        assert client.ask("limit") == f"limit 0 {1024 * MIB}"
    assert seen(server).counts.malformed == {MalformedMessage.LENGTH: 2}


@pytest.mark.slow
def test_a_peer_that_reads_nothing_is_closed_and_costs_nobody_else(serve, tmp_path):
    write(tmp_path, [pod("a"), pod("b")])
    server = serve()
    with Client(50051, "-b") as flood, Client(50052, name="ns/b") as other:
        flood.send("flood 1000000")
        wait_until(lambda: flood.process.poll() is not None, "the daemon closed it")
        assert flood.process.returncode == -signal.SIGPIPE or flood.process.returncode > 0
        assert other.ask("limit") == f"limit 0 {1024 * MIB}"
    wait_until(lambda: seen(server).connections == 0, "the connection is closed")


def test_messages_that_a_peer_sent_before_it_was_closed_allocate_nothing_afterwards(
    serve, tmp_path
):
    """It allocates, reads no answer, and has the next messages on their way when it is closed."""
    write(tmp_path, [pod("a")])
    server = serve()
    messages = [
        struct.pack("<Q4sxiiQi", 4, b"ns/a", id_, 2, 1, 1).ljust(80, b"\0") for id_ in range(100)
    ]
    with socket.socket() as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)  # few answers fill it
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)  # and the daemon's buffer
        peer.settimeout(60)
        peer.connect((own_address(), 50051))
        with contextlib.suppress(ConnectionError):
            for _ in range(10_000):  # until it is closed
                peer.sendall(b"".join(messages))
        wait_until(lambda: seen(server).connections == 0, "the connection is closed")
    with Client(50051) as client:
        assert client.ask(f"allocate {1024 * MIB}") == "allocate 1"


def test_a_message_that_was_sent_five_times_is_answered_once(serve, tmp_path):
    """Gemini 1.0 sends a memory message five times, and then ends."""
    write(tmp_path, [], {"a": 50051})
    server = serve()
    record = tmp_path / "record"
    with Client(50051, "-t", "100", "-r", str(record)) as client:
        client.send("allocate 1")
        assert client.process.wait() > 0
    assert record.read_text().count(">") == 5
    wait_until(lambda: seen(server).connections == 0, "its end is noticed")
    message = bytes.fromhex(record.read_text().split()[1])
    with socket.create_connection((own_address(), 50051)) as peer:
        peer.sendall(message * 5)
        wait_until(lambda: seen(server).connections == 1, "it waits")
        write(tmp_path, [pod("a")])
        assert peer.recv(5 * 40) == struct.pack("<ii32x", 0, 1)
        wait_until(lambda: seen(server).counts.repeated == 4, "the others are seen")
        assert seen(server).booked == 1
        next_one = message.replace(b"a\0\0", b"a\0\1", 1)
        peer.sendall(next_one)
        assert peer.recv(5 * 40) == struct.pack("<ii32x", 1, 1)


def test_a_port_that_nobody_has_ends_a_process(serve, tmp_path):
    write(tmp_path, [pod("a")])
    serve()
    with Client(50999) as client:
        client.send("limit")
        assert client.process.wait() == 111


def test_files_are_followed_and_connections_stay(serve, tmp_path):
    write(tmp_path, [pod("a")])
    server = serve()
    with Client(50051) as client:
        assert client.ask(f"allocate {600 * MIB}") == "allocate 1"
        write(tmp_path, [pod("a", memory=2048 * MIB), pod("b")])
        wait_until(lambda: len(server.view().tenants) == 2, "the new pod is there")
        assert client.ask("limit") == f"limit {600 * MIB} {2048 * MIB}"
        assert client.ask(f"allocate {600 * MIB}") == "allocate 1"
        with Client(50052, name="ns/b") as other:
            assert other.ask("limit") == f"limit 0 {1024 * MIB}"
        write(tmp_path, [pod("b")], {"b": 50052})
        with Client(50052, name="ns/b") as other:
            assert other.ask("limit") == f"limit 0 {1024 * MIB}"
        assert client.ask("limit") == f"limit {1200 * MIB} {2048 * MIB}"  # it lives on
        assert seen(server).booked == 1200 * MIB
    wait_until(lambda: len(server.view().tenants) == 1, "the pod that is gone is forgotten")


@pytest.mark.parametrize("renamed", [False, True])
def test_a_file_written_in_place_or_renamed_is_noticed(serve, tmp_path, renamed):
    write(tmp_path, [pod("a")])
    server = serve()
    (config,) = (tmp_path / "config").iterdir()
    written = tmp_path / "new" if renamed else config
    written.write_text("1\nns/a 0.500000 1.000000 77\n")
    written.rename(config)
    wait_until(lambda: seen(server).entry.share.memory_bytes == 77, "the new limit")


def test_a_damaged_file_takes_nobodys_share(serve, tmp_path):
    write(tmp_path, [pod("a")])
    server = serve()
    (config,) = (tmp_path / "config").iterdir()
    config.write_text("2\nns/a 0.500000 1.000000 77\n")
    wait_until(server.complaint, "the complaint")
    assert "2 pods announced" in server.complaint()
    assert str(config) in server.complaint()
    with Client(50051) as client:
        assert client.ask("limit") == f"limit 0 {1024 * MIB}"
    assert server.view().config_errors == 1
    write(tmp_path, [pod("a", memory=MIB)])
    wait_until(lambda: not server.complaint(), "all is well again")


def test_folders_that_come_later_are_noticed(serve, tmp_path):
    server = serve()
    assert "No such file" in server.complaint()
    write(tmp_path, [pod("a")])
    wait_until(lambda: not server.complaint(), "the folders are there")
    with Client(50051) as client:
        assert client.ask("limit") == f"limit 0 {1024 * MIB}"


def test_a_pod_without_a_share_gets_a_token_in_mode_lenient(serve, tmp_path):
    write(tmp_path, [], {"a": 50051})
    server = serve(TokenMode.LENIENT)
    with Client(50051) as client:
        assert client.ask("quota 0 0") == "quota 20.000"
    assert seen(server).counts.unknown == 1


def test_an_overuse_that_a_process_reports_is_counted(serve, tmp_path):
    write(tmp_path, [pod("a")])
    server = serve()
    with Client(50051) as client:
        assert client.ask("quota 0 0") == "quota 300.000"
        assert client.ask("quota 12.5 9000") == "quota 1000.000"  # more than is left: returns it
    assert seen(server).counts.overused == 12_500


@contextlib.contextmanager
def program(tmp_path, nofile):
    """The program, which is ready, with so many descriptors: its process and its address."""
    address = own_address()
    process = subprocess.Popen(
        [
            *("prlimit", f"--nofile={nofile}"),
            *(sys.executable, "-m", "vgpu", "tokens", "--kubeshare-dir", tmp_path),
            *("--tenant-address", address, "--web.listen-address", f"{address}:9402"),
            *("--handover-socket", tmp_path / "handover.sock"),
        ],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        url = f"http://{address}:9402"
        wait_until(lambda: get(f"{url}/-/ready"), "it is ready", failures=(OSError,))
        yield process, url
    finally:
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate()
    assert process.returncode == 0, log


def test_the_program(tmp_path):
    write(tmp_path, [pod("a")])
    with program(tmp_path, "256:1024") as (_, url):
        uuid = next(Path(tmp_path, "config").iterdir()).name
        labels = f'{{uuid="{uuid}",namespace="ns",pod="a"}}'
        assert f"vgpu_token_request_ratio{labels} 0.5" in get(f"{url}/metrics")
        assert "process_max_fds 1024" in get(f"{url}/metrics"), "all that it may have"
        with Client(50051) as client:
            assert client.ask("limit") == f"limit 0 {1024 * MIB}"
            assert f"vgpu_token_connections{labels} 1" in get(f"{url}/metrics")


def test_without_room_in_the_epoll_a_connection_is_closed_and_the_daemon_goes_on(
    serve, tmp_path, monkeypatch
):
    write(tmp_path, [pod("a")])
    serve()
    add, full = DescriptorPoller.add, [OSError(errno.ENOSPC, "max_user_watches")]

    def add_if_room(poller, fd, value, events=READ):
        if full and isinstance(value, Connection):
            raise full.pop()
        add(poller, fd, value, events)

    monkeypatch.setattr(DescriptorPoller, "add", add_if_room)
    with socket.create_connection((own_address(), 50051), timeout=WAIT_SECONDS) as refused:
        assert refused.recv(1) == b""
    with Client(50051) as client:
        assert client.ask("limit") == f"limit 0 {1024 * MIB}"


def test_a_pod_cannot_take_the_descriptors_of_pages_and_of_other_pods(tmp_path):
    write(tmp_path, [pod("a"), pod("b")])
    with program(tmp_path, "256:256") as (_, url), contextlib.ExitStack() as others:
        for _ in range(300):
            others.enter_context(socket.create_connection((own_address(), 50051), timeout=60))
        refused = "vgpu_token_refused_connections_total 2"
        wait_until(lambda: f"{refused}5" in get(f"{url}/metrics"), "more than 250 are refused")
        with Client(50052, name="ns/b") as client:
            assert client.ask("limit") == f"limit 0 {1024 * MIB}"
        assert get(f"{url}/-/healthy")
        page = get(f"{url}/metrics")
    labels = f'{{uuid="{UUID}",namespace="ns",pod="b"}}'
    assert f"vgpu_token_opened_connections_total{labels} 1" in page


def get(url):
    with urllib.request.urlopen(url) as response:
        return response.read().decode()


def test_quotas_that_contradict_each_other_are_refused():
    result = CliRunner().invoke(command, ["--quota", "10ms"])
    assert result.exit_code == 2
    assert "--min-quota, --quota, --max-quota, --window: each must be at most" in result.output


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--max-quota", "100ms"], (100, 20, 100, 10_000)),
        (["--max-quota", "10ms"], (10, 10, 10, 10_000)),
        (["--max-quota", "100ms", "--quota", "50ms"], (50, 20, 100, 10_000)),
        (["--quota", "2s"], (2000, 20, 2000, 10_000)),
        (["--min-quota", "500ms"], (500, 500, 1000, 10_000)),
        (["--window", "200ms"], (200, 20, 200, 200)),
    ],
)
def test_default_quotas_follow_those_of_flags(flags, expected):
    with command.make_context("tokens", flags) as context:
        rules = rules_in(context)
    window = rules.window
    times = window.base, window.least, rules.max_quota, window.length
    assert times == tuple(each * 1000 for each in expected)


@pytest.mark.parametrize(
    "flags",
    [
        ["--max-quota", "100ms", "--quota", "200ms"],
        ["--quota", "11s"],
        ["--window", "5ms", "--quota", "6ms"],
    ],
)
def test_flags_of_quotas_contradict_each_other(flags):
    with command.make_context("tokens", flags) as context, pytest.raises(UsageError):
        rules_in(context)
