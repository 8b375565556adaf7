"""The values that a program reads of itself for the tables of :mod:`vgpu.metrics.own`."""

import os
import platform
import resource
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from vgpu import __version__
from vgpu.web.config import WebConfigFile

_START_TIME, _VIRTUAL_BYTES, _RESIDENT_PAGES = 19, 20, 21
"""Positions in /proc/<pid>/stat, counted from the field behind the program's name."""

_STAT = Path("/proc/self/stat")
_DESCRIPTORS = Path("/proc/self/fd")


def build_info() -> Mapping[str, str]:
    """Version and platform, for the build_info metrics and the log."""
    return {
        "version": __version__,
        "revision": os.environ.get("VGPU_REVISION", ""),
        "python_version": platform.python_version(),
        "platform": f"{platform.system().lower()}/{platform.machine()}",
    }


class OwnProcess:
    """The numbers of this process, from proc(5)."""

    def __init__(self) -> None:
        ticks = int(_stat_fields()[_START_TIME])
        self._start_time = _boot_time() + ticks / os.sysconf("SC_CLK_TCK")
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")

    def numbers(self) -> dict[str, float]:
        """The numbers by the name of their family."""
        fields = _stat_fields()
        return {
            "process_cpu_seconds_total": time.process_time(),
            "process_virtual_memory_bytes": int(fields[_VIRTUAL_BYTES]),
            "process_resident_memory_bytes": int(fields[_RESIDENT_PAGES]) * self._page_bytes,
            "process_start_time_seconds": self._start_time,
            "process_open_fds": _open_descriptors(),
            "process_max_fds": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        }


def own_numbers(config: WebConfigFile | None) -> Callable[[], Mapping[str, float]]:
    """A reader of the numbers about this process, by the name of their family."""
    process = OwnProcess()

    def read() -> Mapping[str, float]:
        numbers = process.numbers()
        if config is not None:
            numbers["vgpu_web_config_last_reload_successful"] = int(config.last_reload_ok)
            numbers["vgpu_web_config_reload_failures_total"] = config.reload_failures
        return numbers

    return read


def _stat_fields() -> list[bytes]:
    """The fields of /proc/self/stat behind the program's name, which may contain anything."""
    return _STAT.read_bytes().rpartition(b")")[2].split()


def _boot_time() -> int:
    """When the system was started, in unix seconds."""
    for line in Path("/proc/stat").read_text().splitlines():
        if line.startswith("btime "):
            return int(line.split()[1])
    return 0


def _open_descriptors() -> int:
    """Number of open descriptors; since Linux 6.2 it is the folder's size."""
    return _DESCRIPTORS.stat().st_size or sum(1 for _ in _DESCRIPTORS.iterdir())
