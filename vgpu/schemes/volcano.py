"""Volcano vGPU and HAMi: what their device plugins tell a container in the environment.

The names are those of HAMi-core and of both plugins' Allocate: ``NVIDIA_VISIBLE_DEVICES`` lists the
devices, ``CUDA_DEVICE_MEMORY_LIMIT_<i>`` the memory limit of the i-th.
"""

from collections.abc import Mapping

VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
MEMORY_LIMIT = "CUDA_DEVICE_MEMORY_LIMIT"
_SHARED = "CUDA_DEVICE_MEMORY_"
_SUFFIXES = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_MOST_DIGITS = 15


def is_shared(env: Mapping[str, str]) -> bool:
    """Whether the environment is that of a share, not of a whole card."""
    return any(name.startswith(_SHARED) for name in env)


def visible_uuids(env: Mapping[str, str]) -> tuple[str, ...]:
    """The devices by UUID, in the container's order; none if any is named another way."""
    uuids = tuple(part.strip() for part in env.get(VISIBLE_DEVICES, "").split(","))
    return uuids if all(uuid.startswith(("GPU-", "MIG-")) for uuid in uuids) else ()


def memory_limit(env: Mapping[str, str], position: int) -> int | None:
    """The limit in bytes of the device at ``position``; None if there is none, or no such number.

    ``3000m``: a decimal number with k, m or g for powers of 1024.
    """
    text = env.get(f"{MEMORY_LIMIT}_{position}", env.get(MEMORY_LIMIT, ""))
    scale = _SUFFIXES.get(text[-1:].lower())
    digits = text[:-1] if scale else text
    if not digits.isascii() or not digits.isdigit() or len(digits) > _MOST_DIGITS:
        return None
    return int(digits) * (scale or 1) or None
