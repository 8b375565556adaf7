"""The wheel as a node installs it: built offline, and run beside the base dependencies alone."""

import importlib.metadata
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from simulator.demo import demo
from tests.support.environment import ROOT
from tests.support.live import LiveExporter, parse

pytestmark = pytest.mark.slow

PACKAGES = (
    "deviceplugin",
    "exporter",
    "kubeshare",
    "reconciler",
    "scheduler",
    "fleet",
    "simulator",
    "vgpu",
    "vgpucli",
)
ELSEWHERE = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built in a copy of the sources, without a network."""
    tree = tmp_path_factory.mktemp("tree")
    for name in (*PACKAGES, "tests", "docs"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tree)
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel"]
    subprocess.run(build, cwd=tree, env=ELSEWHERE, check=True, capture_output=True)
    (built,) = (tree / "dist").glob("*.whl")
    return built


def metadata_of(wheel):
    """The wheel's own metadata."""
    (distribution,) = importlib.metadata.distributions(path=[str(wheel)])
    return distribution


def base_dependencies(requires, known=frozenset()):
    """The names of what is required without any extra, and of what that requires."""
    for requirement in map(Requirement, requires or ()):
        name = canonicalize_name(requirement.name)
        wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if wanted and name not in known:
            known = base_dependencies(importlib.metadata.requires(name), known | {name})
    return known


@pytest.fixture(scope="module")
def binaries(wheel, tmp_path_factory):
    """The folder of ``vgpu`` in an environment of its own.

    Its dependencies are those that are installed here, linked, so that nothing is fetched.
    """
    folder = tmp_path_factory.mktemp("node") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder)}))
    for name in base_dependencies(metadata_of(wheel).requires):
        distribution = importlib.metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            (site / top).symlink_to(distribution.locate_file(top))
    install = [sys.executable, "-m", "pip", "--python", folder / "bin/python", "install"]
    offline = ["--quiet", "--no-index", "--no-deps", wheel]
    subprocess.run([*install, *offline], env=ELSEWHERE, check=True)
    return folder / "bin"


def run(folder, *command, env=ELSEWHERE):
    """Run it away from the repository."""
    return subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=120
    )


def test_it_holds_every_file_of_the_packages_and_nothing_else(wheel):
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    sources = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert held == sources
    assert {"exporter/statuspage.html", "vgpu/py.typed"} <= held


def test_its_metadata_name_licence_command_and_extra(wheel):
    distribution = metadata_of(wheel)
    assert "Apache License" in distribution.read_text("licenses/LICENSE")
    assert {entry.name: entry.value for entry in distribution.entry_points} == {
        "vgpu": "vgpu.__main__:main",
        "kubectl-vgpu": "vgpu.__main__:main",
    }
    assert distribution.metadata.get_all("Provides-Extra") == ["device-plugin", "pod-resources"]
    assert distribution.metadata["License-Expression"] == "Apache-2.0"


def test_the_command_lists_its_commands(binaries, tmp_path):
    done = run(tmp_path, binaries / "vgpu", "--help")
    assert done.returncode == 0, done.stderr
    assert {"exporter", "demo"} <= set(done.stdout.split())


def test_the_exporter_reads_a_node(binaries, tmp_path):
    live = LiveExporter(tmp_path, demo())
    env = ELSEWHERE | live.driver.env()
    done = run(tmp_path, binaries / "vgpu", "exporter", *live.flags(), "--once", env=env)
    assert done.returncode == 0, done.stderr
    series = parse(done.stdout)
    assert series["vgpu_gpus"] == len(demo().gpus)
    assert any(name.startswith("vgpu_container_memory_used_bytes{") for name in series)


def test_the_demo_runs(binaries, tmp_path):
    done = run(tmp_path, binaries / "vgpu", "demo", "--once")
    assert done.returncode == 0, done.stderr
    assert parse(done.stdout)["vgpu_gpus"] == 3


def test_a_command_that_needs_grpc_names_the_missing_extra(binaries, tmp_path):
    assert run(tmp_path, binaries / "python", "-c", "import grpc").returncode != 0
    socket = tmp_path / "kubelet.sock"
    done = run(tmp_path, binaries / "vgpu", "exporter", f"--kubelet.pod-resources={socket}")
    assert done.returncode != 0
    assert "vgpu[pod-resources]" in done.stderr
    assert "--kubelet.pod-resources" in done.stderr
    assert "Traceback" not in done.stderr
    done = run(tmp_path, binaries / "vgpu", "device-plugin", "--scheme=volcano")
    assert done.returncode != 0
    assert "vgpu[device-plugin]" in done.stderr
    assert "Traceback" not in done.stderr
