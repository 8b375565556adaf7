"""The sdist and the wheel, by hatchling."""

import sys
from pathlib import Path
from typing import Literal

from deploy.release.commands import run
from deploy.release.source import SourceTree


def build(source: SourceTree, target: Literal["sdist", "wheel"], folder: Path) -> Path:
    """Build one of the two into ``folder``; the file.

    Raises:
        ReleaseError: hatchling failed.
    """
    hatchling = (sys.executable, "-m", "hatchling", "build", f"--target={target}")
    run(*hatchling, f"--directory={folder}", folder=source.tree, env=source.env)
    (file,) = folder.glob("*.whl" if target == "wheel" else "*.tar.gz")
    return file
