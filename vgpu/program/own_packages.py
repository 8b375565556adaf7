"""Whether the top-level packages of our wheel are ours: their names are common ones.

A package of the same name that is installed beside ours overwrites files of ours, and one that is
earlier in Python's path hides ours. Each of our packages has the line ``MARK``.
"""

import importlib.util
import sys
from pathlib import Path
from typing import Final

from vgpu.program.output import say

PACKAGES: Final = (
    "vgpu",
    "exporter",
    "reconciler",
    "deviceplugin",
    "scheduler",
    "kubeshare",
    "fleet",
    "vgpucli",
    "simulator",
)
"""The top-level packages of our wheel."""

MARK: Final = b'DISTRIBUTION = "vgpu"\n'
"""Line in the ``__init__.py`` of each of our packages."""


def require_own_packages() -> None:
    """Print an error and end the process if a top-level package is not ours."""
    if error := foreign_package():
        say(f"Error: {error}", err=True)
        sys.exit(1)


def foreign_package() -> str | None:
    """An error about the first package that is not ours, as one line; None if all are ours.

    No code of the packages runs.
    """
    for name in PACKAGES:
        place = _place(name)
        if place is None:
            return f"the Python package {name!r} of vgpu is missing. {_REMEDY}"
        if not _is_ours(place):
            return (
                f"the Python package {name!r} in {place.parent} is not part of vgpu: another"
                f" package has the same name. {_REMEDY}"
            )
    return None


_REMEDY: Final = "Install vgpu with pipx, or with pip into a virtual environment of its own."


def _place(name: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(name)
    except ValueError:  # what is loaded under this name does not tell where it is from
        return None
    if spec is None or not spec.origin:
        return None
    return Path(spec.origin)


def _is_ours(place: Path) -> bool:
    home = Path(__file__).resolve().parent.parent.parent
    try:
        return place.resolve().parent.parent == home and MARK in place.read_bytes()
    except OSError:
        return False
