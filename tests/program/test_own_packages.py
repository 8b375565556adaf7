"""A foreign package with one of our generic top-level names is found before any of it runs."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.release.source import SourceTree
from tests.support.environment import ROOT
from vgpu.program.own_packages import MARK, PACKAGES

FOREIGN = "raise SystemExit('the foreign package was imported')\n"


@pytest.fixture
def site_packages(tmp_path):
    """A folder with our packages, as pip installs them."""
    for name in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, tmp_path / "site" / name, ignore=ignored)
    return tmp_path / "site"


def version(*folders: Path) -> subprocess.CompletedProcess[str]:
    """What ``vgpu --version`` does with these folders first in Python's path."""
    program = "import sys; from vgpu.__main__ import main; main()"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}
    command = [sys.executable, "-P", "-c", program, "--version"]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def test_the_packages_are_those_of_the_wheel_and_each_has_the_mark():
    assert SourceTree(ROOT).packages == PACKAGES
    assert all(MARK in (ROOT / name / "__init__.py").read_bytes() for name in PACKAGES)


def test_our_own_packages_start(site_packages):
    done = version(site_packages)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", PACKAGES[1:])
def test_a_package_that_is_found_before_ours_is_one_clear_error(site_packages, tmp_path, name):
    foreign = tmp_path / "foreign" / name
    foreign.mkdir(parents=True)
    (foreign / "__init__.py").write_text(FOREIGN)
    done = version(foreign.parent, site_packages)
    assert done.returncode == 1
    assert done.stderr == (
        f"Error: the Python package {name!r} in {foreign} is not part of vgpu: another package has"
        " the same name. Install vgpu with pipx, or with pip into a virtual environment of its"
        " own.\n"
    )


def test_a_package_that_has_overwritten_a_file_of_ours_is_found(site_packages):
    (site_packages / "exporter" / "__init__.py").write_text(FOREIGN)
    done = version(site_packages)
    assert done.returncode == 1
    assert "'exporter'" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_package_that_was_uninstalled_with_a_foreign_one_is_missing(site_packages):
    shutil.rmtree(site_packages / "reconciler")
    done = version(site_packages)
    assert done.returncode == 1
    assert "is missing" in done.stderr or "is not part of vgpu" in done.stderr
