"""The memory that each container uses of each device, by the driver's list of processes. Pure.

The driver names processes by host pid, the kernel reports the container of a pid. If one of these
is missing, the sum is unknown: nothing is distributed by size or order.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from vgpu.model.facts import ContainerName, GpuProcess, GpuSample, ProcessOwner, ProcessSample

Place = tuple[str, str]
"""Pod UID and container."""

OVER_LIMIT_PERCENT: Final = 105
"""Percentage of its limit above which a container is over the limit. The driver and the shim count
contexts a little differently, hence the 5 %."""

MEMORY_USED: Final = ("memory_used_bytes",)
"""The reading of a device's memory in use."""


def container_name(owner: ProcessOwner, names: Mapping[str, ContainerName]) -> str:
    """The kubelet's name of the container; if unknown, "" in a pod, else the start of its id."""
    named = names.get(owner.container_id)
    if named is not None and named.pod_uid in ("", owner.pod_uid):
        return named.container
    return "" if owner.pod_uid else owner.container_id[:12]


class Usage(msgspec.Struct, frozen=True, gc=False):
    """One container's processes on one device.

    Attributes:
        pod_uid: the pod's UID on the node; "" for a container outside Kubernetes.
        container: its name; "" if it is unknown which of the pod's it is.
        device: its UUID.
        used_bytes: the processes' sum; None if the driver hides the use of one of them.
        pids: host pids.
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
    """The use by container and device, for devices whose list of processes is complete.

    ``owners`` has all live processes; ``name`` returns the container of an owner's process.
    """
    processes: dict[tuple[str, str, str], list[GpuProcess]] = {}
    for process in gpu.processes:
        owner = owners.get(process.pid)
        if owner is not None and process.device in gpu.processes_known:
            place = owner.pod_uid, name(owner, process.pid), process.device
            processes.setdefault(place, []).append(process)
    return tuple(
        Usage(*place, _used(own), tuple([process.pid for process in own]))
        for place, own in processes.items()
    )


class UnclearUse(msgspec.Struct, frozen=True):
    """Where a process may be a container's, and nothing proves of which it is.

    Attributes:
        places: (pod UID, device): the process is in an unknown container of the pod, or in the pod
            on an unknown instance of a GPU in MIG mode.
        devices: the process was never seen by the kernel that we ask, so it may be any pod's.
    """

    places: frozenset[tuple[str, str]] = frozenset()
    devices: frozenset[str] = frozenset()

    def has(self, pod_uid: str, device: str) -> bool:
        """Whether the pod's use of the device is unknown."""
        return device in self.devices or (pod_uid, device) in self.places


def unclear_use(
    gpu: GpuSample, process: ProcessSample, process_usages: Iterable[Usage]
) -> UnclearUse:
    """The places and devices whose use is unknown; ``process_usages`` are :func:`usages`."""
    places = {(usage.pod_uid, usage.device) for usage in process_usages if not usage.container}
    for found in gpu.unplaced:
        owner = process.owners.get(found.pid)
        if owner is not None and owner.pod_uid:
            instances = (device.uuid for device in gpu.gpus if device.parent == found.device)
            places.update((owner.pod_uid, instance) for instance in instances)
    unseen = {
        found.device
        for found in gpu.processes
        if found.pid not in process.owners and found.pid not in process.ended
    }
    return UnclearUse(frozenset(places), frozenset(unseen))


def certain(process_usages: Iterable[Usage], unclear: UnclearUse) -> Iterator[Usage]:
    """The usages that are known to be all that their container uses of the device."""
    for usage in process_usages:
        if usage.used_bytes is not None and not unclear.has(usage.pod_uid, usage.device):
            yield usage


class DeviceUsage(msgspec.Struct, frozen=True, gc=False):
    """The use of a device by containers, and beyond them: the attribution gap.

    Attributes:
        attributed_bytes: what all containers use together.
        unattributed_bytes: what is used beyond that.
        unattributed_processes: number of processes in no container.
    """

    attributed_bytes: int
    unattributed_bytes: int
    unattributed_processes: int


def device_usages(
    gpu: GpuSample,
    owners: Mapping[int, ProcessOwner | None],
    process_usages: Iterable[Usage],
    unclear: UnclearUse,
) -> dict[str, DeviceUsage]:
    """The use of each device where that of all its containers is known, by UUID.

    The driver may list a MIG instance's processes under its GPU, so a GPU with instances is left
    out, and also a GPU whose process has ended meanwhile: the owner of its memory is unknown.
    """
    attributed: Counter[str] = Counter()
    strangers: Counter[str] = Counter()
    unsized = {device.parent for device in gpu.gpus if device.parent}
    for usage in process_usages:
        attributed[usage.device] += usage.used_bytes or 0
        is_unclear = usage.container and unclear.has(usage.pod_uid, usage.device)
        if usage.used_bytes is None or is_unclear:
            unsized.add(usage.device)
    unplaced = {found.device for found in gpu.unplaced if owners.get(found.pid) is not None}
    unsized.update(device.uuid for device in gpu.gpus if device.parent in unplaced)
    for process in gpu.processes:
        if process.pid not in owners:
            unsized.add(process.device)
        elif owners[process.pid] is None:
            strangers[process.device] += 1
    devices = {}
    for device in gpu.gpus:
        uuid, used = device.uuid, device.readings.get(MEMORY_USED)
        if used is not None and uuid in gpu.processes_known and uuid not in unsized:
            total = attributed[uuid]
            devices[uuid] = DeviceUsage(total, int(used) - total, strangers[uuid])
    return devices


def is_over(used_bytes: float, limit_bytes: float) -> bool:
    """Whether the use is over the limit, for the rule, the status page and ``vgpu top``."""
    return used_bytes * 100 > limit_bytes * OVER_LIMIT_PERCENT


def _used(processes: Sequence[GpuProcess]) -> int | None:
    sizes = [process.used_bytes for process in processes if process.used_bytes is not None]
    return sum(sizes) if len(sizes) == len(processes) else None
