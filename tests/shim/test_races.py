"""Regions that other threads rewrite, truncate and replace while they are read."""

import os
import threading
from contextlib import contextmanager

import pytest

from tests.support.regions import a_process, a_region, put, write
from vgpu.model.reasons import Reason, SourceError
from vgpu.schemes.volcano import hami_core
from vgpu.sources.regions import read_region

READS = 400


@contextmanager
def hammering(action):
    """Repeat ``action(round)`` in a thread for as long as the block lasts."""
    stop, failures = threading.Event(), []

    def loop():
        number = 0
        try:
            while not stop.is_set():
                number += 1
                action(number)
        except OSError as error:
            failures.append(error)

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert not failures


def outcomes(path):
    """What a few hundred reads give: regions and reasons."""
    regions, reasons = [], []
    for _ in range(READS):
        try:
            regions.append(read_region(str(path)))
        except SourceError as error:
            reasons.append(error.reason)
    assert len(regions) + len(reasons) == READS
    return regions, set(reasons)


def test_a_file_truncated_and_restored_gives_a_reason_or_a_region_of_its_own(tmp_path):
    region = a_region("v1.2")
    path = write(tmp_path / "x.cache", region)
    sizes = (0, 12, 2000, 2_008_900)

    def truncate(number):
        os.truncate(path, sizes[number % len(sizes)])
        write(path, region)

    with hammering(truncate):
        regions, reasons = outcomes(path)
    assert {found.layout for found in regions} <= {"v1.2"}
    assert {found.devices for found in regions} <= {region.devices}
    assert reasons <= {
        Reason.EMPTY,
        Reason.UNKNOWN_LAYOUT,
        Reason.TRUNCATED,
        Reason.INITIALIZING,
        Reason.CHANGED_WHILE_READ,
    }
    assert read_region(str(path)) == region


def test_a_file_replaced_meanwhile_is_always_one_of_the_two(tmp_path):
    path = tmp_path / "x.cache"
    choices = [a_region("v1.2"), a_region("v0", devices=1)]
    write(path, choices[0])

    def replace(number):
        write(tmp_path / "new", choices[number % 2]).replace(path)

    with hammering(replace):
        regions, reasons = outcomes(path)
    assert reasons == set()
    assert {found.layout for found in regions} <= {"v1.2", "v0"}
    assert all(found in choices for found in regions)


@pytest.mark.parametrize("layout", ["v1.1c", "v1.2"])
def test_a_slot_rewritten_under_its_seqlock_is_never_seen_torn(tmp_path, layout):
    # Pid and memory are written one after the other: a torn slot has one of each.
    states = [
        a_region(layout, processes=[a_process(layout, pid=pid, data=pid)] * 2) for pid in (1, 1000)
    ]
    path = write(tmp_path / "x.cache", states[0])
    fd = os.open(path, os.O_WRONLY)

    def update(number):
        put(fd, hami_core.patches(states[number % 2], layout, generation=number))

    try:
        with hammering(update):
            regions, reasons = outcomes(path)
    finally:
        os.close(fd)
    whole = {state.processes[0] for state in states}
    assert {process for found in regions for process in found.processes} <= whole
    assert reasons <= {Reason.CHANGED_WHILE_READ}
    assert regions
