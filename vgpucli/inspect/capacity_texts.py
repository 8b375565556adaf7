"""Requests, shares and free capacity as texts. Pure."""

from typing import Final

from vgpu.inventory import FreeCapacity, UnavailableMemory
from vgpu.model.allocation import Request
from vgpu.model.units import MILLI_PER_PERCENT, count, rounded_size
from vgpucli.inspect.pod_lines import who

KEPT_FREE: Final = "kept free for pods that stand in the way"
"""Memory that no new share can have, since the kubelet may have allocated it."""

_MOST_NAMED: Final = 4
"""Maximum number of GPUs or nodes that a text names."""


def percent_text(milli: int) -> str:
    """Thousandths of a GPU's cores in percent."""
    return f"{milli / MILLI_PER_PERCENT:.4g}"


def wanted(request: Request) -> str:
    """The request as text."""
    times = f"{request.count} times " if request.count != 1 else ""
    if request.has_unknown_amounts:
        return f"{count(request.count, 'GPU')}, memory and cores unknown"
    return times + _share(request.memory_bytes, request.memory_percent, request.cores_milli)


def _share(memory_bytes: int | None, memory_percent: int | None, cores_milli: int) -> str:
    if memory_bytes is not None:
        memory = rounded_size(memory_bytes)
    else:
        memory = "a whole GPU" if memory_percent in (None, 100) else f"{memory_percent}% of memory"
    return f"{memory}, {percent_text(cores_milli)}% of cores" if cores_milli else memory


def fitting(room: FreeCapacity) -> str:
    """The usable part of the free capacity, as text."""
    probe = room.probe
    if room.gpus and room.unsized == room.gpus:
        return "how many further pods fit is not known"
    if probe is None and room.unsized:
        return "no share of a known size is held and nothing waits, so there is none to try"
    if probe is None:
        return "nothing is held and nothing waits, so there is no usual share to try"
    share = " and ".join(map(wanted, probe.requests))
    origin = f"as {who(probe.pending, '')} wants" if probe.pending else "the most common share"
    free = room.available_bytes
    part = f" ({room.usable_bytes * 100 // free}%)" if free else ""
    usable = f"{rounded_size(room.usable_bytes)} of the free memory{part} usable"
    most = "up to " if room.fits and room.maybe_held.memory_bytes else ""
    return f"room for {most}{room.fits} more of {share} ({origin}): {usable}"


def apart_text(apart: UnavailableMemory) -> str:
    """Free memory that no new share can have, as text."""
    named = ", ".join(apart.names[:_MOST_NAMED])
    more = f" and {len(apart.names) - _MOST_NAMED} more" * (len(apart.names) > _MOST_NAMED)
    return f"{rounded_size(apart.memory_bytes)} more {apart.reason.explanation}: {named}{more}"
