"""gpu-manager's own checkpoint, read as pods that another plugin admitted.

``/etc/gpu-manager/checkpoint/gpumanager_internal_checkpoint``, without the last folder in v1.0.3.
JSON written by Go: pod UID -> container -> device nodes, cores in percent and memory in bytes. It
has no version and no checksum, so all of it is checked before any of it is trusted. It keeps pods
that are gone, so the recovery finds out which of them are alive.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Final

import msgspec
from msgspec.structs import replace

from vgpu.model.admitted_pod import AdmittedPod
from vgpu.model.allocation import Allocation, Device, Share
from vgpu.model.names import DEVICE_NODE, Phase, PodRef, device_node
from vgpu.model.reasons import Reason, SourceError
from vgpu.model.units import MILLI_PER_PERCENT, WHOLE_DEVICE_MILLI, WHOLE_DEVICE_PERCENT, count
from vgpu.schemes.gaia.vcuda_config import MOST_CORES, MOST_MEMORY
from vgpu.sources.files import printable, read_file

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


LIMIT: Final = 16 * 1024 * 1024
"""Maximum size of the file in bytes; a container takes about 150."""


class Migrated(msgspec.Struct, frozen=True):
    """The admitted pods, and why some or all of them could not be read."""

    admitted_pods: tuple[AdmittedPod, ...] = ()
    problems: tuple[SourceError, ...] = ()


def read_gpu_manager(path: str, devices: Iterable[Device]) -> Migrated:
    """The admitted pods of gpu-manager's checkpoint; none if there is no checkpoint.

    ``devices`` are the node's, with their minor numbers. A pod on a GPU that the node does not have
    is a problem, and the others are kept.
    """
    object_name = printable(path)
    try:
        pods = parse_checkpoint(read_file(path, LIMIT), object_name)
    except SourceError as error:
        return Migrated() if error.reason is Reason.ABSENT else Migrated(problems=(error,))
    uuids = {name: device.uuid for device in devices if device.uuid for name in device.names}
    admitted_pods, problems = [], []
    for uid, containers in sorted(pods.items()):
        try:
            allocations = tuple(_by_uuid(entry, uuids) for entry in containers)
        except KeyError as error:
            detail = f"the pod {uid[:64]!r} is on {error.args[0]}, which this node has not"
            problems.append(SourceError(Reason.UNKNOWN_DEVICE, object_name, detail))
            continue
        admitted_pods.append(AdmittedPod(PodRef(uid, "", ""), allocations, foreign=True))
    return Migrated(tuple(admitted_pods), tuple(problems))


def _by_uuid(allocation: Allocation, uuids: Mapping[str, str]) -> Allocation:
    """The allocation with GPUs by UUID. Raises KeyError with the GPU's device node."""
    shares: Iterable[Share] = (
        replace(share, device=uuids[share.device]) for share in allocation.shares
    )
    return replace(allocation, shares=tuple(shares))
