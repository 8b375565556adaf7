"""What a program reads of itself for the tables of :mod:`vgpu.metrics.process_families`.

A number that cannot be read is absent, as for want of a file descriptor: it costs itself, and
neither the page that it is on nor the program.
"""

import logging
import os
import platform
import resource
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from vgpu import __version__
from vgpu.web.config import WebConfigFile

log = logging.getLogger(__name__)

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


Numbers = Mapping[str, float]
"""Numbers by the name of their family."""


class ProcessNumbers:
    """The numbers of this process, from proc(5)."""

    def __init__(self) -> None:
        boot, ticks = _boot_time(), int(_stat_fields()[_START_TIME])
        self._started = (
            {}
            if boot is None
            else {"process_start_time_seconds": boot + ticks / os.sysconf("SC_CLK_TCK")}
        )
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")

    def numbers(self) -> dict[str, float]:
        """The numbers that can be read now. Never raises."""
        readers = (self._times, self._memory, self._descriptors, self._most_descriptors)
        return {name: number for read in readers for name, number in readable(read).items()}

    def _times(self) -> Numbers:
        return {"process_cpu_seconds_total": time.process_time(), **self._started}

    def _memory(self) -> Numbers:
        fields = _stat_fields()
        return {
            "process_virtual_memory_bytes": int(fields[_VIRTUAL_BYTES]),
            "process_resident_memory_bytes": int(fields[_RESIDENT_PAGES]) * self._page_bytes,
        }

    def _descriptors(self) -> Numbers:
        return {"process_open_fds": _open_descriptors()}

    def _most_descriptors(self) -> Numbers:
        return {"process_max_fds": resource.getrlimit(resource.RLIMIT_NOFILE)[0]}


def readable(read: Callable[[], Numbers]) -> Numbers:
    """What ``read`` returns; nothing if it fails."""
    try:
        return read()
    except Exception as error:  # noqa: BLE001  # descriptors, memory, a /proc that is not ours
        log.debug("numbers of this process unreadable", extra={"err": repr(error)})
        return {}


def process_numbers(config: WebConfigFile | None) -> Callable[[], Numbers]:
    """A reader of the numbers about this process, which never raises."""
    process = ProcessNumbers()

    def read() -> Numbers:
        numbers = process.numbers()
        if config is not None:
            numbers["vgpu_web_config_last_reload_successful"] = int(config.last_reload_ok)
            numbers["vgpu_web_config_reload_failures_total"] = config.reload_failures
        return numbers

    return read


def _stat_fields() -> list[bytes]:
    """The fields of /proc/self/stat behind the program's name, which may contain anything."""
    return _STAT.read_bytes().rpartition(b")")[2].split()


def _boot_time() -> int | None:
    """When the system was started, in unix seconds; None if the kernel does not report it."""
    for line in Path("/proc/stat").read_text().splitlines():
        if line.startswith("btime "):
            return int(line.split()[1])
    return None


def _open_descriptors() -> int:
    """Number of open descriptors; since Linux 6.2 it is the folder's size."""
    return _DESCRIPTORS.stat().st_size or sum(1 for _ in _DESCRIPTORS.iterdir())
