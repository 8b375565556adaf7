"""The limits of MPS: in a daemon's log, and in the environment of a client. Pure.

k8s-device-plugin (0.15 to 0.20, ``cmd/mps-control-daemon``) sends its limits to the daemon once, at
start: ``set_default_device_pinned_mem_limit <NVML index> <N>M`` for each GPU, and
``set_default_active_thread_percentage <P>``. The daemon logs each command in ``control.log``, a
line ``[2024-06-12 10:28:13.725 Control    69] <text>``. Both limits are those of one client
process. Lines of any other form are ignored: NVIDIA documents the log by examples only.

A process that finds ``CUDA_MPS_PINNED_DEVICE_MEM_LIMIT`` (``0=1G,1=512M``) or
``CUDA_MPS_ACTIVE_THREAD_PERCENTAGE`` (``50``) in its environment has at most this, and never more
than the control daemon allows (NVIDIA's manual of MPS, "Environment Variables"). The numbers of
devices are CUDA's, in the order in which the process sees them.
"""

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from vgpu.model.facts import MpsClientLimits
from vgpu.model.units import GIB, KIB, MIB, WHOLE_DEVICE_PERCENT

MEMORY: Final = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
"""The maximum of memory by device, ``<number>=<amount>`` with a unit."""

THREADS: Final = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
"""The maximum percentage of a device's threads."""

_PREFIX: Final = b"CUDA_MPS_"
_LIMIT: Final = re.compile(r"\s*([0-9]{1,3})\s*=\s*([0-9]{1,12})\s*([KMG])?B?\s*", re.ASCII)
_UNITS: Final = {"K": KIB, "M": MIB, "G": GIB}
_PERCENT: Final = re.compile(r"\s*([0-9]{1,3})(?:\.[0-9]{0,9})?\s*", re.ASCII)


NO_LIMITS: Final = MpsClientLimits()
"""The limits of a process without these variables."""


def client_limits(environ: bytes) -> MpsClientLimits:
    """The limits in the content of ``/proc/<pid>/environ``; what is in no known form is no limit.

    The first of two variables with one name counts, as for ``getenv``.
    """
    if _PREFIX not in environ:
        return NO_LIMITS
    values: dict[str, str] = {}
    for variable in environ.split(b"\0"):
        if variable.startswith(_PREFIX):
            name, _, value = variable.decode("ascii", "replace").partition("=")
            values.setdefault(name, value)
    return limits_in(values)


def limits_in(values: Mapping[str, str]) -> MpsClientLimits:
    """The limits in these variables; what is in no known form is no limit."""
    memory: dict[int, int] = {}
    for part in values.get(MEMORY, "").split(","):
        limit = _LIMIT.fullmatch(part)
        if limit is not None and limit[3]:
            memory[int(limit[1])] = int(limit[2]) * _UNITS[limit[3]]
    percent = _PERCENT.fullmatch(values.get(THREADS, ""))
    threads = int(percent[1]) if percent else None
    is_limit = threads is not None and 0 < threads <= WHOLE_DEVICE_PERCENT
    return MpsClientLimits(memory, threads if is_limit else None)


_LINE: Final = re.compile(
    rb"^\[[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9:.]{8,15} Control +[0-9]+\] (?:"
    rb"(?P<start>Starting control daemon )"
    rb"|Cmd:set_default_device_pinned_mem_limit (?P<index>[0-9]{1,4}) (?P<size>[0-9]{1,9})"
    rb"(?P<unit>[MG])[ \r]*$"
    rb"|Cmd:set_default_active_thread_percentage (?P<percent>[0-9]{1,3})(?:\.[0-9]*)?[ \r]*$"
    rb"|NEW SERVER (?P<server>[0-9]{1,10}): "
    rb"|Server (?P<exited>[0-9]{1,10}) exited)",
    re.MULTILINE,
)


class MpsControl(msgspec.Struct, frozen=True):
    """What a control daemon has logged since it started.

    Attributes:
        memory_bytes: NVML index of a GPU -> bytes that one client process may have of it.
        thread_percent: percent of a GPU's threads that one client process may use; None if not set.
        servers: pids of its server processes, in the daemon's PID namespace.
    """

    memory_bytes: Mapping[int, int] = {}
    thread_percent: int | None = None
    servers: frozenset[int] = frozenset()

    def after(self, lines: bytes) -> "MpsControl":
        """The state after these whole lines; a start of the daemon ends all that was before."""
        memory = dict(self.memory_bytes)
        percent, servers = self.thread_percent, set(self.servers)
        for line in _LINE.finditer(lines):
            if line["start"]:
                memory, percent, servers = {}, None, set()
            elif line["index"]:
                memory[int(line["index"])] = int(line["size"]) * _UNITS[line["unit"].decode()]
            elif line["percent"]:
                percent = int(line["percent"])
            elif line["server"]:
                servers.add(int(line["server"]))
            else:
                servers.discard(int(line["exited"]))
        return MpsControl(memory, percent, frozenset(servers))
