"""The user's cache: a file is made once for all it is made of, whole or not at all."""

import os
import time

import pytest

from tests.support.bed.cache import UNUSED_SECONDS, cached


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "vgpu-testbed"


@pytest.fixture
def make():
    """Writes its content, and counts its calls."""
    made = []

    def writes(text):
        def write(file):
            made.append(text)
            file.write_text(text)

        return write

    writes.made = made
    return writes


def test_a_file_is_made_once_for_the_same_inputs(home, make):
    first = cached("kind/name.tar", ["a", "b"], make("1"))
    again = cached("kind/name.tar", ["a", "b"], make("2"))
    assert again == first
    assert first.parent == home / "kind"
    assert first.suffix == ".tar"
    assert make.made == ["1"]


@pytest.mark.parametrize("others", [["a", "c"], ["ab", ""], ["a"]])
def test_other_inputs_make_another_file(make, others):
    first = cached("kind/name.tar", ["a", "b"], make("1"))
    assert cached("kind/name.tar", others, make("2")) != first
    assert first.read_text() == "1"


def test_what_was_not_finished_is_not_there(home, make):
    def breaks(file):
        file.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        cached("kind/name.tar", ["a"], breaks)
    assert list((home / "kind").iterdir()) == []
    assert cached("kind/name.tar", ["a"], make("whole")).read_text() == "whole"


def test_what_nobody_uses_goes_when_its_successor_is_made(make):
    old = cached("k/a.tar", ["old"], make(""))
    used = cached("k/a.tar", ["used"], make(""))
    other = cached("k/b.tar", ["old"], make(""))
    killed = old.with_name("a-unfinished-1")
    killed.mkdir()
    (killed / "half").touch()
    long_ago = time.time() - UNUSED_SECONDS - 60
    for file in (old, used, other, killed):
        os.utime(file, (long_ago, long_ago))
    cached("k/a.tar", ["used"], make(""))
    new = cached("k/a.tar", ["new"], make(""))
    assert not old.exists()
    assert not killed.exists()
    assert all(file.exists() for file in (used, other, new))
