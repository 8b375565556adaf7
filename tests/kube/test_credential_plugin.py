"""A program for credentials that hangs, or prints without end, holds nothing."""

import os
import pty
import socket
import subprocess
import sys

import pytest

from tests.kube.test_unusable_server import EXEC, inspected, kubeconfig
from tests.support.waiting import wait_until
from vgpu.apiserver import kubeconfig as kubeconfig_module
from vgpu.apiserver.kubeconfig import CredentialPlugin, access, is_attended

__all__ = ["kubeconfig"]

GCP = "auth-provider: {{name: gcp, config: {{cmd-path: {command}}}}}"
SILENT = "exec sleep 600"
BACKGROUND = "sleep 600 & echo $! > {pid}; exit"
TRICKLE = "while echo x; do sleep 0.02; done"
CHILD = "sleep 600"
CLOSED = "exec >&- 2>&-; exec sleep 600"


@pytest.fixture
def plugin(tmp_path):
    """``plugin(script)`` is a program that writes its pid first; ``plugin.pid()`` is that.

    None if a program was ended before it had written its pid.
    """

    def write(script):
        path = tmp_path / "login"
        pid = tmp_path / "pid"
        path.write_text(f"#!/bin/sh\necho $$ > {pid}\n{script.format(pid=pid)}\n")
        path.chmod(0o755)
        write.pid = lambda: int(text) if pid.exists() and (text := pid.read_text()) else None
        return path

    write.folder = tmp_path
    return write


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(kubeconfig_module, "ALONE_SECONDS", 0.3)
    monkeypatch.setattr(kubeconfig_module, "ATTENDED_SECONDS", 0.3)


def is_gone(pid):
    if pid is None:
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize("script", [SILENT, BACKGROUND, TRICKLE, CHILD, CLOSED])
def test_a_plugin_that_hangs_is_ended_and_named(impatient, kubeconfig, plugin, script):
    command = plugin(script)
    path = kubeconfig(user=EXEC.format(command=command))
    (line,) = inspected(path)
    problem = f"the command '{command}' has not ended within 0.3 s"
    assert line == f"Error: {path}: the user's credential plugin failed: {problem}"
    wait_until(lambda: is_gone(plugin.pid()), "it has ended")


def test_a_command_of_an_auth_provider_that_hangs_is_ended_and_named(impatient, kubeconfig, plugin):
    command = plugin(SILENT)
    path = kubeconfig(user=GCP.format(command=command))
    (line,) = inspected(path)
    problem = f"the command '{command}' has not ended within 0.3 s"
    assert line == f"Error: {path} is not a usable kubeconfig: {problem}"
    wait_until(lambda: is_gone(plugin.pid()), "it has ended")


@pytest.mark.parametrize("script", ["exec yes", "exec yes >&2"])
def test_a_plugin_that_prints_without_end_is_ended(kubeconfig, plugin, script):
    path = kubeconfig(user=EXEC.format(command=plugin(script)))
    (line,) = inspected(path)
    assert line.endswith("prints more than a credential")
    wait_until(lambda: is_gone(plugin.pid()), "it has ended")


def test_an_identity_provider_that_never_answers_is_left(monkeypatch, impatient, kubeconfig):
    monkeypatch.setattr("vgpu.apiserver.kubeconfig.GRACE_SECONDS", 0)
    expired = "e30.eyJleHAiOiAxfQ.x"  # {"exp": 1}
    with socket.create_server(("127.0.0.1", 0)) as silent:
        issuer = f"http://127.0.0.1:{silent.getsockname()[1]}"
        settings = f"id-token: {expired}, idp-issuer-url: '{issuer}'"
        user = f"auth-provider: {{name: oidc, config: {{{settings}}}}}"
        (line,) = inspected(kubeconfig(user=user))
    assert line.endswith("its user's credentials have not come within 0.3 s")


def test_the_token_of_a_plugin_counts(kubeconfig, plugin):
    token = (
        '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "", "status": {"token": "t"}}'
    )
    (plugin.folder / "token").write_text(token)
    command = plugin(f"echo note >&2; cat {plugin.folder}/token")
    used = access(str(kubeconfig(user=EXEC.format(command=command))))
    assert used.credentials() == {"authorization": "Bearer t"}


def test_at_a_terminal_a_plugin_has_minutes():
    """At a browser login; the program may ask on the terminal, and prints there."""
    ours, theirs = pty.openpty()
    try:
        assert is_attended([theirs])
    finally:
        os.close(ours)
        os.close(theirs)
    code = (
        "import os; from vgpu.apiserver import kubeconfig as c; print(c.plugin_seconds());"
        " p = c.CredentialPlugin(['tty'], stdin=None, stdout=-1, stderr=-1);"
        " print(p.communicate(), os.getsid(0))"
    )
    ours, theirs = pty.openpty()
    try:
        shown = subprocess.run(
            [sys.executable, "-c", code], stdin=theirs, capture_output=True, text=True, check=True
        ).stdout
    finally:
        os.close(ours)
        os.close(theirs)
    assert shown.startswith("300.0\n('/dev/pts/")


def test_without_a_terminal_a_plugin_has_no_input_and_less_time(monkeypatch):
    monkeypatch.setattr(kubeconfig_module, "is_attended", lambda: False)
    process = CredentialPlugin(["cat"], stdin=None, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.communicate() == ("", "")
    assert kubeconfig_module.plugin_seconds() == kubeconfig_module.ALONE_SECONDS < 60
