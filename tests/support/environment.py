"""What the tests need of the repository and of the machine: golden files, programs, root, ports."""

import contextlib
import os
import shutil
from pathlib import Path
from typing import NoReturn

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
GOLDEN_FILES = ROOT / "tests" / "golden"


def required_tool(name: str, package: str) -> str:
    """The path of a program; a missing one fails in CI and skips with one clear line elsewhere."""
    return shutil.which(name) or missing(f"{name} is not installed: apt-get install {package}")


def required_root() -> None:
    """The same for the rights of root."""
    if os.geteuid() != 0:
        missing("only root can do this: sudo make test")


def own_loopback() -> str:
    """An address that only this process listens on: no other takes a port that it has closed."""
    number = os.getpid() % 2**22
    return f"127.{64 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"


def descriptors(*prefixes: object) -> list[str]:
    """What this process has open below these paths; its other threads may open what they like."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(str(link.readlink()))
    return sorted(path for path in found if path.startswith(tuple(map(str, prefixes))))


def without_pytest_options() -> dict[str, str]:
    """This process's environment for a Python that the caller's options of pytest do not reach."""
    return {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}


def missing(message: str) -> NoReturn:
    """Fail in CI, where nothing may skip itself; skip elsewhere, a whole module if need be."""
    if os.environ.get("CI"):
        pytest.fail(message, pytrace=False)
    pytest.skip(message, allow_module_level=True)
