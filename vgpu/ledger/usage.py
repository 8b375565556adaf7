"""How much memory of each device each container uses, by the driver's count of its processes. Pure.

The driver names processes by host pid, the kernel reports whose a pid is. Where a link of that
chain is missing the sum is unknown: nothing is shared out by size or order.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from vgpu.facts import GpuProcess, GpuSample, ProcessOwner

OVER_LIMIT_PERCENT: Final = 105
"""A container is over its limit when it uses more than this part of it. The driver and the shim
count contexts a little differently, hence the 5 %."""


class Usage(msgspec.Struct, frozen=True, gc=False):
    """One container's processes on one device.

    Attributes:
        pod_uid: as the node knows the pod; "" for a container outside Kubernetes.
        container: its name; "" if nobody knows which of the pod's it is.
        device: its UUID.
        used_bytes: what they use together; None if the driver hides it of one of them.
        pids: the host's.
    """

    pod_uid: str
    container: str
    device: str
    used_bytes: int | None
    pids: tuple[int, ...]


def usages(
    gpu: GpuSample,
    owners: Mapping[int, ProcessOwner | None],
    name: Callable[[ProcessOwner, int], str],
) -> tuple[Usage, ...]:
    """One for each container and device, of devices whose list of processes is complete.

    ``owners`` has all processes that live; ``name`` tells the container of an owner's process.
    """
    found: dict[tuple[str, str, str], list[GpuProcess]] = {}
    for process in gpu.processes:
        owner = owners.get(process.pid)
        if owner is not None and process.device in gpu.processes_known:
            place = owner.pod_uid, name(owner, process.pid), process.device
            found.setdefault(place, []).append(process)
    return tuple(
        Usage(*place, _used(those), tuple(process.pid for process in those))
        for place, those in found.items()
    )


def certain(found: Sequence[Usage]) -> Iterator[Usage]:
    """Those that are known to be all that their container uses of their device.

    A process of an unnamed container may be any of its pod's.
    """
    unclear = {(one.pod_uid, one.device) for one in found if not one.container}
    for one in found:
        if one.used_bytes is not None and (one.pod_uid, one.device) not in unclear:
            yield one


def is_over(used_bytes: int, given_bytes: int) -> bool:
    """Whether so much is over the limit, the tolerance included."""
    return used_bytes * 100 > given_bytes * OVER_LIMIT_PERCENT


def _used(processes: Sequence[GpuProcess]) -> int | None:
    told = [process.used_bytes for process in processes if process.used_bytes is not None]
    return sum(told) if len(told) == len(processes) else None
