"""`vgpu reconcile apply` and `restore` ask before they write: on a terminal, or not at all.

The real commands, at the demo's API server: nothing was written if its version is as before.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from simulator.apiserver import ApiServer
from simulator.cluster import SimulatedCluster
from simulator.demo_cluster import demo_cluster
from simulator.store import ObjectStore
from tests.support.environment import ROOT
from tests.support.terminal import Terminal
from vgpucli.demo.walkthrough import UNITS
from vgpucli.main import main

ASKED = "[y/N]:"
REFUSED = "standard input is not a terminal, so nothing was done; pass --yes"
CTRL_C, CTRL_D = "\x03", "\x04"


class Place:
    """A cluster, and a folder with its kubeconfig in which commands run."""

    def __init__(self, store, folder, kubeconfig):
        self.store, self.folder = store, folder
        folder.joinpath("kubeconfig").write_text(kubeconfig)
        self.env = UNITS | {"KUBECONFIG": str(folder / "kubeconfig"), "PYTHONPATH": str(ROOT)}

    def call(self, *words, **options):
        """The command in this process; standard input is a pipe."""
        return CliRunner().invoke(main, ["reconcile", *words], env=self.env, **options)

    def program(self, *words):
        return [sys.executable, "-m", "vgpu", "reconcile", *words]

    def asked(self, *words, keys):
        """A person's answer where standard output is a file: its content, the terminal, status."""
        with (
            Path(self.folder, "out").open("wb") as out,
            Terminal(self.program(*words), columns=160, stdout=out, **self.env) as terminal,
        ):
            terminal.wait_for(ASKED)
            shown = Path(out.name).read_text()
            terminal.type(keys)
            status = terminal.status()
            return shown, "\n".join(terminal.lines), status

    def ended(self, *words, stdin):
        """The command as a program without a terminal."""
        return subprocess.run(
            self.program(*words),
            env=os.environ | self.env,
            stdin=stdin,
            capture_output=True,
            text=True,
            check=False,
        )

    @property
    def files(self):
        return {path.name for path in self.folder.iterdir()} - {"kubeconfig", "out"}


def place(store, folder):
    with ApiServer(store) as api:
        yield Place(store, folder, api.kubeconfig())


@pytest.fixture
def sick(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    now = time.time()
    yield from place(SimulatedCluster(demo_cluster(now), now).store, tmp_path)


@pytest.fixture
def well(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield from place(ObjectStore(), tmp_path)


def test_with_standard_output_in_a_file_it_asks_on_the_terminal(sick):
    before = sick.store.version
    shown, screen, status = sick.asked("apply", "--output=json", keys="what\ry\r")
    assert shown == ""
    assert "Do it (" in screen
    assert json.loads(Path("out").read_text())["actions"]
    assert status in (0, 4)
    assert sick.store.version > before


@pytest.mark.parametrize(("keys", "expected"), [("n\r", 3), (CTRL_D, 1), (CTRL_C, 130)])
def test_no_the_end_of_the_input_and_ctrl_c_do_nothing(sick, keys, expected):
    before = sick.store.version
    shown, _, status = sick.asked("apply", keys=keys)
    assert status == expected
    assert "To be done: " in shown  # before the question, and not only in a buffer
    assert ASKED not in shown
    assert sick.store.version == before
    assert sick.files == set()


def test_without_a_terminal_it_does_nothing_and_names_the_flag(sick):
    before = sick.store.version
    for output in ("text", "json", "prometheus"):
        result = sick.call("apply", "--output", output, input="y\n")
        assert result.exit_code == 2
        assert REFUSED in result.stderr
        assert ("To be done: " in result.stdout) == (output == "text")
        assert bool(result.stdout) == (output == "text")
    done = sick.ended("apply", "--metrics-file=numbers.prom", stdin=subprocess.DEVNULL)
    assert (done.returncode, REFUSED in done.stderr) == (2, True)
    assert sick.store.version == before
    assert sick.files == set()


def test_a_dry_run_never_asks(sick):
    before = sick.store.version
    result = sick.call("apply", "--server-dry-run")
    assert result.exit_code in (0, 4)
    assert ASKED not in result.output
    assert sick.store.version == before


def test_where_nothing_is_to_be_done_nobody_is_asked(well):
    result = well.call("apply")
    assert (result.exit_code, result.stderr) == (0, "")


def test_restore_asks_in_the_same_way(sick):
    assert sick.call("apply", "--yes", "--audit=a.jsonl").exit_code in (0, 4)
    before = sick.store.version
    for output in ("text", "json"):
        result = sick.call("restore", "a.jsonl", "--output", output, input="y\n")
        assert (result.exit_code, REFUSED in result.stderr) == (2, True)
        assert (": evict " in result.stdout) == (output == "text")
    with Path("a.jsonl").open() as audit:
        piped = sick.ended("restore", "-", stdin=audit)
    assert (piped.returncode, REFUSED in piped.stderr) == (2, True)
    shown, screen, status = sick.asked("restore", "a.jsonl", keys="n\r")
    assert (status, "Undo it (" in screen) == (3, True)
    assert ": evict " in shown
    assert sick.store.version == before
    assert sick.files == {"a.jsonl"}
    assert sick.call("restore", "a.jsonl", "--server-dry-run").exit_code == 4
    assert sick.store.version == before
    assert sick.call("restore", "a.jsonl", "--yes").exit_code == 4
    assert sick.store.version > before
    done = sick.store.version
    assert sick.call("restore", "a.jsonl", "--yes", "--audit=b.jsonl").exit_code == 4
    assert sick.store.version == done
