"""Watching a driver, the C fake: events, losses, hangs, and a driver that is not there yet."""

import contextlib
import os
import queue
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from deviceplugin.health import watch as health_watch
from deviceplugin.health.incident import UnhealthyReason
from deviceplugin.health.rules import HealthRules
from deviceplugin.health.watch import HealthWatch, next_pause
from tests.support.nvml_fake import Device, FakeDriver, Fault, Xid, uuid
from tests.support.waiting import WAIT_SECONDS, item_of, wait_until
from vgpu.sources import nvml_xids
from vgpu.sources.nvml import NvmlSource

QUICK = HealthRules(recovery=0.1)
FOR_EVER = 3600.0
DOUBLE_BIT = 0x2  # nvmlEventTypeDoubleBitEccError


@pytest.fixture
def driver(tmp_path, monkeypatch):
    monkeypatch.setattr(nvml_xids, "SLICE_SECONDS", 0.2)
    monkeypatch.setattr(health_watch, "CLOSING_SECONDS", WAIT_SECONDS)
    driver = FakeDriver(tmp_path)
    driver.load(monkeypatch)
    return driver


class Watched:
    """A watch, and every health that it has reported."""

    def __init__(self, rules, interval, source=None):
        self.reported = queue.Queue()
        source = source or NvmlSource(health_only=True)
        self.watch = HealthWatch(source, rules, interval, self.reported.put)
        self.fatal = threading.Event()
        self.watch.start(self.fatal.set)

    def until(self, wanted):
        """The first health reported from now on that is as wanted."""
        return self._until(wanted, "a health as wanted")

    def _until(self, wanted, what):
        last = []

        def next_wanted():
            last[:] = [self.reported.get_nowait()]
            return last if wanted(last[0]) else None

        return wait_until(
            next_wanted, what, failures=(queue.Empty,), context=lambda: str(last), pause=0.01
        )[0]

    def until_bad(self, **bad):
        """Until exactly these GPUs are unhealthy for exactly these reasons."""
        wanted = {uuid(int(name[1:])): {reason} for name, reason in bad.items()}
        return self._until(lambda health: reasons(health) == wanted, f"a health with {wanted}")


def reasons(health):
    return {gpu: set(v.reasons) for gpu, v in health.verdicts.items() if not v.healthy}


@contextlib.contextmanager
def watching(rules=QUICK, interval=0.02, source=None):
    watched = Watched(rules, interval, source)
    try:
        yield watched
    finally:
        stop(watched.watch)


def wait_first(watch):
    assert watch.wait_first(WAIT_SECONDS), watch.collector()


def stop(watch):
    assert watch.stop(grace=WAIT_SECONDS), "something is stuck in the driver"


def gpus(*changed, count=2):
    devices = {number: Device(uuid(number)) for number in range(count)}
    return list((devices | dict(changed)).values())


def in_a_process_of_its_own(driver, code, *args, **env):
    """What it prints. It finds the driver as a real one is found."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *args],
        env={**os.environ, **driver.env(), "PYTHONPATH": ":".join(sys.path), **env},
        capture_output=True,
        text=True,
        timeout=2 * WAIT_SECONDS,  # its own waits end before
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_the_first_inventory_is_reported(driver):
    driver.write(devices=gpus())
    with watching(interval=FOR_EVER) as watched:
        wait_first(watched.watch)
        health = item_of(watched.reported, "the first inventory")
        assert [gpu.uuid for gpu in health.devices] == [uuid(0), uuid(1)]
        assert reasons(health) == {}
        assert watched.watch.health is health


def test_an_xid_is_judged_when_it_comes_and_not_at_the_next_sample(driver):
    driver.write(devices=gpus())
    with watching(interval=FOR_EVER) as watched:
        wait_first(watched.watch)
        driver.write(devices=gpus(), xids=[Xid(uuid(1), 79)])
        health = watched.until_bad(n1=UnhealthyReason.XID)
        assert health.events == {(uuid(1), UnhealthyReason.XID): 1}


def test_xids_that_the_source_has_heard_before_are_no_news(driver):
    driver.write(devices=gpus(), xids=[Xid(uuid(0), 79)])
    source = NvmlSource(health_only=True)
    source.sample(time.time())
    source.wait_xids(WAIT_SECONDS)
    assert source.xids()
    with watching(interval=FOR_EVER, source=source) as watched:
        driver.write(devices=gpus(), xids=[Xid(uuid(0), 79), Xid(uuid(1), 79)])
        health = watched.until_bad(n1=UnhealthyReason.XID)
        assert health.events == {(uuid(1), UnhealthyReason.XID): 1}


def test_a_double_bit_error_is_judged_as_its_xid(driver):
    driver.write(devices=gpus())
    with watching(interval=FOR_EVER) as watched:
        wait_first(watched.watch)
        driver.write(devices=gpus(), xids=[Xid(uuid(0), 0, type=DOUBLE_BIT)])
        health = watched.until_bad(n0=UnhealthyReason.XID)
        assert health.verdict(uuid(0)).detail == "xid: XID 48"


def test_ignored_and_unknown_xids_blame_nobody(driver, caplog):
    driver.write(devices=gpus())
    with watching(interval=FOR_EVER) as watched:
        xids = [Xid(uuid(0), 31), Xid("?", 79), Xid(uuid(1), 79)]
        driver.write(devices=gpus(), xids=xids)
        health = watched.until_bad(n1=UnhealthyReason.XID)  # the last of them
        assert health.events == {("", UnhealthyReason.XID): 1, (uuid(1), UnhealthyReason.XID): 1}
    assert "all devices keep their health" in caplog.text


def test_after_an_xid_a_gpu_recovers(driver):
    driver.write(devices=gpus(), xids=[Xid(uuid(0), 79)])
    with watching() as watched:
        watched.until_bad(n0=UnhealthyReason.XID)
        watched.until_bad()


def test_uncorrected_errors_and_a_reset_that_is_due_are_seen(driver):
    driver.write(devices=gpus())
    with watching() as watched:
        wait_first(watched.watch)
        driver.write(devices=gpus((0, Device(uuid(0), ecc_uncorrected_volatile=1))))
        watched.until_bad(n0=UnhealthyReason.ECC)
        watched.until_bad()
        driver.write(devices=gpus((1, Device(uuid(1), remap_pending=1))))
        watched.until_bad(n1=UnhealthyReason.ROW_REMAP_PENDING)
        driver.write(devices=gpus())
        watched.until_bad()


def test_a_lost_gpu_is_known_and_comes_back(driver):
    driver.write(devices=gpus())
    with watching() as watched:
        wait_first(watched.watch)
        driver.write(devices=gpus((0, Device(uuid(0), lost=1))))
        health = watched.until_bad(n0=UnhealthyReason.LOST)
        assert [gpu.uuid for gpu in health.devices] == [uuid(0), uuid(1)]
        driver.write(devices=gpus())
        watched.until_bad()


def test_a_gpu_that_is_new_after_a_reload_is_reported(driver):
    driver.write(devices=gpus(count=1))
    with watching() as watched:
        wait_first(watched.watch)
        driver.write(devices=gpus(count=2), epoch=1)
        health = watched.until(lambda health: len(health.devices) == 2)
        assert reasons(health) == {}


def test_a_driver_that_is_not_loaded_yet_is_waited_for_and_reported_missing_once(driver, caplog):
    with watching() as watched:
        wait_until(lambda: driver.calls()["nvmlInitWithFlags"] > 2, "three looks for a driver")
        assert not watched.watch.wait_first(0)
        driver.write(devices=gpus())
        wait_first(watched.watch)
    warnings = [each for each in caplog.records if each.levelname == "WARNING"]
    assert len(warnings) == 1
    assert "DRIVER_NOT_LOADED" in warnings[0].err


def test_a_driver_that_is_never_there_is_looked_for_ever_more_rarely():
    pauses = [15.0]
    for _ in range(4):
        pauses.append(next_pause(pauses[-1], 15, found=False))
    assert pauses == [15, 30, 60, 60, 60]
    assert next_pause(60, 15, found=True) == 15
    assert next_pause(300, 300, found=False) == 300


def test_a_driver_that_goes_away_takes_all_down_and_gives_them_back(driver):
    driver.write(devices=gpus())
    with watching() as watched:
        wait_first(watched.watch)
        driver.unload()
        health = watched.until_bad(
            n0=UnhealthyReason.DRIVER_SILENT, n1=UnhealthyReason.DRIVER_SILENT
        )
        detail = health.verdict(uuid(0)).detail
        assert detail.startswith("driver_silent: no answer 4 times in a row: ")
        assert "DRIVER_NOT_LOADED" in detail
        driver.write(devices=gpus(), epoch=1)
        watched.until_bad()


def test_events_are_judged_while_the_driver_hangs_and_the_program_can_end(tmp_path):
    driver = FakeDriver(tmp_path)
    code = """
        import queue, sys
        from pathlib import Path
        from deviceplugin.health.rules import HealthRules
        from deviceplugin.health.watch import HealthWatch
        from tests.support.nvml_fake import Device, FakeDriver, Fault, Xid, uuid
        from tests.support.waiting import item_of
        from vgpu.sources.nvml import NvmlSource

        driver = FakeDriver(Path(sys.argv[1]))
        devices = [Device(uuid(0)), Device(uuid(1))]
        hang = [Fault("nvmlDeviceGetRemappedRows", delay_ms=600_000)]
        healths = queue.Queue()

        def until(wanted, what):
            while not wanted(health := item_of(healths, what)):
                what = f"{what}; it was {health}"

        watch = HealthWatch(
            NvmlSource(health_only=True), HealthRules(patience=9), 0.01, healths.put, deadline=0.1
        )
        driver.write(devices=devices)
        watch.start(lambda: None)
        until(lambda health: health.gpus, "the GPUs are reported")
        driver.write(devices=devices, faults=hang)
        silent = lambda verdict: "driver_silent" in verdict.reasons
        until(lambda health: all(map(silent, health.verdicts.values())), "the driver is silent")
        driver.write(devices=devices, faults=hang, xids=[Xid(uuid(0), 119)])
        until(lambda health: "XID 119" in health.verdict(uuid(0)).detail, "the XID is judged")
        print(watch.stop(grace=0.1))
    """
    assert in_a_process_of_its_own(driver, code, str(tmp_path)) == ["False"]


def test_a_watch_that_stops_lets_go_of_the_driver(driver):
    driver.write(devices=gpus())
    with watching() as watched:
        wait_first(watched.watch)
        stop(watched.watch)
    calls = driver.calls()
    assert calls["nvmlInitWithFlags"] == calls["nvmlShutdown"]


def test_a_replaced_driver_ends_the_watch(driver):
    driver.write(devices=gpus())
    with watching() as watched:
        wait_first(watched.watch)
        assert watched.watch.fatal is None
        driver.write(devices=gpus(), faults=[Fault("nvmlDeviceGetMemoryInfo_v2", 18)])
        wait_until(
            watched.fatal.is_set, "the watch ends", context=lambda: str(watched.watch.health)
        )
        assert "LIB_RM_VERSION_MISMATCH" in watched.watch.fatal


def test_an_unexpected_error_in_a_listener_does_not_end_the_watch(driver, caplog):
    driver.write(devices=gpus())
    reported = queue.Queue()

    def fail(health):
        reported.put(health)
        raise RuntimeError("a defect")

    watch = HealthWatch(NvmlSource(health_only=True), QUICK, 0.02, fail)
    watch.start(lambda: None)
    item_of(reported, "the first inventory")
    driver.write(devices=gpus(), xids=[Xid(uuid(0), 79)])
    assert reasons(item_of(reported, "the XID's judgement")) == {uuid(0): {UnhealthyReason.XID}}
    stop(watch)
    assert "unexpected error while reporting the health of devices" in caplog.text


def test_a_defect_in_judging_ends_neither_samples_nor_events(driver, caplog, monkeypatch):
    monkeypatch.setattr(health_watch, "EVENT_WAIT_SECONDS", 0.05)
    driver.write(devices=gpus())
    fails = {"seen": 2, "heard": 1}

    def once_failing(word):
        judge = getattr(health_watch, word)

        def failing(*arguments):
            fails[word] -= 1
            if fails[word] >= 0:
                raise RuntimeError(f"a defect in {word}")
            return judge(*arguments)

        monkeypatch.setattr(health_watch, word, failing)

    once_failing("seen")
    once_failing("heard")
    with watching(interval=0.02) as watched:
        wait_first(watched.watch)
        driver.write(devices=gpus(), xids=[Xid(uuid(1), 79)])
        watched.until_bad(n1=UnhealthyReason.XID)
    assert "a defect in seen" in caplog.text
    assert "a defect in heard" in caplog.text


@pytest.mark.slow
def test_a_library_that_is_missing_at_first_is_found_when_it_appears(tmp_path):
    driver = FakeDriver(tmp_path)
    driver.write(devices=[Device(uuid(0))])
    folder = tmp_path / "later"
    folder.mkdir()
    code = """
        import os, shutil
        from deviceplugin.health.rules import HealthRules
        from deviceplugin.health.watch import HealthWatch
        from tests.support.waiting import WAIT_SECONDS, wait_until
        from vgpu.sources.nvml import NvmlSource
        watch = HealthWatch(NvmlSource(health_only=True), HealthRules(), 0.05, lambda health: None)
        watch.start(lambda: None)
        wait_until(lambda: watch.collector().success is not None, "a look for the library")
        print(watch.wait_first(0), *watch.collector().failures)
        folder = os.environ["LD_LIBRARY_PATH"]
        shutil.copy(os.environ["LIBRARY"], f"{folder}/draft")
        os.rename(f"{folder}/draft", f"{folder}/libnvidia-ml.so.1")
        print(watch.wait_first(WAIT_SECONDS), *watch.health.verdicts)
        watch.stop()
    """
    library = f"{driver.env()['LD_LIBRARY_PATH']}/libnvidia-ml.so.1"
    printed = in_a_process_of_its_own(driver, code, LD_LIBRARY_PATH=str(folder), LIBRARY=library)
    assert printed == ["False", "library_not_found", "True", uuid(0)]
