"""`vgpu reconcile restore` as a person calls it: with a question first, and an audit."""

import json
from contextlib import contextmanager

import pytest

from reconciler.apply.audit import Audit, read
from reconciler.commands import restore as module
from reconciler.reasons import ActionOutcome
from tests.reconciler.fake_client import FakeClient
from tests.reconciler.test_cli import call
from tests.reconciler.test_restore import ENTRIES, LEFT, SICK, apply
from vgpu.program import output


class Server(FakeClient):
    server = "https://gpu.example.com"


@pytest.fixture
def client(monkeypatch, tmp_path):
    """An API server on which an edit and an eviction were done, recorded in audit.jsonl."""
    monkeypatch.chdir(tmp_path)
    server = Server(SICK, LEFT)
    apply(server, "audit.jsonl", *ENTRIES[:2])

    @contextmanager
    def connected(*_):
        yield server

    monkeypatch.setattr(module, "connected", connected)
    return server


@pytest.fixture
def asked(monkeypatch):
    """Standard input is a terminal, on which the answer is the call's input."""
    monkeypatch.setattr(output, "expect_terminal", lambda: None)


def is_restored(client):
    return client.get("b").annotations == LEFT.annotations


@pytest.mark.usefixtures("asked")
def test_on_a_terminal_it_shows_what_it_would_undo_and_asks(client):
    result = call("restore", "audit.jsonl", input="n\n")
    assert result.exit_code == 3
    assert "leftover_claim: correct ml/b" in result.stdout
    assert "At https://gpu.example.com. Undo it (1)?" in result.stderr
    assert not is_restored(client)
    assert call("restore", "audit.jsonl", input="y\n").exit_code == 4  # the eviction stays done
    assert is_restored(client)


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize("flag", ["--yes", "-y", "--server-dry-run"])
def test_with_yes_or_dry_run_no_question_is_asked(client, flag):
    result = call("restore", "audit.jsonl", flag)
    assert result.exit_code == 4
    assert is_restored(client) == (flag != "--server-dry-run")


def test_who_cannot_be_asked_has_to_say_yes(client):
    result = call("restore", "audit.jsonl", input="y\n")
    assert (result.exit_code, "pass --yes" in result.stderr) == (2, True)
    assert not is_restored(client)


def test_it_has_an_audit_of_its_own_from_which_it_can_be_undone(client, tmp_path):
    done = client.get("b").annotations
    call("restore", "audit.jsonl", "--yes")
    assert [each.outcome for each in read("vgpu-restore.jsonl")] == [None, ActionOutcome.DONE]
    result = call("restore", "vgpu-restore.jsonl", "--audit", "again.jsonl", "-o", "json", "-y")
    assert (result.exit_code, json.loads(result.stdout)[0]["undo"]) == (0, "done")
    assert client.get("b").annotations == done
    names = {each.name for each in tmp_path.iterdir()}
    assert names == {"audit.jsonl", "vgpu-restore.jsonl", "again.jsonl"}


def test_a_dry_run_and_what_has_nothing_to_undo_make_no_audit(client, tmp_path):
    call("restore", "audit.jsonl", "--server-dry-run")
    with Audit.open("evictions.jsonl"):
        apply(Server(SICK), "evictions.jsonl", ENTRIES[0])
    call("restore", "evictions.jsonl")
    assert not (tmp_path / "vgpu-restore.jsonl").exists()


def test_what_is_undone_already_is_not_listed_again(client):
    result = call("restore", "audit.jsonl", "--audit", "./audit.jsonl")
    assert result.exit_code == 2
    assert "--audit ./audit.jsonl is the audit that is to be undone" in result.stderr
    assert not is_restored(client)


def test_an_audit_that_cannot_be_written_is_an_error_before_anything_is_asked(client):
    result = call("restore", "audit.jsonl", "--audit", "none/restore.jsonl")
    assert result.exit_code == 1
    assert "--audit none/restore.jsonl: No such file or directory" in result.stderr
    assert not is_restored(client)


def test_standard_output_holds_one_thing(client):
    words = ("restore", "audit.jsonl", "--audit", "-")
    result = call(*words, "-o", "json")
    assert (result.exit_code, is_restored(client)) == (2, False)
    result = call(*words, "--yes")
    assert [json.loads(line)["event"] for line in result.stdout.splitlines()] == [
        "intent",
        "result",
    ]
