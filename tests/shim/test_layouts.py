"""Which layout a region has, and what is taken from it."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.regions import GPUS, MIB, a_process, a_region
from vgpu.model.facts import Region, RegionDevice, RegionProcess, RegionUse
from vgpu.model.reasons import Reason, SourceError
from vgpu.schemes.volcano import hami_core

IDS = list(hami_core.LAYOUTS)
SEQLOCKED = [name for name, layout in hami_core.LAYOUTS.items() if layout.seqlock is not None]


def decoded(image, frame):
    """What a reader makes of a whole file."""
    trailer = image[frame.trailer : frame.trailer + frame.trailer_size]
    body = image[: hami_core.body_size(frame, trailer)]
    return hami_core.decode(frame, bytes(body), bytes(trailer))


def round_trip(region):
    frame = hami_core.LAYOUTS[region.layout].frame
    return decoded(hami_core.encode(region, region.layout), frame)


def refusal(function, *args):
    with pytest.raises(SourceError) as caught:
        function(*args)
    return caught.value.reason


# ---------------------------------------------------------------- the decision


@pytest.mark.parametrize(
    ("size", "major", "minor", "layout"),
    [
        (804_681, 0, 0, "p0"),
        (804_681, 1, 128, "p0"),  # sm_init_flag and owner_pid lie where others have the version
        (1_197_897, 0, 0, "v0"),
        (2_008_953, 1, 1, "v1.1"),
        (2_008_953, 1, 2, "v1.2"),
        (2_008_985, 1, 1, "v1.1c"),
    ],
)
def test_size_and_version_words_decide_the_layout(size, major, minor, layout):
    assert hami_core.layout_for(size, major, minor).id == layout


@pytest.mark.parametrize(
    ("size", "major", "minor"),
    [
        (12, 1, 1),
        (2_008_952, 1, 1),  # the struct without the byte behind it
        (2_008_953, 1, 3),
        (2_008_953, 1, 0),
        (2_008_953, 2, 1),
        (2_008_985, 1, 2),
        (2_009_017, 1, 3),
    ],
)
def test_any_other_size_or_version_is_an_unknown_layout(size, major, minor):
    assert refusal(hami_core.layout_for, size, major, minor) is Reason.UNKNOWN_LAYOUT


# ---------------------------------------------------------------- round trips


def uses(layout):
    size = st.integers(0, 2**50)
    sm_util = st.none() if layout == "p0" else st.integers(0, 100)
    parts = st.tuples(size, size, size)
    return st.builds(
        lambda parts, offset, spare, sm_util: RegionUse(
            *parts, offset, sum(parts) + offset + spare, sm_util
        ),
        parts,
        size,
        size,
        sm_util,
    )


@st.composite
def regions(draw, ids=IDS, min_processes=0, statuses=(0, 1, 2)):
    layout = draw(st.sampled_from(ids))
    count = draw(st.integers(1, 16))
    int32, uint64 = st.integers(-(2**31), 2**31 - 1), st.integers(0, 2**64 - 1)
    devices = tuple(
        RegionDevice(gpu, draw(st.integers(0, 2**53)), draw(st.integers(0, 100)))
        for gpu in GPUS[:count]
    )
    process = st.builds(
        RegionProcess,
        pid=int32,
        host_pid=int32,
        status=st.sampled_from(statuses),
        used=st.tuples(*[uses(layout)] * count),
    )
    processes = tuple(draw(st.lists(process, min_size=min_processes, max_size=4)))
    version = hami_core.LAYOUTS[layout].version
    return Region(
        layout=layout,
        devices=devices,
        processes=processes,
        proc_num=len(processes),
        utilization_switch=draw(int32),
        recent_kernel=draw(int32),
        priority=draw(int32),
        last_kernel_time=draw(uint64) if version else None,
        major_version=version[0] if version else None,
        minor_version=version[1] if version else None,
    )


@pytest.mark.slow
@given(regions(ids=[name for name in IDS if name != "v1.1b"]))
def test_every_layout_decodes_to_what_was_encoded(region):
    assert round_trip(region) == region


@pytest.mark.slow
@given(regions(ids=["v1.1b"], min_processes=1, statuses=(1, 2)))
def test_v1_1b_decodes_to_what_was_encoded_while_a_process_lives(region):
    assert round_trip(region) == region


@pytest.mark.parametrize("layout", IDS)
def test_a_full_region_decodes(layout):
    processes = [a_process(layout, pid=1 + pid, devices=16) for pid in range(1024)]
    region = a_region(layout, devices=16, processes=processes)
    assert round_trip(region) == region


# ---------------------------------------------------------------- V1.1 or V1.1b


def test_v1_1b_is_recognized_by_its_memory():
    region = a_region("v1.1b", processes=[a_process("v1.1b")])
    assert round_trip(region) == region


def test_v1_1b_that_has_accounted_nothing_yet_is_recognized_by_its_status():
    layout = hami_core.LAYOUTS["v1.1b"]
    nothing = a_process("v1.1b", context=0, module=0, data=0, sm_util=0)
    region = a_region("v1.1b", processes=[nothing])
    image = bytearray(hami_core.encode(region, "v1.1b"))
    lock = layout.frame.slots + layout.seqlock
    image[lock : lock + 8] = bytes(8)  # as it is before the first write
    assert decoded(image, layout.frame) == region


def test_v1_1b_with_only_a_dead_process_is_recognized_by_its_sums():
    region = a_region("v1.1b", processes=[a_process("v1.1b", pid=0, status=0)])
    assert round_trip(region) == region


def test_v1_1b_with_a_dead_process_before_a_live_one_is_recognized():
    processes = [a_process("v1.1b", pid=0, status=0), a_process("v1.1b", data=7)]
    region = a_region("v1.1b", processes=processes)
    assert round_trip(region) == region


def test_v1_1b_without_processes_reads_as_v1_1_with_the_same_values():
    region = round_trip(a_region("v1.1b", processes=[]))
    assert region == a_region("v1.1", processes=[])


@pytest.mark.slow
@given(regions(ids=["v1.1"], min_processes=1), st.data())
def test_a_broken_v1_1_is_never_taken_for_v1_1b(region, data):
    layout = hami_core.LAYOUTS["v1.1"]
    image = bytearray(hami_core.encode(region, "v1.1"))
    slot = data.draw(st.integers(0, region.proc_num - 1))
    device = data.draw(st.integers(0, len(region.devices) - 1))
    total = data.draw(st.integers(1, 2**50))
    module = data.draw(st.integers(total + 1, 2**51))
    at = layout.frame.slots + layout.frame.slot_size * slot + 8 + 64 * device
    image[at + 8 : at + 16] = module.to_bytes(8, "little")
    image[at + 32 : at + 40] = total.to_bytes(8, "little")
    assert refusal(decoded, image, layout.frame) is Reason.INCONSISTENT_SUMS


@pytest.mark.slow
@given(regions(ids=["v1.1", "v1.1b"], min_processes=1, statuses=(1, 2)), st.data())
def test_a_wrapped_counter_never_changes_the_layout_of_a_region(region, data):
    slot = data.draw(st.integers(0, region.proc_num - 1))
    field = data.draw(st.sampled_from(["context", "module", "data", "offset", "total"]))
    processes = list(region.processes)
    first, *others = processes[slot].used
    wrapped = msgspec.structs.replace(first, **{field: None})
    processes[slot] = msgspec.structs.replace(processes[slot], used=(wrapped, *others))
    broken = msgspec.structs.replace(region, processes=tuple(processes))
    try:
        assert round_trip(broken) == broken
    except SourceError as error:  # where both layouts could have wrapped
        assert error.reason is Reason.INCONSISTENT_SUMS  # noqa: PT017


def test_a_status_that_no_library_writes_is_refused_where_the_status_decides_the_layout():
    region = a_region("v1.1", processes=[a_process("v1.1", status=7)])
    assert refusal(round_trip, region) is Reason.INCONSISTENT_SUMS


# ---------------------------------------------------------------- sums and utilisation


def broken_region(layout, broken):
    """A region whose live process has other numbers on its second device, and the fields there."""
    process = a_process(layout)
    first = process.used[0]
    fields = {name: getattr(first, name) for name in first.__struct_fields__} | broken
    process = RegionProcess(27, 100_027, 1, (process.used[1], RegionUse(**fields)))
    return a_region(layout, processes=[process]), fields


@pytest.mark.parametrize("layout", IDS)
def test_sums_that_cannot_be_are_refused(layout):
    less_than_its_parts, _ = broken_region(layout, {"total": MIB})
    assert refusal(round_trip, less_than_its_parts) is Reason.INCONSISTENT_SUMS


@pytest.mark.parametrize("layout", IDS)
@pytest.mark.parametrize(
    "broken",
    [
        {"data": 2**64 - 2 * MIB},  # the library subtracts more than it has added
        {"total": 2**64 - MIB, "data": 2**64 - 2 * MIB},
        {"total": 2**53 + 1},
        {"context": 2**64 - 1, "module": 2**64 - 1, "data": 2**64 - 1, "total": 2**64 - 3},
        {"offset": 2**64 - 1},
    ],
    ids=str,
)
def test_a_counter_that_has_wrapped_is_absent_and_no_other(layout, broken):
    region, fields = broken_region(layout, broken)
    (process,) = round_trip(region).processes
    assert process.used[0] == region.processes[0].used[0]
    assert process.used[1] == RegionUse(**fields | dict.fromkeys(broken))


@pytest.mark.parametrize("layout", IDS)
def test_a_limit_that_cannot_be_is_absent_and_no_other(layout):
    region = a_region(layout, processes=[a_process(layout)])
    first, second = region.devices
    wrong = (
        RegionDevice(first.uuid, 2**64 - 1, first.core_limit_percent),
        RegionDevice(second.uuid, second.memory_limit_bytes, 101),
    )
    read = round_trip(msgspec.structs.replace(region, devices=wrong))
    assert read.devices == (
        RegionDevice(first.uuid, None, first.core_limit_percent),
        RegionDevice(second.uuid, second.memory_limit_bytes, None),
    )
    assert read.processes == region.processes


@pytest.mark.parametrize("layout", IDS[1:])
def test_a_utilisation_beyond_the_whole_device_is_absent(layout):
    region = a_region(layout, processes=[a_process(layout, sm_util=2**64 - 1)])
    (process,) = round_trip(region).processes
    assert [use.sm_util for use in process.used] == [None, None]
    assert process.used[0].total == 1336 * MIB


# ---------------------------------------------------------------- the writer in place


@pytest.mark.parametrize("layout", IDS)
def test_patches_turn_a_file_into_the_next_state(layout):
    before = a_region(layout)
    after = a_region(layout, processes=[a_process(layout, data=5, sm_util=99)] * 3, priority=4)
    image = bytearray(hami_core.encode(before, layout))
    for at, data in hami_core.patches(after, layout, generation=2):
        image[at : at + len(data)] = data
    assert decoded(image, hami_core.LAYOUTS[layout].frame) == after


@pytest.mark.parametrize("layout", SEQLOCKED)
def test_a_reader_between_two_writes_never_sees_a_mixed_slot(layout):
    before = a_region(layout, processes=[a_process(layout)])
    after = a_region(layout, processes=[a_process(layout, pid=31, status=2, data=5)])
    frame = hami_core.LAYOUTS[layout].frame
    image = bytearray(hami_core.encode(before, layout))
    seen = []
    for at, data in hami_core.patches(after, layout, generation=2):
        image[at : at + len(data)] = data
        try:
            seen.append(decoded(image, frame).processes)
        except SourceError as error:
            seen.append(error.reason)
    changing = Reason.CHANGED_WHILE_READ if layout != "v1.1b" else Reason.INCONSISTENT_SUMS
    assert seen == [changing] * 3 + [after.processes] * 2
    # Each update leaves another number, so that a reader who straddles a whole one sees it.
    ends = [hami_core.patches(after, layout, generation=count)[3][1] for count in (1, 2, 3)]
    assert len(set(ends)) == 3
