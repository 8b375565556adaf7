"""What is read of GPUs, in which unit, how often, and what is not asked at all."""

import logging
import time

import pynvml
import pytest

from tests.support.nvml_fake import NA, Device, FakeDriver, Fault, Process, uuid
from vgpu.model.reasons import Reason
from vgpu.sources.nvml import NvmlSource


def readings(source):
    (gpu,) = source.sample(time.time()).gpus
    return gpu.readings


def test_every_reading_is_in_base_units(driver, source):
    driver.write(
        devices=[
            Device(
                uuid(0),
                total=80 << 30,
                used=3 << 30,
                reserved=1 << 29,
                gpu_util=57,
                memory_util=29,
                encoder_util=7,
                decoder_util=100,
                temperature=41,
                fan=33,
                power=123456,
                power_limit=700000,
                energy=987654321,
                clock_sm=1755,
                pstate=2,
                clock_events=0x44,
                ecc_uncorrected_aggregate=5,
                retired_single_bit=3,
                retired_double_bit=1,
                retired_pending=1,
                remapped_correctable=1,
                remapped_uncorrectable=2,
                remap_pending=1,
                pcie_replays=9,
                nvlinks=12,
                nvlinks_active=10,
            )
        ]
    )
    got = readings(source)
    assert got["memory_total_bytes",] == 80 << 30
    assert got["memory_used_bytes",] == 3 << 30
    assert got["memory_free_bytes",] == (80 << 30) - (3 << 30) - (1 << 29)
    assert got["memory_reserved_bytes",] == 1 << 29
    assert got["bar1_total_bytes",] == 128 << 30
    assert got["bar1_used_bytes",] == 1 << 20
    assert got["utilization_ratio",] == 0.57
    assert got["memory_utilization_ratio",] == 0.29
    assert got["encoder_utilization_ratio",] == 0.07
    assert got["decoder_utilization_ratio",] == 1
    assert got["temperature_celsius",] == 41
    assert got["temperature_threshold_celsius", "shutdown"] == 92
    assert got["temperature_threshold_celsius", "slowdown"] == 89
    assert got["fan_speed_ratio",] == 0.33
    assert got["power_usage_watts",] == 123.456
    assert got["power_limit_watts",] == 700
    assert got["energy_joules",] == 987654.321
    assert got["clock_hertz", "sm"] == 1_755_000_000
    assert got["clock_hertz", "memory"] == 2_619_000_000
    assert got["clock_max_hertz", "video"] == 1_545_000_000
    assert got["performance_state",] == 2
    active = {key[1] for key, on in got.items() if key[0] == "clock_event_active" and on}
    assert active == {"sw_power_cap", "hw_thermal_slowdown"}
    assert sum(key[0] == "clock_event_active" for key in got) == 9
    assert got["ecc_errors", "uncorrected", "aggregate"] == 5
    assert got["ecc_errors", "corrected", "volatile"] == 0
    assert got["retired_pages", "single_bit"] == 3
    assert got["retired_pages", "double_bit"] == 1
    assert got["retired_pages_pending",] == 1
    assert got["remapped_rows", "correctable"] == 1
    assert got["remapped_rows", "uncorrectable"] == 2
    assert got["row_remap_pending",] == 1
    assert got["row_remap_failure",] == 0
    assert got["pcie_replays",] == 9
    assert got["pcie_link_generation",] == 5
    assert got["pcie_link_width",] == 16
    assert got["nvlinks_active",] == 10
    assert got["mig_mode",] == 0


def test_what_a_gpu_is_does_not_depend_on_its_state(driver, source):
    driver.write(devices=[Device(uuid(0), bus="00000000:3B:00.0", minor=5)])
    sample = source.sample(time.time())
    (gpu,) = sample.gpus
    assert (gpu.uuid, gpu.index, gpu.parent) == (uuid(0), 0, "")
    assert gpu.info == {
        "name": "NVIDIA H100 80GB HBM3",
        "pci_bus_id": "00000000:3B:00.0",
        "serial": "1650223000001",
        "minor": "5",
        "vbios": "96.00.89.00.01",
        "driver_version": "580.95.05",
        "nvml_version": "13.580.95.05",
        "cuda_version": "13.0",
    }
    assert (sample.generation, sample.lost, sample.rejections) == (1, (), ())


def test_a_node_without_gpus_is_no_error(driver, source):
    driver.write()
    assert source.sample(time.time()).gpus == ()


def test_what_a_gpu_does_not_support_is_absent_and_asked_once_per_generation(driver, source):
    unsupported = {"fan": NA, "encoder_util": NA, "retired_pending": NA, "nvlinks": 0, "mig": NA}
    calls = (
        "nvmlDeviceGetFanSpeed",
        "nvmlDeviceGetEncoderUtilization",
        "nvmlDeviceGetRetiredPagesPendingStatus",
        "nvmlDeviceGetNvLinkState",
        "nvmlDeviceGetMigMode",
    )
    driver.write(devices=[Device(uuid(0), **unsupported)])
    for _ in range(7):
        got = readings(source)
    assert ("memory_used_bytes",) in got
    for name in ("fan_speed_ratio", "retired_pages_pending", "nvlinks_active", "mig_mode"):
        assert (name,) not in got
    assert {driver.calls()[call] for call in calls} == {1}
    driver.write(devices=[Device(uuid(0), **unsupported)], epoch=1)
    for _ in range(7):
        readings(source)
    assert {driver.calls()[call] for call in calls} == {2}


def test_values_that_cannot_be_are_absent(driver, source):
    driver.write(
        devices=[Device(uuid(0), gpu_util=101, memory_util=0xFFFFFFFF, power=0xFFFFFFFF, pstate=32)]
    )
    got = readings(source)
    absent = ("utilization_ratio", "memory_utilization_ratio", "power_usage_watts")
    assert [name for name in (*absent, "performance_state") if (name,) in got] == []
    assert got["temperature_celsius",] == 40


def test_slow_readings_are_asked_at_every_nth_sample_and_kept_between(driver, source):
    driver.write(devices=[Device(uuid(0), bar1_used=100, temperature=40)])
    assert readings(source)["bar1_used_bytes",] == 100
    driver.write(devices=[Device(uuid(0), bar1_used=200, temperature=50)])
    for _ in range(2):
        got = readings(source)
        assert (got["bar1_used_bytes",], got["temperature_celsius",]) == (100, 50)
    assert readings(source)["bar1_used_bytes",] == 200
    assert driver.calls()["nvmlDeviceGetBAR1MemoryInfo"] == 2
    assert driver.calls()["nvmlDeviceGetTemperatureV"] == 4


def test_pcie_throughput_is_not_called_unless_asked_for(driver, source):
    driver.write(devices=[Device(uuid(0), pcie_rx=7, pcie_tx=9)])
    got = readings(source)
    assert not [key for key in got if key[0] == "pcie_throughput_bytes_per_second"]
    assert driver.calls()["nvmlDeviceGetPcieThroughput"] == 0
    asked = NvmlSource(pcie_throughput=True)
    got = readings(asked)
    assert got["pcie_throughput_bytes_per_second", "rx"] == 7000
    assert got["pcie_throughput_bytes_per_second", "tx"] == 9000
    assert driver.calls()["nvmlDeviceGetPcieThroughput"] == 2
    asked.close()


def test_a_health_check_makes_only_the_calls_that_it_needs(driver):
    driver.write(
        devices=[Device(uuid(0), ecc_uncorrected_volatile=3, remap_pending=1, retired_pending=0)],
        processes=[Process(uuid(0), 4711)],
    )
    source = NvmlSource(health_only=True)
    source.sample(time.time())
    before = driver.calls()
    sample = source.sample(time.time())
    assert driver.calls() - before == {
        "nvmlDeviceGetMemoryInfo_v2": 1,
        "nvmlDeviceGetTotalEccErrors": 1,
        "nvmlDeviceGetRetiredPagesPendingStatus": 1,
        "nvmlDeviceGetRemappedRows": 1,
        "nvmlDeviceGetMigMode": 1,
    }
    (gpu,) = sample.gpus
    assert gpu.info["name"] == "NVIDIA H100 80GB HBM3"
    assert gpu.readings["memory_total_bytes",] == 80 << 30
    assert gpu.readings["ecc_errors", "uncorrected", "volatile"] == 3
    assert (gpu.readings["row_remap_pending",], gpu.readings["retired_pages_pending",]) == (1, 0)
    assert (sample.processes, sample.processes_known) == ((), frozenset())
    source.close()


def test_memory_falls_back_to_version_1_which_knows_no_reserve(tmp_path, monkeypatch):
    driver = FakeDriver(tmp_path, hide=frozenset({"nvmlDeviceGetMemoryInfo_v2"}))
    driver.load(monkeypatch)
    driver.write(devices=[Device(uuid(0), used=3 << 30, reserved=1 << 29)])
    source = NvmlSource()
    got = readings(source)
    assert got["memory_used_bytes",] == (3 << 30) + (1 << 29)
    assert ("memory_reserved_bytes",) not in got
    source.close()


@pytest.mark.parametrize("code", [3, 25])  # NOT_SUPPORTED, ARGUMENT_VERSION_MISMATCH
def test_memory_falls_back_when_version_2_is_refused(driver, source, code):
    driver.write(
        devices=[Device(uuid(0), used=5)], faults=[Fault("nvmlDeviceGetMemoryInfo_v2", code)]
    )
    for _ in range(3):
        assert readings(source)["memory_used_bytes",] == 5
    assert driver.calls()["nvmlDeviceGetMemoryInfo_v2"] == 1


def test_older_names_of_calls_serve_where_the_newer_are_missing(tmp_path, monkeypatch, caplog):
    newer = {"nvmlDeviceGetTemperatureV", "nvmlDeviceGetCurrentClocksEventReasons"}
    driver = FakeDriver(tmp_path, hide=frozenset(newer))
    driver.load(monkeypatch)
    driver.write(devices=[Device(uuid(i), temperature=47, clock_events=0x1) for i in range(2)])
    source = NvmlSource()
    with caplog.at_level(logging.INFO, logger="vgpu.sources.nvml"):
        for _ in range(3):
            for gpu in source.sample(time.time()).gpus:
                assert gpu.readings["temperature_celsius",] == 47
                assert gpu.readings["clock_event_active", "gpu_idle"] == 1
    missing = [each.function for each in caplog.records if "missing" in each.getMessage()]
    assert sorted(missing) == sorted(newer)
    source.close()


def test_what_a_driver_does_not_have_may_come_with_the_next(driver, source):
    missing = [Fault("nvmlDeviceGetPowerUsage", 13)]
    driver.write(devices=[Device(uuid(0)), Device(uuid(1))], faults=missing)
    for _ in range(3):
        source.sample(time.time())
    assert driver.calls()["nvmlDeviceGetPowerUsage"] == 1
    driver.write(devices=[Device(uuid(0)), Device(uuid(1))], epoch=1)
    for gpu in source.sample(time.time()).gpus:
        assert gpu.readings["power_usage_watts",] == 100


def test_a_binding_without_a_function_costs_that_reading_only(driver, source, monkeypatch):
    monkeypatch.delattr(pynvml, "nvmlDeviceGetTemperatureV")
    monkeypatch.delattr(pynvml, "nvmlDeviceGetFanSpeed")
    driver.write(devices=[Device(uuid(0), temperature=44, fan=50)])
    got = readings(source)
    assert got["temperature_celsius",] == 44
    assert ("fan_speed_ratio",) not in got


def test_the_bindings_mismatch_error_costs_that_reading_only(driver, source, monkeypatch):
    def mismatch(handle):
        raise pynvml.NVMLLibraryMismatchError("Unversioned function called")

    monkeypatch.setattr(pynvml, "nvmlDeviceGetPowerUsage", mismatch)
    driver.write(devices=[Device(uuid(0))])
    sample = source.sample(time.time())
    assert ("power_usage_watts",) not in sample.gpus[0].readings
    assert ("power_limit_watts",) in sample.gpus[0].readings
    assert sample.rejections == ()


def test_calls_are_counted_with_their_seconds(driver, source):
    driver.write(
        devices=[Device(uuid(0)), Device(uuid(1))],
        faults=[Fault("nvmlDeviceGetPowerUsage", delay_ms=20)],
    )
    source.sample(time.time())
    source.sample(time.time())
    costs = source.calls()
    assert costs["nvmlInit"].count == 1
    assert costs["nvmlDeviceGetPowerUsage"].count == 4
    assert costs["nvmlDeviceGetPowerUsage"].seconds >= 0.08
    assert costs["nvmlDeviceGetComputeRunningProcesses_v3"].count == 4


def test_a_name_that_is_not_utf8_costs_the_name(driver, source):
    driver.write(devices=[Device(uuid(0), name=b"NVIDIA \xff\xfe"), Device(uuid(1))])
    sample = source.sample(time.time())
    first, second = sample.gpus
    assert "name" not in first.info
    assert first.info["serial"] == second.info["serial"]
    assert second.info["name"] == "NVIDIA H100 80GB HBM3"
    (rejection,) = sample.rejections
    assert (rejection.object_name, rejection.reason) == (uuid(0), Reason.DRIVER_ERROR)
    assert "nvmlDeviceGetName" in rejection.detail
    driver.write(devices=[Device(uuid(0)), Device(uuid(1))])  # it recovers at a slow sample
    for _ in range(3):
        sample = source.sample(time.time())
    assert sample.gpus[0].info["name"] == "NVIDIA H100 80GB HBM3"
    assert sample.rejections == ()


def test_a_bus_id_that_is_not_utf8_costs_the_bus_id(driver, source):
    driver.write(devices=[Device(uuid(0), bus=b"0000\xff")])
    (gpu,) = source.sample(time.time()).gpus
    assert "pci_bus_id" not in gpu.info
    assert gpu.readings["temperature_celsius",] == 40


# ---------------------------------------------------------------- numbers that cannot be


def test_more_free_memory_than_the_gpu_has_is_no_reading_and_is_rejected(driver, source):
    """Some drivers count the reserve twice: total - used - reserved passes below 0, as 1.8e19."""
    driver.write(devices=[Device(uuid(0), total=80 << 30, used=80 << 30, reserved=1 << 29)])
    sample = source.sample(time.time())
    got = sample.gpus[0].readings
    assert ("memory_free_bytes",) not in got
    assert (got["memory_total_bytes",], got["memory_used_bytes",]) == (80 << 30, 80 << 30)
    (rejection,) = sample.rejections
    assert (rejection.object_name, rejection.reason) == (uuid(0), Reason.IMPLAUSIBLE)
    assert rejection.detail.startswith("memory_free_bytes 1844")


@pytest.mark.parametrize(
    ("number", "value", "reading"),
    [
        ("total", 2**60, "memory_total_bytes"),
        ("temperature", 2**31 - 1, "temperature_celsius"),
        ("power", 2**32 - 2, "power_usage_watts"),
        ("energy", 2**64 - 2, "energy_joules"),
        ("clock_sm", 2**32 - 2, "clock_hertz"),
        ("fan", 2**32 - 2, "fan_speed_ratio"),
        ("ecc_uncorrected_aggregate", 2**64 - 2, "ecc_errors"),
        ("pcie_replays", 2**32 - 2, "pcie_replays"),
    ],
)
def test_a_value_that_no_gpu_can_have_is_no_reading_and_is_rejected(
    driver, source, number, value, reading
):
    driver.write(devices=[Device(uuid(0), **{number: value})])
    sample = source.sample(time.time())
    (rejection,) = sample.rejections
    assert rejection.reason is Reason.IMPLAUSIBLE
    assert reading in rejection.detail
    assert not any(reading_value > 2**53 for reading_value in sample.gpus[0].readings.values())
