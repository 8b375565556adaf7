"""The size of a device plugin's list, and the smallest unit of memory whose list is not too long.

A plugin that shares memory reports one device for each unit. The kubelet refuses a ListAndWatch
message above gRPC's default and shows the resource as 0, or as it was before, without a message.
"""

from bisect import bisect_left
from collections.abc import Iterable

import msgspec

from vgpu.model.units import MIB

KUBELET_LIMIT = 4 * MIB
"""Maximum size of a message that the kubelet accepts, in bytes: gRPC's default."""

_HEALTH = (
    "Unhealthy"  # the longer of the two values: the list must also fit when all devices are lost
)
_VARINT_STEP = 7  # bits of a length in one byte


class Series(msgspec.Struct, frozen=True, gc=False):
    """The IDs of one device: ``prefix_bytes`` of text, then a number from 0 to ``count - 1``."""

    prefix_bytes: int
    count: int


class SharedMemory(msgspec.Struct, frozen=True, gc=False):
    """A device to be shared: bytes of memory, and the length of its IDs up to their number."""

    prefix_bytes: int
    memory_bytes: int


def list_bytes(devices: Iterable[Series]) -> int:
    """Bytes of a ListAndWatchResponse of these devices, at its longest.

    Protobuf, deviceplugin/v1beta1: ``repeated Device devices = 1`` with ``string ID = 1`` and
    ``string health = 2``; no topology.
    """
    return sum(_series_bytes(device) for device in devices)


def smallest_unit(
    devices: Iterable[SharedMemory], granularity: int = MIB, limit: int = KUBELET_LIMIT
) -> int | None:
    """The smallest multiple of ``granularity`` bytes whose list has at most ``limit`` bytes.

    Each device is listed in whole units of its own memory. None if every such unit is larger than
    some device.
    """
    devices = tuple(devices)
    most = min((device.memory_bytes // granularity for device in devices), default=1)

    def fits(factor: int) -> bool:
        unit = factor * granularity
        series = (Series(device.prefix_bytes, device.memory_bytes // unit) for device in devices)
        return list_bytes(series) <= limit

    factors = range(1, most + 1)
    position = bisect_left(factors, True, key=fits)
    return factors[position] * granularity if position < len(factors) else None


def _series_bytes(device: Series) -> int:
    total, digits, first = 0, 1, 0
    while first < device.count:
        end = min(device.count, 10**digits)
        total += (end - first) * _device_bytes(device.prefix_bytes + digits)
        digits, first = digits + 1, end
    return total


def _device_bytes(id_bytes: int) -> int:
    return _field_bytes(_field_bytes(id_bytes) + _field_bytes(len(_HEALTH)))


def _field_bytes(content: int) -> int:
    """A field of this many bytes: tag, length, content."""
    return 1 + max(1, -(-content.bit_length() // _VARINT_STEP)) + content
