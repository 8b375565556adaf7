"""A machine with the fake driver, for checks of the GPU kit that run in this process."""

import os

import pytest

from deploy.gpu_kit.answers import DriverAnswers, GpuAnswers
from deploy.gpu_kit.containers import Cgroups
from deploy.gpu_kit.kit import QUICK, Kit
from deploy.gpu_kit.processes import Processes
from tests.support import fake_smi
from tests.support.fake_cuda.build import build as build_cuda
from tests.support.nvml_fake import Device, FakeDriver, uuid


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """A folder whose programs come first."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    fake_smi.install(folder)
    return folder


@pytest.fixture
def kit(tmp_path, monkeypatch, programs):
    """One GPU, an nvidia-smi, and a folder for HAMi-core's source."""
    driver = FakeDriver(tmp_path)
    driver.write(devices=[Device(uuid(0), serial="1650223")])
    own = driver.env()
    libraries = f"{own['LD_LIBRARY_PATH']}:{build_cuda().parent}"
    for name, value in {**own, "LD_LIBRARY_PATH": libraries}.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "source").mkdir()
    processes = Processes()
    yield Kit(
        pace=QUICK,
        answers=DriverAnswers({}, (GpuAnswers(0, uuid(0), {"serial": "1650223"}, {}, (), ()),)),
        cgroups=Cgroups.SIMULATED,
        driver_proc=tmp_path,
        fake_library=None,
        hami_core=tmp_path / "source",
        folder=tmp_path,
        log=tmp_path / "log",
        processes=processes,
    )
    processes.end_all()
