"""What Volcano's and HAMi's plugins inject into a container: environment and mounts.

The names are those of HAMi-core and of both plugins' Allocate: ``NVIDIA_VISIBLE_DEVICES`` lists the
devices, ``CUDA_DEVICE_MEMORY_LIMIT_<i>`` the memory limit of the i-th.
"""

from collections.abc import Mapping
from typing import Final

from vgpu.model.allocation import Allocation, Device, Share, mig_slot
from vgpu.model.names import PodRef
from vgpu.model.units import MIB, MILLI_PER_PERCENT, WHOLE_DEVICE_PERCENT, percent
from vgpu.schemes.codec import VISIBLE_DEVICES, ClaimError, ContainerEdits, Mount
from vgpu.schemes.text import number, object_name_of
from vgpu.schemes.volcano.key_set import ShimPaths
from vgpu.schemes.volcano.text import BOOLEANS

MEMORY_LIMIT: Final = "CUDA_DEVICE_MEMORY_LIMIT"
CORE_LIMIT: Final = "CUDA_DEVICE_SM_LIMIT"
SHARED_CACHE: Final = "CUDA_DEVICE_MEMORY_SHARED_CACHE"
OVERSUBSCRIBE: Final = "CUDA_OVERSUBSCRIBE"
CORE_POLICY: Final = "GPU_CORE_UTILIZATION_POLICY"

DISABLE_CONTROL: Final = "CUDA_DISABLE_CONTROL"
"""Set by a container's own user: the library is to stay out of its processes."""

LOCK_FOLDER: Final = "/tmp/vgpulock"  # noqa: S108  # HAMi-core's own, shared by all containers
PRELOAD: Final = "/etc/ld.so.preload"

_SHARED = "CUDA_DEVICE_MEMORY_"
_SUFFIXES = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_MOST_DIGITS = 15


# ---------------------------------------------------------------- reading


def is_shared(env: Mapping[str, str]) -> bool:
    """Whether the environment is that of a share, not of a whole GPU."""
    return any(name.startswith(_SHARED) for name in env)


def is_controlled(env: Mapping[str, str]) -> bool:
    """Whether the library is to be loaded into a container with this environment of its own.

    As HAMi's plugin reads it; Volcano's takes any value, even ``false``, for a wish to be left out.
    """
    return not BOOLEANS.get(env.get(DISABLE_CONTROL, ""), False)


def visible_uuids(env: Mapping[str, str]) -> tuple[str, ...]:
    """The devices by UUID, in the container's order; none if any is named another way."""
    uuids = tuple(part.strip() for part in env.get(VISIBLE_DEVICES, "").split(","))
    return uuids if all(uuid.startswith(("GPU-", "MIG-")) for uuid in uuids) else ()


def memory_limit(env: Mapping[str, str], position: int) -> int | None:
    """The limit in bytes of the device at ``position``; None if it has none, or no such number."""
    return set_limit(env, position) or None


def set_limit(env: Mapping[str, str], position: int) -> int | None:
    """What the environment sets as the limit of the device at ``position``, in bytes.

    0 is what HAMi-core reads as no limit; None is nothing, or no such number. ``3000m``: a decimal
    number with k, m or g for powers of 1024.
    """
    text = env.get(f"{MEMORY_LIMIT}_{position}", env.get(MEMORY_LIMIT, ""))
    scale = _SUFFIXES.get(text[-1:].lower())
    digits = text[:-1] if scale else text
    if not digits.isascii() or not digits.isdigit() or len(digits) > _MOST_DIGITS:
        return None
    return int(digits) * (scale or 1)


def shares(env: Mapping[str, str]) -> tuple[Share, ...]:
    """The shares that the environment of an answer sets up; () if it is not that of a share.

    Allocate sets ``CUDA_DEVICE_MEMORY_LIMIT_<i>`` for each device, ``CUDA_DEVICE_SM_LIMIT`` for all
    of them (HAMi 2.10, ``pkg/device-plugin/nvidiadevice/nvinternal/plugin/server.go``;
    volcano-vgpu-device-plugin 1.12, ``pkg/plugin/server.go``). Cores of 0 are not limited.
    """
    if not is_shared(env):
        return ()
    limits = sum(name.startswith(f"{MEMORY_LIMIT}_") for name in env)
    devices = visible_uuids(env) or ("",) * max(1, limits)
    return tuple(
        Share(device, memory_limit(env, position), _core_limit(env, position))
        for position, device in enumerate(devices)
    )


def _core_limit(env: Mapping[str, str], position: int) -> int | None:
    """The limit of cores in thousandths; None if there is none, or no such number."""
    text = env.get(f"{CORE_LIMIT}_{position}", env.get(CORE_LIMIT, ""))
    limit = number(text, WHOLE_DEVICE_PERCENT)
    return limit * MILLI_PER_PERCENT if limit else None


# ---------------------------------------------------------------- writing


def cache_folder(paths: ShimPaths, pod: PodRef, container: str) -> str:
    """A container's folder of region files on the host."""
    return f"{paths.containers}/{pod.uid}_{container}"


def edits(
    pod: PodRef,
    allocation: Allocation,
    devices: Mapping[str, Device],
    paths: ShimPaths,
    *,
    cache_name: str,
    preload: bool,
    oversubscribe: bool,
    core_policy: str,
) -> ContainerEdits:
    """The answer of Allocate for a container.

    A MIG slot is a device by itself: nothing has to be limited there, so the library stays out.
    ``cache_name`` is the region file's, ``preload`` whether the library is loaded into every
    process: it is not where the container sets CUDA_DISABLE_CONTROL. Raises ClaimError.
    """
    shares = allocation.shares
    env = {VISIBLE_DEVICES: ",".join(_uuid(pod, share, devices) for share in shares)}
    if any(mig_slot(share.device) for share in shares):
        return ContainerEdits(env)
    for position, share in enumerate(shares):
        env[f"{MEMORY_LIMIT}_{position}"] = _limit(pod, share)
    cores = [percent(share.cores_milli or 0) for share in shares]
    env[CORE_LIMIT] = str(cores[0])
    for position, limit in enumerate(cores):
        if limit != cores[0]:  # never so in what the originals' schedulers write
            env[f"{CORE_LIMIT}_{position}"] = str(limit)
    env[SHARED_CACHE] = f"{paths.cache_target}/{cache_name}.cache"
    if oversubscribe:
        env[OVERSUBSCRIBE] = "true"
    if core_policy:
        env[CORE_POLICY] = core_policy
    cache = cache_folder(paths, pod, allocation.container)
    mounts = (
        Mount(paths.library, paths.library_target, read_only=True),
        Mount(cache, paths.cache_target, read_only=False),
        Mount(LOCK_FOLDER, LOCK_FOLDER, read_only=False),
        Mount(paths.preload, PRELOAD, read_only=True),
    )
    return ContainerEdits(env, mounts if preload else mounts[:-1])


def _uuid(pod: PodRef, share: Share, devices: Mapping[str, Device]) -> str:
    device = devices.get(share.device)
    if device is None or not device.uuid:
        raise ClaimError(object_name_of(pod), VISIBLE_DEVICES, share.device, "no such device here")
    return device.uuid


def _limit(pod: PodRef, share: Share) -> str:
    """The memory limit in whole MiB. The library takes 0 for none, so a share of nothing fails."""
    mebibytes = (share.memory_bytes or 0) // MIB
    if not mebibytes:
        text = str(share.memory_bytes)
        raise ClaimError(object_name_of(pod), MEMORY_LIMIT, text, "would be no limit at all")
    return f"{mebibytes}m"
