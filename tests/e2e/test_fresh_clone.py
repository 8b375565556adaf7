"""What somebody sees who has just cloned the repository: `make demo`, with little but python3.

In `make test-thorough` pip sets the environment up. In `make test` it is there: the packages of the
lock, linked from those of this test run, and no others.
"""

import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from simulator.demo import demo
from tests.e2e.running_demo import LISTEN, RunningDemo
from tests.support.environment import ROOT, required_tool
from tests.support.live import parse

pytestmark = pytest.mark.slow

both_sizes = pytest.mark.thorough("release", smaller=True)

OURS = (
    "COV_",
    "COVERAGE_",
    "GNUMAKE",
    "MAKE",
    "MFLAGS",
    "PYTEST_",
    "PYTHON",
    "VGPU_",
    "VIRTUAL_ENV",
)
"""What this test run has in its environment and a fresh shell has not. How pip finds its index is
the machine's own affair and stays."""


class Clone:
    """A clone with a home, a temporary folder and an environment of its own."""

    def __init__(self, folder: Path) -> None:
        self.make_path = required_tool("make", "make")
        self.folder, self.home, self.temporary = (folder / n for n in ("vgpu", "home", "tmp"))
        self.home.mkdir()
        self.temporary.mkdir()
        config = folder / "gitconfig"
        config.write_text("[safe]\n\tdirectory = *\n")  # CI may have it from another user
        subprocess.run(
            [required_tool("git", "git"), "clone", "--quiet", ROOT, self.folder],
            env=os.environ | {"GIT_CONFIG_GLOBAL": str(config)},
            check=True,
        )
        python = Path(sys.executable).resolve().parent
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.startswith(OURS)},
            "PATH": f"{python}:/usr/bin:/bin",
            "HOME": str(self.home),
            "TMPDIR": str(self.temporary),
        }

    def set_up(self) -> None:
        """What `make demo` sets up, without pip."""
        venv = self.folder / ".venv"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
        (packages,) = venv.glob("lib/python*/site-packages")
        lock = (self.folder / "requirements" / "runtime.lock").read_text()
        for name in re.findall(r"^([\w.-]+)==", lock, re.MULTILINE):
            try:
                distribution = importlib.metadata.distribution(name)
            except importlib.metadata.PackageNotFoundError:
                continue  # of another platform or Python
            for top in {file.parts[0] for file in distribution.files or ()} - {".."}:
                if top != "__pycache__":
                    (packages / top).symlink_to(distribution.locate_file(top))
        for stamp in (".python", ".runtime"):
            (venv / stamp).touch()

    def make(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run make; its status is the caller's to judge."""
        return subprocess.run(
            [self.make_path, *words],
            cwd=self.folder,
            env=self.env | env,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    return Clone(tmp_path_factory.mktemp("fresh"))


@pytest.fixture(scope="module")
def first(clone, full):
    """The first `make demo` in a clone."""
    if not full:
        clone.set_up()
    return clone.make("demo", "ARGS=--once")


def page(done):
    """The series of what was printed, without what make printed before."""
    assert done.returncode == 0, done.stderr
    return parse(done.stdout[done.stdout.index("# HELP") :])


@both_sizes
def test_make_demo_prints_a_page_with_every_container(first):
    series = page(first)
    limits = [name for name in series if name.startswith("vgpu_container_memory_limit_bytes{")]
    for pod, container in demo().containers():
        if pod.running:
            who = (
                f'container="{container.name}",namespace="{pod.ref.namespace}",pod="{pod.ref.name}"'
            )
            assert any(who in name for name in limits), who


@both_sizes
def test_it_writes_nothing_outside_the_clone(clone, first):
    assert first.returncode == 0
    assert list(clone.temporary.iterdir()) == []
    assert {path.name for path in clone.home.iterdir()} <= {".cache"}  # pip's own
    status = ["git", "status", "--porcelain", "--ignored"]
    done = subprocess.run(status, cwd=clone.folder, capture_output=True, text=True, check=True)
    new = {Path(line.removeprefix("!! ")).name for line in done.stdout.splitlines()}
    assert new == {".venv", "__pycache__"}


@pytest.mark.thorough("release")
def test_a_second_run_needs_no_network(clone, first):
    assert "Setting up" in first.stdout
    again = clone.make("demo", "ARGS=--once", PIP_NO_INDEX="1", PIP_FIND_LINKS="")
    assert page(again)
    assert "Setting up" not in again.stdout


def test_ctrl_c_ends_it_at_once_and_leaves_nothing_behind(clone, first, tmp_path):
    assert first.returncode == 0
    command = [clone.make_path, "demo", f"ARGS={LISTEN}"]
    with RunningDemo(tmp_path, command, clone.folder, clone.env) as running:
        assert list(running.temporary.iterdir()) != []
        running.interrupt()
    assert list(running.temporary.iterdir()) == []
    lines = running.printed().strip().splitlines()
    assert lines[0] == "The whole cluster on one page, for one browser:"
    assert lines[-1].strip() == "Ctrl-C ends it."  # no log before the text or after it


def test_plain_make_lists_its_targets(clone):
    done = clone.make()
    assert done.returncode == 0
    assert {"demo", "test"} <= {line.split()[0] for line in done.stdout.splitlines()}


def a_python(folder: Path, module: str, code: str) -> str:
    """A python3 for which ``import module`` runs ``code``."""
    (folder / f"{module}.py").write_text(code)
    wrapper = folder / "python3"
    wrapper.write_text(f'#!/bin/sh\nPYTHONPATH={folder} exec {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    return str(wrapper)


def test_without_venv_it_stops_with_the_line_to_type(clone, tmp_path):
    python = a_python(tmp_path, "ensurepip", "raise ModuleNotFoundError('ensurepip')\n")
    done = clone.make("demo", f"PYTHON={python}", f"VENV={tmp_path / 'venv'}")
    assert done.returncode != 0
    assert "apt install python3-venv" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "venv").exists()  # nothing half-made that the next run would take


def test_an_old_python_is_reported(clone, tmp_path):
    python = a_python(tmp_path, "sitecustomize", "import sys\nsys.version_info = (3, 9, 2)\n")
    done = clone.make("demo", f"PYTHON={python}", f"VENV={tmp_path / 'venv'}")
    assert done.returncode != 0
    assert "3.11 or newer" in done.stderr


def test_a_missing_python_is_reported(clone, tmp_path):
    done = clone.make("demo", "PYTHON=python3-not-here", f"VENV={tmp_path / 'venv'}")
    assert done.returncode != 0
    assert "apt install python3 python3-venv" in done.stderr
