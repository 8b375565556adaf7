"""The limits in the environment of an MPS client, by which it lowers its own. Pure.

A process that finds ``CUDA_MPS_PINNED_DEVICE_MEM_LIMIT`` (``0=1G,1=512M``) or
``CUDA_MPS_ACTIVE_THREAD_PERCENTAGE`` (``50``) in its environment has at most this, and never more
than the control daemon allows (NVIDIA's manual of MPS, "Environment Variables"). The numbers of
devices are CUDA's, in the order in which the process sees them.
"""

import re
from typing import Final

from vgpu.model.facts import MpsClientLimits
from vgpu.model.units import KIB, MIB, WHOLE_DEVICE_PERCENT

MEMORY: Final = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
"""The maximum of memory by device, ``<number>=<amount>`` with a unit."""

THREADS: Final = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
"""The maximum percentage of a device's threads."""

_PREFIX: Final = b"CUDA_MPS_"
_LIMIT: Final = re.compile(r"\s*([0-9]{1,3})\s*=\s*([0-9]{1,12})\s*([KMG])?B?\s*", re.ASCII)
_UNITS: Final = {"K": KIB, "M": MIB, "G": 1024 * MIB}
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
    memory: dict[int, int] = {}
    for part in values.get(MEMORY, "").split(","):
        limit = _LIMIT.fullmatch(part)
        if limit is not None and limit[3]:
            memory[int(limit[1])] = int(limit[2]) * _UNITS[limit[3]]
    percent = _PERCENT.fullmatch(values.get(THREADS, ""))
    threads = int(percent[1]) if percent else None
    is_limit = threads is not None and 0 < threads <= WHOLE_DEVICE_PERCENT
    return MpsClientLimits(memory, threads if is_limit else None)
