"""No command prints a control character of others' texts: text, documents, errors."""

import ast
import copy
import json
import logging
import os
import re
import sys
import threading
from pathlib import Path

import msgspec
import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from tests.commands.test_top_source import served
from tests.support import sample_cluster as sample
from tests.support.hostile_server import answering_all
from tests.support.installed import our_plugin, our_scheduler, workload
from tests.support.sample_cluster import NOW
from vgpu.model.document_text import json_text, yaml_text
from vgpu.program import failures, logs, output
from vgpu.program.own_packages import PACKAGES
from vgpucli.main import main

ROOT = Path(__file__).parents[2]
PRINTERS = {
    "vgpu/program/output.py": {"click.echo"},
    "vgpu/program/failures.py": {"error.show"},  # into a text
    "vgpu/program/terminal.py": {
        "Console",
        "console.print",
    },  # of segments without control characters
    "vgpucli/top/screen.py": {"Console", "console.print"},
}
"""The calls that write to a terminal, by the only file that may have them."""

FORBIDDEN = {
    "print",
    "Console",
    "console.print",
    "pprint",
    "echo",
    "secho",
    "echo_via_pager",
    "click.echo",
    "click.secho",
    "click.echo_via_pager",
    "click.prompt",
    "click.confirm",
    "error.show",
}
"""Further calls are those of a method of ``sys.stdout`` and ``sys.stderr`` that writes."""

WORDS = re.compile(r"print|echo|Console|sys\.std|prompt|confirm|\.show")
"""What a file with such a call has somewhere."""

CONTROL = "\x1b]0;title\x07\x1b[31m\r\x7f\x80\x9b2J\x9f\u202e\u2066\u2069\u200b\u2028\nFORGED"
"""Escape sequences of 7 and 8 bits, a bell, changes of direction, breaks of lines."""

words = st.text(max_size=8) | st.sampled_from([CONTROL, *CONTROL])
documents = st.dictionaries(words, words | st.lists(words, max_size=2), max_size=2)


# ---------------------------------------------------------------- hostile objects


def texts(value, path=()):
    """The place of each text in an object, keys included."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from texts(inner, (*path, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from texts(inner, (*path, number))
    elif isinstance(value, str):
        yield path


def changed(item, path, number):
    """The object with control characters at a place, under a name of its own."""
    other = copy.deepcopy(item)
    meta = other["metadata"]
    meta["name"] += f"-{number}"
    if "uid" in meta:
        meta["uid"] += f"-{number}"
    at = other
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] += CONTROL
    return other


OWNER = {"kind": "Job", "name": "job", "uid": "u", "controller": True, "apiVersion": "batch/v1"}


def originals():
    space = {
        "kind": "Namespace",
        "apiVersion": "v1",
        "metadata": {
            "name": "ml",
            "labels": {"team": "vision"},
            "annotations": {"vgpu.dev/quota-memory": "5Gi"},
        },
    }
    return [
        *sample.items(),
        sample.volcano_pod("owned", "a100-1", 1, 1000, labels={"team": "a"}, owner=OWNER),
        sample.resource_quota("q", {"requests.aliyun.com/gpu-mem": "1"}, {}),
        space,
        our_plugin(),
        our_scheduler(),
        workload("Deployment", "plain", "kube-system/image:1"),
    ]


def hostile_items():
    kept = originals()
    return [
        *kept,
        *(
            changed(item, path, number)
            for item in kept
            for number, path in enumerate(texts(item))
            if path[0] not in ("kind", "apiVersion")
        ),
    ]


@pytest.fixture(scope="module")
def dump(tmp_path_factory):
    path = tmp_path_factory.mktemp("hostile") / f"dump{CONTROL.replace(chr(10), '')}.json"
    path.write_text(json.dumps(sample.dump(hostile_items())))
    os.utime(path, (NOW, NOW))
    return str(path)


def run(*words):
    return CliRunner().invoke(main, words, env={"COLUMNS": "200"})


def shown(result):
    """What a terminal gets: nothing in it is a control character, nor a line of a tenant's."""
    text = result.stdout + result.stderr
    bad = {char for char in text if not char.isprintable() and char != "\n"}
    assert not bad, (sorted(map(hex, map(ord, bad))), text[:2000])
    assert not [line for line in text.split("\n") if line.startswith("FORGED")], text[:2000]
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.stdout


TABLES = {
    "inspect": ("inspect",),
    "inspect -o wide": ("inspect", "-o", "wide"),
    "by namespace": ("inspect", "--by", "namespace"),
    "by team": ("inspect", "--by", "team"),
    "by owner": ("inspect", "--by", "owner"),
    "legacy": ("inspect", "--scheme", "gpushare", "--legacy"),
    "legacy details": ("inspect", "--scheme", "gpushare", "--legacy", "--details"),
    "wrong node": ("inspect", f"a100-1{CONTROL}"),
    "fit": ("fit", "--request", "volcano.sh/vgpu-number=1"),
    "explain node": ("explain", "node", "a100-1"),
    "explain wrong node": ("explain", "node", f"a100-1-0{CONTROL}x"),
    "explain pod": ("explain", "pod", "ml/owned"),
    "explain wrong pod": ("explain", "pod", f"ml/owned-0{CONTROL}x"),
    "doctor": ("doctor",),
    "plan": ("reconcile", "plan"),
    "report": ("reconcile", "report"),
}

DOCUMENTS = {
    "inspect": ("inspect",),
    "by namespace": ("inspect", "--by", "namespace"),
    "by team": ("inspect", "--by", "team"),
    "by owner": ("inspect", "--by", "owner"),
    "fit": ("fit", "--request", "volcano.sh/vgpu-number=1"),
    "explain node": ("explain", "node", "a100-1"),
    "explain pod": ("explain", "pod", "ml/owned"),
    "doctor": ("doctor",),
    "plan": ("reconcile", "plan"),
}


@pytest.mark.parametrize("command", TABLES)
def test_no_text_of_an_object_reaches_the_terminal_as_a_control_character(command, dump):
    shown(run(*TABLES[command], "--from", dump))


@pytest.mark.parametrize("command", DOCUMENTS)
def test_no_text_of_an_object_is_a_control_character_in_json(command, dump):
    assert json.loads(shown(run(*DOCUMENTS[command], "--from", dump, "-o", "json")))


def test_no_text_of_an_object_is_a_control_character_in_yaml(dump):
    assert yaml.load(shown(run("inspect", "--from", dump, "-o", "yaml")), yaml.CSafeLoader)
    assert list(yaml.safe_load_all(shown(run("quota", "manifests", "--from", dump))))


@given(documents)
def test_a_document_is_equal_after_it_is_printed(document):
    for text, decode in ((json_text(document), json.loads), (yaml_text(document), yaml.safe_load)):
        assert all(char.isprintable() for char in text.replace("\n", ""))
        assert decode(text) == msgspec.to_builtins(document)


# ---------------------------------------------------------------- hostile servers


PAGE = (
    "vgpu_snapshot_timestamp_seconds 1\n"
    'vgpu_gpu_memory_total_bytes{{uuid="GPU-{0}",model="{0}"}} 1\n'
    'vgpu_container_memory_used_bytes{{uuid="GPU-1",pod="{0}",namespace="{0}",pod_uid="{0}"}} 1\n'
    'vgpu_collector_success{{collector="{0}"}} 0\n'
).format(CONTROL.replace("\n", "\\n"))

ANSWER = {
    "status": "success",
    "warnings": [f"partial{CONTROL}"],
    "data": {"result": [{"metric": {"pod_uid": CONTROL}, "value": [1, "1"]}]},
}


def test_no_text_of_an_exporter_reaches_the_terminal_as_a_control_character(dump):
    with served(body=PAGE) as address:
        shown(run("top", "--once", "--url", address))
        shown(run("inspect", "--from", dump, "--by", "team", "--exporter", address))


def test_no_text_of_a_prometheus_reaches_the_terminal_as_a_control_character(dump):
    with served(body=json.dumps(ANSWER), path="/api/v1/query") as address:
        command = ("inspect", "--from", dump, "--by", "owner", "--prometheus", address)
        assert "note: " in shown(run(*command))
        assert json.loads(shown(run(*command, "-o", "json")))


@pytest.mark.parametrize("line", [CONTROL, f"HTTP/1.1 200{CONTROL}", f"HTTP/1.1 999 {CONTROL}"])
@pytest.mark.parametrize("flag", ["--url", "--exporter", "--prometheus"])
def test_no_first_line_of_a_server_reaches_the_terminal_as_a_control_character(line, flag, dump):
    with answering_all(line.encode() + b"\r\n\r\n") as address:
        if flag == "--url":
            shown(run("top", "--once", flag, address))
            return
        shown(run("inspect", "--from", dump, "--by", "team", flag, address))


@pytest.fixture
def rejecting(tmp_path):
    """A kubeconfig whose server refuses with a hostile text."""
    message = {"kind": "Status", "reason": f"Forbidden{CONTROL}", "message": f"no{CONTROL}"}
    body = json.dumps(message).encode()
    head = f"HTTP/1.1 403 no\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    with answering_all(head.encode() + body) as address:
        path = tmp_path / "kubeconfig"
        cluster = {"name": "c", "cluster": {"server": f"http://{address}"}}
        context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
        config = {
            "current-context": "c",
            "clusters": [cluster],
            "contexts": [context],
            "users": [{"name": "u", "user": {}}],
        }
        path.write_text(json.dumps(config))
        yield str(path)


@pytest.mark.parametrize("words", [("inspect",), ("fit", "--pod", "a/b"), ("reconcile", "plan")])
def test_no_refusal_of_an_api_server_reaches_the_terminal_as_a_control_character(words, rejecting):
    result = run(*words, "--kubeconfig", rejecting)
    assert result.exit_code == 1
    shown(result)


# ---------------------------------------------------------------- defects and logs


def test_a_traceback_and_a_log_line_have_no_control_characters(capsys):
    error = RuntimeError(CONTROL)
    failures.print_defect(RuntimeError, error, None)
    failures.print_thread_defect(threading.ExceptHookArgs((RuntimeError, error, None, None)))
    logs.configure_default()
    assert logging.lastResort is not None
    made = logging.LogRecord("x", logging.WARNING, "", 1, "pod %s", (CONTROL,), None)
    print(logging.lastResort.format(made), file=sys.stderr)
    text = capsys.readouterr().err
    assert "RuntimeError" in text
    assert all(char.isprintable() or char == "\n" for char in text)


def test_a_text_for_another_program_is_whole_on_a_terminal_printable(monkeypatch, capsysbinary):
    output.say_document(f"# {CONTROL}\n")
    assert capsysbinary.readouterr().out == f"# {CONTROL}\n".encode()
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    output.say_document(f"# {CONTROL}\n")
    assert b"\x1b" not in capsysbinary.readouterr().out


# ---------------------------------------------------------------- the code


def called(node):
    """The name of a called function as it is written, "" for another expression."""
    parts = []
    at = node.func
    while isinstance(at, ast.Attribute):
        parts.append(at.attr)
        at = at.value
    return ".".join((*([at.id] if isinstance(at, ast.Name) else [""]), *reversed(parts)))


def is_printing(name):
    stream, _, method = name.rpartition(".")
    writes = stream in ("sys.stdout", "sys.stderr", "sys.stdout.buffer", "sys.stderr.buffer")
    return (
        name in FORBIDDEN
        or (writes and method.startswith("write"))
        or (method in ("echo", "secho") and bool(stream))
    )


def test_no_module_prints_but_through_the_one_function():
    found = set()
    for path in (each for package in PACKAGES for each in (ROOT / package).rglob("*.py")):
        text = path.read_text()
        if not WORDS.search(text):
            continue
        allowed = PRINTERS.get(str(path.relative_to(ROOT)), set())
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.Call):
                continue
            name = called(node)
            if is_printing(name) and name not in allowed:
                found.add(f"{path.relative_to(ROOT)}:{node.lineno}: {name}")
    assert not found, "print with vgpu.program.output or vgpu.program.terminal"
