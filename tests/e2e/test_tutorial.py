"""The commands of docs/tutorial.md in their order, on the demo's cluster, with what they print."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.e2e.running_demo import COMMAND, RunningDemo
from tests.support.bed.monitoring import LISTENING
from tests.support.bed.processes import Daemon
from tests.support.environment import ROOT, required_tool
from tests.support.waiting import WAIT_SECONDS, wait_until

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```(console|yaml)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SETS_VARIABLES = re.compile(r"^ *\$? *((?:export|\.) .*)$", re.MULTILINE)
"""What the demo prints for the second terminal."""

POD = "training/train-2"
"""In place of NAMESPACE/POD."""


class Command(NamedTuple):
    """A command line, and the lines that the page shows of its output."""

    line: str
    shown: list[str]


def steps(text: str):
    """The commands of a page, and the texts of its YAML files, in their order."""
    for kind, block in BLOCK.findall(text):
        if kind == "yaml":
            yield block
            continue
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, *shown = part.splitlines()
            yield Command(line.partition("  #")[0].strip(), list(filter(str.strip, shown)))


def missing_line(shown: list[str], printed: str) -> str | None:
    """The first line that is not there after the line before it; … stands for anything."""
    text, place = " ".join(printed.split()), 0
    for line in shown:
        parts = (re.escape(" ".join(part.split())) for part in line.split("…"))
        found = re.compile(".*?".join(parts)).search(text, place)
        if found is None:
            return line
        place = found.end()
    return None


class Reader:
    """Somebody who types what the page has, in a folder with the clone's rules."""

    def __init__(self, folder: Path, demo: RunningDemo) -> None:
        self.folder, self.demo, self.prometheus = folder, demo, None
        self.places = {"localhost:9394": demo.url.removeprefix("http://")}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.env = {"PATH": path, "HOME": str(folder), "COLUMNS": "120"}
        self.variables = "\n".join(SETS_VARIABLES.findall(demo.printed()))
        (folder / "grafana").symlink_to(ROOT / "grafana")

    def save(self, text: str) -> None:
        (self.folder / "prometheus.yml").write_text(self.here(text).replace("5s", "1s"))

    def here(self, text: str) -> str:
        """With the addresses of this run in place of those of the page."""
        for shown, real in self.places.items():
            text = text.replace(shown, real)
        return text.replace("NAMESPACE/POD", POD)

    def start_prometheus(self, line: str) -> None:
        words = line.replace("localhost:9190", "127.0.0.1:0").split()
        log = self.folder / "prometheus.log"
        self.prometheus = Daemon("prometheus", words, log, env=self.env, cwd=self.folder)
        wait_until(lambda: "Server is ready" in self.prometheus.log(), "Prometheus is ready")
        port = LISTENING.search(self.prometheus.log())[1]
        self.places["localhost:9190"] = f"127.0.0.1:{port}"

    def type(self, line: str) -> str:
        done = subprocess.run(
            ["bash", "-c", f"{self.variables}\n{self.here(line)}"],
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=2 * WAIT_SECONDS,
        )
        assert "rror:" not in done.stderr, done.stderr
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    with RunningDemo(tmp_path_factory.mktemp("tutorial")) as running:
        yield running


@pytest.fixture
def reader(tmp_path, demo):
    required_tool("promtool", "prometheus")
    someone = Reader(tmp_path, demo)
    yield someone
    if someone.prometheus:
        someone.prometheus.stop()


def test_each_command_of_the_tutorial_prints_what_the_page_shows(reader):
    typed = 0
    for step in steps(PAGE.read_text()):
        if isinstance(step, str):
            reader.save(step)
            continue
        typed += 1
        match step.line.split()[0:2]:
            case ["pipx", "install"]:
                continue  # the wheel has tests of its own
            case ["vgpu", "demo"]:
                assert step.line.split() == ["vgpu", *COMMAND[3:]]
                assert missing_line(step.shown, reader.demo.printed()) is None
            case ["prometheus", _]:
                reader.start_prometheus(step.line)
            case ["promtool", _]:
                wait_until(
                    lambda step=step: missing_line(step.shown, reader.type(step.line)) is None,
                    step.line,
                    pause=0.2,
                )
            case _:
                printed = reader.type(step.line)
                assert missing_line(step.shown, printed) is None, f"{step.line}\n{printed}"
    assert typed > 12
    (removal,) = re.findall(r"`rm -r ([^`]*)`", PAGE.read_text())
    left = {path.name for path in reader.folder.iterdir()} - {"grafana", "prometheus.log"}
    assert left == set(removal.split())


def test_the_commands_of_the_readme_answer(reader):
    lines = [step.line for step in steps((ROOT / "README.md").read_text())]
    inspect, explain, page = (line for line in lines if line.startswith("vgpu "))
    assert page == "vgpu fleet"  # it serves until Ctrl-C: tests/fleet/test_program.py
    assert "Free capacity" in reader.type(inspect)
    assert "What to do:" in reader.type(explain)


def test_a_line_that_is_not_printed_is_found():
    assert missing_line(["a … c", "d"], "x a\n  b c d") is None
    assert missing_line(["d", "a"], "a d") == "a"
