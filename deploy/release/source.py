"""What a release is built from: the files of one commit."""

import tomllib
from pathlib import Path
from typing import Any, Final

import msgspec

EPOCH: Final = 1_580_601_600
"""Date of files where no commit gives one, in seconds since 1970: the date that hatchling uses."""

_BUILT_FROM: Final = ("pyproject.toml", "README.md", "LICENSE")


class SourceTree(msgspec.Struct, frozen=True):
    """A tree of source files, which nobody edits meanwhile.

    Attributes:
        tree: the folder.
        epoch: date of all files in the artefacts, in seconds since 1970 (SOURCE_DATE_EPOCH).
        commit: the commit's full hash; empty for a tree that is no commit.
    """

    tree: Path
    epoch: int = EPOCH
    commit: str = ""

    @property
    def pyproject(self) -> dict[str, Any]:
        """The content of pyproject.toml."""
        return tomllib.loads((self.tree / "pyproject.toml").read_text())

    @property
    def version(self) -> str:
        """The version of the wheel."""
        return str(self.pyproject["project"]["version"])

    @property
    def packages(self) -> tuple[str, ...]:
        """The folders that make the wheel."""
        wheel = self.pyproject["tool"]["hatch"]["build"]["targets"]["wheel"]
        return tuple(wheel["packages"])

    @property
    def wheel_files(self) -> tuple[str, ...]:
        """All that the wheel is built of: folders and files of ``tree``."""
        return (*self.packages, *_BUILT_FROM)

    @property
    def env(self) -> dict[str, str]:
        """Variables for programs that write dates."""
        return {"SOURCE_DATE_EPOCH": str(self.epoch)}

    def lock(self, name: str) -> str:
        """The text of a lock file of requirements/, such as ``runtime``."""
        return (self.tree / "requirements" / f"{name}.lock").read_text()
