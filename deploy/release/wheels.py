"""Importable packages as a folder: the locked requirements of a platform, our own wheel, scripts.

uv chooses and unpacks the wheels for any platform and Python, without running either. It checks the
hashes of the lock.
"""

import re
import shutil
import sys
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from deploy.release.commands import run
from deploy.release.platforms import Platform
from deploy.release.source import SourceTree

_UV: Final = (sys.executable, "-m", "uv", "--quiet", "pip", "install")
_OPTIONS: Final = (
    *("--no-config", "--no-deps", "--only-binary=:all:"),
    *("--link-mode=copy", "--no-compile-bytecode"),
)
_LOCKED: Final = re.compile(r"^(?P<name>[\w.-]+)==(?P<version>\S+)(?:.*\\\n)+.*\n?", re.MULTILINE)
_EXTRA_NAME: Final = re.compile(r"[\w.-]+")

SCRIPT: Final = """\
#!{interpreter}
import sys

{before}from {module} import {function}

sys.exit({function}())
"""


def install_locked(
    source: SourceTree, platform: Platform, python: str, folder: Path, omitted: Collection[str] = ()
) -> None:
    """Unpack the wheels of requirements/runtime.lock, but for those ``omitted``, into ``folder``.

    Raises:
        ReleaseError: a wheel is missing, or does not have the hash of the lock.
    """
    lock = folder.with_name(f"{folder.name}.lock")
    lock.write_text(without(source.lock("runtime"), omitted))
    target = (f"--python-version={python}", f"--python-platform={platform.wheels}")
    run(*_UV, *_OPTIONS, *target, "--require-hashes", f"--target={folder}", f"--requirement={lock}")
    lock.unlink()
    _tidy(folder)


def install_wheel(wheel: Path, folder: Path) -> None:
    """Unpack our own wheel, which has nothing compiled, into ``folder``."""
    with zipfile.ZipFile(wheel) as files:
        files.extractall(folder)


def locked(text: str) -> dict[str, str]:
    """Name -> version of what a lock file pins."""
    return {line["name"]: line["version"] for line in _LOCKED.finditer(text)}


def without(text: str, omitted: Collection[str]) -> str:
    """A lock file's text without some packages."""
    return _LOCKED.sub(lambda line: "" if line["name"] in omitted else line[0], text)


def extras(source: SourceTree) -> set[str]:
    """The packages that only the extras of the wheel need."""
    optional: Mapping[str, list[str]] = source.pyproject["project"]["optional-dependencies"]
    names = (_EXTRA_NAME.match(text) for texts in optional.values() for text in texts)
    return {name[0] for name in names if name}


def write_scripts(source: SourceTree, folder: Path, interpreter: str, before: str = "") -> None:
    """Write the programs of the wheel's entry points; ``before`` is code that runs first."""
    folder.mkdir(parents=True)
    for name, target in source.pyproject["project"]["scripts"].items():
        module, function = target.split(":")
        script = folder / name
        script.write_text(
            SCRIPT.format(interpreter=interpreter, before=before, module=module, function=function)
        )
        script.chmod(0o755)


def _tidy(folder: Path) -> None:
    """Remove the scripts that name the interpreter of this machine, and uv's own lock."""
    shutil.rmtree(folder / "bin", ignore_errors=True)
    (folder / ".lock").unlink(missing_ok=True)
