"""XIDs are counted by a thread that waits, whatever happens to the driver meanwhile."""

import threading
import time

import pynvml
import pytest

from tests.support.nvml_fake import Device, FakeDriver, Fault, Xid, uuid
from tests.support.waiting import wait_ended, wait_until
from vgpu.sources.nvml import NvmlSource

WAIT = "nvmlEventSetWait_v2"


def counts(source):
    return {(xid.device, xid.xid): xid.count for xid in source.xids()}


def test_each_xid_is_counted_by_gpu_and_code(driver, source):
    xids = [Xid(uuid(0), 13), Xid(uuid(1), 31), Xid(uuid(0), 13), Xid(uuid(0), 48)]
    driver.write(devices=[Device(uuid(0)), Device(uuid(1))], xids=xids)
    source.sample(time.time())
    before = time.time()
    for _ in xids:
        source.wait_xids(1)
    assert counts(source) == {(uuid(0), 13): 2, (uuid(1), 31): 1, (uuid(0), 48): 1}
    assert all(before <= xid.last_timestamp <= time.time() for xid in source.xids())


def test_an_event_of_an_unknown_device_is_counted_under_no_name(driver, source):
    driver.write(devices=[Device(uuid(0))], xids=[Xid("?", 62)])
    source.sample(time.time())
    source.wait_xids(1)
    assert counts(source) == {("", 62): 1}


def test_no_event_is_no_error_and_waits_in_the_driver(driver, source):
    driver.write(devices=[Device(uuid(0))])
    source.sample(time.time())
    started = time.monotonic()
    source.wait_xids(0.1)
    assert time.monotonic() - started >= 0.1
    assert driver.calls()[WAIT] == 1
    assert source.xids() == ()


def test_before_the_first_sample_waiting_touches_no_driver(driver, source):
    started = time.monotonic()
    source.wait_xids(0.05)
    assert time.monotonic() - started >= 0.05
    assert driver.calls() == {}


def test_where_events_are_not_supported_waiting_sleeps(driver, source):
    driver.write(devices=[Device(uuid(0), events=0)])
    source.sample(time.time())
    for _ in range(3):
        started = time.monotonic()
        source.wait_xids(0.05)
        assert time.monotonic() - started >= 0.05
    calls = driver.calls()
    assert calls[WAIT] == 0
    assert calls["nvmlDeviceRegisterEvents"] == 1
    assert calls["nvmlEventSetCreate"] == calls["nvmlEventSetFree"] == 1


def test_a_driver_without_events_is_asked_once(tmp_path, monkeypatch):
    driver = FakeDriver(tmp_path, hide=frozenset({"nvmlEventSetCreate"}))
    driver.load(monkeypatch)
    driver.write(devices=[Device(uuid(0))])
    source = NvmlSource()
    source.sample(time.time())
    source.wait_xids(0.01)
    source.wait_xids(0.01)
    assert source.calls()["nvmlEventSetCreate"].count == 1
    source.close()


def test_an_error_of_the_wait_is_slept_over(driver, source):
    driver.write(devices=[Device(uuid(0))], faults=[Fault(WAIT, 15)])
    source.sample(time.time())
    started = time.monotonic()
    source.wait_xids(0.05)
    assert time.monotonic() - started >= 0.05
    assert driver.calls()[WAIT] == 1


def test_gpus_without_events_do_not_silence_the_others(driver, source):
    driver.write(devices=[Device(uuid(0), events=0), Device(uuid(1))], xids=[Xid(uuid(1), 31)])
    source.sample(time.time())
    assert source.xids_watched() == frozenset()
    source.wait_xids(1)
    assert counts(source) == {(uuid(1), 31): 1}
    assert source.xids_watched() == {uuid(1)}
    source.close()
    assert source.xids_watched() == frozenset()


def test_a_registration_that_fails_does_not_silence_the_others(driver, source):
    driver.write(
        devices=[Device(uuid(0)), Device(uuid(1))],
        xids=[Xid(uuid(1), 31)],
        faults=[Fault("nvmlDeviceRegisterEvents", 999, device=uuid(0))],
    )
    source.sample(time.time())
    source.wait_xids(1)
    assert counts(source) == {(uuid(1), 31): 1}
    source.close()
    calls = driver.calls()
    assert calls["nvmlEventSetCreate"] == calls["nvmlEventSetFree"] == 2


def test_sampling_and_reloads_go_on_under_a_waiting_thread(driver, source):
    stop = threading.Event()

    def watch():
        while not stop.is_set():
            source.wait_xids(0.2)

    devices = [Device(uuid(0))]
    driver.write(devices=devices)
    source.sample(time.time())
    watcher = threading.Thread(target=watch)
    watcher.start()
    xids = []
    try:
        for epoch in range(1, 4):
            driver.write(devices=devices, xids=xids, epoch=epoch)
            assert source.sample(time.time()).generation == epoch + 1
            xids.append(Xid(uuid(0), 31))
            driver.write(devices=devices, xids=xids, epoch=epoch)
            wait_until(
                lambda epoch=epoch: counts(source).get((uuid(0), 31)) == epoch,
                f"XID 31 is counted {epoch} times",
                context=lambda: str(counts(source)),
            )
            assert counts(source) == {(uuid(0), 31): epoch}
    finally:
        stop.set()
        wait_ended(watcher, "the watcher ends")


def test_closing_lets_a_waiting_thread_go(driver, source):
    driver.write(devices=[Device(uuid(0), events=0)])
    source.sample(time.time())
    watcher = threading.Thread(target=lambda: source.wait_xids(3600))
    watcher.start()
    source.close()
    wait_ended(watcher, "closing lets the watcher go")


def test_the_driver_is_not_shut_down_under_a_waiting_thread(driver, source):
    driver.write(devices=[Device(uuid(0))])
    source.sample(time.time())
    watcher = threading.Thread(target=lambda: source.wait_xids(0.3))
    watcher.start()
    wait_until(lambda: driver.calls()[WAIT], "the watcher is in the driver", pause=0.01)
    source.close()
    assert source.calls()["nvmlEventSetWait"].count == 1  # it has come out
    wait_ended(watcher, "the watcher ends")


# ---------------------------------------------------------------- double-bit errors


def double_bit(device):
    return Xid(device, 0, type=pynvml.nvmlEventTypeDoubleBitEccError)


@pytest.fixture
def health_source(driver):
    source = NvmlSource(health_only=True)
    yield source
    source.close()


def test_a_double_bit_error_counts_as_its_xid_for_who_asks_for_health(driver, health_source):
    driver.write(devices=[Device(uuid(0)), Device(uuid(1))], xids=[double_bit(uuid(1))])
    health_source.sample(time.time())
    health_source.wait_xids(1)
    assert counts(health_source) == {(uuid(1), 48): 1}


def test_others_hear_no_double_bit_errors(driver, source):
    """The driver reports an XID for each: they would count twice."""
    driver.write(devices=[Device(uuid(0))], xids=[double_bit(uuid(0)), Xid(uuid(0), 48)])
    source.sample(time.time())
    source.wait_xids(1)
    source.wait_xids(0.1)
    assert counts(source) == {(uuid(0), 48): 1}
    assert driver.calls()["nvmlDeviceGetSupportedEventTypes"] == 0


def test_only_events_that_a_gpu_has_are_asked_for(driver, health_source):
    devices = [Device(uuid(0), ecc_events=0), Device(uuid(1))]
    driver.write(devices=devices, xids=[Xid(uuid(0), 79), double_bit(uuid(1))])
    health_source.sample(time.time())
    health_source.wait_xids(1)
    health_source.wait_xids(1)
    assert counts(health_source) == {(uuid(0), 79): 1, (uuid(1), 48): 1}


def test_a_gpu_whose_event_types_are_unknown_is_registered_for_xids(tmp_path, monkeypatch):
    driver = FakeDriver(tmp_path, hide=frozenset({"nvmlDeviceGetSupportedEventTypes"}))
    driver.load(monkeypatch)
    driver.write(devices=[Device(uuid(0))], xids=[Xid(uuid(0), 79)])
    source = NvmlSource(health_only=True)
    source.sample(time.time())
    source.wait_xids(1)
    assert counts(source) == {(uuid(0), 79): 1}
    source.close()
