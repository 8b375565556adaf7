"""Where the golden files are: shared fixtures that lie beside the repository."""

import os
import shutil
from pathlib import Path
from typing import NoReturn

import pytest

ROOT = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("VGPU_FIXTURES", ROOT.parent / "shared" / "fixtures"))


def shared_fixtures(name: str) -> Path:
    """The folder of shared golden files called ``name``.

    Required in CI; skips with one clear line in a clone that has none.
    """
    folder = SHARED / name
    if not folder.is_dir():
        missing(f"golden files {name!r} not found: set VGPU_FIXTURES to the folder of them")
    return folder


def required_tool(name: str, package: str) -> str:
    """The path of a program; missing, it fails in CI and skips with one clear line elsewhere."""
    return shutil.which(name) or missing(f"{name} is not installed: apt-get install {package}")


def required_root() -> None:
    """The same for the rights of root."""
    if os.geteuid() != 0:
        missing("only root can do this")


def missing(message: str) -> NoReturn:
    """Fail in CI, where nothing may skip itself; skip elsewhere, a whole module if need be."""
    if os.environ.get("CI"):
        pytest.fail(message, pytrace=False)
    pytest.skip(message, allow_module_level=True)
