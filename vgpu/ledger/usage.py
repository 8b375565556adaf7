"""How much memory of each device each container uses, by the driver's count of its processes. Pure.

The driver names processes by host pid, the kernel reports whose a pid is. Where a link of that
chain is missing the sum is unknown: nothing is shared out by size or order.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from vgpu.facts import GpuProcess, GpuSample, ProcessOwner

OVER_LIMIT_PERCENT: Final = 105
"""A container is over its limit when it uses more than this part of it. The driver and the shim
count contexts a little differently, hence the 5 %."""

_MEMORY_USED = ("memory_used_bytes",)


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
    """Those that are known to be all that their container uses of their device."""
    unclear = unnamed_places(found)
    for one in found:
        if one.used_bytes is not None and (one.pod_uid, one.device) not in unclear:
            yield one


def unnamed_places(process_usages: Iterable[Usage]) -> set[tuple[str, str]]:
    """(pod UID, device) where a container without a name has a process: it may be any of its pod's.

    So what the pod's other containers use of the device is not known.
    """
    return {(usage.pod_uid, usage.device) for usage in process_usages if not usage.container}


class DeviceUsage(msgspec.Struct, frozen=True, gc=False):
    """A device that is used by containers and beyond: the attribution gap.

    Attributes:
        attributed_bytes: what all containers use together.
        unattributed_bytes: what is used beyond that.
        unattributed_processes: how many processes are in no container.
    """

    attributed_bytes: int
    unattributed_bytes: int
    unattributed_processes: int


def device_usages(
    gpu: GpuSample,
    owners: Mapping[int, ProcessOwner | None],
    attributed: Mapping[str, int],
    unsized: Collection[str],
) -> dict[str, DeviceUsage]:
    """The devices of which it is known, by UUID.

    ``attributed`` is what containers use of each; of those ``unsized`` the driver hides a part.
    The driver may list a MIG instance's processes under its GPU, so a GPU with instances tells
    nothing, nor does one whose process has ended meanwhile: whose its memory was is unknown.
    """
    strangers: Counter[str] = Counter()
    unclear = {*unsized, *(device.parent for device in gpu.gpus if device.parent)}
    for process in gpu.processes:
        if process.pid not in owners:
            unclear.add(process.device)
        elif owners[process.pid] is None:
            strangers[process.device] += 1
    devices = {}
    for device in gpu.gpus:
        uuid, used = device.uuid, device.readings.get(_MEMORY_USED)
        if used is not None and uuid in gpu.processes_known and uuid not in unclear:
            total = attributed.get(uuid, 0)
            devices[uuid] = DeviceUsage(total, int(used) - total, strangers[uuid])
    return devices


def is_over(used_bytes: float, limit_bytes: float) -> bool:
    """Whether so much is over the limit: for the rule, the status page and ``vgpu top`` alike."""
    return used_bytes * 100 > limit_bytes * OVER_LIMIT_PERCENT


def _used(processes: Sequence[GpuProcess]) -> int | None:
    told = [process.used_bytes for process in processes if process.used_bytes is not None]
    return sum(told) if len(told) == len(processes) else None
