"""Runs the programs that a release is built with."""

import os
import shutil
import subprocess
from pathlib import Path


class ReleaseError(Exception):
    """A release cannot be built; the message is one line for whoever builds it."""


def run(*command: str | Path, folder: Path | None = None, env: dict[str, str] | None = None) -> str:
    """What a program prints.

    Python's own variables are not passed on, since they could change what is built. ``env`` is
    added.

    Raises:
        ReleaseError: the program is missing or failed; the message has its last lines.
    """
    words = [str(word) for word in command]
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    if shutil.which(words[0]) is None:
        raise ReleaseError(f"{words[0]} is not installed")
    result = subprocess.run(  # noqa: S603  # programs that this package names
        words,
        cwd=folder,
        env={**inherited, "LC_ALL": "C.UTF-8", **(env or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        last = " / ".join(result.stderr.strip().splitlines()[-5:])
        raise ReleaseError(f"{words[0]} failed with status {result.returncode}: {last}")
    return result.stdout
