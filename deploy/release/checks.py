"""Reasons to refuse a release, one line each. What `make check` finds is not among them."""

import re
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Final

from deploy.project import ProjectError, load
from deploy.release.commands import run

_SECTION: Final = re.compile(r"^## \[?(?P<name>[^\]\s]+)\]?(?P<rest>.*)$", re.MULTILINE)
_DATED: Final = re.compile(r" [-–] (?P<date>\d{4}-\d{2}-\d{2})")

CHANGES_NAMED: Final = 5
"""Number of changed files that a refusal names."""


def refusals(root: Path, version: str) -> Iterator[str]:
    """Why the repository at ``root`` cannot be released as ``version``; nothing if it can."""
    yield from dirty(run("git", "status", "--porcelain", folder=root))
    yield from wrong_tag(run("git", "tag", "--points-at", "HEAD", folder=root), version)
    yield from undated((root / "CHANGELOG.md").read_text(), version)
    yield from unfilled(root / "deploy" / "project.toml")


def dirty(status: str) -> Iterator[str]:
    """From the output of ``git status --porcelain``."""
    changes = [line[3:] for line in status.splitlines()]
    if changes:
        more = ", …" if len(changes) > CHANGES_NAMED else ""
        yield f"changes are not committed: {', '.join(changes[:CHANGES_NAMED])}{more}"


def wrong_tag(tags: str, version: str) -> Iterator[str]:
    """From the tags of the commit, one on each line; a commit without a tag may be built."""
    names = tags.split()
    if names and f"v{version}" not in names:
        yield f"the commit's tag is {', '.join(names)}, and the version is {version}"


def undated(changelog: str, version: str) -> Iterator[str]:
    """From the changelog: its first section with content has to be the version's, with a date."""
    sections = list(_SECTION.finditer(changelog))
    for number, section in enumerate(sections):
        following = sections[number + 1 : number + 2]
        end = following[0].start() if following else len(changelog)
        if not changelog[section.end() : end].strip():
            continue
        dated = _DATED.fullmatch(section["rest"].rstrip())
        if section["name"] == version and dated and _is_date(dated["date"]):
            return
        break
    yield f"CHANGELOG.md: the first section has to be `## {version} - YYYY-MM-DD`, with its date"


def unfilled(path: Path) -> Iterator[str]:
    """From the project's setting."""
    try:
        missing = load(path).missing()
    except ProjectError as error:
        yield str(error)
        return
    if missing:
        yield f"deploy/project.toml: {', '.join(missing)}: empty; the publisher fills them in"


def _is_date(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True
