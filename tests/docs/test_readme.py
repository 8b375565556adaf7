"""The README: its first commands work from a clone, and it is short."""

import re
import textwrap

import pytest

from deploy import addressed
from deploy.project import Project
from tests.support.doc_pages import BLOCK
from tests.support.environment import ROOT
from vgpu import __version__

SCREEN = 45
"""Lines that are seen without scrolling."""

WIDTH = 100
"""Columns of a line on the screen."""

READMES = ["README.md", "README.zh-CN.md"]
ADDRESS = "https://forge.example.com/team/vgpu"
SOMEWHERE = Project(address=ADDRESS)
NOWHERE = Project()

FILE = re.compile(r"\S*/releases/download/\S+?/(\S+)")
OF_A_RELEASE = re.compile(r"\bvgpu[-_]\d\S*\.(?:whl|tgz|deb|tar\.gz)")
TARGET = re.compile(r"\]\([^)]*\)")


@pytest.fixture(params=READMES)
def text(request):
    return (ROOT / request.param).read_text()


def screen_lines(text):
    """The lines as a reader sees them: without targets of links and comments, and wrapped."""
    for line in TARGET.sub("]", text).splitlines():
        if not line.startswith("<!--"):
            yield from textwrap.wrap(line, WIDTH) or [""]


def commands(text):
    """The commands of the console blocks, in their order and without what they print."""
    lines = [line.strip() for block in BLOCK.findall(text) for line in block.splitlines()]
    return [line[2:].partition("  ")[0] for line in lines if line.startswith("$ ")]


def test_the_first_commands_work_from_a_clone_and_need_no_release(text):
    first = commands(text)[:6]
    assert first[:2] == ["pipx install .", "vgpu inspect"]
    assert first[2].startswith("vgpu explain pod ")
    assert first[3:] == ["vgpu fleet", "make demo", "make test"]


def test_the_first_command_is_on_the_first_screen(text):
    lines = list(screen_lines(text))
    assert next(at for at, line in enumerate(lines) if line.startswith("$ ")) < SCREEN


def test_the_readme_has_three_screens(text):
    assert len(list(screen_lines(text))) <= 3 * SCREEN


def test_there_is_one_picture(text):
    assert len(re.findall(r"!\[", text)) == 1


@pytest.mark.parametrize("lines", [addressed.released, addressed.released_files])
def test_lines_of_a_release_are_there_only_with_an_address(lines):
    assert lines(NOWHERE) == ""
    files = FILE.findall(lines(SOMEWHERE))
    assert f"vgpu-{__version__}-py3-none-any.whl" in files
    assert lines(SOMEWHERE).count(f"{ADDRESS}/releases/") == len(files) + 1


@pytest.mark.parametrize(
    "page", [*READMES, "docs/install.md", "docs/zh/install.md", "docs/commands.md"]
)
def test_no_other_line_installs_a_file_of_a_release(page):
    begin, end = r"<!-- BEGIN: address", r"END: address -->"
    text = re.sub(f"{begin}.*?{end}", "", (ROOT / page).read_text(), flags=re.DOTALL)
    assert [line for line in commands(text) if OF_A_RELEASE.search(line)] == []
