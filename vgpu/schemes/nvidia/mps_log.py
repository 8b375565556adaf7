"""The limits in the log of an MPS control daemon, as NVIDIA's device plugin sets them. Pure.

k8s-device-plugin (0.15 to 0.20, ``cmd/mps-control-daemon``) sends its limits to the daemon once, at
start: ``set_default_device_pinned_mem_limit <NVML index> <N>M`` for each GPU, and
``set_default_active_thread_percentage <P>``. The daemon logs each command in ``control.log``, a
line ``[2024-06-12 10:28:13.725 Control    69] <text>``. Both limits are those of one client
process. Lines of any other form are ignored: NVIDIA documents the log by examples only.
"""

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from vgpu.model.units import MIB

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
_UNITS: Final = {b"M": MIB, b"G": 1024 * MIB}


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
                memory[int(line["index"])] = int(line["size"]) * _UNITS[line["unit"]]
            elif line["percent"]:
                percent = int(line["percent"])
            elif line["server"]:
                servers.add(int(line["server"]))
            else:
                servers.discard(int(line["exited"]))
        return MpsControl(memory, percent, frozenset(servers))
