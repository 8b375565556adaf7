"""How a command ends when it fails: one line, one status, and a traceback only for a defect."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tests.support.environment import ROOT
from tests.support.waiting import WAIT_SECONDS
from vgpu.program import failures
from vgpucli.main import main

VGPU = [sys.executable, "-m", "vgpu"]
ENVIRONMENT = {name: text for name, text in os.environ.items() if not name.startswith("VGPU_")}


def call(*words, **variables):
    clean = {name: None for name in os.environ if name.startswith("VGPU_")}
    return CliRunner().invoke(main, words, env=clean | variables, prog_name="vgpu")


@pytest.mark.parametrize(
    "words",
    ["--help", "exporter --once --no-collector.nvml --no-collector.xid", "demo --once"],
)
def test_a_full_standard_output_is_one_line(words):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*VGPU, *words.split()],
            stdout=full,
            stderr=subprocess.PIPE,
            env=ENVIRONMENT,
            cwd=ROOT,
            text=True,
            check=False,
            timeout=WAIT_SECONDS,
        )
    assert "Traceback" not in done.stderr
    *_, last = done.stderr.splitlines()
    assert (done.returncode, last) == (1, "Error: standard output: No space left on device")


def test_closed_standard_streams_are_no_failure():
    shell = f"exec {' '.join(VGPU)} --version <&- >&- 2>&-"
    done = subprocess.run(
        ["/bin/sh", "-c", shell], cwd=ROOT, env=ENVIRONMENT, check=False, timeout=WAIT_SECONDS
    )
    assert done.returncode == 0


@pytest.mark.parametrize("module", ["click", "vgpucli.demo.walkthrough"])
def test_ctrl_c_while_modules_are_imported_prints_no_traceback(module):
    """A pipe that is full holds the process among its imports, however late the signal comes.

    Behind each of the modules come 15 KB of lines, in the pipe and in our reader are 8 at most.
    """
    command = [sys.executable, "-X", "importtime", "-m", "vgpu", "demo", "--once"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
        cwd=ROOT,
        text=True,
        pipesize=4096,
        start_new_session=True,
    )
    with process:
        for line in process.stderr:
            if line.rpartition("|")[2].strip() == module:
                break
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
    assert "Traceback" not in rest
    assert process.returncode == 130


def test_ctrl_c_before_a_command_has_begun_prints_no_traceback():
    program = """if True:
        import os, signal
        import vgpu.__main__ as start
        from vgpu.program import own_packages
        own_packages.foreign_package = lambda: os.kill(os.getpid(), signal.SIGINT)
        start.main("vgpu")"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_SECONDS,
    )
    assert (done.returncode, done.stderr) == (130, "")


def raising(error, cause=None):
    def command():
        raise error from cause

    return command


INTERRUPTED = click.Abort()
INTERRUPTED.__context__ = KeyboardInterrupt()  # as click.confirm raises it


@pytest.mark.parametrize(
    ("command", "status", "text"),
    [
        (raising(KeyboardInterrupt()), 130, ""),
        (raising(click.Abort(), KeyboardInterrupt()), 130, ""),
        (raising(INTERRUPTED), 130, ""),
        (raising(click.Abort()), 1, "Aborted!\n"),
        (raising(click.ClickException("no")), 1, "Error: no\n"),
        (
            raising(OSError(28, "No space left on device", "/tmp/x")),
            1,
            "Error: cannot write /tmp/x: No space left on device\n",
        ),
        (lambda: 3, 3, ""),
        (lambda: None, 0, ""),
    ],
)
def test_every_expected_end_has_its_status_and_its_line(command, status, text, capsys):
    assert failures.status_of(command) == status
    assert capsys.readouterr().err == text


def test_a_defect_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError):
        failures.status_of(lambda: 1 / 0)


# ---------------------------------------------------------------- wrong flags


@pytest.mark.parametrize(
    ("words", "variable", "text"),
    [
        ("exporter --once", "VGPU_SAMPLE_INTERVAL", "never"),
        ("exporter --once", "VGPU_WEB_LISTEN_ADDRESS", "nonsense"),
        ("device-plugin --scheme volcano", "VGPU_HEALTH_IGNORE_XIDS", "x"),
        ("inspect --from x", "VGPU_VOLCANO_MEMORY_FACTOR", "x"),
        ("reconcile plan", "VGPU_MAX_PER_CYCLE", "x"),
        ("reconcile run", "VGPU_EVERY", "x"),
        ("reconcile plan", "VGPU_SCOPE", "x"),
        ("reconcile plan", "VGPU_RULE", "refusd=plan"),
        ("top --once", "VGPU_VOLCANO_MEMORY_FACTOR", "x"),
    ],
)
def test_a_wrong_value_has_one_form_and_names_its_variable(words, variable, text):
    result = call(*words.split(), **{variable: text})
    flag = "--" + variable.removeprefix("VGPU_").lower().replace("_", ".-")
    assert result.exit_code == 2
    *_, line = result.stderr.splitlines()
    assert line.startswith("Error: Invalid value for '--")
    assert f"(from {variable}): " in line
    assert flag[:4] in line
    assert f"Try 'vgpu {words.split()[0]}" in result.stderr


def test_a_typed_value_names_no_variable():
    result = call("exporter", "--sample.interval=0", VGPU_SAMPLE_INTERVAL="1s")
    assert "Error: Invalid value for '--sample.interval': '0' is not a duration" in result.stderr


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("inspct", "inspect"),
        ("inspect --frm x", "--from"),
        ("reconcile plan --rule refusd=plan", "refused"),
    ],
)
def test_a_misspelt_name_gets_the_similar_one(words, name):
    result = call(*words.split())
    assert result.exit_code == 2
    assert "did you mean" in result.stderr.lower()
    assert name in result.stderr.rpartition("ean")[2]


@pytest.mark.parametrize(
    "words",
    [
        "reconcile plan --scope node --kubelet.pod-resources /x --kubeconfig {kubeconfig}",
        "exporter --once --kubelet.pod-resources /x",
        "device-plugin --scheme volcano",
    ],
)
def test_a_missing_extra_is_named(words, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "grpc", None)
    for name in [name for name in sys.modules if name.startswith(("deviceplugin", "vgpu.rpc"))]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("vgpu.sources.podresources",):
        monkeypatch.delitem(sys.modules, name, raising=False)
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        "current-context: a\n"
        "contexts: [{name: a, context: {cluster: a, user: a}}]\n"
        'clusters: [{name: a, cluster: {server: "http://127.0.0.1:1"}}]\n'
        "users: [{name: a, user: {}}]\n"
    )
    result = call(*words.format(kubeconfig=kubeconfig).split())
    assert result.exit_code in (1, 2)
    extra = "device-plugin" if words.startswith("device") else "pod-resources"
    assert f"vgpu[{extra}]" in result.stderr
    assert "answer" not in result.stderr
