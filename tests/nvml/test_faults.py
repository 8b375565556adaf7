"""What goes wrong with GPUs and drivers, and what stays right meanwhile."""

import time

import pytest

from tests.support.environment import descriptors
from tests.support.nvml_fake import Device, Fault, Process, Xid, uuid
from vgpu.model.reasons import Reason, SourceError
from vgpu.sources.nvml import NvmlSource


def uuids(sample):
    return [gpu.uuid for gpu in sample.gpus]


def reasons(sample):
    return {rejection.object_name: rejection.reason for rejection in sample.rejections}


def failure(source):
    with pytest.raises(SourceError) as caught:
        source.sample(time.time())
    return caught.value


def two_gpus(**first):
    return [Device(uuid(0), **first), Device(uuid(1), used=5)]


# ---------------------------------------------------------------- one GPU


def test_a_lost_gpu_costs_no_other(driver, source):
    processes = [Process(uuid(0), 10, sm=5), Process(uuid(1), 11, sm=7)]
    driver.write(devices=two_gpus(), processes=processes)
    assert uuids(source.sample(time.time())) == [uuid(0), uuid(1)]
    driver.write(devices=two_gpus(lost=1), processes=processes)
    for _ in range(5):
        sample = source.sample(time.time())
        assert uuids(sample) == [uuid(1)]
        assert sample.lost == (uuid(0),)
        assert reasons(sample) == {uuid(0): Reason.GPU_LOST}
        assert [process.pid for process in sample.processes] == [11]
        assert sample.processes_known == sample.utilization_known == {uuid(1)}
        assert sample.gpus[0].readings["memory_used_bytes",] == 5


def test_the_xid_of_the_loss_is_counted_for_the_lost_gpu(driver, source):
    driver.write(devices=two_gpus())
    source.sample(time.time())
    source.wait_xids(0.01)
    driver.write(devices=two_gpus(lost=1), xids=[Xid(uuid(0), 79)])
    source.sample(time.time())
    before = time.time()
    source.wait_xids(1)
    (xid,) = source.xids()
    assert (xid.device, xid.xid, xid.count) == (uuid(0), 79, 1)
    assert before <= xid.last_timestamp <= time.time()
    source.sample(time.time())  # a new generation
    assert source.xids() == (xid,)


def test_a_gpu_that_comes_back_is_found_again(driver, source):
    driver.write(devices=two_gpus())
    source.sample(time.time())
    driver.write(devices=two_gpus(lost=1))
    source.sample(time.time())
    source.sample(time.time())
    driver.write(devices=two_gpus())
    for _ in range(4):
        sample = source.sample(time.time())
    assert uuids(sample) == [uuid(0), uuid(1)]
    assert (sample.lost, sample.rejections) == ((), ())


def test_attempts_to_get_a_lost_gpu_back_become_rare(driver, source):
    driver.write(devices=two_gpus())
    source.sample(time.time())
    driver.write(devices=two_gpus(lost=1))
    for _ in range(100):
        source.sample(time.time())
    assert source.sample(time.time()).generation <= 10


def test_for_health_a_lost_gpu_is_looked_for_more_often(driver):
    source = NvmlSource(health_only=True)
    driver.write(devices=two_gpus())
    source.sample(time.time())
    driver.write(devices=two_gpus(lost=1))
    for _ in range(100):
        source.sample(time.time())
    driver.write(devices=two_gpus())
    for _ in range(17):
        sample = source.sample(time.time())
    assert uuids(sample) == [uuid(0), uuid(1)]
    source.close()


def test_a_second_loss_is_not_made_to_wait_for_the_first(driver, source):
    driver.write(devices=two_gpus())
    source.sample(time.time())
    driver.write(devices=two_gpus(lost=1))
    for _ in range(40):
        source.sample(time.time())
    before = source.sample(time.time()).generation
    driver.write(devices=[Device(uuid(0), lost=1), Device(uuid(1), lost=1)])
    sample = source.sample(time.time())
    assert (uuids(sample), sample.lost) == ([], (uuid(0), uuid(1)))
    assert source.sample(time.time()).generation == before + 1


def test_a_gpu_lost_before_the_start_is_reported_by_its_index(driver, source):
    driver.write(devices=two_gpus(lost=1))
    sample = source.sample(time.time())
    assert uuids(sample) == [uuid(1)]
    assert sample.gpus[0].index == 1
    assert sample.lost == ()
    assert reasons(sample) == {"GPU at index 0": Reason.GPU_LOST}
    assert sample.counted == 2


def test_a_gpu_that_is_dead_from_the_start_but_has_its_uuid_is_lost(driver, source):
    driver.write(
        devices=two_gpus(), faults=[dead := Fault("nvmlDeviceGetMemoryInfo_v2", 15, device=uuid(0))]
    )
    for _ in range(3):
        sample = source.sample(time.time())
        assert (uuids(sample), sample.lost) == ([uuid(1)], (uuid(0),))
        assert reasons(sample) == {dead.device: Reason.GPU_LOST}
        assert (sample.counted, sample.complete) == (2, True)
    assert sample.generation > 1  # it is looked for again
    driver.write(devices=two_gpus())
    for _ in range(4):
        sample = source.sample(time.time())
    assert (uuids(sample), sample.lost) == ([uuid(0), uuid(1)], ())


def test_a_gpu_that_is_no_longer_listed_is_lost(driver, source):
    driver.write(devices=two_gpus())
    source.sample(time.time())
    driver.write(devices=[Device(uuid(1))], epoch=1)
    sample = source.sample(time.time())
    assert (uuids(sample), sample.lost) == ([uuid(1)], (uuid(0),))


@pytest.mark.parametrize("health_only", [False, True])
def test_a_gpu_that_was_taken_out_is_lost_until_it_is_in_again(driver, health_only):
    source = NvmlSource(health_only=health_only)
    driver.write(devices=two_gpus())
    source.sample(time.time())
    driver.write(devices=two_gpus()[:1])  # the handle that the second GPU had is of none now
    sample = source.sample(time.time())
    assert (uuids(sample), sample.lost) == ([uuid(0)], (uuid(1),))
    assert reasons(sample) == {uuid(1): Reason.GPU_LOST}
    driver.write(devices=two_gpus())
    for _ in range(2):
        sample = source.sample(time.time())
    assert (uuids(sample), sample.lost) == ([uuid(0), uuid(1)], ())
    source.close()


def test_a_gpu_that_was_changed_between_two_samples_is_there_again_at_the_next(driver, source):
    driver.write(devices=two_gpus())
    source.sample(time.time())
    driver.write(devices=two_gpus(), faults=[Fault("*", 2, device=uuid(0))])  # INVALID_ARGUMENT
    assert source.sample(time.time()).lost == (uuid(0),)
    driver.write(devices=two_gpus())
    sample = source.sample(time.time())
    assert (uuids(sample), sample.lost, sample.generation) == ([uuid(0), uuid(1)], (), 2)


def test_attempts_to_get_a_gpu_that_was_taken_out_become_rare(driver, source):
    driver.write(devices=two_gpus())
    source.sample(time.time())
    driver.write(devices=two_gpus(), faults=[Fault("*", 2, device=uuid(0))])
    for _ in range(100):
        assert source.sample(time.time()).lost == (uuid(0),)
    assert 1 < source.sample(time.time()).generation <= 10


def test_a_gpu_of_which_only_some_readings_are_refused_is_not_lost(driver, source):
    refused = [
        Fault(symbol, 2, device=uuid(0))
        for symbol in ("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMemoryInfo")
    ]
    driver.write(devices=two_gpus(), faults=refused)
    for _ in range(3):
        sample = source.sample(time.time())
    assert (uuids(sample), sample.lost, sample.generation) == ([uuid(0), uuid(1)], (), 1)


@pytest.mark.parametrize("code", [15, 16, 28])  # GPU_IS_LOST, RESET_REQUIRED, GPU_NOT_FOUND
def test_a_gpu_that_is_lost_in_the_middle_is_not_half_read(driver, source, code):
    fault = Fault("nvmlDeviceGetComputeRunningProcesses_v3", code, device=uuid(0))
    driver.write(devices=two_gpus(), faults=[fault])
    sample = source.sample(time.time())
    assert uuids(sample) == [uuid(1)]
    assert reasons(sample) == {uuid(0): Reason.GPU_LOST}


def test_an_unknown_error_costs_that_reading_of_that_gpu(driver, source):
    faults = [
        Fault("nvmlDeviceGetPowerUsage", 999, device=uuid(0)),
        Fault("nvmlDeviceGetTotalEccErrors", 999, device=uuid(0)),
    ]
    driver.write(devices=two_gpus(), faults=faults)
    for _ in range(2):  # the slow call is rejected between its turns too
        sample = source.sample(time.time())
        first, second = sample.gpus
        gone = set(second.readings) - set(first.readings)
        assert {key[0] for key in gone} == {"power_usage_watts", "ecc_errors"}
        (rejection,) = sample.rejections
        assert (rejection.object_name, rejection.reason) == (uuid(0), Reason.DRIVER_ERROR)
        assert "nvmlDeviceGetPowerUsage: UNKNOWN (999)" in rejection.detail
        assert "nvmlDeviceGetTotalEccErrors" in rejection.detail
    driver.write(devices=two_gpus())
    for _ in range(3):
        sample = source.sample(time.time())
    assert set(sample.gpus[0].readings) == set(sample.gpus[1].readings)
    assert sample.rejections == ()


def test_a_uuid_that_is_not_utf8_costs_its_gpu(driver, source):
    driver.write(devices=[Device(b"GPU-\xff"), Device(uuid(1))])
    sample = source.sample(time.time())
    assert uuids(sample) == [uuid(1)]
    assert reasons(sample) == {"GPU at index 0": Reason.DRIVER_ERROR}


def test_a_uuid_that_two_gpus_claim_is_the_first_ones(driver, source):
    driver.write(devices=[Device(uuid(0)), Device(uuid(0))])
    sample = source.sample(time.time())
    assert uuids(sample) == [uuid(0)]
    assert reasons(sample) == {"GPU at index 1": Reason.DUPLICATE_UUID}


def test_a_gpu_that_we_may_not_open_is_named_by_its_index(driver, source):
    fault = Fault("nvmlDeviceGetHandleByIndex_v2", 4, times=1)
    driver.write(devices=two_gpus(), faults=[fault])
    sample = source.sample(time.time())
    assert uuids(sample) == [uuid(1)]
    assert "NO_PERMISSION (4)" in sample.rejections[0].detail


# ---------------------------------------------------------------- the driver


def test_a_missing_driver_is_an_error_until_it_is_there(driver, source):
    assert failure(source).reason == Reason.DRIVER_NOT_LOADED
    assert failure(source).reason == Reason.DRIVER_NOT_LOADED
    driver.write(devices=two_gpus())
    sample = source.sample(time.time())
    assert (len(sample.gpus), sample.generation) == (2, 1)
    driver.unload()
    assert failure(source).reason == Reason.DRIVER_NOT_LOADED
    driver.write(devices=two_gpus(), epoch=1)
    sample = source.sample(time.time())
    assert (len(sample.gpus), sample.generation, sample.lost) == (2, 2, ())


@pytest.mark.parametrize("after", [0, 1])
def test_a_reload_in_the_middle_of_a_sample_is_not_seen_but_for_the_generation(
    driver, source, after
):
    driver.write(devices=two_gpus())
    source.sample(time.time())
    fault = Fault("nvmlDeviceGetClockInfo", 1, after=after, times=1)
    driver.write(devices=two_gpus(), faults=[fault], processes=[Process(uuid(0), 10)])
    sample = source.sample(time.time())
    assert uuids(sample) == [uuid(0), uuid(1)]
    assert [process.pid for process in sample.processes] == [10]
    assert (sample.generation, sample.lost, sample.rejections) == (2, (), ())


def test_xid_counts_survive_a_reload(driver, source):
    xids = [Xid(uuid(0), 31)]
    driver.write(devices=two_gpus(), xids=xids)
    source.sample(time.time())
    source.wait_xids(1)
    driver.write(devices=two_gpus(), xids=xids, epoch=1)
    assert source.sample(time.time()).generation == 2
    driver.write(devices=two_gpus(), xids=[*xids, Xid(uuid(0), 31)], epoch=1)
    source.wait_xids(1)
    assert [(xid.device, xid.xid, xid.count) for xid in source.xids()] == [(uuid(0), 31, 2)]


def test_a_driver_that_stays_uninitialised_is_an_error(driver, source):
    driver.write(devices=two_gpus(), faults=[Fault("nvmlDeviceGetMemoryInfo_v2", 1)])
    assert failure(source).reason == Reason.DRIVER_NOT_LOADED
    driver.write(devices=two_gpus())
    assert len(source.sample(time.time()).gpus) == 2


@pytest.mark.parametrize("symbol", ["nvmlInitWithFlags", "nvmlDeviceGetPowerUsage"])
def test_a_replaced_driver_is_a_version_mismatch(driver, source, symbol):
    driver.write(devices=two_gpus(), faults=[Fault(symbol, 18)])
    assert failure(source).reason == Reason.VERSION_MISMATCH


@pytest.mark.parametrize("symbol", ["nvmlInitWithFlags", "nvmlDeviceGetCount_v2"])
def test_an_unknown_error_at_the_start_is_passed_on_and_tried_again(driver, source, symbol):
    driver.write(devices=two_gpus(), faults=[Fault(symbol, 999, times=1)])
    error = failure(source)
    assert error.reason == Reason.DRIVER_ERROR
    assert str(error).endswith("UNKNOWN (999)")
    assert len(source.sample(time.time()).gpus) == 2


@pytest.mark.parametrize("symbol", ["nvmlSystemGetDriverVersion", "nvmlDeviceGetUUID"])
def test_a_driver_that_goes_away_while_gpus_are_looked_for_is_an_error(driver, source, symbol):
    driver.write(devices=two_gpus(), faults=[Fault(symbol, 9, times=1)])
    assert failure(source).reason == Reason.DRIVER_NOT_LOADED
    assert len(source.sample(time.time()).gpus) == 2


def test_an_unknown_driver_version_costs_the_version(driver, source):
    driver.write(devices=two_gpus(), faults=[Fault("nvmlSystemGetDriverVersion", 999)])
    sample = source.sample(time.time())
    assert len(sample.gpus) == 2
    assert "driver_version" not in sample.gpus[0].info
    assert sample.gpus[0].info["cuda_version"] == "13.0"


def test_initialisations_and_descriptors_do_not_pile_up(driver, source, tmp_path):
    def held():
        return len(descriptors(tmp_path, "/dev/null", "anon_inode:inotify"))

    driver.write(devices=two_gpus())
    source.sample(time.time())
    source.wait_xids(0.01)
    before = held()
    for epoch in range(1, 6):
        fault = Fault("nvmlDeviceGetCount_v2", 999, times=1)  # fails after the initialisation
        driver.write(devices=two_gpus(lost=epoch % 2), epoch=epoch, faults=[fault])
        failure(source)
        source.sample(time.time())
        source.wait_xids(0.01)
    assert held() == before
    source.close()
    calls = driver.calls()
    # Each of the five reloads forgot one initialisation, which then cannot be shut down.
    assert calls["nvmlInitWithFlags"] == calls["nvmlShutdown"] >= 11
    assert calls["nvmlEventSetCreate"] == calls["nvmlEventSetFree"]
    assert held() == before - 1  # the driver's own


def test_closing_shuts_down_once(driver):
    driver.write(devices=two_gpus())
    source = NvmlSource()
    source.sample(time.time())
    source.close()
    source.close()
    assert driver.calls()["nvmlShutdown"] == 1


def test_closing_what_never_began_calls_nothing(driver):
    NvmlSource().close()
    assert driver.calls() == {}
