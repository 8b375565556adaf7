"""One region file, whatever a tenant makes of it."""

import contextlib
import errno
import os
import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.environment import descriptors
from tests.support.regions import GPUS, a_process, a_region, scribble, write
from vgpu.model.facts import Region
from vgpu.model.reasons import Reason, SourceError
from vgpu.schemes.volcano import hami_core
from vgpu.sources import regions

IDS = list(hami_core.LAYOUTS)
V12 = hami_core.LAYOUTS["v1.2"]


@pytest.fixture
def path(tmp_path):
    """A good V1.2 region with two processes on two devices."""
    return write(tmp_path / "good.cache", a_region("v1.2"))


def refusal(path, dir_fd=None):
    with pytest.raises(SourceError) as caught:
        regions.read_region(str(path), dir_fd)
    return caught.value


def reason(path):
    return refusal(path).reason


# ---------------------------------------------------------------- what is not a region file


def test_a_missing_file_is_absent(tmp_path):
    error = refusal(tmp_path / "none.cache")
    assert (error.reason, error.object_name) == (Reason.ABSENT, str(tmp_path / "none.cache"))


def test_a_zero_byte_file_is_empty(path):
    os.truncate(path, 0)
    assert reason(path) is Reason.EMPTY


def test_the_twelve_bytes_that_kill_the_volcano_monitor_are_an_unknown_layout(path):
    path.write_bytes(struct.pack("<III", hami_core.MAGIC, 1, 1))
    error = refusal(path)
    assert (error.reason, error.detail) == (Reason.UNKNOWN_LAYOUT, "12 bytes")


@pytest.mark.parametrize("size", [1, 4096, V12.frame.file_size - 1, V12.frame.file_size + 1, 2**33])
def test_a_shortened_or_growing_file_is_an_unknown_layout(path, size):
    os.truncate(path, size)
    assert reason(path) is Reason.UNKNOWN_LAYOUT


def test_a_symlink_to_a_good_region_is_refused(path, tmp_path):
    (tmp_path / "link.cache").symlink_to(path)
    assert reason(tmp_path / "link.cache") is Reason.NOT_REGULAR_FILE


def test_a_directory_is_refused(tmp_path):
    (tmp_path / "folder.cache").mkdir()
    assert reason(tmp_path / "folder.cache") is Reason.NOT_REGULAR_FILE


def test_a_fifo_is_refused_without_waiting_for_a_writer(tmp_path):
    os.mkfifo(tmp_path / "pipe.cache")
    assert reason(tmp_path / "pipe.cache") is Reason.NOT_REGULAR_FILE


def test_a_socket_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a socket's path may have 107 bytes only
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket.cache")
        assert reason("socket.cache") is Reason.NOT_REGULAR_FILE


def test_a_device_is_refused():
    assert reason("/dev/null") is Reason.NOT_REGULAR_FILE


def test_an_unreadable_file_is_refused(path):
    path.chmod(0)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    path.parent.chmod(0o755)
    root = os.geteuid() == 0
    try:
        if root:  # who may read everything: be nobody for a moment
            os.seteuid(65534)
        assert refusal(path.name, folder).reason is Reason.UNREADABLE
    finally:
        if root:
            os.seteuid(0)
        os.close(folder)


def test_no_descriptor_stays_open(path, tmp_path):
    regions.read_region(str(path))
    for size in (0, 12):
        os.truncate(path, size)
        refusal(path)
    refusal(tmp_path)
    assert descriptors(tmp_path) == []


# ---------------------------------------------------------------- what is not a region


def test_an_unwritten_region_is_initializing(path):
    scribble(path, 0, bytes(4))
    assert reason(path) is Reason.INITIALIZING


def test_another_magic_is_refused(path):
    scribble(path, 0, b"ELF!")
    assert reason(path) is Reason.BAD_MAGIC


def test_an_unknown_minor_version_is_an_unknown_layout(path):
    scribble(path, 8, b"\3")
    error = refusal(path)
    assert error.reason is Reason.UNKNOWN_LAYOUT
    assert error.detail == "2008953 bytes, version 1.3"


def test_a_region_without_devices_yet_is_initializing(path):
    scribble(path, V12.frame.device_num, 0)
    assert reason(path) is Reason.INITIALIZING


@pytest.mark.parametrize("layout", IDS)
@pytest.mark.parametrize("count", [17, 5000, -1, 2**63])
def test_a_device_count_out_of_range_is_refused(tmp_path, layout, count):
    path = write(tmp_path / "x.cache", a_region(layout))
    scribble(path, hami_core.LAYOUTS[layout].frame.device_num, count)
    assert reason(path) is Reason.DEVICE_COUNT


@pytest.mark.parametrize("layout", IDS)
@pytest.mark.parametrize("count", [-1, 1025, -(2**31), 2**31 - 1])
def test_a_process_count_out_of_range_is_refused(tmp_path, layout, count):
    path = write(tmp_path / "x.cache", a_region(layout))
    scribble(path, hami_core.LAYOUTS[layout].frame.trailer, struct.pack("<i", count))
    assert reason(path) is Reason.PROCESS_COUNT


@pytest.mark.parametrize(
    "uuid",
    [
        b"\0",
        b"GPU-" + b"\xff" * 36,
        b'GPU-8f2d61a4"0c3b-4be5-9f70-1b6a2e4d7c10',
        b"GPU-8f2d61a4-0c3b-4be5-9f70-1b6a2e4d7c1\n",
        GPUS[0].encode() + b"\n",
        b"\n" + GPUS[0].encode(),
        GPUS[0].encode()[:-1] + b"\0",
        GPUS[0].removeprefix("GPU-").encode(),
        b"MIG-" + GPUS[0].encode() + b"/1",
        b"MIG-" + GPUS[0].encode() + b"/1/../../etc",
        "GPU-８f2d61a4-0c3b-4be5-9f70-1b6a2e4d7c10".encode(),  # noqa: RUF001  # a wide digit
        b"A" * 96,
    ],
    ids=ascii,
)
def test_a_uuid_that_is_none_is_refused(path, uuid):
    scribble(path, V12.frame.uuids + 96, uuid)
    error = refusal(path)
    assert error.reason is Reason.BAD_UUID
    assert error.detail.isascii()
    assert error.detail.isprintable()


@pytest.mark.parametrize(
    "uuid",
    [
        "GPU-8F2D61A4-0C3B-4BE5-9F70-1B6A2E4D7C10",
        "MIG-8f2d61a4-0c3b-4be5-9f70-1b6a2e4d7c10",
        "MIG-GPU-8f2d61a4-0c3b-4be5-9f70-1b6a2e4d7c10/7/0",
    ],
)
def test_every_form_of_uuid_is_read_up_to_its_nul(path, uuid):
    scribble(path, V12.frame.uuids, uuid.encode() + b"\0 what was there before")
    assert regions.read_region(str(path)).devices[0].uuid == uuid


def test_the_same_uuid_twice_is_refused(path):
    scribble(path, V12.frame.uuids + 96, GPUS[0].encode())
    assert reason(path) is Reason.DUPLICATE_UUID


def test_a_slot_that_stays_half_written_is_refused(path):
    scribble(path, V12.frame.slots + V12.frame.slot_size + V12.seqlock, 7)
    assert reason(path) is Reason.CHANGED_WHILE_READ


def test_a_half_written_slot_that_is_not_in_use_does_not_matter(path):
    scribble(path, V12.frame.slots + 2 * V12.frame.slot_size + V12.seqlock, 7)
    assert regions.read_region(str(path)) == a_region("v1.2")


def test_a_priority_beyond_the_known_ones_is_just_a_number(tmp_path):
    path = write(tmp_path / "x.cache", a_region("v1.2", priority=7))
    assert regions.read_region(str(path)).priority == 7


# ---------------------------------------------------------------- files that change meanwhile


def between_reads(monkeypatch, number, action):
    """Do ``action`` just before the ``number``-th pread, and go on with the real one."""
    count, pread = iter(range(1, 10**6)), os.pread

    def spied(fd, size, offset):
        if next(count) == number:
            action()
        return pread(fd, size, offset)

    monkeypatch.setattr(os, "pread", spied)


@pytest.mark.parametrize("number", [1, 2, 3, 4])
@pytest.mark.parametrize("size", [0, 100, V12.frame.slots + 8, V12.frame.trailer + 8])
def test_a_file_truncated_between_two_reads_is_truncated(path, monkeypatch, number, size):
    between_reads(monkeypatch, number, lambda: os.truncate(path, size))
    assert reason(path) is Reason.TRUNCATED


@pytest.mark.parametrize("layout", IDS)
@pytest.mark.parametrize("number", [2, 3, 4])
def test_a_process_that_joins_between_two_reads_is_read_in_the_next_try(
    tmp_path, monkeypatch, layout, number
):
    path = write(tmp_path / "x.cache", a_region(layout))
    joined = a_region(layout, processes=[*a_region(layout).processes, a_process(layout, pid=99)])
    between_reads(monkeypatch, number, lambda: write(tmp_path / "x.cache", joined))
    assert regions.read_region(str(path)) == joined


@pytest.mark.parametrize("layout", IDS)
def test_a_slot_rewritten_between_its_two_copies_is_read_in_the_next_try(
    tmp_path, monkeypatch, layout
):
    path = write(tmp_path / "x.cache", a_region(layout))
    moved = a_region(layout, processes=[a_process(layout, data=5), a_process(layout, pid=28)])
    between_reads(monkeypatch, 3, lambda: write(tmp_path / "x.cache", moved))
    assert regions.read_region(str(path)) == moved


def test_a_region_that_never_holds_still_is_refused(path, monkeypatch):
    pread, data = os.pread, iter(range(10**6))

    def restless(fd, size, offset):
        scribble(path, V12.frame.slots + V12.used, next(data))
        return pread(fd, size, offset)

    monkeypatch.setattr(os, "pread", restless)
    assert reason(path) is Reason.CHANGED_WHILE_READ


def test_a_replaced_file_is_read_to_its_end_as_it_was(path, tmp_path, monkeypatch):
    other = write(tmp_path / "other", a_region("v0", devices=1))
    between_reads(monkeypatch, 2, lambda: other.replace(path))
    assert regions.read_region(str(path)) == a_region("v1.2")
    assert regions.read_region(str(path)) == a_region("v0", devices=1)


def test_a_disk_that_fails_while_it_is_read_is_unreadable(path, monkeypatch):
    def fail():
        raise OSError(errno.EIO, "Input/output error")

    between_reads(monkeypatch, 3, fail)
    error = refusal(path)
    assert (error.reason, error.detail) == (Reason.UNREADABLE, "Input/output error")


# ---------------------------------------------------------------- anything at all


@pytest.mark.parametrize("layout", IDS)
def test_any_corruption_of_a_valid_file_gives_a_region_or_a_reason(tmp_path, monkeypatch, layout):
    monkeypatch.setattr(regions, "PAUSE_SECONDS", 0)
    frame = hami_core.LAYOUTS[layout].frame
    path = write(tmp_path / "x.cache", a_region(layout))
    image = hami_core.encode(a_region(layout), layout)
    offsets = st.one_of(
        st.integers(0, frame.slots + 2 * frame.slot_size),
        st.integers(frame.trailer, frame.file_size - 1),
    )
    patches = st.lists(st.tuples(offsets, st.binary(min_size=1, max_size=24)), max_size=8)

    @given(patches)
    def check(patches):
        for at, data in patches:
            scribble(path, at, data[: frame.file_size - at])
        with contextlib.suppress(SourceError):
            assert isinstance(regions.read_region(str(path)), Region)
        for at, data in patches:
            scribble(path, at, image[at : at + len(data)])

    check()
    assert regions.read_region(str(path)) == a_region(layout)
