"""The numbers of a program about itself, beside those of the Prometheus client."""

import os
from pathlib import Path

from prometheus_client import ProcessCollector
from prometheus_client.registry import CollectorRegistry

from tests.support.descriptors import no_descriptors
from vgpu.program import process
from vgpu.program.process import ProcessNumbers

MEMORY = ("process_virtual_memory_bytes", "process_resident_memory_bytes")


def test_the_numbers_are_those_of_the_prometheus_client():
    own = ProcessNumbers().numbers()
    metrics = ProcessCollector(registry=CollectorRegistry()).collect()
    client = {sample.name: sample.value for metric in metrics for sample in metric.samples}
    assert own.keys() == client.keys()
    for name in ("process_start_time_seconds", "process_max_fds"):
        assert own[name] == client[name]
    assert abs(own["process_open_fds"] - client["process_open_fds"]) <= 1
    for name in MEMORY:
        assert 0.5 * client[name] < own[name] < 2 * client[name]


def test_open_descriptors_are_counted_on_any_kernel(monkeypatch):
    read = process.ProcessNumbers().numbers
    before = read()["process_open_fds"]
    fd = os.open("/dev/null", os.O_RDONLY)
    try:
        assert read()["process_open_fds"] == before + 1
        monkeypatch.setattr(Path, "stat", lambda _: os.stat_result([0] * 10))  # before Linux 6.2
        assert read()["process_open_fds"] in {before + 1, before + 2}
    finally:
        os.close(fd)


def test_without_a_descriptor_the_numbers_that_need_one_are_absent(monkeypatch):
    own = ProcessNumbers()
    monkeypatch.setattr(Path, "stat", lambda _: os.stat_result([0] * 10))  # before Linux 6.2
    with no_descriptors():
        numbers = own.numbers()
    assert numbers.keys() == {
        "process_cpu_seconds_total",
        "process_start_time_seconds",
        "process_max_fds",
    }
    assert own.numbers().keys() > numbers.keys()


def test_a_kernel_without_a_boot_time_has_no_start_time(monkeypatch):
    monkeypatch.setattr(Path, "read_text", lambda _: "cpu 1 2 3\n")
    assert "process_start_time_seconds" not in ProcessNumbers().numbers()


def test_a_reader_of_own_numbers_never_raises(monkeypatch):
    read = process.process_numbers(None)

    def no_memory(_):
        raise MemoryError

    monkeypatch.setattr(Path, "read_bytes", no_memory)
    assert "process_resident_memory_bytes" not in read()
    assert read()["process_open_fds"] > 0
