"""Opening files of others, and noticing when they change."""

import errno
import os
import socket

import pytest

from tests.support.descriptors import no_descriptors
from tests.support.waiting import wait_for_tick
from vgpu.model.reasons import Reason, Rejection, SourceError
from vgpu.sources import files
from vgpu.sources.files import Remembered, list_folder, printable, read_file, translated

LATER = 3600.0


def reason(call, *arguments, **options):
    with pytest.raises(SourceError) as refused:
        call(*arguments, **options)
    return refused.value.reason


def old(path, seconds=LATER):
    """The moment at which the last change of the path has long settled."""
    status = path.stat()
    return max(status.st_mtime, status.st_ctime) + seconds


def test_a_file_of_just_the_limit_is_read_and_one_byte_more_is_too_large(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"x" * 10)
    assert read_file(str(path), 10) == b"x" * 10
    assert reason(read_file, str(path), 9) is Reason.TOO_LARGE


def test_a_file_that_grows_past_the_limit_while_it_is_read_is_too_large(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"x" * 10)
    fstat = os.fstat

    def grow_after(fd):
        status = fstat(fd)
        path.write_bytes(b"x" * 11)
        return status

    monkeypatch.setattr(files.os, "fstat", grow_after)
    assert reason(read_file, str(path), 10) is Reason.TOO_LARGE


def test_only_a_regular_file_is_read_and_nothing_blocks(tmp_path):
    target = tmp_path / "target"
    target.write_text("content")
    (tmp_path / "link").symlink_to(target)
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
    for name in ("link", "fifo", "socket", "."):
        assert reason(read_file, str(tmp_path / name), 10) is Reason.NOT_REGULAR_FILE
    assert reason(read_file, "/dev/zero", 10) is Reason.NOT_REGULAR_FILE
    assert reason(read_file, str(tmp_path / "none"), 10) is Reason.ABSENT


def test_a_link_is_followed_only_where_the_operator_named_it(tmp_path):
    (tmp_path / "target").write_text("content")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    assert read_file(str(tmp_path / "link"), 10, follow=True) == b"content"
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert reason(read_file, str(tmp_path / "loop"), 10, follow=True) is Reason.NOT_REGULAR_FILE


def test_a_refused_open_names_the_path_and_the_system_error(tmp_path, monkeypatch):
    def refuse(path, flags):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(files.os, "open", refuse)
    with pytest.raises(SourceError) as refused:
        read_file("/some/file", 10)
    error = refused.value
    assert (error.reason, error.object_name) == (Reason.UNREADABLE, "/some/file")
    assert error.detail == "Permission denied"


def test_a_folder_is_listed_up_to_its_bound(tmp_path):
    for number in range(5):
        (tmp_path / str(number)).touch()
    entries, rejections = list_folder(str(tmp_path), 5)
    assert (len(entries), rejections) == (5, ())
    entries, rejections = list_folder(str(tmp_path), 4)
    assert len(entries) == 4
    assert rejections == (Rejection(str(tmp_path), Reason.TOO_MANY_FILES, "more than 4 entries"),)
    assert reason(list_folder, str(tmp_path / "none"), 1) is Reason.ABSENT
    assert reason(list_folder, str(tmp_path / "0"), 1) is Reason.UNREADABLE


def test_a_name_that_is_not_utf8_can_be_printed():
    assert printable(os.fsdecode(b"bad\xffname")) == "bad\\xffname"


class Counted:
    """A loader that counts its calls."""

    def __init__(self):
        self.calls = 0

    def __call__(self, path):
        self.calls += 1
        return read_file(path, 100)


def test_an_unchanged_file_is_loaded_once(tmp_path):
    path = tmp_path / "file"
    path.write_text("one")
    load = Counted()
    remembered = Remembered(str(path), load)
    assert [remembered.get(old(path)) for _ in range(3)] == [b"one"] * 3
    assert load.calls == 1


def test_a_change_is_seen_even_with_the_same_size_and_mtime(tmp_path):
    path = tmp_path / "file"
    path.write_text("one")
    remembered = Remembered(str(path), Counted())
    assert remembered.get(old(path)) == b"one"
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    wait_for_tick(tmp_path)
    path.write_text("two")
    os.utime(path, ns=times)
    assert remembered.get(old(path)) == b"two"


def test_a_replaced_file_is_seen(tmp_path):
    path = tmp_path / "file"
    path.write_text("one")
    remembered = Remembered(str(path), Counted())
    remembered.get(old(path))
    (tmp_path / "new").write_text("two")
    (tmp_path / "new").rename(path)
    assert remembered.get(old(path)) == b"two"


def test_a_file_that_has_just_changed_is_not_trusted_to_be_settled(tmp_path):
    path = tmp_path / "file"
    path.write_text("one")
    load = Counted()
    remembered = Remembered(str(path), load)
    for _ in range(3):
        remembered.get(old(path, seconds=1.0))
    assert load.calls == 3


def test_a_failure_is_never_remembered(tmp_path):
    path = tmp_path / "file"
    path.write_text("x" * 200)
    load = Counted()
    remembered = Remembered(str(path), load)
    assert [reason(remembered.get, old(path)) for _ in range(3)] == [Reason.TOO_LARGE] * 3
    assert load.calls == 3
    path.write_text("fine")
    assert remembered.get(old(path)) == b"fine"
    path.unlink()
    assert reason(remembered.get, LATER) is Reason.ABSENT
    path.write_text("back")
    assert remembered.get(old(path)) == b"back"


def test_what_could_not_be_opened_for_want_of_descriptors_is_read_by_the_next_look(tmp_path):
    path = tmp_path / "file"
    path.write_text("one")
    remembered = Remembered(str(path), Counted())
    with no_descriptors():
        assert reason(remembered.get, old(path)) is Reason.EXHAUSTED
    assert remembered.get(old(path)) == b"one"  # though the file has not changed


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_want_of_descriptors_or_memory_is_not_the_files_fault(code):
    assert translated(OSError(code, "no more"), "/x").reason is Reason.EXHAUSTED
