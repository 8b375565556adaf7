"""Reads gpu-manager's own checkpoint as tenants that another plugin admitted.

The file names pods by UID and GPUs by their device node. It has no checksum and keeps pods that are
gone, so the recovery finds out which of them are alive.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from vgpu.model.admitted_pod import AdmittedPod
from vgpu.model.allocation import Allocation, Device, Share
from vgpu.model.names import PodRef
from vgpu.model.reasons import Reason, SourceError
from vgpu.schemes.gaia.checkpoint import parse_checkpoint
from vgpu.sources.files import printable, read_file

LIMIT: Final = 16 * 1024 * 1024
"""Maximum size of the file in bytes; a container takes about 150."""


class Migrated(msgspec.Struct, frozen=True):
    """The tenants, and why some or all of them could not be read."""

    tenants: tuple[AdmittedPod, ...] = ()
    problems: tuple[SourceError, ...] = ()


def read_gpu_manager(path: str, devices: Iterable[Device]) -> Migrated:
    """The tenants of gpu-manager's checkpoint; none if there is no checkpoint.

    ``devices`` are the node's, with their minor numbers. A pod on a GPU that the node does not have
    is a problem, and the others are kept.
    """
    object_name = printable(path)
    try:
        pods = parse_checkpoint(read_file(path, LIMIT), object_name)
    except SourceError as error:
        return Migrated() if error.reason is Reason.ABSENT else Migrated(problems=(error,))
    uuids = {name: device.uuid for device in devices if device.uuid for name in device.names}
    tenants, problems = [], []
    for uid, allocations in sorted(pods.items()):
        try:
            own = tuple(_by_uuid(entry, uuids) for entry in allocations)
        except KeyError as error:
            detail = f"the pod {uid[:64]!r} is on {error.args[0]}, which this node has not"
            problems.append(SourceError(Reason.UNKNOWN_DEVICE, object_name, detail))
            continue
        tenants.append(AdmittedPod(PodRef(uid, "", ""), own, foreign=True))
    return Migrated(tuple(tenants), tuple(problems))


def _by_uuid(allocation: Allocation, uuids: Mapping[str, str]) -> Allocation:
    """The allocation with GPUs by UUID. Raises KeyError with the GPU's device node."""
    shares: Iterable[Share] = (
        replace(share, device=uuids[share.device]) for share in allocation.shares
    )
    return replace(allocation, shares=tuple(shares))
