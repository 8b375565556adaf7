"""The driver's process lists and utilisation samples, decoded, checked and merged. Pure.

The driver repeats a process in several lists, fills other layouts than its header reports on some
releases, and leaves entries of zeros and garbage percentages in its ring of samples. A list that
contradicts itself is refused as a whole.
"""

import struct
from collections.abc import Iterable, Mapping

from vgpu.units import MOST_DEVICE_MEMORY

PROCESS = struct.Struct("=I4xQII")
"""nvmlProcessInfo_v2_t, which the _v3 calls fill: pid, used bytes, GPU and compute instance."""

PROCESS_R530 = struct.Struct("=I4xQIIQ")
"""What the same calls fill from R530 to R535.x: one more field, protected memory."""

SAMPLE = struct.Struct("=I4xQIIII")
"""nvmlProcessUtilizationSample_t: pid, time in µs, SM, memory, encoder, decoder in percent."""

NOT_AVAILABLE = 0xFFFFFFFFFFFFFFFF  # memory of a process that the driver does not know

Used = dict[tuple[int, str], int | None]


class InvalidListError(Exception):
    """A process list that cannot be true."""


def merge(
    entries: Iterable[tuple[int, ...]],
    device: str,
    instances: Mapping[tuple[int, int], str] | None,
    total: float | None,
) -> Used:
    """Memory by (pid, device) from the entries of all of a GPU's lists.

    Args:
        entries: tuples that begin with pid, used bytes, GPU and compute instance.
        device: the GPU's UUID.
        instances: with MIG, (GPU instance, compute instance) -> UUID of the MIG device.
        total: the GPU's memory in bytes, if known.

    Raises:
        InvalidListError: an entry has no pid, more memory than the GPU, or an unknown instance.
    """
    merged: Used = {}
    most = MOST_DEVICE_MEMORY if total is None else total
    for pid, used, gpu_instance, compute_instance, *_ in entries:
        if pid == 0:
            raise InvalidListError("an entry without a pid")
        where = device
        if instances is not None:
            ids = (gpu_instance, compute_instance)
            if ids not in instances:
                raise InvalidListError(f"pid {pid} on unknown instance {ids}")
            where = instances[ids]
        key = (pid, where)
        if used == NOT_AVAILABLE:
            merged.setdefault(key, None)
            continue
        if used > most:
            raise InvalidListError(f"pid {pid} uses {used} bytes of a GPU of {most:.0f}")
        merged[key] = max(used, merged.get(key) or 0)
    return merged


def newest(
    samples: Iterable[tuple[int, ...]], since: int, until: int
) -> tuple[dict[int, float], int]:
    """The latest plausible SM utilisation by pid as a ratio, and the time of the newest sample.

    ``samples`` begin with pid, time and SM percent. Only times after ``since`` and up to
    ``until`` count: one from the far future would hide all that follow.
    """
    latest: dict[int, tuple[int, int]] = {}
    end = since
    for pid, at, percent, *_ in samples:
        if pid == 0 or not since < at <= until or percent > 100:
            continue
        end = max(end, at)
        if pid not in latest or latest[pid][0] < at:
            latest[pid] = (at, percent)
    return {pid: percent / 100 for pid, (_, percent) in latest.items()}, end
