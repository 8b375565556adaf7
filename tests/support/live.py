"""The real `vgpu exporter` as a process, on a simulated node's files and the C fake driver.

    with LiveExporter(folder, demo()) as exporter:
        exporter.get("/metrics")

Used by end-to-end tests and benchmarks. Everything listens on loopback, on ports of the kernel's
choice.
"""

import http.client
import os
import re
import signal
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Self

from simulator.node import SimulatedNode
from simulator.scenario import Scenario
from tests.support import nvml_fake
from tests.support.bed.processes import Daemon
from tests.support.environment import ROOT
from tests.support.waiting import WAIT_SECONDS, wait_until
from vgpu.model.facts import GpuSample

TAKEN = "vgpu_snapshot_timestamp_seconds"


def fake_devices(sample: GpuSample) -> list[nvml_fake.Device]:
    """The GPUs of a simulated driver's sample, in NVML's own units."""

    def number(gpu, *key, scale=1.0):
        return int(gpu.readings.get(key, 0) * scale)

    return [
        nvml_fake.Device(
            gpu.uuid,
            gpu.info["name"],
            bus=gpu.info["pci_bus_id"],
            total=number(gpu, "memory_total_bytes"),
            used=number(gpu, "memory_used_bytes"),
            reserved=number(gpu, "memory_reserved_bytes"),
            gpu_util=number(gpu, "utilization_ratio", scale=100.001),
            power=number(gpu, "power_usage_watts", scale=1000),
            energy=number(gpu, "energy_joules", scale=1000),
            temperature=number(gpu, "temperature_celsius"),
        )
        for gpu in sample.gpus
    ]


def fake_processes(sample: GpuSample) -> list[nvml_fake.Process]:
    """Its processes, each with a utilisation sample."""
    return [
        nvml_fake.Process(
            p.device,
            p.pid,
            nvml_fake.NA if p.used_bytes is None else p.used_bytes,
            int(sample.utilization.get((p.pid, p.device), 0) * 100.001),
        )
        for p in sample.processes
    ]


class LiveExporter:
    """A node at second ``t`` of its scenario, and the exporter that reads it."""

    def __init__(self, folder: Path, scenario: Scenario, *flags: str, t: float = 5.0) -> None:
        self.node = SimulatedNode(scenario, folder / "node")
        self.node.write(t)
        self.sample = self.node.driver(lambda: t).sample(0.0)
        folder.joinpath("driver").mkdir(parents=True, exist_ok=True)
        self.driver = nvml_fake.FakeDriver(folder / "driver")
        self.write_driver()
        self._flags = flags
        self._log = folder / "exporter.log"
        self._process: Daemon | None = None
        self.port = 0
        self.tls: ssl.SSLContext | None = None
        self.headers: dict[str, str] = {}

    def write_driver(self, **changes) -> None:
        """The driver as the scenario has it, with ``changes`` to what FakeDriver.write takes."""
        devices = changes.pop("devices", None) or fake_devices(self.sample)
        processes = changes.pop("processes", None) or fake_processes(self.sample)
        self.driver.write(devices, processes, **changes)

    def flags(self) -> list[str]:
        """The paths of the node, and what the caller added."""
        paths = self.node.paths
        return [
            *(f"--shim.root={root}" for root in paths.shim_roots),
            f"--kubelet.log-dir={paths.log_dir}",
            f"--kubelet.checkpoint={paths.checkpoint}",
            f"--pods={paths.pods_file}",
            f"--limits.gaia-dir={paths.gaia_dir}",
            f"--limits.kubeshare-dir={paths.kubeshare_dir}",
            f"--limits.mps-dir={paths.mps_dir}",
            f"--plugin.state-dir={paths.state_dir}",
            f"--path.procfs={paths.procfs}",
            f"--path.cgroupfs={paths.cgroupfs}",
            f"--node-name={self.node.scenario.node}",
            "--gpushare.memory-unit=GiB",
            *self._flags,
        ]

    def command(self, *more: str) -> list[str]:
        """The command line."""
        return [sys.executable, "-m", "vgpu", "exporter", *self.flags(), *more]

    def environment(self) -> dict[str, str]:
        """With the fake driver's library first."""
        return {**os.environ, **self.driver.env()}

    def once(self) -> str:
        """What ``--once`` prints."""
        command = self.command("--once")
        done = subprocess.run(
            command,
            env=self.environment(),
            capture_output=True,
            text=True,
            check=True,
            timeout=WAIT_SECONDS,
        )
        return done.stdout

    def __enter__(self) -> Self:
        self._log.unlink(missing_ok=True)
        command = self.command("--web.listen-address=127.0.0.1:0")
        self._process = Daemon("exporter", command, self._log, env=self.environment(), cwd=ROOT)
        try:
            self.process.wait_until(self._is_ready, "ready to serve")
        except BaseException:
            self.stop()
            raise
        return self

    @property
    def process(self) -> Daemon:
        """The running program."""
        assert self._process is not None
        return self._process

    def _is_ready(self) -> bool:
        self.port = port_in(self.log())
        return self.port != 0 and self.get("/-/ready").status == 200

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End it by a signal; its exit status."""
        return self.process.stop(number)

    def log(self) -> str:
        """What it has logged so far."""
        return self._log.read_text()

    def get(self, path: str = "/metrics", headers: dict[str, str] | None = None):
        """A response whose body has been read into ``.text``."""
        where = ("127.0.0.1", self.port)
        if self.tls is None:
            connection = http.client.HTTPConnection(*where, timeout=WAIT_SECONDS)
        else:
            connection = http.client.HTTPSConnection(*where, timeout=WAIT_SECONDS, context=self.tls)
        try:
            connection.request("GET", path, headers={**self.headers, **(headers or {})})
            response = connection.getresponse()
            response.body = response.read()
            return response
        finally:
            connection.close()

    def metrics(self) -> dict[str, float]:
        """Every series of the page as ``name{labels}`` with sorted labels."""
        return parse(self.get().body.decode())

    def wait_for(self, condition, what: str) -> dict[str, float]:
        """The first page for which ``condition(series)`` holds."""
        series: dict[str, float] = {}

        def page() -> bool:
            assert self.process.running, f"ended, and never seen: {what}\n{self.log()}"
            series.clear()
            series.update(self.metrics())
            return bool(condition(series))

        def last() -> str:
            page = "\n".join(f"{name} {value}" for name, value in series.items())
            return f"the last page:\n{page}\nthe log:\n{self.log()}"

        wait_until(page, f"seen: {what}", failures=(OSError,), context=last)
        return series

    def wait_sampled(self, seconds: float) -> dict[str, float]:
        """The first page that is so much newer than the one of now: it has gone on meanwhile."""
        begun = self.metrics()[TAKEN]
        return self.wait_for(lambda series: series[TAKEN] >= begun + seconds, "a newer page")


def port_in(log: str) -> int:
    """The port of 127.0.0.1 that a program of ours serves at, by its log; 0 if none yet."""
    found = re.search(r'msg="web server ready" .*?127\.0\.0\.1:(\d+)', log)
    return int(found[1]) if found else 0


def parse(text: str) -> dict[str, float]:
    """Series of an exposition, by prometheus_client's parser."""
    from prometheus_client.parser import text_string_to_metric_families as families

    found = {}
    for family in families(text):
        for sample in family.samples:
            labels = ",".join(f'{k}="{v}"' for k, v in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found
