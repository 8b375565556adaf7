"""The older plugin volcano-sh/devices: memory of one GPU, or whole GPUs, by index.

It has its own resources and annotations, and is still in use. It is read only: claims are written
in the newer form. The formats are those of volcano's scheduler (``devices/nvidia/gpushare``) and of
volcano-sh/devices, which counts GPUs by NVML's index (``pkg/plugin/nvidia/utils.go``).
"""

from typing import Final

from vgpu.model.allocation import Allocation, Claim, Device, Request, Share
from vgpu.model.names import ContainerKind, Phase, Scheme
from vgpu.model.objects import Container, Node, Pod
from vgpu.model.units import WHOLE_DEVICE_MILLI, count
from vgpu.schemes.codec import ClaimError, remark
from vgpu.schemes.text import number, object_name_of, seconds
from vgpu.schemes.volcano.text import MOST

MEMORY: Final = "volcano.sh/gpu-memory"
NUMBER: Final = "volcano.sh/gpu-number"

INDEX: Final = "volcano.sh/gpu-index"
ASSIGNED: Final = "volcano.sh/gpu-assigned"
TIME: Final = "volcano.sh/predicate-time"
CLAIM: Final = (INDEX, ASSIGNED, TIME)
"""The pod annotations that a claim is made of."""

UNHEALTHY: Final = "volcano.sh/gpu-unhealthy-ids"

_MOST_GPUS = 1024
_NEVER = str(2**64 - 1)


def request(container: Container, memory: int | None, number: int | None, unit: int) -> Request:
    """What a container requests: memory of one GPU, or else ``number`` whole GPUs."""
    if memory:
        return Request(container.name, 1, memory_bytes=memory * unit, kind=container.kind)
    return Request(container.name, number or 0, cores_milli=WHOLE_DEVICE_MILLI, kind=container.kind)


def claim(pod: Pod, requests: tuple[Request, ...]) -> Claim | None:
    """The claim in the annotations, with the amounts from ``requests``; None without a GPU.

    Memory is of the pod's one GPU; whole GPUs belong to the containers in their order. Init
    containers use their pod's GPUs before the others do. Raises ClaimError.
    """
    text = pod.annotations.get(INDEX)
    if text is None:
        return None
    gpus = _indices(text, object_name_of(pod), INDEX)
    phase = Phase.ASSIGNED if pod.annotations.get(ASSIGNED) == "true" else Phase.ASSUMED
    allocations, taken = [], 0
    for request in requests:
        if request.kind is not ContainerKind.INIT:
            whole = request.memory_bytes is None
            indices = gpus[taken : taken + request.count] if whole else gpus[:1]
            taken += request.count if whole else 0
            if len(indices) != request.count:
                detail = f"not the {count(request.count, 'GPU')} that {request.container} asks for"
                raise ClaimError(object_name_of(pod), INDEX, text, detail)
            cores = request.cores_milli if whole else None
            shares = tuple(Share(str(gpu), request.memory_bytes, cores) for gpu in indices)
            allocations.append(Allocation(request.container, shares, phase))
    if not allocations:
        raise ClaimError(object_name_of(pod), INDEX, text, f"no container asks for {MEMORY}")
    time = pod.annotations.get(TIME, _NEVER)
    assumed_at = seconds(time)
    is_time = assumed_at is not None or time == _NEVER
    return Claim(
        scheme=Scheme.VOLCANO,
        pod=pod.ref,
        node="",
        allocations=tuple(allocations),
        assumed_at=assumed_at,
        remarks=() if is_time else (remark(TIME, "not a time", time),),
    )


def devices(node: Node, unit: int) -> tuple[Device, ...]:
    """The GPUs by index, all of the average size. Raises ClaimError."""
    object_name = f"node {node.name}"
    count, memory = node.capacity.get(NUMBER, 0), node.capacity.get(MEMORY, 0)
    if not 0 <= count <= _MOST_GPUS or not 0 <= memory <= MOST:
        raise ClaimError(object_name, NUMBER, str(count), f"GPUs with {memory} of {MEMORY}")
    text = node.annotations.get(UNHEALTHY, "").removesuffix(",")
    unhealthy = _indices(text, object_name, UNHEALTHY) if text else []
    return tuple(
        Device(index=index, memory_bytes=memory // count * unit, healthy=index not in unhealthy)
        for index in range(count)
    )


def _indices(text: str, object_name: str, key: str) -> list[int]:
    """GPU indices joined by commas; a bad one is never GPU 0. Raises ClaimError."""
    fields = text.split(",", _MOST_GPUS)
    indices = [index for field in fields if (index := number(field, _MOST_GPUS)) is not None]
    if len(indices) < len(fields) or len(fields) > _MOST_GPUS:
        raise ClaimError(object_name, key, text, "not indices of GPUs")
    return indices
