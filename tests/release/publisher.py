"""A publisher, who clones this commit, fills in what is empty in it, and builds a release."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.environment import ROOT, required_tool
from vgpu import __version__

SETTING = {
    "address": "https://forge.example.com/team/vgpu",
    "site": "https://docs.example.com/vgpu",
    "image": "registry.example.com/team/vgpu",
    "security_contact": "security@example.com",
}
COMMIT = {
    "GIT_AUTHOR_NAME": "publisher",
    "GIT_AUTHOR_EMAIL": "publisher@example.com",
    "GIT_AUTHOR_DATE": "2026-11-23T12:00:00Z",
    "GIT_COMMITTER_NAME": "publisher",
    "GIT_COMMITTER_EMAIL": "publisher@example.com",
    "GIT_COMMITTER_DATE": "2026-11-23T12:00:00Z",
    "GIT_CONFIG_COUNT": "1",  # CI may have the repository from another user
    "GIT_CONFIG_KEY_0": "safe.directory",
    "GIT_CONFIG_VALUE_0": "*",
}
OURS = ("COV_", "COVERAGE_", "GNUMAKE", "MAKE", "MFLAGS", "PYTEST_", "PYTHON", "VGPU_", "GPG_")
"""Beginnings of the variables of this test run that a publisher's shell does not have."""


class Publisher:
    """A clone of this commit in ``folder``; ``venv`` is made by make unless it is there."""

    def __init__(self, folder: Path, venv: Path | None = None, **env: str) -> None:
        self.folder, self.dist = folder, folder / "dist"
        self.venv = venv or folder / ".venv"
        inherited = {key: text for key, text in os.environ.items() if not key.startswith(OURS)}
        self.env = inherited | COMMIT | env
        self.run(required_tool("git", "git"), "clone", "--quiet", str(ROOT), str(folder), cwd=ROOT)

    def run(self, *command: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run a program in the clone; its output is in the error's notes if it fails."""
        ran = self.tried(*command, cwd=cwd)
        if ran.returncode:
            raise AssertionError(f"{command}: {ran.returncode}\n{ran.stdout}\n{ran.stderr}")
        return ran

    def tried(self, *command: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run a program in the clone, whatever its status."""
        return subprocess.run(
            command,
            cwd=cwd or self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            check=False,
        )

    def make(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run make, whatever its status."""
        python = Path(sys.executable).resolve()
        return self.tried("make", f"PYTHON={python}", f"VENV={self.venv}", *words)

    def python(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run Python in the clone."""
        return self.run(str(self.venv / "bin" / "python"), *words)

    def fill_in(self) -> None:
        """Do what docs/releasing.md asks of a publisher before the first release."""
        setting = self.folder / "deploy" / "project.toml"
        text = setting.read_text()
        for key, value in SETTING.items():
            assert f'\n{key} = ""' in text
            text = text.replace(f'\n{key} = ""', f'\n{key} = "{value}"')
        setting.write_text(text)
        changelog = self.folder / "CHANGELOG.md"
        section = f"\n## {__version__} - 2026-11-23\n"
        changelog.write_text(changelog.read_text().replace("\n## Unreleased\n", section, 1))
        for done in (self.make("docs"), self.make("manifests")):
            assert done.returncode == 0, done.stdout + done.stderr
        self.run("git", "commit", "--quiet", "--all", f"--message=Release {__version__}")

    def follow(self, other: "Publisher") -> None:
        """Take over the commit of another publisher."""
        self.run("git", "fetch", "--quiet", str(other.folder), "HEAD")
        self.run("git", "reset", "--quiet", "--hard", "FETCH_HEAD")

    def bring_dist(self, folder: Path) -> Path:
        """A copy of the artefacts alone, in a new folder."""
        shutil.copytree(self.dist, folder)
        return folder
