"""Aliyun gpushare: what its device plugin tells a container in the environment.

The names and values are those of gpushare-device-plugin's Allocate. The numbers are in units
whose size is not told: GiB or MiB, as the plugin's operator chose it (``-memory-unit``).
"""

import re
from collections.abc import Mapping

import msgspec

CONTAINER_UNITS = "ALIYUN_COM_GPU_MEM_CONTAINER"
DEVICE_UNITS = "ALIYUN_COM_GPU_MEM_DEV"
DEVICE_INDEX = "ALIYUN_COM_GPU_MEM_IDX"
VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"

_NUMBER = re.compile(r"[0-9]{1,9}")
_UUID = re.compile(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_POISON = re.compile(r"no-gpu-has-[0-9]{1,9}[A-Za-z]{1,8}-to-run")


class EnvLimits(msgspec.Struct, frozen=True, gc=False):
    """One container's share, as it was told; None or "" for what was not told.

    Attributes:
        container_units: the container's memory, in units.
        device_units: the whole card's memory, in units.
        index: the card by index.
        uuid: the card by UUID, as the plugin says it on nodes with a single card.
        refused: the plugin found no card, and answered with an environment in which the
            container cannot start (``no-gpu-has-8138MiB-to-run``); there is no card then.
    """

    container_units: int | None
    device_units: int | None
    index: int | None
    uuid: str
    refused: bool


def limits_from_env(env: Mapping[str, str]) -> EnvLimits | None:
    """The limits in a container's environment; None if gpushare did not write it."""
    if CONTAINER_UNITS not in env:
        return None
    visible = env.get(VISIBLE_DEVICES, "")
    refused = _POISON.fullmatch(visible) is not None
    uuid = visible if _UUID.fullmatch(visible) else ""
    index = None if refused else _number(env, DEVICE_INDEX)
    return EnvLimits(
        _number(env, CONTAINER_UNITS), _number(env, DEVICE_UNITS), index, uuid, refused
    )


def _number(env: Mapping[str, str], name: str) -> int | None:
    text = env.get(name, "")
    return int(text) if _NUMBER.fullmatch(text) else None
