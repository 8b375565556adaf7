"""What gpu-manager injects for a container's GPUs: the answer to Allocate, and its limits.

gpu-manager shares GPUs in two ways only: a part of one GPU, in percents of its cores and blocks of
its memory, with limits enforced by the library ``vcuda``; or whole GPUs, without limits. Names and
values are those of gpu-manager's ``pkg/services/allocator/nvidia`` and ``virtual-manager``.
"""

from collections.abc import Mapping

from vgpu.model.allocation import Allocation, Device, Share
from vgpu.model.names import PodRef, device_node
from vgpu.model.units import (
    GAIA_MEMORY_BLOCK,
    MILLI_PER_PERCENT,
    WHOLE_DEVICE_MILLI,
    WHOLE_DEVICE_PERCENT,
)
from vgpu.schemes.codec import VISIBLE_DEVICES, ClaimError, ContainerEdits, Mount
from vgpu.schemes.gaia.node import MOST_GPUS, NAMES
from vgpu.schemes.gaia.vcuda_config import MOST_MEMORY, VcudaConfig
from vgpu.schemes.resource_names import ResourceNames
from vgpu.schemes.text import object_name_of

GPUS = "tencent.com/vcuda-device"
"""The container's annotation in the answer to Allocate that names its GPUs."""

CONTROL_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm")
DRIVER_FOLDER = "/usr/local/nvidia"
LIMITS_FOLDER = "/etc/vcuda"

_MOST_MINOR = 999  # three digits in an annotation


def checked(object_name: str, allocation: Allocation) -> tuple[Share, ...]:
    """The allocation's shares, if gpu-manager knows such: a part of one GPU, or whole GPUs.

    Raises ClaimError.
    """
    shares = allocation.shares
    part = len(shares) == 1 and _is_part(shares[0])
    whole = 0 < len(shares) <= MOST_GPUS and all(_is_whole(share) for share in shares)
    if not (part or whole) or len({share.device for share in shares}) < len(shares):
        text = ", ".join(share.device for share in shares)
        detail = "neither a part of one GPU nor whole GPUs"
        raise ClaimError(object_name, allocation.container, text, detail)
    return shares


def minor_of(object_name: str, share: Share, devices: Mapping[str, Device]) -> int:
    """The minor number of the share's GPU. Raises ClaimError."""
    gpu = devices.get(share.device)
    if gpu is None or gpu.minor is None or not 0 <= gpu.minor <= _MOST_MINOR:
        detail = "no GPU of this node with a known minor number"
        raise ClaimError(object_name, GPUS, share.device, detail)
    return gpu.minor


def edits(
    object_name: str,
    allocation: Allocation,
    devices: Mapping[str, Device],
    *,
    driver_folder: str,
    limits_folder: str,
    extra_devices: tuple[str, ...] = (),
    compat32: bool = False,
    names: ResourceNames = NAMES,
) -> ContainerEdits:
    """The answer to Allocate; the folders are the host's. Raises ClaimError."""
    shares = checked(object_name, allocation)
    nodes = tuple(device_node(minor_of(object_name, share, devices)) for share in shares)
    gpus = [devices[share.device] for share in shares]
    if not all(gpu.uuid for gpu in gpus):
        raise ClaimError(object_name, GPUS, ",".join(nodes), "a GPU of unknown UUID")
    flavour = "origin" if _is_whole(shares[0]) else "nvidia"
    return ContainerEdits(
        env={
            "LD_LIBRARY_PATH": f"{DRIVER_FOLDER}/{'lib' if compat32 else 'lib64'}",
            VISIBLE_DEVICES: ",".join(gpu.uuid for gpu in gpus),
        },
        mounts=(
            Mount(f"{driver_folder}/{flavour}", DRIVER_FOLDER, read_only=True),
            Mount(limits_folder, LIMITS_FOLDER, read_only=True),
        ),
        devices=(*nodes, *CONTROL_NODES, *extra_devices),
        annotations={
            names.cores: str(_percent(shares)),
            names.memory: str(_bytes(shares)),
            GPUS: ",".join(nodes),
        },
    )


def limits(
    pod: PodRef,
    allocation: Allocation,
    driver: tuple[int, int],
    limit_milli: int | None = None,
    bus_id: str = "",
) -> VcudaConfig:
    """The container's ``vcuda.config``; :func:`vcuda_config.encode` gives its bytes.

    ``driver`` is the driver's version, major and minor; ``limit_milli`` is that of the request.
    gpu-manager leaves ``bus_id`` empty. Raises ClaimError.
    """
    shares = checked(object_name_of(pod), allocation)
    return VcudaConfig(
        pod_uid=pod.uid,
        limit_percent=(limit_milli or 0) // MILLI_PER_PERCENT,
        container=allocation.container,
        bus_id=bus_id,
        memory_bytes=_bytes(shares),
        utilization_percent=_percent(shares),
        hard_limit=limit_milli is None,
        driver=driver,
        enable=_percent(shares) < WHOLE_DEVICE_PERCENT,
    )


def _is_whole(share: Share) -> bool:
    return share.cores_milli == WHOLE_DEVICE_MILLI and share.memory_bytes is None


def _is_part(share: Share) -> bool:
    cores, memory = share.cores_milli or 0, share.memory_bytes or 0
    return (
        0 < cores < WHOLE_DEVICE_MILLI
        and cores % MILLI_PER_PERCENT == 0
        and 0 < memory <= MOST_MEMORY
        and memory % GAIA_MEMORY_BLOCK == 0
    )


def _percent(shares: tuple[Share, ...]) -> int:
    """Cores of all GPUs together, in percent of one."""
    return sum(share.cores_milli or 0 for share in shares) // MILLI_PER_PERCENT


def _bytes(shares: tuple[Share, ...]) -> int:
    """Allocated memory in bytes; 0 with whole GPUs."""
    return sum(share.memory_bytes or 0 for share in shares)
