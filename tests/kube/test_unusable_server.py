"""What a person reads when the API server or the kubeconfig cannot be used: one line, its name."""

import json
import socket

import pytest
from click.testing import CliRunner

from tests.support.answering_server import answer, serving
from vgpucli.main import main

KUBECONFIG = """\
current-context: a
contexts: [{{name: a, context: {{cluster: a, user: a}}}}]
clusters: [{{name: a, cluster: {{server: "{server}"}}}}]
users: [{{name: a, user: {{{user}}}}}]
"""

EXEC = "exec: {{apiVersion: client.authentication.k8s.io/v1, command: {command}}}"


def inspected(path, *flags):
    result = CliRunner().invoke(main, ["inspect", "--kubeconfig", str(path), *flags])
    assert result.exit_code == 1
    assert "Retrying" not in result.stderr
    return result.stderr.splitlines()


@pytest.fixture
def kubeconfig(tmp_path):
    def write(server="http://127.0.0.1:1", user=""):
        path = tmp_path / "kubeconfig"
        path.write_text(KUBECONFIG.format(server=server, user=user))
        return path

    return write


PAGE = b"<html>\n<h1>\x1b[31mLog in</h1>\n</html>"


@pytest.mark.parametrize(
    ("answered", "text"),
    [
        (
            answer(PAGE, 302, Location="https://login.example.com/x?token=y"),
            "HTTP 302: {} redirects to https://login.example.com/x, as no API server does",
        ),
        (
            answer(PAGE, 404),
            "HTTP 404: {}: the answer is not from Kubernetes: <html> <h1> [31mLog in</h1> </html>",
        ),
        (
            answer(PAGE, Content_Type="Text/HTML; charset=utf-8"),
            "HTTP 200: {}: the answer is not from Kubernetes: <html> <h1> [31mLog in</h1> </html>",
        ),
        (answer(b"", 500), "HTTP 500: {}: the answer is not from Kubernetes, it is empty"),
        (
            answer({"kind": "Status", "reason": "Forbidden", "message": "nodes is forbidden"}, 403),
            "{}: Forbidden: nodes is forbidden",
        ),
    ],
)
def test_a_refusal_names_the_server(kubeconfig, answered, text):
    with serving(answered) as (cluster, _):
        line, hint = inspected(kubeconfig(cluster.server))
    assert line == "Error: " + text.format(cluster.server)
    assert hint


def test_a_server_that_never_answers_is_left_after_the_request_timeout(kubeconfig):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = f"http://127.0.0.1:{silent.getsockname()[1]}"
        line, _ = inspected(kubeconfig(server), "--request-timeout=200ms")
        silent.settimeout(0)
        silent.accept()[0].close()
        with pytest.raises(BlockingIOError):  # it is asked once
            silent.accept()
    assert line == f"Error: {server}: no answer within 0.2 s"


def test_a_command_by_hand_waits_for_half_a_minute():
    result = CliRunner().invoke(main, ["reconcile", "apply", "--help"])
    assert "[default: 30s; for" in result.stdout


@pytest.mark.parametrize(
    ("server", "text"),
    [
        ("http://127.0.0.1:1", "connection refused"),
        ("http://no.such.host.invalid:1", "the host is unknown"),
    ],
)
def test_a_server_that_is_not_there_is_one_line(kubeconfig, server, text):
    assert inspected(kubeconfig(server))[0] == f"Error: {server}: {text}"


def test_a_server_without_tls_is_not_asked_again(kubeconfig):
    with serving() as (cluster, server):
        line, _ = inspected(kubeconfig(cluster.server.replace("http:", "https:")))
        assert not server.requests
    assert "TLS: " in line


@pytest.mark.parametrize(
    ("script", "text"),
    [
        (None, "No such file or directory"),
        ("echo first >&2; echo second >&2; exit 3", "process returned 3. first second"),
        ("echo '{}'", "malformed response"),
    ],
)
def test_without_its_credentials_no_server_is_asked(kubeconfig, tmp_path, script, text):
    plugin = tmp_path / "plugin"
    if script is not None:
        plugin.write_text(f"#!/bin/sh\n{script}\n")
        plugin.chmod(0o755)
    with serving(answer({"kind": "NodeList", "items": []})) as (cluster, server):
        path = kubeconfig(cluster.server, EXEC.format(command=plugin))
        (line,) = inspected(path)
        assert not server.requests
    assert line.startswith(f"Error: {path}: the user's credential plugin failed: ")
    assert text in line


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("a: b: c", "line 1, column 5: mapping values are not allowed here"),
        ("", "is empty"),
        ("[1, 2]", "it has not the form of one"),
    ],
)
def test_an_unusable_kubeconfig_is_one_line(tmp_path, content, text):
    path = tmp_path / "kubeconfig"
    path.write_text(content)
    (line,) = inspected(path)
    assert line.startswith(f"Error: {path} is not a usable kubeconfig: ")
    assert text in line


# ---------------------------------------------------------------- dumps

STATUS = {"kind": "Status", "status": "Failure", "reason": "Forbidden", "message": "no\nlist"}
OTHERS = {
    "kind": "List",
    "items": [
        {"kind": "Deployment", "apiVersion": "apps/v1", "metadata": {"name": "a"}},
        *({"kind": "NetworkPolicy", "apiVersion": "x/v1", "metadata": {"name": n}} for n in "bc"),
    ],
}


@pytest.mark.parametrize("words", [["inspect"], ["reconcile", "plan"]])
@pytest.mark.parametrize(
    ("content", "text"),
    [
        (json.dumps(STATUS), "the API server refused it: Forbidden: no list"),
        (
            json.dumps(OTHERS),
            "it has neither nodes nor pods, only 1 Deployment and 2 NetworkPolicies",
        ),
        ('{"kind": "List", "items": []}', "it has no objects"),
        ("error: You must be logged in", "it is not JSON, and begins with 'error: You must"),
    ],
)
def test_a_file_that_is_no_dump_is_quoted(tmp_path, words, content, text):
    dump = tmp_path / "dump.json"
    dump.write_text(content)
    result = CliRunner().invoke(main, [*words, "--from", str(dump)])
    assert result.exit_code == 1
    assert f"Error: --from {dump}: {text}" in result.stderr


@pytest.mark.parametrize("words", [["inspect"], ["reconcile", "plan"]])
def test_ignored_objects_of_a_dump_are_named(tmp_path, words):
    node = {"kind": "Node", "apiVersion": "v1", "metadata": {"name": "gpu-1"}}
    dump = tmp_path / "dump.json"
    dump.write_text(json.dumps(OTHERS | {"items": [node, *OTHERS["items"]]}))
    result = CliRunner().invoke(main, [*words, "--from", str(dump)])
    assert "note: 1 Deployment and 2 NetworkPolicies ignored" in result.stdout
