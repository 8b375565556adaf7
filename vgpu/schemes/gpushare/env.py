"""The environment that gpushare's plugin writes for a container: read, and written.

The names and values are those of gpushare-device-plugin's Allocate. The numbers are in units
whose size is unknown: GiB or MiB, as the plugin's operator chose it (``-memory-unit``).
"""

import re
from collections.abc import Mapping, Sequence

import msgspec

from vgpu.model.allocation import Device
from vgpu.model.units import GIB, MIB
from vgpu.schemes.codec import VISIBLE_DEVICES
from vgpu.schemes.gpushare.node import MOST_UNITS
from vgpu.schemes.text import number

CONTAINER_UNITS = "ALIYUN_COM_GPU_MEM_CONTAINER"
POD_UNITS = "ALIYUN_COM_GPU_MEM_POD"
DEVICE_UNITS = "ALIYUN_COM_GPU_MEM_DEV"
DEVICE_INDEX = "ALIYUN_COM_GPU_MEM_IDX"
NO_ISOLATION = "CGPU_DISABLE"

_UUID = re.compile(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_POISON = re.compile(r"no-gpu-has-[0-9]{1,9}[A-Za-z]{1,8}-to-run")


class EnvLimits(msgspec.Struct, frozen=True, gc=False):
    """One container's share, as the plugin wrote it; None or "" for what it did not write.

    Attributes:
        container_units: the container's memory, in units.
        device_units: the whole GPU's memory, in units.
        index: the GPU by index.
        uuid: the GPU by UUID, as the plugin has it on nodes with a single GPU.
        refused: the plugin found no GPU, and answered with an environment in which the
            container cannot start (``no-gpu-has-8138MiB-to-run``); there is no GPU then.
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
    return number(env.get(name, ""), MOST_UNITS)


def environment(
    gpus: Sequence[Device], container_units: int, memory_unit: int, *, isolation: bool
) -> dict[str, str]:
    """The environment for a share of ``gpus``, whose index and memory are known.

    GPUs are named by UUID where it is known: the original has named them by index, which moves
    to another GPU when one falls off the bus. The pod's total is the container's, as in the
    original, since the kubelet asks for one container at a time. On several GPUs (which the
    original plugin does not serve) the totals are sums, so that a container's part of them is
    its part of each GPU.
    """
    env = {
        VISIBLE_DEVICES: ",".join(gpu.name for gpu in gpus),
        DEVICE_INDEX: ",".join(str(gpu.index) for gpu in gpus),
        POD_UNITS: str(container_units),
        CONTAINER_UNITS: str(container_units),
        DEVICE_UNITS: str(sum((gpu.memory_bytes or 0) // memory_unit for gpu in gpus)),
    }
    return env if isolation else env | {NO_ISOLATION: "true"}


def legacy_refusal(
    container_units: int, pod_units: int, device_units: int, memory_unit: int
) -> dict[str, str]:
    """The environment with which the original answers, successfully, when it finds no GPU.

    The container then fails to start, with this value of ``NVIDIA_VISIBLE_DEVICES`` in the
    runtime's message. Kept to recognize such containers; ours are refused with an error.
    """
    unit = "GiB" if memory_unit == GIB else "MiB"
    amount = pod_units if memory_unit == GIB else pod_units * memory_unit // MIB
    return {
        VISIBLE_DEVICES: f"no-gpu-has-{amount}{unit}-to-run",
        DEVICE_INDEX: "-1",
        POD_UNITS: str(pod_units),
        CONTAINER_UNITS: str(container_units),
        DEVICE_UNITS: str(device_units),
    }
