"""KubeShare 2: what a plain pod asks for in its labels, and what its annotations answer.

The scheduler, a plugin of Kubernetes' own, makes the pod again, bound to the node and with the
GPUs' UUIDs in its annotations. Up to 1.0 a pod shares one GPU; above, it has whole ones.

Names and rules: KubeShare branch release-2.0, ``pkg/scheduler/pod.go``.
"""

from collections.abc import Mapping
from typing import Final

from vgpu.model.allocation import Allocation, Claim, Device, Request, Share
from vgpu.model.names import Phase, Scheme
from vgpu.model.objects import Pod
from vgpu.model.units import WHOLE_DEVICE_MILLI, count, percent, percentage
from vgpu.schemes.codec import ClaimError
from vgpu.schemes.kubeshare.text import (
    LIMIT,
    MEMORY,
    MOST_GPUS,
    REQUEST,
    byte_count,
    is_uuid,
    parse_numbers,
    resolve,
)
from vgpu.schemes.text import object_name_of

PREFIX: Final = "sharedgpu/"
GPU_UUID: Final = PREFIX + "gpu_uuid"
MANAGER_PORT: Final = PREFIX + "gpu_manager_port"

VIRTUAL_GPU: Final = "vgpu.dev/virtual-gpu"
"""On pods that our controllers have placed: ``<node>/<GPUID>``. KubeShare 2 has no virtual GPUs."""

CLAIM: Final = (
    GPU_UUID,
    PREFIX + MEMORY,
    MANAGER_PORT,
    *(PREFIX + name for name in ("cell_id", "gpu_model")),
)
"""The annotations that the scheduler answers with."""


def requests(pod: Pod) -> tuple[Request, ...]:
    """0 ≤ request ≤ limit ≤ 1.0, or a whole number of GPUs as both; both zero is nothing.

    Without ``gpu_mem`` a pod gets the request's part of the GPU's memory, in whole percents,
    rounded up. Raises ClaimError.
    """
    object_name = object_name_of(pod.ref)
    numbers = parse_numbers(pod.labels, PREFIX, object_name)
    if not numbers.is_set:
        return ()
    if numbers.limit_milli is None:
        raise ClaimError(object_name, PREFIX + LIMIT, "", "missing beside the others")
    request, limit = numbers.request_milli or 0, numbers.limit_milli
    if request == limit == 0:
        return ()
    if request > limit:
        text = pod.labels[PREFIX + REQUEST]
        raise ClaimError(object_name, PREFIX + REQUEST, text, "above the limit")
    if limit <= WHOLE_DEVICE_MILLI:
        part = percent(request) if numbers.memory_bytes is None else None
        return (Request("", 1, numbers.memory_bytes, part, request, limit),)
    count, rest = divmod(limit, WHOLE_DEVICE_MILLI)
    if rest or request != limit or count > MOST_GPUS:
        detail = f"above 1.0 it is a whole number up to {MOST_GPUS}, and so is the request"
        raise ClaimError(object_name, PREFIX + LIMIT, pod.labels[PREFIX + LIMIT], detail)
    return (Request("", count, cores_milli=WHOLE_DEVICE_MILLI, limit_milli=WHOLE_DEVICE_MILLI),)


def claim(pod: Pod) -> Claim | None:
    """The GPUs that a pod was allocated; several are whole ones. Raises ClaimError."""
    text = pod.annotations.get(GPU_UUID, "")
    if not text:
        return None
    object_name = object_name_of(pod.ref)
    uuids = tuple(text.removesuffix(",").split(",", MOST_GPUS))
    _check(uuids, text, object_name)
    numbers = parse_numbers(pod.labels, PREFIX, object_name)
    request = numbers.request_milli or 0
    if max(request, WHOLE_DEVICE_MILLI) != len(uuids) * WHOLE_DEVICE_MILLI:
        detail = f"{count(len(uuids), 'GPU')} for a request of {percentage(request)} of one GPU"
        raise ClaimError(object_name, GPU_UUID, text, detail)
    if len(uuids) > 1:
        shares = tuple(Share(uuid, None, WHOLE_DEVICE_MILLI) for uuid in uuids)
    else:
        memory = byte_count(pod.annotations, PREFIX + MEMORY, object_name)
        shares = (Share(uuids[0], numbers.memory_bytes if memory is None else memory, request),)
    allocation = Allocation("", shares, Phase.ASSIGNED if pod.node else Phase.ASSUMED)
    return Claim(Scheme.KUBESHARE, pod.ref, pod.node, (allocation,))


def placed_on(pod: Pod) -> tuple[str, str]:
    """The node and the GPUID where our controllers have placed a pod; "" for both if nowhere.

    The user may write this annotation too, so the texts may be anything.
    """
    node, _, gpuid = pod.annotations.get(VIRTUAL_GPU, "").partition("/")
    return (node, gpuid) if node and gpuid else ("", "")


def written(
    shares: tuple[Share, ...], devices: Mapping[str, Device], object_name: str
) -> dict[str, str]:
    """The annotations for shares of GPUs; the cores are in the user's label.

    Raises ClaimError.
    """
    gpus = [resolve(share, devices, object_name, GPU_UUID) for share in shares]
    uuids = tuple(gpu.uuid for gpu in gpus)
    _check(uuids, ",".join(uuids), object_name)
    if len(shares) == 1:
        memory, text = shares[0].memory_bytes, uuids[0]
    else:
        for share in shares:
            if share.memory_bytes is not None or share.cores_milli != WHOLE_DEVICE_MILLI:
                detail = "a part of a GPU beside another GPU"
                raise ClaimError(object_name, GPU_UUID, share.device, detail)
        sizes = [gpu.memory_bytes for gpu in gpus if gpu.memory_bytes is not None]
        memory = sum(sizes) if len(sizes) == len(gpus) else None
        text = "".join(f"{uuid}," for uuid in uuids)
    if memory is None:
        raise ClaimError(object_name, PREFIX + MEMORY, "", "the memory is not known")
    return {GPU_UUID: text, PREFIX + MEMORY: str(memory)}


def _check(uuids: tuple[str, ...], text: str, object_name: str) -> None:
    if not all(map(is_uuid, uuids)) or len(set(uuids)) != len(uuids) or len(uuids) > MOST_GPUS:
        raise ClaimError(object_name, GPU_UUID, text, "not a list of different UUIDs")
