"""The oldest release of the Kubernetes client that pyproject.toml allows, to run us beside it."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.environment import ROOT, without_pytest_options

LOCK = ROOT / "requirements" / "kubernetes-oldest.lock"


class OldestClient:
    """That release and its dependencies in a folder, which Python searches before others."""

    def __init__(self, folder: Path) -> None:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        exact = ["--require-hashes", "--only-binary", ":all:", "--no-deps", "-r", LOCK]
        # Modules are compiled when they are first imported, and most of them never are.
        subprocess.run([*pip, *exact, "--no-compile", "--target", folder], check=True)
        self._environment = {
            **without_pytest_options(),
            "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}",
        }

    def run(self, *command: object) -> subprocess.CompletedProcess[str]:
        """Run Python with these arguments beside it."""
        return subprocess.run(
            [sys.executable, *map(str, command)],
            cwd=ROOT,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
