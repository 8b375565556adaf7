"""gpu-manager's checkpoint: the GPUs that it allocated to containers.

``/etc/gpu-manager/checkpoint/gpumanager_internal_checkpoint``, without the last folder in v1.0.3.
JSON written by Go: pod UID -> container -> device nodes, cores in percent and memory in bytes. It
has no version and no checksum, so all of it is checked before any of it is trusted. Pods that are
gone are normal.
"""

import re
from collections.abc import Mapping
from typing import Annotated

import msgspec

from vgpu.model.allocation import Allocation, Share
from vgpu.model.names import DEVICE_NODE, Phase, device_node
from vgpu.model.reasons import Reason, SourceError
from vgpu.model.units import MILLI_PER_PERCENT, WHOLE_DEVICE_MILLI, WHOLE_DEVICE_PERCENT, count
from vgpu.schemes.gaia.vcuda_config import MOST_CORES, MOST_MEMORY

FILE_NAME = "gpumanager_internal_checkpoint"

_DEVICE = re.compile(DEVICE_NODE + r"([0-9]{1,3})")


class _Info(msgspec.Struct, gc=False):
    """``cache.Info`` of gpu-manager."""

    devices: list[str] = msgspec.field(name="Devices")
    cores: Annotated[int, msgspec.Meta(gt=0, le=MOST_CORES)] = msgspec.field(name="Cores")
    memory: Annotated[int, msgspec.Meta(ge=0, le=MOST_MEMORY)] = msgspec.field(name="Memory")


class _Checkpoint(msgspec.Struct):
    pods: dict[str, dict[str, _Info]] | None = msgspec.field(name="PodGPUMapping")


_DECODER = msgspec.json.Decoder(_Checkpoint)


def parse_checkpoint(
    content: bytes, object_name: str = FILE_NAME
) -> Mapping[str, tuple[Allocation, ...]]:
    """What each pod holds, by UID; GPUs by their device node, in the order of its number.

    Raises SourceError MALFORMED.
    """
    try:
        pods = _DECODER.decode(content).pods or {}
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise SourceError(Reason.MALFORMED, object_name, str(error)) from error
    return {
        uid: tuple(
            Allocation(
                name, _shares(info, f"{object_name}: {uid[:64]!r}/{name[:64]!r}"), Phase.ASSIGNED
            )
            for name, info in containers.items()
        )
        for uid, containers in pods.items()
    }


def _shares(info: _Info, object_name: str) -> tuple[Share, ...]:
    """Raises SourceError for GPUs and cores that do not belong together."""
    matches = [_DEVICE.fullmatch(device) for device in info.devices]
    numbers = sorted({int(match[1]) for match in matches if match})
    if len(numbers) < len(matches):
        raise SourceError(
            Reason.MALFORMED, object_name, f"no GPUs, or one twice: {info.devices}"[:200]
        )
    whole, part = divmod(info.cores, WHOLE_DEVICE_PERCENT)
    if (whole and part) or len(numbers) != max(whole, 1):
        detail = f"{count(len(numbers), 'GPU')} for {count(info.cores, 'core')}"
        raise SourceError(Reason.MALFORMED, object_name, detail)
    if whole:
        return tuple(Share(device_node(number), None, WHOLE_DEVICE_MILLI) for number in numbers)
    return (Share(device_node(numbers[0]), info.memory, info.cores * MILLI_PER_PERCENT),)
