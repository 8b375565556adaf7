"""A machine for the GPU kit: fakes of driver, CUDA, nvidia-smi and nvidia-ctk, and no network.

    machine = GpuMachine(folder)
    done = machine.run("--quick")
    machine.results  # the folder

The folder has to be readable for any user: one profile's exporter is not root.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support import fake_smi
from tests.support.environment import missing, required_root, required_tool
from tests.support.fake_cuda.build import build as build_cuda
from tests.support.fake_nvml.build import build as build_nvml
from tests.support.nvml_fake import Device, FakeDriver, uuid
from tests.support.waiting import WAIT_SECONDS

SERIAL = "1650223999999"
VERSION = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n"
    "GCC version:  gcc version 12.2.0\n"
)
OFFLINE = ("unshare", "--net", "--mount", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
"""No interface but loopback, over which the kit asks its own programs."""

GPUS = (
    Device(
        uuid(7),
        bus="00000000:17:00.0",
        minor=1,
        total=81559 << 20,
        used=3 << 20,
        reserved=600 << 20,
        serial=SERIAL,
    ),
    Device(uuid(8), bus="00000000:18:00.0", minor=0, retired_pending=0, clock_events=1),
)


class GpuMachine:
    """Its driver, its programs and an empty folder to start in."""

    def __init__(self, folder: Path) -> None:
        required_root()
        for tool, package in (("unshare", "util-linux"), ("ip", "iproute2")):
            required_tool(tool, package)
        if subprocess.run([*OFFLINE, "true"], capture_output=True, check=False).returncode:
            missing("network namespaces cannot be made here")
        self.empty = folder / "empty"
        self.results = folder / "results"
        self.programs = folder / "bin"
        self.driver_proc = folder / "proc"
        for path in (self.empty, self.programs, self.driver_proc):
            path.mkdir()
        self.driver = FakeDriver(folder)
        self.driver.write(devices=GPUS)
        self.clients = folder / f"{self.driver.state.name}.clients"
        fake_smi.install(self.programs)
        self._install_ctk()
        (self.driver_proc / "version").write_text(VERSION)
        for gpu in GPUS:
            bus = self.driver_proc / "gpus" / gpu.settings["bus"].removeprefix("0000")
            bus.mkdir(parents=True)
            minor = gpu.settings["minor"]
            (bus / "information").write_text(f"Model: \t\t NVIDIA\nDevice Minor: \t {minor}\n")

    def environment(self) -> dict[str, str]:
        """Where the driver and the programs are found."""
        own = self.driver.env()
        return {
            **os.environ,
            **own,
            "LD_LIBRARY_PATH": f"{own['LD_LIBRARY_PATH']}:{build_cuda().parent}",
            "PATH": f"{self.programs}:{os.environ['PATH']}",
            "OUT": str(self.results),
            "FAKE_NVML": str(build_nvml()),
        }

    def command(self, *arguments: str) -> list[str]:
        """The kit of the checkout, without a network."""
        kit = [sys.executable, "-m", "deploy.gpu_kit"]
        return [*OFFLINE, *kit, f"--driver-proc={self.driver_proc}", *arguments]

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """What a run prints, and its status."""
        return subprocess.run(
            self.command(*arguments),
            cwd=self.empty,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=4 * WAIT_SECONDS,
            check=False,
        )

    def _install_ctk(self) -> None:
        """A program that prints a CDI spec as NVIDIA's toolkit does."""
        control = [{"path": path} for path in ("/dev/nvidiactl", "/dev/nvidia-uvm")]
        devices = [
            {
                "name": str(index),
                "containerEdits": {
                    "deviceNodes": [{"path": f"/dev/nvidia{gpu.settings['minor']}"}]
                },
            }
            for index, gpu in enumerate(GPUS)
        ]
        spec = {"devices": devices, "containerEdits": {"deviceNodes": control}}
        (self.programs / "spec.json").write_text(json.dumps(spec))
        program = self.programs / "nvidia-ctk"
        program.write_text(f"#!/bin/sh\nexec {shutil.which('cat')} {self.programs}/spec.json\n")
        program.chmod(0o755)
