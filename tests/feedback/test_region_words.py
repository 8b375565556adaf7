"""Exactly two words of a region are written, and a hostile file costs itself only."""

import os
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.shim import test_golden as golden
from tests.support import regions
from tests.support.environment import descriptors, required_root
from vgpu.model.reasons import Reason, SourceError
from vgpu.schemes.volcano import hami_core
from vgpu.schemes.volcano.hami_core import FeedbackWords
from vgpu.sources.regions import read_region
from vgpucli.feedback.region_words import (
    RECENT_KERNEL,
    UTILIZATION_SWITCH,
    read_only_problem,
    read_regions,
    write_words,
)

LAYOUTS = sorted(hami_core.LAYOUTS)


def only(root):
    reading = read_regions([str(root)])
    assert not reading.rejections
    (region,) = reading.regions
    return region


def refused(root, regions_left=0):
    reading = read_regions([str(root)])
    assert len(reading.regions) == regions_left
    return [rejection.reason for rejection in reading.rejections]


def golden_region(root, name, pod=0):
    path = regions.folder(root, pod=pod) / "5f0d.cache"
    path.write_bytes(golden.content(name))
    return path


def changed_bytes(before, after):
    assert len(before) == len(after)
    return {at for at, (old, new) in enumerate(zip(before, after, strict=True)) if old != new}


@pytest.mark.parametrize("name", golden.NAMES)
def test_only_the_two_words_of_a_file_of_the_real_library_change(name, tmp_path):
    path = golden_region(tmp_path, name)
    before, values = path.read_bytes(), golden.expected(name)
    region = only(tmp_path)
    assert region.container == (regions.PODS[0], "main")
    assert region.feedback.devices == tuple(device.uuid for device in values.devices)
    assert region.feedback.priority == values.priority
    assert region.feedback.words == FeedbackWords(values.recent_kernel, values.utilization_switch)
    switch = 1 - values.utilization_switch
    assert write_words(region, FeedbackWords(-1, switch)) == (UTILIZATION_SWITCH, RECENT_KERNEL)
    trailer = hami_core.LAYOUTS[golden.layout_of(name)].frame.trailer
    assert changed_bytes(before, path.read_bytes()) <= set(range(trailer + 4, trailer + 12))
    written = read_region(str(path))
    assert (written.recent_kernel, written.utilization_switch) == (-1, switch)
    write_words(only(tmp_path), FeedbackWords(0, switch))
    assert read_region(str(path)).recent_kernel == 0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_read_and_written(layout, tmp_path):
    path = regions.place(tmp_path, regions.a_region(layout, priority=3))
    region = only(tmp_path)
    assert region.feedback.priority == 3
    assert region.feedback.words == FeedbackWords(2, 1)
    assert write_words(region, FeedbackWords(1, 1)) == (RECENT_KERNEL,)
    assert read_region(str(path)).recent_kernel == 1
    assert write_words(only(tmp_path), FeedbackWords(1, 1)) == ()


def test_a_launch_since_the_file_was_read_stays_noted(tmp_path):
    path = regions.place(tmp_path, regions.a_region("v1.2"))
    region = only(tmp_path)
    write_words(region, FeedbackWords(1, 1))
    later = only(tmp_path)
    frame = hami_core.LAYOUTS["v1.2"].frame
    with path.open("r+b") as file:
        regions.put(file.fileno(), [hami_core.recent_kernel_patch(frame, 2)])
    assert write_words(later, FeedbackWords(0, 1)) == ()
    assert read_region(str(path)).recent_kernel == 2
    assert write_words(later, FeedbackWords(-1, 1)) == (RECENT_KERNEL,)


def test_a_slot_that_a_killed_process_left_half_written_keeps_nobody_blocked(tmp_path):
    path = regions.place(tmp_path, regions.a_region("v1.2"))
    layout = hami_core.LAYOUTS["v1.2"]
    regions.scribble(path, layout.frame.slots + layout.seqlock, 1)
    with pytest.raises(SourceError):
        read_region(str(path))
    assert write_words(only(tmp_path), FeedbackWords(-1, 1)) == (RECENT_KERNEL,)
    assert write_words(only(tmp_path), FeedbackWords(0, 1)) == (RECENT_KERNEL,)


def test_a_container_with_several_regions_is_refused(tmp_path):
    regions.place(tmp_path, regions.a_region("v1.2"))
    regions.write(tmp_path / f"{regions.PODS[0]}_main" / "other.cache", regions.a_region("v1.2"))
    assert refused(tmp_path) == [Reason.AMBIGUOUS]


def test_roots_that_do_not_exist_are_no_failure_and_one_root_counts_once(tmp_path):
    regions.place(tmp_path, regions.a_region("v1.2"))
    link = tmp_path.parent / f"{tmp_path.name}-link"
    link.symlink_to(tmp_path)
    reading = read_regions([str(tmp_path / "none"), str(tmp_path), str(link)])
    assert len(reading.regions) == 1
    assert reading.rejections == ()


HOSTILE = {
    "a link to another region": Reason.NOT_REGULAR_FILE,
    "a FIFO": Reason.NOT_REGULAR_FILE,
    "a folder": Reason.NOT_REGULAR_FILE,
    "an empty file": Reason.EMPTY,
    "a short file": Reason.UNKNOWN_LAYOUT,
    "one byte more": Reason.UNKNOWN_LAYOUT,
    "another magic": Reason.BAD_MAGIC,
    "another version": Reason.UNKNOWN_LAYOUT,
    "too many devices": Reason.DEVICE_COUNT,
    "no UUID": Reason.BAD_UUID,
}


def break_file(path, what):
    frame = hami_core.LAYOUTS["v1.2"].frame
    match what:
        case "a link to another region":
            other = regions.write(path.parent.parent / "victim", regions.a_region("v1.2"))
            path.unlink()
            path.symlink_to(other)
        case "a FIFO":
            path.unlink()
            os.mkfifo(path)
        case "a folder":
            path.unlink()
            path.mkdir()
        case "an empty file":
            os.truncate(path, 0)
        case "a short file":
            os.truncate(path, 12)
        case "one byte more":
            os.truncate(path, frame.file_size + 1)
        case "another magic":
            regions.scribble(path, 0, b"\1\2\3\4")
        case "another version":
            regions.scribble(path, 8, b"\7\0\0\0")
        case "too many devices":
            regions.scribble(path, frame.device_num, 5000)
        case "no UUID":
            regions.scribble(path, frame.uuids, b"\xff\xfe")


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_file_costs_itself_only(what, tmp_path):
    root = tmp_path / "root"
    path = regions.place(root, regions.a_region("v1.2"))
    regions.place(root, regions.a_region("v1.2"), pod=1)
    break_file(path, what)
    reasons = refused(root, regions_left=1)
    assert HOSTILE[what] in reasons


@pytest.mark.parametrize("what", HOSTILE)
def test_a_file_that_turns_hostile_before_the_write_is_not_written(what, tmp_path):
    root = tmp_path / "root"
    path = regions.place(root, regions.a_region("v1.2"))
    region = only(root)
    break_file(path, what)
    victim = root / "victim"
    before = victim.read_bytes() if victim.exists() else b""
    with pytest.raises(SourceError) as failed:
        write_words(region, FeedbackWords(-1, 0))
    assert failed.value.reason is HOSTILE[what]
    assert (victim.read_bytes() if victim.exists() else b"") == before


SOME_BYTES = st.binary(min_size=1, max_size=16)


@given(
    st.sampled_from(LAYOUTS),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), SOME_BYTES), max_size=4),
    st.binary(min_size=16, max_size=16),
)
def test_whatever_stands_in_a_region_is_read_or_refused(layout, scribbles, trailer):
    """Of what is read, only plausible devices come out; nothing raises anything else."""
    frame = hami_core.LAYOUTS[layout].frame
    header = bytearray(hami_core.encode(regions.a_region(layout), layout)[: frame.slots])
    for place, data in scribbles:
        at = int(place * (len(header) - len(data)))
        header[at : at + len(data)] = data
    try:
        feedback = hami_core.decode_feedback(frame, bytes(header), trailer)
    except SourceError:
        return
    assert 1 <= len(set(feedback.devices)) == len(feedback.devices) <= hami_core.MAX_DEVICES
    assert feedback.words == hami_core.decode_words(trailer)


def test_a_folder_that_turns_into_a_link_is_not_followed(tmp_path):
    root, aside = tmp_path / "root", tmp_path / "aside"
    path = regions.place(root, regions.a_region("v1.2"))
    region = only(root)
    path.parent.rename(aside)
    path.parent.symlink_to(aside)
    with pytest.raises(SourceError) as failed:
        write_words(region, FeedbackWords(-1, 0))
    assert failed.value.reason is Reason.NOT_REGULAR_FILE
    assert read_region(str(aside / path.name)).recent_kernel == 2


def test_a_device_is_not_even_opened(tmp_path):
    root = tmp_path / "root"
    path = regions.place(root, regions.a_region("v1.2"))
    region = only(root)
    path.unlink()
    required_root()
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    with pytest.raises(SourceError) as failed:
        write_words(region, FeedbackWords(-1, 0))
    assert failed.value.reason is Reason.NOT_REGULAR_FILE
    assert refused(root) == [Reason.NOT_REGULAR_FILE]


def test_a_file_that_is_gone_is_absent(tmp_path):
    path = regions.place(tmp_path, regions.a_region("v1.2"))
    region = only(tmp_path)
    path.unlink()
    with pytest.raises(SourceError) as failed:
        write_words(region, FeedbackWords(-1, 0))
    assert failed.value.reason is Reason.ABSENT


def test_no_descriptor_is_left_open(tmp_path):
    root = tmp_path / "root"
    path = regions.place(root, regions.a_region("v1.2"))
    regions.place(root, regions.a_region("p0"), pod=1)
    write_words(read_regions([str(root)]).regions[0], FeedbackWords(-1, 0))
    break_file(path, "a FIFO")
    read_regions([str(root)])
    assert descriptors(root) == []


def test_a_root_that_may_be_written_has_no_problem(tmp_path):
    assert read_only_problem([str(tmp_path), str(tmp_path / "none")]) == ""
    assert read_only_problem(["/sys"]) in {"", "/sys is mounted read-only"}
