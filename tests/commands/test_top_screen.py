"""What is written to the terminal: the lines that changed, and nothing else."""

import os

import pytest
from rich.text import Text

from vgpucli.top.frame import Size
from vgpucli.top.screen import CLEAR, ENTER, LEAVE, Screen

SIZE = Size(10, 3)


@pytest.fixture
def screen():
    """A screen without a keyboard, and what it has written since it was last asked."""
    read, write = os.pipe()
    keyboard = os.open(os.devnull, os.O_RDONLY)

    def written():
        return os.read(read, 65536).decode()

    shown = Screen(keyboard, write)
    yield shown, written
    for end in (read, write, keyboard):
        os.close(end)


def test_only_lines_that_changed_are_written(screen, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    shown, written = screen
    with shown:
        assert written() == ENTER
        shown.draw(Text("one\ntwo\nthree"), SIZE)
        first = written()
        assert CLEAR in first
        assert all(f"\x1b[{row};1H" in first for row in (1, 2, 3))
        shown.draw(Text("one\nTWO\nthree"), SIZE)
        assert written() == "\x1b[?2026h\x1b[2;1HTWO\x1b[?2026l"
    assert written() == LEAVE


def test_nothing_is_written_when_nothing_changed(screen):
    shown, written = screen
    with shown:
        shown.draw(Text("one", style="red"), SIZE)
        shown.draw(Text("one", style="red"), SIZE)
    assert written().count("one") == 1


def test_a_repaint_writes_all_again(screen):
    shown, written = screen
    with shown:
        shown.draw(Text("one\ntwo"), SIZE)
        shown.repaint()
        shown.draw(Text("one\ntwo"), SIZE)
    assert written().count("one") == 2


def test_a_terminal_of_unknown_size_has_the_usual_one(screen):
    shown, _ = screen
    assert shown.size() == Size(80, 24)
