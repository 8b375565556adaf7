"""The list of a resource: all its device IDs with their health, as ListAndWatch sends them.

The kubelet takes messages of 4 MiB. It shows a resource with a longer list as 0, or as it was
before, without an error. So such a list is not made, and the unit that would fit is reported.
"""

from collections.abc import Iterable, Iterator
from itertools import chain, islice, repeat
from typing import Final

import msgspec

from deviceplugin.list_size import KUBELET_LIMIT, Series, SharedMemory, list_bytes, smallest_unit
from vgpu.model.allocation import Device
from vgpu.model.units import MIB
from vgpu.rpc.deviceplugin_pb2 import Device as DeviceMessage
from vgpu.rpc.deviceplugin_pb2 import ListAndWatchResponse
from vgpu.schemes.codec import SchemeCodec

HEALTHY: Final = "Healthy"
UNHEALTHY: Final = "Unhealthy"

_CHUNK: Final = 1000
"""Number of IDs that are encoded at a time; a repeated field may come in parts."""


class IdUnit(msgspec.Struct, frozen=True):
    """The memory that one ID of a resource stands for.

    ``flag`` is the flag that sets it: a number of MiB, followed by ``suffix``.
    """

    size_bytes: int
    flag: str
    suffix: str = ""


class AdvertisedList(msgspec.Struct, frozen=True):
    """A list that the kubelet takes.

    Attributes:
        message: the ListAndWatchResponse, encoded.
        healthy, unhealthy: IDs in it.
        longest_bytes: its length if all were unhealthy, since "Unhealthy" is the longer value.
    """

    message: bytes
    healthy: int
    unhealthy: int
    longest_bytes: int


class TooLong(msgspec.Struct, frozen=True):
    """A list that the kubelet would not take.

    Attributes:
        resource: its name; it is not offered.
        count: number of its IDs.
        longest_bytes: length of the list if all were unhealthy.
        unit: what one ID stands for; None if the resource is not memory.
        fitting_mib: the smallest unit, in MiB, whose list is short enough; None if there is none.
    """

    resource: str
    count: int
    longest_bytes: int
    unit: IdUnit | None = None
    fitting_mib: int | None = None

    def __str__(self) -> str:
        """The message for the log and the event."""
        of_unit = f" of {self.unit.size_bytes // MIB:,} MiB" if self.unit else ""
        text = (
            f"{self.resource} is not registered: {self.count:,} devices{of_unit} make a list of"
            f" {self.longest_bytes:,} bytes, and the kubelet takes {KUBELET_LIMIT:,}"
        )
        if self.unit is None:
            return text
        if self.fitting_mib is None:
            return f"{text}; no {self.unit.flag} fits that leaves every device one"
        fitting = f"{self.fitting_mib}{self.unit.suffix}"
        return f"{text}; the smallest {self.unit.flag} that fits is {fitting}"


class _Run(msgspec.Struct):
    """Consecutive IDs that differ only in their number."""

    ids: Iterator[str]
    count: int
    healthy: int  # the number of healthy IDs, which come first
    prefix_bytes: int


def offered(
    codec: SchemeCodec, resource: str, devices: tuple[Device, ...], unit: IdUnit | None = None
) -> AdvertisedList | TooLong:
    """The list, or why there is none.

    All IDs of an unhealthy device are unhealthy. If IDs belong to no particular device, the last
    ones are unhealthy, as many as the unhealthy devices have. Raises ClaimError for devices that
    cannot be listed.
    """
    runs = tuple(_runs(codec, resource, devices))
    count = sum(run.count for run in runs)
    longest = list_bytes(Series(run.prefix_bytes, run.count) for run in runs)
    if longest > KUBELET_LIMIT:
        fitting = _fitting_mib(runs, devices) if unit else None
        return TooLong(resource, count, longest, unit, fitting)
    healthy = sum(run.healthy for run in runs)
    message = b"".join(chain.from_iterable(map(_encoded, runs)))
    return AdvertisedList(message, healthy, count - healthy, longest)


def _runs(codec: SchemeCodec, resource: str, devices: tuple[Device, ...]) -> Iterator[_Run]:
    first = next(codec.device_ids(resource, devices), None)
    if first is None:
        return
    of_devices = codec.slot(resource, first).device is not None
    for group in [(device,) for device in devices] if of_devices else [devices]:
        prefix = next(codec.device_ids(resource, group), "0")[:-1]  # before number 0
        count = _count(codec.device_ids(resource, group))
        healthy = tuple(device for device in group if device.healthy)
        yield _Run(
            ids=codec.device_ids(resource, group),
            count=count,
            healthy=count if healthy == group else _count(codec.device_ids(resource, healthy)),
            prefix_bytes=len(prefix.encode()),
        )


def _count(ids: Iterable[str]) -> int:
    return sum(1 for _ in ids)


def _encoded(run: _Run) -> Iterator[bytes]:
    health = chain(repeat(HEALTHY, run.healthy), repeat(UNHEALTHY, run.count - run.healthy))
    told = zip(run.ids, health, strict=True)
    while part := tuple(islice(told, _CHUNK)):
        devices = [DeviceMessage(ID=device, health=health) for device, health in part]
        yield ListAndWatchResponse(devices=devices).SerializeToString()


def _fitting_mib(runs: tuple[_Run, ...], devices: tuple[Device, ...]) -> int | None:
    """The smallest unit that fits, in MiB, for devices with a run each."""
    memories = (
        SharedMemory(run.prefix_bytes, device.memory_bytes or 0)
        for run, device in zip(runs, devices, strict=True)
    )
    smallest = smallest_unit(memories)
    return None if smallest is None else smallest // MIB
