"""A node with NVIDIA GPUs, described in Python and served by the C fake of ``libnvidia-ml.so.1``.

    driver = FakeDriver(folder)
    driver.write(devices=[Device(uuid(0), used=2**30)], processes=[Process(uuid(0), 4711)])
    subprocess.run([...], env={**os.environ, **driver.env()})
    assert driver.calls()["nvmlDeviceGetPcieThroughput"] == 0

``write`` takes effect at the next call into the driver. Units are NVML's own: bytes, MHz, mW.
"""

import ctypes
import itertools
import os
import shutil
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from urllib.parse import quote_from_bytes

import pynvml
import pytest

from tests.support.fake_nvml.build import build

NA = "na"
R535_HIDES = frozenset({"nvmlDeviceGetRunningProcessDetailList"})
_RECORD = struct.Struct("56sQ")  # struct counter of nvml_fake.c
_mtimes = itertools.count(1_000_000_000)


def uuid(number: int) -> str:
    """A GPU's UUID."""
    return f"GPU-00000000-0000-4000-8000-{number:012x}"


def mig_uuid(number: int) -> str:
    """A MIG instance's UUID."""
    return f"MIG-00000000-0000-5000-8000-{number:012x}"


class Device:
    """A GPU; ``numbers`` are the names in DEVICE_NUMBERS of the C file, ``NA``: not supported."""

    def __init__(
        self, uuid: str, name: str | bytes = "NVIDIA H100 80GB HBM3", **numbers: object
    ) -> None:
        self.settings = {
            "uuid": uuid,
            "name": name,
            "bus": "00000000:01:00.0",
            "serial": "1650223000001",
            "vbios": "96.00.89.00.01",
            **numbers,
        }


class Mig(Device):
    """A MIG instance of the GPU ``parent``, which needs ``mig=1``."""

    def __init__(self, parent: str, uuid: str, gi: int, ci: int = 0, **numbers: object) -> None:
        name = "NVIDIA H100 80GB HBM3 MIG 1g.10gb"
        super().__init__(uuid, **{"name": name, "parent": parent, "gi": gi, "ci": ci, **numbers})


@dataclass
class Process:
    """A process; ``sm`` in percent gives it a fresh utilisation sample at each call."""

    device: str
    pid: int
    used: int | str = 2**30
    sm: int | str = NA
    type: str = "C"
    gi: int = 0xFFFFFFFF
    ci: int = 0xFFFFFFFF


@dataclass
class Sample:
    """One entry of the utilisation ring, ``at`` in microseconds."""

    device: str
    pid: int
    sm: int
    at: int


@dataclass
class Xid:
    """An event, delivered once: later states may only append to the list."""

    device: str
    code: int
    type: int = pynvml.nvmlEventTypeXidCriticalError


@dataclass
class Link:
    """How near two GPUs are, by UUID: an ``nvmlGpuTopologyLevel_t``; 50 by default.

    ``nvlink`` is 1 for GPUs that NVLink joins.
    """

    a: str
    b: str
    level: int = 50
    nvlink: int = 0


@dataclass
class Fault:
    """Calls of ``symbol`` sleep ``delay_ms``, then return ``code`` (-1: go on as usual)."""

    symbol: str
    code: int = -1
    after: int = 0
    times: int = 0
    delay_ms: int = 0
    device: str = ""


class FakeDriver:
    """One driver with its own state and counters; ``hide`` names symbols it does not export."""

    def __init__(self, folder: Path, hide: frozenset[str] = frozenset()) -> None:
        self.folder = folder
        self.hide = hide
        self.state = folder / "nvml.state"
        self.counters = folder / "nvml.calls"

    def write(
        self,
        devices: Sequence[Device] = (),
        processes: Sequence[Process] = (),
        samples: Sequence[Sample] = (),
        xids: Sequence[Xid] = (),
        faults: Sequence[Fault] = (),
        *,
        links: Sequence[Link] = (),
        epoch: int = 0,
        process_struct: int = 24,
    ) -> None:
        """Replace the whole state; a new ``epoch`` is a driver reload."""
        driver = {
            "version": "580.95.05",
            "nvml": "13.580.95.05",
            "cuda": 13000,
            "epoch": epoch,
            "process_struct": process_struct,
        }
        lines = [_line("driver", driver)]
        lines += [_line("device", device.settings) for device in devices]
        for items in (processes, samples, xids, faults, links):
            lines += [_line(type(item).__name__.lower(), _settings(item)) for item in items]
        temporary = self.state.with_suffix(".new")
        temporary.write_text("\n".join(lines) + "\n")
        # Unlike the clock's, these never repeat within one tick of the file system.
        os.utime(temporary, ns=(0, next(_mtimes)))
        temporary.replace(self.state)

    def unload(self) -> None:
        """Take the driver away: its library stays, the kernel module is gone."""
        self.state.unlink()

    def env(self) -> dict[str, str]:
        """What a child process needs in its environment to find this driver."""
        return {
            "LD_LIBRARY_PATH": str(build(self.hide).parent),
            "NVML_FAKE_STATE": str(self.state),
            "NVML_FAKE_CALLS": str(self.counters),
        }

    def calls(self) -> Counter[str]:
        """How often each symbol was called so far, by any process."""
        if not self.counters.exists():
            return Counter()
        records = _RECORD.iter_unpack(self.counters.read_bytes())
        return Counter({name.rstrip(b"\0").decode(): calls for name, calls in records if calls})

    def load(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let nvidia-ml-py in this process use this driver until the test ends.

        A copy under another soname, so that each test has an instance of its own and nothing
        that looks for libnvidia-ml.so.1 later finds it.
        """
        library = self.folder / f"libnvml-fake-{next(_mtimes)}.so"
        shutil.copy(build(self.hide, soname="libnvml-fake.so"), library)
        for name in ("NVML_FAKE_STATE", "NVML_FAKE_CALLS"):
            monkeypatch.setenv(name, self.env()[name])
        monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(library)))
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})


def _settings(item: object) -> dict[str, object]:
    return {field.name: getattr(item, field.name) for field in fields(item)}


def _line(kind: str, settings: Mapping[str, object]) -> str:
    encoded = (f"{key}={_encode(value)}" for key, value in settings.items() if value != "")
    return " ".join((kind, *encoded))


def _encode(value: object) -> str:
    return quote_from_bytes(value if isinstance(value, bytes) else str(value).encode())
