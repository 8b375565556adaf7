"""The fake driver, loaded into this process for one test, and a source that reads it."""

import subprocess
import sys
import textwrap

import pytest

from tests.support.nvml_fake import FakeDriver
from tests.support.waiting import WAIT_SECONDS
from vgpu.sources.nvml import NvmlSource


@pytest.fixture
def driver(tmp_path, monkeypatch):
    driver = FakeDriver(tmp_path)
    driver.load(monkeypatch)
    return driver


@pytest.fixture
def source(driver):
    source = NvmlSource(slow_every=3)
    yield source
    source.close()


@pytest.fixture
def child():
    """Runs Python code in a process that finds the driver as a real one is found."""

    def run(driver, code, **env):
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            env={"PYTHONPATH": ":".join(sys.path), **driver.env(), **env},
            capture_output=True,
            text=True,
            timeout=2 * WAIT_SECONDS,  # its own waits end before
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    return run
