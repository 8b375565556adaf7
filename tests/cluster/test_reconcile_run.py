"""`vgpu reconcile` as a process: the long-running one, two of them, and one on a terminal."""

import json
import os
import re
import signal
import subprocess
import urllib.request
from contextlib import contextmanager

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.cluster.reconciling import (
    CLUSTER_RIGHTS,
    HOME,
    NOT_RELEASED,
    Command,
    forget_state,
    is_evicted,
    make_default_account,
    staged,
    with_rights,
)
from tests.reconciler import samples
from tests.support.environment import ROOT
from tests.support.terminal import Terminal
from tests.support.waiting import WAIT_SECONDS, wait_until

LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{HOME}/leases/vgpu-reconciler"
NODE = "gpu-1"


@pytest.fixture(scope="module")
def reconciler(api):
    make_default_account(api.client, "kube-system")
    return with_rights(api, *CLUSTER_RIGHTS)


@pytest.fixture
def command(api, reconciler, tmp_path):
    yield Command(reconciler, tmp_path)
    forget_state(api.client)


@pytest.fixture
def stage(api):
    with staged(api.client) as stage:
        stage.put(samples.node(NODE, "volcano"))
        yield stage


class Program:
    """`vgpu reconcile run` on a port of the kernel's choice."""

    def __init__(self, command, log, *args):
        self.log = log
        words = command.line("run", *command.flags(), "--web.listen-address=127.0.0.1:0", *args)
        env = {name: value for name, value in os.environ.items() if not name.startswith("VGPU_")}
        with log.open("wb") as sink:
            self.process = subprocess.Popen(
                words,
                env=env | {"PYTHONPATH": str(ROOT)},
                stdout=subprocess.PIPE if "--audit=-" in args else sink,
                stderr=sink,
            )

    def url(self):
        wait_until(
            lambda: self._address() or self.process.poll() is not None,
            "it serves",
            context=self.log.read_text,
        )
        return self._address()

    def _address(self):
        match = re.search(r"addresses=\"?(http://[^\s\",]+)", self.log.read_text())
        return match and match[1].rstrip("/")

    def get(self, path):
        with urllib.request.urlopen(self.url() + path, timeout=WAIT_SECONDS) as answer:
            return answer.read().decode()

    def numbers(self):
        """Samples by name and label values."""
        return {
            (sample.name, *sorted(sample.labels.values())): sample.value
            for family in text_string_to_metric_families(self.get("/metrics"))
            for sample in family.samples
        }

    def number(self, *key):
        return self.numbers().get(key)

    def end(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        return self.wait_ended()

    def wait_ended(self):
        """Its exit status, when it has ended by itself."""
        wait_until(lambda: self.process.poll() is not None, "it ends", context=self.log.read_text)
        return self.process.returncode


@pytest.fixture
def start(command, tmp_path):
    started = []

    def begin(*args):
        log = tmp_path / f"run-{len(started)}.log"
        started.append(Program(command, log, *args))
        return started[-1]

    yield begin
    for program in started:
        if program.process.poll() is None:
            program.process.kill()
        program.process.wait(WAIT_SECONDS)
        if program.process.stdout:
            program.process.stdout.close()


def holder(client):
    lease = client.find(LEASE)
    return lease and lease["spec"].get("holderIdentity", "")


def sick(namespace, name="sick-0"):
    return samples.refused(samples.pod(name, namespace=namespace))


def test_it_repairs_faults_while_it_runs_and_counts_them_in_its_metrics(
    api, api_namespace, stage, start
):
    program = start("--mode=apply", "--every=1s", "--audit=-")
    wait_until(lambda: program.number("vgpu_reconcile_cycles_total", "applied"), "a cycle")
    assert "is ready" in program.get("/-/ready")
    assert "is healthy" in program.get("/-/healthy")
    pod = stage.put(sick(api_namespace))
    wait_until(lambda: is_evicted(api.client, pod), "the pod is evicted")
    done = ("vgpu_reconcile_actions_total", "done", "refused")
    wait_until(lambda: program.number(*done) == 1, "the eviction is counted")
    found = program.numbers()
    assert found["vgpu_reconcile_info", "apply", "cluster"] == 1
    assert found["vgpu_reconcile_leader",] == 1
    assert found["vgpu_reconcile_api_requests_total", "201", "create"] >= 1
    assert found["vgpu_reconcile_last_success_timestamp_seconds",] > 0
    assert program.end() == 0
    records = [json.loads(line) for line in program.process.stdout]
    events = [(record["event"], record.get("outcome")) for record in records]
    assert events[:2] == [("intent", None), ("result", "done")]
    # A cycle that does not know of it yet finds the pod gone.
    assert {*events[2:]} <= {("intent", None), ("result", "gone")}
    assert 'msg="action done"' in program.log.read_text()


def test_by_default_it_only_reports(api, api_namespace, stage, start):
    pod = stage.put(sick(api_namespace))
    program = start("--every=1s")
    wait_until(
        lambda: program.number("vgpu_reconcile_planned_actions", "refused", "tidying"), "a plan"
    )
    wait_until(lambda: program.number("vgpu_reconcile_cycles_total", "planned") > 2, "more cycles")
    assert program.end(signal.SIGINT) == 0
    assert not is_evicted(api.client, pod)


def test_of_two_one_works_and_the_other_takes_over_at_once_when_the_first_is_stopped(
    api, api_namespace, stage, start
):
    first = start("--mode=apply", "--every=1s")
    wait_until(lambda: first.number("vgpu_reconcile_leader") == 1, "the first leads")
    second = start("--mode=apply", "--every=1s")
    wait_until(lambda: second.number("vgpu_reconcile_cycles_total", "standby"), "it stands by")
    assert "is ready" in second.get("/-/ready")
    found = second.numbers()
    assert found["vgpu_reconcile_leader",] == 0
    assert ("vgpu_reconcile_findings", "refused") not in found
    leader = holder(api.client)
    assert first.end() == 0
    assert holder(api.client) != leader or NOT_RELEASED in first.log.read_text()
    wait_until(lambda: second.number("vgpu_reconcile_leader") == 1, "the second leads")
    assert holder(api.client) != leader
    pod = stage.put(sick(api_namespace))
    wait_until(lambda: is_evicted(api.client, pod), "it works")


def test_the_lease_is_released_at_the_end(api, stage, start):
    program = start("--every=1s")
    wait_until(lambda: program.number("vgpu_reconcile_leader") == 1, "it leads")
    assert holder(api.client)
    assert program.end() == 0
    assert holder(api.client) == "" or NOT_RELEASED in program.log.read_text()


def test_without_an_election_no_lease_is_asked_for(api, api_namespace, stage, start):
    before = api.client.find(LEASE)
    program = start("--every=1s", "--no-leader-elect")
    wait_until(lambda: program.number("vgpu_reconcile_cycles_total", "planned"), "a cycle")
    assert ("vgpu_reconcile_leader",) not in program.numbers()
    assert program.end() == 0
    assert api.client.find(LEASE) == before


def test_a_port_in_use_is_one_clear_line(stage, start, command, tmp_path):
    first = start("--every=1s")
    port = first.url().rpartition(":")[2]
    second = Program(command, tmp_path / "second.log", f"--web.listen-address=127.0.0.1:{port}")
    assert second.wait_ended() == 1
    assert "address already in use" in second.log.read_text()


def test_a_cluster_that_cannot_be_reached_is_reported_and_the_process_stays(
    start, tmp_path, command
):
    nobody = json.loads(command.kubeconfig.read_text())
    nobody["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    command.kubeconfig = tmp_path / "nobody.json"
    command.kubeconfig.write_text(json.dumps(nobody))
    program = start("--every=1s", "--no-leader-elect")
    wait_until(lambda: program.number("vgpu_reconcile_cycles_total", "blind"), "a cycle")
    found = program.numbers()
    assert ("vgpu_reconcile_findings", "refused") not in found
    assert ("vgpu_reconcile_last_success_timestamp_seconds",) not in found
    with pytest.raises(urllib.error.HTTPError, match="503"):
        program.get("/-/ready")
    assert program.end() == 0


# ---------------------------------------------------------------- on a terminal


@contextmanager
def on_terminal(command, *args, columns=120):
    words = command.line("apply", *command.flags(), f"--audit={command.audit}", *args)
    with Terminal(words, columns=columns, lines=50, PYTHONPATH=str(ROOT)) as terminal:
        yield terminal


def test_on_a_terminal_the_plan_is_shown_and_asked_about(api, api_namespace, stage, command):
    pod = stage.put(sick(api_namespace))
    with on_terminal(command) as terminal:
        terminal.wait_for("Do it (1)? [y/N]")
        assert any(f"{api_namespace}/sick-0" in line for line in terminal.screen.display)
        terminal.type("n\r")
        assert terminal.status() == 3
    assert not is_evicted(api.client, pod)
    with on_terminal(command) as terminal:
        terminal.wait_for("Do it (1)? [y/N]")
        terminal.type("y\r")
        terminal.wait_for("1 done")
        assert terminal.status() == 0
    assert is_evicted(api.client, pod)
    report = subprocess.run(
        command.line("report", *command.flags(), f"--audit={command.audit}"),
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "  refused: 1 done, the last " in report.stdout


def test_yes_asks_nothing(api, api_namespace, stage, command):
    pod = stage.put(sick(api_namespace))
    with on_terminal(command, "--yes") as terminal:
        assert terminal.status() == 0
    assert is_evicted(api.client, pod)
