"""The GPU kit as one folder: wheels, the checks and the fake driver. It runs without a network.

Wheels stay as they are: :mod:`deploy.gpu_kit.start` unpacks them on the machine with the GPU.
"""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from deploy.release.commands import ReleaseError, run
from deploy.release.layers import sha256
from deploy.release.platforms import PLATFORMS
from deploy.release.source import SourceTree

PYTHON: Final = "3.12"
MOST_BYTES: Final = 40 * 1024 * 1024
"""Maximum size of the folder, in bytes."""

_GLIBC: Final = ("manylinux_2_28", "manylinux_2_17", "manylinux2014")
"""Platforms of wheels that are taken, for glibc 2.28 or newer."""

RUN: Final = """\
#!/bin/sh
# Checks vgpu on this machine's GPU: OUT=FOLDER ./run. README.txt has the rest.
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
for python in ${PYTHON:-python%(python)s python3 python}; do
  "$python" -c '' 2>/dev/null && exec "$python" "$here/start.py" "$@"
done
echo 'the GPU kit needs Python %(python)s, and there is none on the PATH' >&2
exit 2
"""

README: Final = """\
vgpu %(version)s, checks on a real GPU, for Linux x86-64 with CPython %(python)s.

    OUT=results ./run             as root, without a network, at most six minutes
    HAMI_CORE=FOLDER OUT=results ./run        also with HAMi-core, built by make in FOLDER

Nothing is installed, and no setting of the GPU is changed. The status is 0 if nothing failed, 1 if
something did, 2 if this Python or machine cannot run it, 3 without a driver. results/report.txt
lists what failed; UUIDs, serials and the host's name are replaced in all files.
"""


def write_kit(
    source: SourceTree,
    wheel: Path,
    folder: Path,
    *,
    python: str = PYTHON,
    fake_library: Path | None = None,
    wheels: Callable[[SourceTree, str, Path], None] | None = None,
) -> None:
    """Fill ``folder``, which is emptied before.

    ``wheels`` puts the wheels of the locked requirements into a folder; pip's download if None.

    Raises:
        ReleaseError: a wheel is missing, or does not have the hash of the lock; or the folder is
            too large.
    """
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "wheels").mkdir(parents=True)
    (wheels or download)(source, python, folder / "wheels")
    shutil.copy(wheel, folder / "wheels")
    package = source.tree / "deploy" / "gpu_kit"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(package, folder / "check" / "deploy" / "gpu_kit", ignore=ignored)
    shutil.copy(source.tree / "deploy" / "__init__.py", folder / "check" / "deploy")
    shutil.copy(package / "start.py", folder)
    if fake_library is not None:
        (folder / "fake").mkdir()
        shutil.copy(fake_library, folder / "fake" / fake_library.name)
    facts = {"version": source.version, "python": python}
    (folder / "README.txt").write_text(README % facts)
    (folder / "run").write_text(RUN % facts)
    (folder / "run").chmod(0o755)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    digests = {str(path.relative_to(folder)): sha256(path) for path in files}
    (folder / "kit.json").write_bytes(msgspec.json.encode({**facts, "sha256": digests}))
    if (size := folder_bytes(folder)) > MOST_BYTES:
        raise ReleaseError(f"the GPU kit has {size / 2**20:.1f} MiB of at most 40 MiB")


def folder_bytes(folder: Path) -> int:
    """The size of all files below a folder, in bytes."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def download(source: SourceTree, python: str, folder: Path) -> None:
    """Download the wheels of requirements/runtime.lock, with the hashes of the lock.

    Raises ReleaseError.
    """
    machine = PLATFORMS["amd64"].machine
    platforms = [f"--platform={glibc}_{machine}" for glibc in _GLIBC]
    run(
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
        *("--no-deps", "--only-binary=:all:", "--require-hashes"),
        *(f"--python-version={python}", "--implementation=cp", *platforms),
        f"--requirement={source.tree / 'requirements' / 'runtime.lock'}",
        f"--dest={folder}",
    )
