"""The simulated driver: the real source's readings, and faults on demand."""

import threading

import pytest

from simulator.demo import A10, L40S, demo
from simulator.node import SimulatedDriver
from simulator.state import gpus_at, uses_at
from tests.support.waiting import wait_ended
from vgpu.model.facts import GpuSource, XidCount
from vgpu.model.reasons import Reason, SourceError
from vgpu.sources import nvml_queries

START = 1_790_000_000.0
MODELLED_AS_ABSENT = {
    "fan_speed_ratio",
    "mig_mode",
    "nvlinks_active",
    "retired_pages",
    "retired_pages_pending",
}


class Clock:
    """A clock that a test sets."""

    def __init__(self, t=0.0):
        self.t = t

    def __call__(self):
        return self.t


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def driver(clock) -> GpuSource:
    driver = SimulatedDriver(demo(), START, clock)
    yield driver
    driver.close()


def test_it_has_the_readings_that_the_real_source_asks_for(driver):
    asked = {
        key
        for query in (*nvml_queries.FAST, *nvml_queries.SLOW, *nvml_queries.RARE)
        for key in query.parts
        if key[0] not in MODELLED_AS_ABSENT
    }
    for gpu in driver.sample(0).gpus:
        assert gpu.readings.keys() == asked


def test_a_sample_has_the_state_of_the_scenario(driver, clock):
    clock.t = 42.0
    sample = driver.sample(0)
    states = gpus_at(demo(), 42)
    assert [gpu.uuid for gpu in sample.gpus] == [A10.uuid, L40S.uuid]
    for gpu, state in zip(sample.gpus, states, strict=True):
        assert gpu.readings["memory_used_bytes",] == state.used_bytes
        assert gpu.readings["utilization_ratio",] == state.sm_percent / 100
        assert gpu.readings["power_usage_watts",] == pytest.approx(state.watts, abs=1e-3)
        assert gpu.info["name"] == state.gpu.name
    uses = uses_at(demo(), 42)
    assert {(p.pid, p.device): p.used_bytes for p in sample.processes} == {
        (use.pid, use.gpu): use.used_bytes for use in uses
    }
    assert sample.utilization == {(use.pid, use.gpu): use.sm_percent / 100 for use in uses}
    assert sample.processes_known == sample.utilization_known == {A10.uuid, L40S.uuid}


def test_ratios_are_ratios_and_memory_adds_up(driver, clock):
    for clock.t in range(0, 200, 7):
        for gpu in driver.sample(0).gpus:
            readings = gpu.readings
            assert all(0 <= v <= 1 for key, v in readings.items() if key[0].endswith("_ratio"))
            parts = ("memory_used_bytes", "memory_free_bytes", "memory_reserved_bytes")
            assert sum(readings[part,] for part in parts) == readings["memory_total_bytes",]
            assert readings["energy_joules",] <= gpus_at(demo(), clock.t)[gpu.index].joules


def test_time_moves_the_readings(driver, clock):
    first = driver.sample(0)
    clock.t = 10.0
    assert driver.sample(0).gpus != first.gpus


def test_a_failing_driver_raises_its_reason_until_it_recovers(driver):
    driver.fail(Reason.DRIVER_NOT_LOADED)
    with pytest.raises(SourceError) as failure:
        driver.sample(0)
    assert failure.value.reason is Reason.DRIVER_NOT_LOADED
    driver.recover()
    assert len(driver.sample(0).gpus) == 2


def test_a_lost_gpu_takes_its_processes_with_it(driver):
    driver.lose(A10.uuid)
    sample = driver.sample(0)
    assert sample.lost == (A10.uuid,)
    assert [gpu.uuid for gpu in sample.gpus] == [L40S.uuid]
    assert {process.device for process in sample.processes} == {L40S.uuid}
    assert sample.processes_known == sample.utilization_known == {L40S.uuid}
    assert [(r.object_name, r.reason) for r in sample.rejections] == [(A10.uuid, Reason.GPU_LOST)]
    driver.recover()
    assert driver.sample(0).lost == ()


def test_a_hanging_driver_answers_only_after_it_recovers(driver):
    driver.hang(3600)
    samples = []
    thread = threading.Thread(target=lambda: samples.append(driver.sample(0)), daemon=True)
    thread.start()
    thread.join(0.1)  # that it does not answer shows only in time
    assert thread.is_alive()
    driver.recover()
    wait_ended(thread, "the driver answers")
    assert len(samples[0].gpus) == 2


def test_an_xid_is_reported_once_at_its_time(driver, clock):
    clock.t = 19.9
    driver.wait_xids(0)
    assert driver.xids() == ()
    clock.t = 20.0
    for _ in range(2):
        driver.wait_xids(0)
        assert driver.xids() == (XidCount(A10.uuid, 31, 1, START + 20),)


def test_xids_from_before_the_driver_was_opened_are_not_reported():
    driver = SimulatedDriver(demo(), START, lambda: 100.0)
    driver.wait_xids(0)
    assert driver.xids() == ()


def test_waiting_ends_when_the_driver_is_closed(driver):
    thread = threading.Thread(target=driver.wait_xids, args=(3600,), daemon=True)
    thread.start()
    driver.close()
    wait_ended(thread, "closing lets the waiter go")


def test_its_own_calls_are_counted(driver):
    driver.sample(0)
    driver.sample(0)
    driver.wait_xids(0)
    counts = {call: cost.count for call, cost in driver.calls().items()}
    assert counts == {"sample": 2, "wait_xids": 1}
