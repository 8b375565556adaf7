"""A program brings what is its own, and the host makes a program of it: a tiny one as a process."""

import http.client
import json
import re
import signal
import socket
import subprocess
import sys

import pytest

from tests.support.bed.processes import Daemon
from tests.support.environment import ROOT
from tests.support.live import parse, port_in
from tests.support.waiting import WAIT_SECONDS
from tests.support.web_helpers import Pki, fetch
from vgpu import __version__
from vgpu.program.termination import IGNORED

TOY = [sys.executable, "-m", "tests.program.toy"]


class LiveToy:
    """The toy as a process that serves."""

    def __init__(self, folder, *flags):
        self.log_file = folder / "log"
        self.process = Daemon("toy", [*TOY, *flags], self.log_file, cwd=ROOT)
        self.port = self.process.wait_until(lambda: port_in(self.log()), "it serves")

    def log(self):
        return self.log_file.read_text()

    def ask(self, path, method="GET", body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_SECONDS)
        try:
            connection.request(method, path, body)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()


@pytest.fixture
def toy(tmp_path):
    started = []

    def start(*flags):
        started.append(LiveToy(tmp_path, *flags))
        return started[-1]

    yield start
    for each in started:
        if each.process.running:
            each.process.kill()


def test_what_is_its_own_is_served_beside_what_every_program_has(toy):
    live = toy("--greeting=good morning")
    assert live.ask("/greet", "POST", b"you") == (200, "good morning, you\n")
    series = parse(live.ask("/metrics")[1])
    assert series["toy_greetings_total"] == 1
    assert series["process_open_fds"] > 0
    (build,) = (name for name in series if name.startswith("vgpu_build_info"))
    assert f'version="{__version__}"' in build
    for path in ("/-/healthy", "/healthz"):
        assert live.ask(path) == (200, "vgpu toy is healthy\n")
    for path in ("/-/ready", "/readyz"):
        assert live.ask(path) == (200, "vgpu toy is ready\n")
    status, page = live.ask("/")
    assert status == 200
    assert "vgpu toy" in page
    assert __version__ in page
    for path in ("/greet", "/metrics", "/-/healthy", "/-/ready"):
        assert f'<a href="{path}">' in page
    assert live.process.stop(signal.SIGTERM) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_is_to_end_it_ends_it_and_no_other(toy, number):
    live = toy()
    for ignored in IGNORED:
        live.process.signal(ignored)
    assert live.ask("/-/ready")[0] == 200
    assert live.process.stop(number) == 0
    assert f'msg="program stopping" reason={number.name}' in live.log()


@pytest.mark.slow
def test_it_ends_although_a_thread_is_stuck(toy):
    live = toy("--stuck")
    assert live.ask("/greet")[0] == 200
    assert live.process.stop(signal.SIGTERM) == 0


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(), ("--stuck",)], ids=["free", "stuck"])
def test_a_fatal_error_ends_the_process_with_status_one_and_its_reason(toy, flags):
    live = toy(*flags)
    live.ask("/greet", "POST", b"nobody")
    assert live.process.wait(WAIT_SECONDS) == 1
    assert 'msg="program stopping" reason="nobody is there"' in live.log()


def test_probes_have_an_address_of_their_own_beside_client_certificates(toy, tmp_path):
    pki = Pki(tmp_path, "toys")
    config = pki.requiring_clients("toy")
    live = toy(f"--web.config.file={config}", "--web.probe-address=127.0.0.1:0")
    (probes,) = re.findall(r"msg=listening address=(\S+) tls=False", live.log())
    for path, word in (("/-/healthy", "healthy"), ("/readyz", "ready")):
        assert fetch(probes, path)[::2] == (200, f"vgpu toy is {word}\n".encode())
    for path in ("/", "/metrics", "/greet"):
        assert fetch(probes, path)[0] == 404
    served = f"127.0.0.1:{live.port}"
    with pytest.raises(OSError, match=r"(?i)reset|alert|closed|eof"):
        fetch(served, "/-/ready", tls=pki.client())
    friend = pki.client(pki.issue("friend"))
    assert fetch(served, "/metrics", tls=friend)[0] == 200
    assert live.process.stop(signal.SIGTERM) == 0


def test_the_flags_of_its_log_are_the_hosts(tmp_path):
    log = tmp_path / "log"
    process = Daemon("toy", [*TOY, "--log.format=json"], log, cwd=ROOT)
    process.wait_until(lambda: '"web server ready"' in log.read_text(), "it serves")
    assert process.stop(signal.SIGTERM) == 0
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["msg"] for line in lines] == ["listening", "web server ready", "program stopping"]


def refused(*flags):
    """Status and last words of a start that fails."""
    done = subprocess.run(
        [*TOY, *flags], cwd=ROOT, capture_output=True, text=True, check=False, timeout=WAIT_SECONDS
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


@pytest.mark.parametrize("flags", [(), ("--stuck",)], ids=["free", "stuck"])
def test_a_start_that_fails_names_the_flag(flags, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        status, words = refused(f"--web.listen-address={address}", *flags)
        assert (status, f"--web.listen-address '{address}': address already in use" in words) == (
            1,
            True,
        )
        status, words = refused(f"--web.probe-address={address}")
        assert (status, f"--web.probe-address '{address}': address already" in words) == (1, True)
    status, words = refused(f"--web.config.file={tmp_path}/none")
    assert (status, f"--web.config.file {tmp_path}/none" in words) == (1, True)
    assert refused("--web.max-connections=0")[0] == 2
