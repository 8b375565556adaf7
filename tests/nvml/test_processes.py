"""Who is on which GPU: lists merged and checked, utilisation taken from the ring of samples."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.nvml_fake import NA, R535_HIDES, Device, FakeDriver, Fault, Process, Sample, uuid
from vgpu.model.facts import GpuProcess
from vgpu.model.reasons import Reason
from vgpu.sources.nvml import NvmlSource
from vgpu.sources.nvml_processes import NOT_AVAILABLE, InvalidListError, merge, newest

GPU = uuid(0)


def processes(sample):
    return {(p.pid, p.device): p.used_bytes for p in sample.processes}


def test_processes_are_listed_by_device(driver, source):
    driver.write(
        devices=[Device(uuid(0)), Device(uuid(1))],
        processes=[Process(uuid(0), 10, 100), Process(uuid(1), 10, 200), Process(uuid(1), 11, NA)],
    )
    sample = source.sample(time.time())
    assert processes(sample) == {(10, uuid(0)): 100, (10, uuid(1)): 200, (11, uuid(1)): None}
    assert GpuProcess(11, uuid(1), None) in sample.processes
    assert sample.processes_known == {uuid(0), uuid(1)}


def test_a_process_in_several_lists_is_counted_once_with_its_largest_memory(driver, source):
    driver.write(
        devices=[Device(GPU)],
        processes=[
            Process(GPU, 10, 100, type="CG"),
            Process(GPU, 11, 100, type="C"),
            Process(GPU, 11, 300, type="M"),
            Process(GPU, 13, 300, type="C"),
            Process(GPU, 13, 100, type="M"),
            Process(GPU, 12, NA, type="C"),
            Process(GPU, 12, 50, type="G"),
        ],
    )
    sample = source.sample(time.time())
    assert processes(sample) == {
        (10, GPU): 100,
        (11, GPU): 300,
        (12, GPU): 50,
        (13, GPU): 300,
    }


def test_more_processes_than_ever_before_are_all_listed(driver, source):
    driver.write(devices=[Device(GPU)], processes=[Process(GPU, 1, 5)])
    source.sample(time.time())
    driver.write(
        devices=[Device(GPU)],
        processes=[Process(GPU, 1000 + i, i, sm=i % 100) for i in range(700)],
    )
    sample = source.sample(time.time())
    assert processes(sample) == {(1000 + i, GPU): i for i in range(700)}
    assert len(sample.utilization) == 700
    before = driver.calls()
    source.sample(time.time())
    asked = driver.calls() - before
    assert asked["nvmlDeviceGetComputeRunningProcesses_v3"] == 1  # the room is remembered
    assert asked["nvmlDeviceGetProcessUtilization"] == 1


@pytest.mark.parametrize("bad", [Process(GPU, 0, 5), Process(GPU, 9, 81 << 30)])
def test_a_list_that_cannot_be_true_is_refused_for_its_gpu_only(driver, source, bad):
    driver.write(
        devices=[Device(GPU), Device(uuid(1))],
        processes=[Process(GPU, 10, 100), bad, Process(uuid(1), 11, 200)],
    )
    sample = source.sample(time.time())
    assert processes(sample) == {(11, uuid(1)): 200}
    assert sample.processes_known == {uuid(1)}
    assert [(r.object_name, r.reason) for r in sample.rejections] == [
        (GPU, Reason.PROCESS_LIST_INVALID)
    ]
    assert [gpu.uuid for gpu in sample.gpus] == [GPU, uuid(1)]


def test_lists_of_r530_drivers_are_read_in_their_own_layout(tmp_path, monkeypatch):
    driver = FakeDriver(tmp_path, hide=R535_HIDES)
    driver.load(monkeypatch)
    driver.write(
        devices=[Device(GPU)],
        processes=[Process(GPU, 10 + i, 100 + i) for i in range(5)],
        process_struct=32,
    )
    source = NvmlSource()
    sample = source.sample(time.time())
    assert processes(sample) == {(10 + i, GPU): 100 + i for i in range(5)}
    assert sample.rejections == ()
    source.close()


def test_a_layout_that_nobody_announced_is_noticed(driver, source):
    driver.write(
        devices=[Device(GPU)],
        processes=[Process(GPU, 10 + i, 100 + i) for i in range(5)],
        process_struct=32,
    )
    sample = source.sample(time.time())
    assert sample.processes == ()
    assert sample.processes_known == frozenset()
    assert sample.rejections[0].reason == Reason.PROCESS_LIST_INVALID


def test_a_driver_without_process_lists_knows_no_processes(tmp_path, monkeypatch):
    missing = frozenset({"nvmlDeviceGetComputeRunningProcesses_v3"})
    driver = FakeDriver(tmp_path, hide=missing)
    driver.load(monkeypatch)
    driver.write(devices=[Device(GPU), Device(uuid(1))], processes=[Process(GPU, 10)])
    source = NvmlSource()
    for _ in range(2):
        sample = source.sample(time.time())
        assert (sample.processes, sample.processes_known) == ((), frozenset())
        assert sample.rejections == ()
    source.close()


def test_a_gpu_without_process_lists_knows_no_processes(driver, source):
    driver.write(devices=[Device(GPU, process_lists=0), Device(uuid(1))])
    for _ in range(3):
        assert source.sample(time.time()).processes_known == {uuid(1)}
    assert driver.calls()["nvmlDeviceGetComputeRunningProcesses_v3"] == 4


def test_a_driver_without_mps_lists_knows_the_others(driver, source):
    driver.write(
        devices=[Device(GPU)],
        processes=[Process(GPU, 10, 100)],
        faults=[Fault("nvmlDeviceGetMPSComputeRunningProcesses_v3", 3)],
    )
    for _ in range(3):
        sample = source.sample(time.time())
        assert processes(sample) == {(10, GPU): 100}
        assert sample.processes_known == {GPU}
    assert driver.calls()["nvmlDeviceGetMPSComputeRunningProcesses_v3"] == 1


def test_half_a_list_is_no_list(driver, source):
    driver.write(
        devices=[Device(GPU)],
        processes=[Process(GPU, 10, 100)],
        faults=[Fault("nvmlDeviceGetGraphicsRunningProcesses_v3", 999, times=1)],
    )
    sample = source.sample(time.time())
    assert (sample.processes, sample.processes_known) == ((), frozenset())
    assert sample.rejections[0].reason == Reason.DRIVER_ERROR
    assert source.sample(time.time()).processes_known == {GPU}


# ---------------------------------------------------------------- utilisation


def test_utilisation_is_the_latest_sample_of_each_process(driver, source):
    driver.write(
        devices=[Device(GPU)],
        samples=[
            Sample(GPU, 10, 30, 2000),
            Sample(GPU, 10, 20, 1000),
            Sample(GPU, 11, 57, 1500),
        ],
    )
    sample = source.sample(time.time())
    assert sample.utilization == {(10, GPU): 0.30, (11, GPU): 0.57}
    assert sample.utilization_known == {GPU}


def test_a_utilisation_sample_is_reported_once(driver, source):
    ring = [Sample(GPU, 10, 30, 1000)]
    driver.write(devices=[Device(GPU)], samples=ring)
    assert source.sample(time.time()).utilization == {(10, GPU): 0.30}
    assert source.sample(time.time()).utilization == {}
    driver.write(devices=[Device(GPU)], samples=[*ring, Sample(GPU, 10, 40, 1001)])
    assert source.sample(time.time()).utilization == {(10, GPU): 0.40}


def test_samples_that_cannot_be_are_dropped(driver, source):
    year = int((time.time() + 365 * 86400) * 1e6)
    ring = [
        Sample(GPU, 0, 50, 1000),
        Sample(GPU, 10, 101, 1000),
        Sample(GPU, 11, 0xFFFFFFFF, 1000),
        Sample(GPU, 12, 50, year),
        Sample(GPU, 13, 100, 900),
    ]
    driver.write(devices=[Device(GPU)], samples=ring)
    assert source.sample(time.time()).utilization == {(13, GPU): 1.0}
    driver.write(devices=[Device(GPU)], samples=[*ring, Sample(GPU, 14, 5, 2000)])
    assert source.sample(time.time()).utilization == {(14, GPU): 0.05}


def test_utilisation_goes_on_when_the_clock_was_set_back(driver, source):
    driver.write(devices=[Device(GPU)], processes=[Process(GPU, 10, sm=30)])
    now = time.time()
    assert source.sample(now).utilization == {(10, GPU): 0.30}
    driver.write(devices=[Device(GPU)], samples=[Sample(GPU, 10, 40, int((now - 9000) * 1e6))])
    assert source.sample(now).utilization == {}
    assert source.sample(now - 8999).utilization == {(10, GPU): 0.40}


@pytest.mark.parametrize("idle_code", [0, 6])  # SUCCESS with nothing, NOT_FOUND
def test_the_answer_of_an_idle_gpu_means_that_all_processes_were_idle(driver, source, idle_code):
    driver.write(devices=[Device(GPU, idle_code=idle_code)], processes=[Process(GPU, 10)])
    sample = source.sample(time.time())
    assert (sample.utilization, sample.utilization_known) == ({}, {GPU})
    assert sample.rejections == ()


def test_a_gpu_without_process_utilisation_is_queried_once(driver, source):
    driver.write(devices=[Device(GPU, idle_code=3), Device(uuid(1))])
    for _ in range(3):
        sample = source.sample(time.time())
        assert (sample.utilization_known, sample.rejections) == ({uuid(1)}, ())
    assert driver.calls()["nvmlDeviceGetProcessUtilization"] == 4


def test_an_array_that_became_too_small_is_asked_for_once_more(driver, source):
    def write(times):
        driver.write(
            devices=[Device(GPU)],
            processes=[Process(GPU, 10, sm=30)],
            faults=[Fault("nvmlDeviceGetProcessUtilization", 7, times=times)],
        )

    write(times=1)
    assert source.sample(time.time()).utilization == {(10, GPU): 0.30}
    write(times=2)
    sample = source.sample(time.time())
    assert (sample.utilization, sample.utilization_known) == ({}, frozenset())
    assert source.sample(time.time()).utilization_known == {GPU}


# ---------------------------------------------------------------- the pure part

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)


INSTANCES = {(1, 0): "MIG-1", (2, 0): "MIG-2"}
ENTRIES = st.lists(st.tuples(U32, U64, st.integers(0, 3) | U32, st.integers(0, 1) | U32))


@given(ENTRIES, ENTRIES, st.none() | st.just(INSTANCES), st.none() | st.floats(0, 2**64))
def test_any_list_is_merged_truthfully_or_refused(compute, graphics, instances, total):
    """Each process once for each device; without a known instance it is on none of them."""
    entries = compute + graphics
    try:
        merged = merge([(False, compute), (True, graphics)], GPU, instances, total)
    except InvalidListError:
        return
    reported = [entry[1] for entry in entries if entry[1] != NOT_AVAILABLE]
    listed = (*merged.processes, *merged.unplaced)
    assert {process.pid for process in listed} == {entry[0] for entry in entries}
    assert len({(process.pid, process.device) for process in listed}) == len(listed)
    assert 0 not in {process.pid for process in listed}
    assert {process.used_bytes for process in listed} <= {None, *reported}
    devices = set(instances.values()) if instances else {GPU}
    assert {process.device for process in merged.processes} <= devices
    assert {process.device for process in merged.unplaced} <= ({GPU} if instances else set())
    assert {process.pid for process in listed if not process.graphics} == {
        entry[0] for entry in compute
    }
    if total is not None:
        assert max(reported, default=0) <= total


@given(st.lists(st.tuples(U32, U64, U32)), U64, U64)
def test_any_ring_gives_ratios_and_never_goes_back(samples, since, until):
    latest, end = newest(samples, since, until)
    assert all(0 <= ratio <= 1 for ratio in latest.values())
    assert since <= end <= max(since, until)
    assert newest(samples, end, until) == ({}, end)
