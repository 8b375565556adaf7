"""The files that the real library wrote, and our encoder beside them."""

import gzip
import json

import pytest

from tests.support.environment import GOLDEN_FILES
from vgpu.model.facts import Region, RegionDevice, RegionProcess, RegionUse
from vgpu.schemes.volcano import hami_core
from vgpu.sources.regions import read_region

FOLDER = GOLDEN_FILES / "shim-regions"
NAMES = sorted(path.name.removesuffix(".json") for path in FOLDER.glob("*.json"))
LAYOUT_OF = {
    "v0-2024-01": "p0",
    "v0-2024-04": "v0",
    "v1.1": "v1.1",
    "v1.1-2026-03": "v1.1c",
    "v1.2": "v1.2",
}


def layout_of(name):
    return LAYOUT_OF[name.rpartition("-")[0]]


def content(name):
    return gzip.decompress((FOLDER / f"{name}.cache.gz").read_bytes())


def expected(name):
    values = json.loads((FOLDER / f"{name}.json").read_text())
    layout = layout_of(name)
    return Region(
        layout=layout,
        devices=tuple(RegionDevice(**device) for device in values["devices"]),
        processes=tuple(
            RegionProcess(
                pid=process["pid"],
                host_pid=process["host_pid"],
                status=process["status"],
                used=tuple(RegionUse(**{"sm_util": None, **use}) for use in process["used"]),
            )
            for process in values["processes"]
        ),
        proc_num=values["proc_num"],
        utilization_switch=values["utilization_switch"],
        recent_kernel=values["recent_kernel"],
        priority=values["priority"],
        last_kernel_time=values.get("last_kernel_time"),
        major_version=values.get("major_version"),
        minor_version=values.get("minor_version"),
    )


def own_business(region):
    """The byte ranges that the encoder leaves zero: locks, and what no reader may look at.

    Between the version words and ``device_num`` lie sm_init_flag, owner_pid and the semaphores;
    V1.2 has sem_postinit at the trailer's end. The seqlocks count writes. The library also fills
    entries of devices beyond ``device_num``, and the status of slots beyond ``proc_num``.
    """
    layout = hami_core.LAYOUTS[region.layout]
    frame, count = layout.frame, len(region.devices)
    slots_end = frame.slots + frame.slot_size * region.proc_num
    yield 12 if frame.versioned else 4, frame.device_num
    yield frame.uuids + hami_core.UUID_BYTES * count, frame.memory_limits
    yield frame.memory_limits + 8 * count, frame.core_limits
    yield frame.core_limits + 8 * count, frame.slots
    yield slots_end, frame.trailer
    if region.layout == "v1.2":
        yield frame.trailer + 24, frame.trailer + 56
    if layout.seqlock is not None:
        for slot in range(frame.slots, slots_end, frame.slot_size):
            yield slot + layout.seqlock, slot + layout.seqlock + 8


def blanked(image, ranges):
    image = bytearray(image)
    for start, end in ranges:
        image[start:end] = bytes(end - start)
    return image


def test_all_golden_files_are_there():
    assert len(NAMES) == 15


@pytest.mark.parametrize("name", NAMES)
def test_a_golden_file_gives_exactly_its_values(name, tmp_path):
    path = tmp_path / "golden.cache"
    path.write_bytes(content(name))
    assert read_region(str(path)) == expected(name)


@pytest.mark.parametrize("name", NAMES)
def test_the_encoder_writes_a_file_that_reads_back_as_the_golden_values(name, tmp_path):
    path = tmp_path / "own.cache"
    path.write_bytes(hami_core.encode(expected(name), layout_of(name)))
    assert read_region(str(path)) == expected(name)


@pytest.mark.parametrize("name", NAMES)
def test_the_encoder_writes_the_library_s_bytes_except_for_locks_and_unused_entries(name):
    golden, region = content(name), expected(name)
    encoded = hami_core.encode(region, layout_of(name))
    assert len(encoded) == len(golden)
    ranges = list(own_business(region))
    assert blanked(encoded, ranges) == blanked(golden, ranges)
