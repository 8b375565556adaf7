"""Every program that serves gives the bounds of its flags to its server."""

import resource
import signal
import sys

import pytest
from click.testing import CliRunner

import vgpu.program.host
from vgpu.web.server import ListenError
from vgpucli.main import main

BOUNDS = ["--web.max-connections=9", "--web.max-connections-per-address=8"]

KUBECONFIG = """\
current-context: a
contexts: [{name: a, context: {cluster: a, user: a}}]
clusters: [{name: a, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: a, user: {}}]
"""

PROGRAMS = {
    "exporter": "exporter",
    "device plugin": "device-plugin --scheme=volcano --kubeconfig={config}",
    "reconciler": "reconcile run --no-leader-elect --kubeconfig={config}",
    "display service": "topology serve --simulate --socket=",
}


@pytest.fixture
def process_as_it_was():
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    interval, files = sys.getswitchinterval(), resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    for number, handler in before.items():
        if signal.getsignal(number) != handler:
            signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    sys.setswitchinterval(interval)
    resource.setrlimit(resource.RLIMIT_NOFILE, files)


@pytest.mark.parametrize("words", PROGRAMS.values(), ids=PROGRAMS)
@pytest.mark.usefixtures("process_as_it_was")
def test_the_server_of_every_program_has_the_bounds_of_the_flags(words, monkeypatch, tmp_path):
    bounds = []

    class Server:
        def __init__(self, *_, max_connections, max_per_address, **__):
            bounds.append((max_connections, max_per_address))

        def start(self):
            raise ListenError("", "no more is needed")

    config = tmp_path / "kubeconfig"
    config.write_text(KUBECONFIG)
    monkeypatch.setattr(vgpu.program.host, "WebServer", Server)
    result = CliRunner().invoke(main, [*words.format(config=config).split(), *BOUNDS])
    assert bounds == [(9, 8)], result.output
    assert result.exit_code == 1
    assert "no more is needed" in result.output
