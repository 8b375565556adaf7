"""The audit: on the disk before anything is done, readable after any crash, strict when read."""

import json
import os
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.apply.audit import Audit, AuditError, AuditEvent, read, whoami
from reconciler.model import ActionResult, Edit
from reconciler.reasons import ActionOutcome
from tests.reconciler.samples import ended, node, pod, refused, replace
from tests.support.reconcile_plans import editing, evicting, plan

SICK = evicting(refused(pod("a")))
LEFT = editing(ended(pod("b", annotations={"left": "over"})), {"left": None})
MARK = editing(node("gpu-1", annotations={"m": "1"}, uid="u"), {"m": None})
PLAN = plan(SICK, LEFT, MARK)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "audit.jsonl"


def write(path, *entries, outcome=ActionOutcome.DONE):
    with Audit.open(str(path), by="root@a", clock=lambda: 1_790_000_000.25) as audit:
        for entry in entries:
            audit.intent(PLAN, entry)
            audit.result(PLAN, ActionResult(entry, outcome, "as said"))


def test_what_was_written_is_read(path):
    write(path, SICK, LEFT, MARK)
    intent, result, *others = read(str(path))
    assert (intent.event, intent.outcome, intent.detail) == (AuditEvent.INTENT, None, "")
    assert (result.event, result.outcome, result.detail) == (
        AuditEvent.RESULT,
        ActionOutcome.DONE,
        "as said",
    )
    assert {type(record.action) for record in others} == {Edit}
    for record in (intent, result):
        finding = SICK.finding
        assert record.plan == PLAN.id
        assert (record.rule, record.cause) == (finding.rule, finding.cause)
        assert (record.object_ref, record.action) == (finding.object_ref, finding.action)
        assert (record.evidence, record.by) == (finding.evidence, "root@a")
        assert record.time.isoformat() == "2026-09-21T14:13:20.250000+00:00"
    assert [record.action for record in others[::2]] == [LEFT.finding.action, MARK.finding.action]


def test_a_line_is_json_that_other_programs_read(path):
    write(path, LEFT)
    line, _ = map(json.loads, path.read_text().splitlines())
    assert line["event"] == "intent"
    assert line["action"]["type"] == "edit"
    assert line["action"]["before"] == {"left": "over"}
    assert line["action"]["after"] == {"left": None}
    assert line["subject"]["name"] == "b"
    assert line["time"] == "2026-09-21T14:13:20.250000Z"


def test_each_line_is_there_before_the_next_thing_happens(path):
    with Audit.open(str(path)) as audit:
        audit.intent(PLAN, SICK)
        assert [record.event for record in read(str(path))] == [AuditEvent.INTENT]
        audit.result(PLAN, ActionResult(SICK, ActionOutcome.GONE))
        assert [record.outcome for record in read(str(path))] == [None, ActionOutcome.GONE]


def test_an_audit_is_for_its_owner_only_and_is_never_overwritten(path):
    write(path, SICK)
    write(path, LEFT)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [record.object_ref.name for record in read(str(path))] == ["a", "a", "b", "b"]


def test_two_audits_of_one_file_do_not_overwrite_each_other(path):
    with Audit.open(str(path)) as one, Audit.open(str(path)) as two:
        for audit in (one, two, one, two):
            audit.intent(PLAN, SICK)
    assert len(list(read(str(path)))) == 4


def test_standard_output_is_an_audit(capsys):
    write("-", SICK)
    intent, result = capsys.readouterr().out.splitlines()
    assert json.loads(intent)["event"] == "intent"
    assert json.loads(result)["outcome"] == "done"


@pytest.mark.parametrize("where", ["/nonexistent/audit.jsonl", "/proc", "a\0b"])
def test_an_audit_that_cannot_be_written_names_the_flag(where):
    with pytest.raises(AuditError, match="--audit"):
        Audit.open(where)


def test_a_full_disk_is_an_error_of_the_audit():
    with Audit.open("/dev/full") as audit, pytest.raises(AuditError, match="No space"):
        audit.intent(PLAN, SICK)


def test_a_pipe_that_nobody_reads_holds_up_nobody(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    entries = [SICK] * 1000  # more than a pipe takes
    with pytest.raises(AuditError):
        write(tmp_path / "pipe", *entries)


def test_the_record_names_who_acts():
    user, _, host = whoami().partition("@")
    assert user
    assert host


# ---------------------------------------------------------------- what crashes leave


@pytest.mark.parametrize("cut", range(1, 500, 37))
def test_a_line_that_was_cut_short_is_left_out_and_reported(path, cut, caplog):
    write(path, SICK)
    whole = path.stat().st_size
    write(path, LEFT)
    os.truncate(path, whole + cut)
    assert [record.object_ref.name for record in read(str(path))] == ["a", "a"]
    assert [record.line for record in caplog.records] == [3]


def test_what_comes_after_a_line_that_was_cut_short_is_read(path, caplog):
    write(path, SICK)
    os.truncate(path, path.stat().st_size - 30)
    write(path, LEFT)
    assert [record.object_ref.name for record in read(str(path))] == ["a", "b", "b"]
    assert [record.line for record in caplog.records] == [2]


def test_a_line_that_lacks_only_its_end_is_read(path, caplog):
    write(path, SICK)
    os.truncate(path, path.stat().st_size - 1)
    assert len(list(read(str(path)))) == 2
    write(path, LEFT)
    assert len(list(read(str(path)))) == 4
    assert not caplog.text


# ---------------------------------------------------------------- what others make of it


def _without(field):
    def damaged(record):
        del record[field]

    return damaged


@pytest.mark.parametrize(
    "damage",
    [
        _without("time"),
        _without("action"),
        lambda record: record.update(unknown=1),
        lambda record: record.update(rule="no_such_rule"),
        lambda record: record.update(outcome="perhaps"),
        lambda record: record.update(time="2026-09-21T14:13:20"),
        lambda record: record["action"].update(type="delete"),
        lambda record: record["action"].update(before={"left": 1}),
        lambda record: record["subject"].update(kind="Deployment"),
    ],
)
def test_a_line_that_is_not_ours_is_named(path, damage):
    write(path, LEFT)
    lines = path.read_text().splitlines(keepends=True)
    record = json.loads(lines[1])
    damage(record)
    path.write_text(lines[0] + json.dumps(record) + "\n" + lines[0])
    with pytest.raises(AuditError, match="line 2") as info:
        list(read(str(path)))
    assert (info.value.path, info.value.line) == (str(path), 2)


@given(st.binary(max_size=300))
def test_no_bytes_are_another_error(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("audit") / "x"
    path.write_bytes(content)
    try:
        list(read(str(path)))
    except AuditError as error:
        line = error.line
    else:
        return
    assert line > 0


def test_deep_nesting_is_no_other_error(path):
    path.write_text("[" * 100_000 + "\n")
    with pytest.raises(AuditError, match="line 1"):
        list(read(str(path)))


def test_a_line_without_end_is_refused(path, monkeypatch):
    monkeypatch.setattr("reconciler.apply.audit.LONGEST_LINE", 100)
    write(path, SICK)
    with pytest.raises(AuditError, match="line 1: longer than 100 bytes"):
        list(read(str(path)))


@pytest.mark.parametrize("where", ["/nonexistent/audit.jsonl", "/proc"])
def test_a_missing_audit_file_is_reported(where):
    with pytest.raises(AuditError, match=where):
        list(read(where))


@given(st.text(max_size=50))
def test_any_evidence_comes_back(tmp_path_factory, text):
    try:
        text.encode()
    except UnicodeEncodeError:
        return
    path = tmp_path_factory.mktemp("audit") / "x"
    entry = replace(SICK, finding=replace(SICK.finding, evidence=(text, "\u2028\r\n\x1b[2J")))
    write(path, entry)
    assert [record.evidence for record in read(str(path))] == [entry.finding.evidence] * 2


def test_evidence_that_is_no_text_is_an_error_of_the_audit(path):
    entry = replace(SICK, finding=replace(SICK.finding, evidence=("\udc80",)))
    with Audit.open(str(path)) as audit, pytest.raises(AuditError):
        audit.intent(PLAN, entry)


def test_a_record_that_is_no_action_is_left_out(path):
    only_found = replace(SICK, finding=replace(SICK.finding, action=None))
    write(path, only_found)
    assert list(read(str(path))) == []
