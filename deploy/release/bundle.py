"""Our wheel with all it needs as one folder, for every Python of a platform.

A wheel's compiled modules have the Python's version in their names, and its other files are the
same for all. So the wheels of several Pythons fit into one folder, which needs no pip and no
network. The extras of the wheel are not in it.
"""

import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from deploy.release.commands import ReleaseError
from deploy.release.platforms import Platform
from deploy.release.source import SourceTree
from deploy.release.wheels import extras, install_locked, install_wheel

PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
"""Versions of Python that the folder works with: Debian 12 and 13, Ubuntu 24.04 and 26.04."""


def write_bundle(source: SourceTree, wheel: Path, platform: Platform, folder: Path) -> None:
    """Fill ``folder``, which is new.

    Raises:
        ReleaseError: two Pythons need different files of one name.
    """
    folder.mkdir(parents=True)
    for python in PYTHONS:
        with TemporaryDirectory() as temporary:
            part = Path(temporary, "packages")
            install_locked(source, platform, python, part, extras(source))
            _merge(part, folder)
    install_wheel(wheel, folder)


def link_bundle(bundle: Path, folder: Path) -> None:
    """Make ``folder``, which is new, a second name for the files of a bundle."""
    shutil.copytree(bundle, folder, copy_function=os.link)


def make_equal(folder: Path, epoch: int) -> None:
    """Give every file below ``folder``, and the folder, one date, and the right to be read."""
    for path in (*folder.rglob("*"), folder):
        path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        os.utime(path, (epoch, epoch))


def _merge(part: Path, folder: Path) -> None:
    for file in sorted(path for path in part.rglob("*") if path.is_file()):
        name = file.relative_to(part)
        there = folder / name
        if not there.exists():
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, there)
        elif there.read_bytes() != file.read_bytes() and ".dist-info" not in name.parts[0]:
            raise ReleaseError(f"{name}: not the same for each Python")
