"""NVIDIA's own libnvidia-ml.so.1, without a driver: which calls it has, and what it answers.

Debian's packages are downloaded with apt into a folder of this test and unpacked there; nothing is
installed. A node's library is older or newer than this project: each function that it lacks must
cost its own reading and nothing else.
"""

import ctypes
import inspect
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pynvml
import pytest

from tests.support.environment import ROOT
from tests.support.nvml_fake import Device, FakeDriver, Mig, Process, mig_uuid, uuid
from vgpu.sources.nvml import NvmlSource

pytestmark = [pytest.mark.slow, pytest.mark.thorough("release")]

PACKAGES = ("libnvidia-ml1", "libnvidia-tesla-470-ml1", "libnvidia-tesla-535-ml1")
"""Those of Debian's component non-free; a release has some of them."""

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
SECONDS = 120
"""Maximum time of one download, in seconds."""

OPTIONAL = {
    # An older driver has another call with the same answer.
    "nvmlDeviceGetTemperatureV": "nvmlDeviceGetTemperature",
    "nvmlDeviceGetCurrentClocksEventReasons": "nvmlDeviceGetCurrentClocksThrottleReasons",
    "nvmlDeviceGetMemoryInfo_v2": "nvmlDeviceGetMemoryInfo",
    # It has none: the values of the call are absent.
    "nvmlDeviceGetComputeRunningProcesses_v3": "",
    "nvmlDeviceGetGraphicsRunningProcesses_v3": "",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3": "",
    # They only distinguish one layout of lists from another.
    "nvmlDeviceGetConfComputeMemSizeInfo": "",
    "nvmlDeviceGetRunningProcessDetailList": "",
}
"""Functions that a driver may lack, and the one that is called in their place."""

QUOTED = re.compile(r'"(nvml[A-Z]\w+)"')
SYMBOL = re.compile(r'_nvmlGetFunctionPointer\("(\w+)"\)')
CALLED = re.compile(r"\b(nvml[A-Z]\w+)\(")


def symbols_of(name, seen):
    """The functions of the library that a function of nvidia-ml-py calls."""
    function = getattr(pynvml, name, None)
    if function is None:
        return {name}
    if name in seen or not inspect.isfunction(function):
        return set()
    text = inspect.getsource(function)
    inner = (symbols_of(other, seen | {name}) for other in CALLED.findall(text))
    return set(SYMBOL.findall(text)).union(*inner)


def wanted():
    """All functions of the library that this project calls."""
    files = (ROOT / "vgpu" / "sources").glob("nvml*.py")
    names = {name for file in files for name in QUOTED.findall(file.read_text())}
    return set().union(*(symbols_of(name, frozenset()) for name in names))


def run(folder, *command):
    """Run a program there; skips with its last words if it cannot."""
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"Debian's libnvidia-ml cannot be downloaded: {error}")
    if done.returncode:
        words = (done.stderr or done.stdout).strip().splitlines()
        pytest.skip(f"Debian's libnvidia-ml cannot be downloaded: {(words or ['?'])[-1]}")
    return done.stdout


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    """The libraries by the name of their package."""
    missing = [name for name in ("apt-get", "apt-cache", "dpkg") if shutil.which(name) is None]
    release = Path("/etc/os-release")
    facts = (
        dict(re.findall(r"^(\w+)=(\S+)$", release.read_text(), re.MULTILINE))
        if release.exists()
        else {}
    )
    if missing or facts.get("ID") != "debian" or not Path(KEYRING).exists():
        pytest.skip(f"this needs Debian with apt ({', '.join(missing) or release})")
    folder = tmp_path_factory.mktemp("apt")
    for name in ("lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True)
    suite = facts["VERSION_CODENAME"]
    source = f"deb [signed-by={KEYRING}] http://deb.debian.org/debian {suite} non-free"
    (folder / "sources.list").write_text(f"{source}\n")
    settings = (
        f"-oDir::Etc::SourceList={folder}/sources.list",
        "-oDir::Etc::SourceParts=/dev/null",
        f"-oDir::State::Lists={folder}/lists",
        f"-oDir::Cache={folder}/cache",
        "-oAPT::Sandbox::User=root",
    )
    run(folder, "apt-get", *settings, "update")
    names = run(folder, "apt-cache", *settings, "pkgnames", "libnvidia").split()
    found = {}
    for name in sorted(set(PACKAGES) & set(names)):
        run(folder, "apt-get", *settings, "download", name)
        (package,) = folder.glob(f"{name}_*.deb")
        run(folder, "dpkg", "-x", str(package), str(folder / name))
        (found[name],) = (
            path for path in (folder / name).rglob("libnvidia-ml.so.1") if path.resolve().exists()
        )
    if not found:
        pytest.skip(f"Debian {suite} has none of {', '.join(PACKAGES)}")
    return found


def readings(folder, monkeypatch, hide):
    """A sample of a driver that lacks these functions."""
    driver = FakeDriver(folder, hide=hide)
    driver.load(monkeypatch)
    driver.write(
        devices=[
            Device(uuid(0), used=3 << 30),
            Device(uuid(1), mig=1),
            Mig(uuid(1), mig_uuid(1), gi=3),
        ],
        processes=[Process(uuid(0), 100, 1 << 30, sm=5)],
    )
    source = NvmlSource()
    try:
        return source.sample(time.time())
    finally:
        source.close()


def test_each_function_that_is_called_exists_or_costs_only_its_reading(
    libraries, tmp_path, monkeypatch
):
    asked = wanted()
    assert len(asked) > 50
    assert {"nvmlInitWithFlags", "nvmlEventSetWait_v2", *OPTIONAL} <= asked
    whole = tmp_path / "whole"
    whole.mkdir()
    full = readings(whole, monkeypatch, frozenset())
    for name, library in libraries.items():
        real = ctypes.CDLL(str(library))
        lacks = frozenset(symbol for symbol in asked if not hasattr(real, symbol))
        assert lacks <= OPTIONAL.keys(), f"{name} lacks {sorted(lacks - OPTIONAL.keys())}"
        for symbol in lacks:
            assert not OPTIONAL[symbol] or hasattr(real, OPTIONAL[symbol])
        folder = tmp_path / name
        folder.mkdir()
        sample = readings(folder, monkeypatch, lacks)
        assert [gpu.uuid for gpu in sample.gpus] == [gpu.uuid for gpu in full.gpus]
        for gpu, as_full in zip(sample.gpus, full.gpus, strict=True):
            assert gpu.readings.keys() ^ as_full.readings.keys() <= {("memory_reserved_bytes",)}
        lists = "nvmlDeviceGetComputeRunningProcesses_v3"
        assert bool(sample.processes_known) == (lists not in lacks)


@pytest.mark.skipif(Path("/proc/driver/nvidia").exists(), reason="the driver is loaded here")
def test_a_driver_that_is_not_loaded_is_reported_as_such(libraries):
    # As root the library would make /dev/nvidiactl.
    harmless = ["setpriv", "--bounding-set=-mknod"] if os.geteuid() == 0 else []
    before = Path("/dev/nvidiactl").exists()
    for library in libraries.values():
        done = subprocess.run(
            [*harmless, sys.executable, "-m", "vgpu", "exporter", "--once", "--no-collector.xid"],
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "LD_LIBRARY_PATH": str(library.parent),
            },
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        line = 'vgpu_collector_failures_total{collector="nvml",reason="driver_not_loaded"} 1'
        assert line in done.stdout.splitlines(), done.stderr
    assert Path("/dev/nvidiactl").exists() == before
