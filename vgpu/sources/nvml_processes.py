"""The driver's process lists and utilisation samples, decoded, checked and merged. Pure.

The driver repeats a process in several lists, fills other layouts than its header reports on some
releases, and leaves entries of zeros and garbage percentages in its ring of samples. A list that
contradicts itself is refused as a whole.
"""

import struct
from collections.abc import Collection, Iterable, Mapping
from typing import Final

import msgspec

from vgpu.model.facts import GpuProcess
from vgpu.model.units import MOST_DEVICE_MEMORY

PROCESS = struct.Struct("=I4xQII")
"""nvmlProcessInfo_v2_t, which the _v3 calls fill: pid, used bytes, GPU and compute instance."""

PROCESS_R530 = struct.Struct("=I4xQIIQ")
"""What the same calls fill from R530 to R535.x: one more field, protected memory."""

SAMPLE = struct.Struct("=I4xQIIII")
"""nvmlProcessUtilizationSample_t: pid, time in µs, SM, memory, encoder, decoder in percent."""

NOT_AVAILABLE = 0xFFFFFFFFFFFFFFFF  # memory of a process that the driver does not know

NO_INSTANCE: Final = 0xFFFFFFFF
"""GPU instance of an entry that is on none (nvml.h, nvmlProcessInfo_t)."""


class InvalidListError(Exception):
    """A process list that cannot be true."""


class Merged(msgspec.Struct, frozen=True):
    """The processes in all of a GPU's lists.

    Attributes:
        processes: each once for each device.
        unplaced: with MIG, those without a known instance, on the GPU itself.
        errors: what is wrong with single entries, as text.
    """

    processes: tuple[GpuProcess, ...] = ()
    unplaced: tuple[GpuProcess, ...] = ()
    errors: tuple[str, ...] = ()


def merge(
    lists: Iterable[tuple[bool, Iterable[tuple[int, ...]]]],
    device: str,
    instances: Mapping[tuple[int, int], str] | None,
    total: float | None,
    clients: Collection[int] = (),
) -> Merged:
    """The processes by (pid, device) from the entries of all of a GPU's lists.

    With MIG a process may have no instance (a display server), or one that was made since the
    instances were read: only the place of this process is unknown then.

    Args:
        lists: whether a list has graphics contexts, and its entries: tuples that begin with pid,
            used bytes, GPU and compute instance.
        device: the GPU's UUID.
        instances: with MIG, (GPU instance, compute instance) -> UUID of the MIG device.
        total: the GPU's memory in bytes, if known.
        clients: pids of the clients of MPS.

    Raises:
        InvalidListError: an entry has no pid, or more memory than the GPU.
    """
    merged: dict[tuple[int, str], int | None] = {}
    computing: set[tuple[int, str]] = set()
    errors: list[str] = []
    most = MOST_DEVICE_MEMORY if total is None else total
    for graphics, entries in lists:
        for pid, used, gpu_instance, compute_instance, *_ in entries:
            if pid == 0:
                raise InvalidListError("an entry without a pid")
            if used != NOT_AVAILABLE and used > most:
                raise InvalidListError(f"pid {pid} uses {used} bytes of a GPU of {most:.0f}")
            where = device
            if instances is not None:
                ids = (gpu_instance, compute_instance)
                where = instances.get(ids, device)
                if where == device and gpu_instance != NO_INSTANCE:
                    errors.append(f"pid {pid} on unknown instance {ids}")
            key = (pid, where)
            if not graphics:
                computing.add(key)
            known = merged.get(key)
            merged[key] = known if used == NOT_AVAILABLE else max(used, known or 0)
    processes = tuple(
        GpuProcess(pid, where, used, (pid, where) not in computing, pid in clients)
        for (pid, where), used in merged.items()
    )
    if instances is None:
        return Merged(processes)
    return Merged(
        tuple(process for process in processes if process.device != device),
        tuple(process for process in processes if process.device == device),
        tuple(dict.fromkeys(errors)),
    )


def newest(
    samples: Iterable[tuple[int, ...]], since: int, until: int
) -> tuple[dict[int, float], int]:
    """The latest plausible SM utilisation by pid as a ratio, and the time of the newest sample.

    ``samples`` begin with pid, time and SM percent. Only times after ``since`` and up to
    ``until`` count: one from the far future would hide all that follow.
    """
    latest: dict[int, tuple[int, int]] = {}
    end = since
    for pid, time_us, percent, *_ in samples:
        if pid == 0 or not since < time_us <= until or percent > 100:
            continue
        end = max(end, time_us)
        if pid not in latest or latest[pid][0] < time_us:
            latest[pid] = (time_us, percent)
    return {pid: percent / 100 for pid, (_, percent) in latest.items()}, end
