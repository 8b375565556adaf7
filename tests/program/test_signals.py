"""What operators and log rotation send ends no program of ours; what is to end one, ends it."""

import os
import signal
import sys

import pytest

from tests.support.bed.processes import Daemon
from tests.support.environment import ROOT
from vgpu.program.termination import IGNORED

KUBECONFIG = """\
current-context: a
contexts: [{name: a, context: {cluster: a, user: a}}]
clusters: [{name: a, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: a, user: {}}]
"""

PROGRAMS = {
    "exporter": "exporter --no-collector.nvml --no-collector.xid --web.listen-address=127.0.0.1:0",
    "reconciler": "reconcile run --no-leader-elect --kubeconfig={config}"
    " --web.listen-address=127.0.0.1:0",
    "display service": "topology serve --simulate --socket= --listen=127.0.0.1:0",
}
"""Those that serve without more; the device plugin's test is with its others."""


@pytest.mark.parametrize("words", PROGRAMS.values(), ids=PROGRAMS)
def test_only_the_signals_that_are_to_end_it_end_it(words, tmp_path):
    config, log = tmp_path / "kubeconfig", tmp_path / "log"
    config.write_text(KUBECONFIG)
    command = [sys.executable, "-m", "vgpu", *words.format(config=config).split()]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("VGPU_")}
    program = Daemon("program", command, log, env=environment, cwd=ROOT)
    program.wait_until(lambda: 'msg="web server ready"' in log.read_text(), "it serves")
    for number in IGNORED:
        program.signal(number)
    assert program.stop(signal.SIGTERM) == 0, log.read_text()
