"""A chat gets one message a cycle that acted, and one when the breaker trips; no pod's name."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from msgspec.structs import replace

from reconciler.cycle import Cycle, Ending
from reconciler.model import ActionResult, Breaker
from reconciler.plan import make_plan
from reconciler.policy import Policy
from reconciler.reasons import ActionOutcome
from reconciler.reconciler_state import ReconcilerState
from reconciler.webhook import NotifyError, Webhook, message
from simulator.apiserver import ApiServer
from simulator.store import ObjectStore
from tests.reconciler.samples import CODECS_IN_USE, NOW, pod, refused, snapshot
from tests.reconciler.test_cli import NODE, call
from tests.reconciler.test_cli import refused as refused_pod
from tests.support.waiting import wait_ended
from vgpu.kube.kinds import NODES, PODS

SERVER = "https://gpu.example.com"
PLAN, _ = make_plan(
    snapshot(*(refused(pod(f"secret-name-{n}")) for n in range(3))),
    Policy(),
    ReconcilerState(),
    CODECS_IN_USE,
)
TRIPPED = replace(PLAN, actions=(), breaker=Breaker(30, 10, 100))


def cycle(plan=PLAN, outcomes=()):
    results = tuple(
        ActionResult(entry, outcome) for entry, outcome in zip(plan.actions, outcomes, strict=False)
    )
    return Cycle(NOW, Ending.APPLIED, plan, results)


DONE = (ActionOutcome.DONE, ActionOutcome.DONE, ActionOutcome.BLOCKED_BY_PDB)


class Chat(BaseHTTPRequestHandler):
    """Takes messages."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.messages.append((self.headers["Content-Type"], json.loads(body)))
        self.send_response(self.server.status)
        self.send_header("Content-Length", "0")
        self.send_header("Location", "/elsewhere")
        self.end_headers()

    def log_message(self, *_):
        """Silence."""


@contextmanager
def chat(status=200):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Chat)
    server.messages, server.status = [], status
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server, f"http://127.0.0.1:{server.server_port}/services/TOKEN"
    finally:
        server.shutdown()
        server.server_close()
        wait_ended(thread, "the chat ends")


def test_a_cycle_that_acted_is_one_message_without_names_of_pods():
    with chat() as (server, url):
        webhook = Webhook(url, SERVER)
        for each in (cycle(outcomes=DONE), cycle(), Cycle(NOW, Ending.BLIND, error="x")):
            webhook.post(each)
    ((kind, sent),) = server.messages
    assert kind == "application/json"
    assert sent == {
        "text": f"vgpu reconciler at {SERVER}: 3 actions: refused done 2, refused blocked_by_pdb 1."
    }


def test_a_breaker_that_stays_tripped_is_one_message():
    with chat() as (server, url):
        webhook = Webhook(url, SERVER)
        for plan in (TRIPPED, TRIPPED, PLAN, TRIPPED):
            webhook.post(cycle(plan))
    assert len(server.messages) == 2
    assert (
        "the circuit breaker has tripped: 30 objects need an action, with 100 pods"
        in (server.messages[0][1]["text"])
    )


def test_nothing_new_is_no_message():
    assert message(cycle()) == ""
    assert message(Cycle(NOW, Ending.STANDBY)) == ""


@pytest.mark.parametrize("status", [302, 403, 500])
def test_a_chat_that_refuses_is_a_line_of_the_log_without_the_url(status, caplog):
    with chat(status) as (server, url):
        Webhook(url, SERVER).post(cycle(outcomes=DONE))
    assert len(server.messages) == 1
    (record,) = caplog.records
    assert (record.getMessage(), record.status) == ("the webhook refused the message", status)
    assert "TOKEN" not in str(vars(record))


def test_a_chat_that_is_not_there_is_one_too(caplog):
    Webhook("http://127.0.0.1:1/TOKEN", SERVER).post(cycle(outcomes=DONE))
    (record,) = caplog.records
    assert record.getMessage() == "the webhook was not reached"
    assert "TOKEN" not in str(vars(record))


@pytest.mark.parametrize(
    "content", ["", "TOKEN", "ftp://x/TOKEN", "https:///TOKEN", "https://a/\x01"]
)
def test_a_file_without_a_url_is_refused_by_its_name(tmp_path, content):
    file = tmp_path / "url"
    file.write_text(content)
    with pytest.raises(NotifyError, match=str(file)) as info:
        Webhook.from_file(str(file), SERVER)
    assert "TOKEN" not in str(info.value)


def test_a_url_is_read_with_its_newline(tmp_path):
    file = tmp_path / "url"
    file.write_text("https://hooks.example.com/TOKEN\n")
    assert Webhook.from_file(str(file), SERVER)


# ---------------------------------------------------------------- a run's metrics


@pytest.fixture
def kubeconfig(tmp_path):
    store = ObjectStore()
    store.create(NODES, NODE)
    store.create(PODS, refused_pod("sick-0"))
    with ApiServer(store) as api:
        path = tmp_path / "kubeconfig"
        path.write_text(api.kubeconfig())
        yield str(path)


def test_a_run_leaves_its_metrics_in_a_file(kubeconfig, tmp_path):
    file = tmp_path / "vgpu.prom"
    file.write_text("old")
    words = ("apply", "--yes", "--kubeconfig", kubeconfig, "--audit", str(tmp_path / "a.jsonl"))
    result = call(*words, "--metrics-file", str(file))
    assert result.exit_code == 0, result.output
    text = file.read_text()
    assert 'vgpu_reconcile_actions_total{rule="refused"' in text
    assert [path.name for path in tmp_path.glob(".*")] == []
    report = ("report", "--kubeconfig", kubeconfig, "--metrics-file", str(file))
    assert call(*report).exit_code == 0
    assert 'vgpu_reconcile_findings{rule="refused"} 0' in file.read_text()  # it was evicted above
    wrong = call(*words, "--metrics-file", str(tmp_path / "none" / "x.prom"))
    assert wrong.exit_code == 1
    assert f"--metrics-file {tmp_path}/none/x.prom: No such file or directory" in wrong.stderr


def test_a_run_posts_one_chat_message(kubeconfig, tmp_path):
    file = tmp_path / "url"
    words = ("apply", "--yes", "--kubeconfig", kubeconfig, "--audit", str(tmp_path / "a.jsonl"))
    with chat() as (server, url):
        file.write_text(url)
        for _ in range(2):  # the second finds nothing to do
            assert call(*words, "--notify-url-file", str(file)).exit_code == 0
    assert len(server.messages) == 1
    missing = call(*words, "--notify-url-file", str(tmp_path / "none"))
    assert missing.exit_code == 2
    assert "'--notify-url-file': " in missing.stderr
