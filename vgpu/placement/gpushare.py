"""gpushare's extender: whether a node can take a pod, and on which GPU the pod goes.

A pod goes to one GPU, with the sum of what its app containers ask for. Of the healthy GPUs that
have enough, the fullest is chosen; of equals, the first. Amounts are in units of any size, the
same throughout.
"""

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from vgpu.model import PodRef


class GpushareReason(StrEnum):
    """Why a node does not take a pod, in the extender's message."""

    NOT_SHARED = "The node {node} is not for GPU share, need skip"
    NO_ROOM = "Insufficient GPU Memory in one device"
    NOT_PLACED = "The node {node} can't place the pod {pod.name} in ns {pod.namespace}"


class GpushareRefusal(msgspec.Struct, frozen=True):
    """A node does not take a pod: why, and as the extender has it of this node and pod."""

    reason: GpushareReason
    message: str


class GpushareGpu(msgspec.Struct, frozen=True, gc=False):
    """A GPU of a node, by index: all of its memory, and what its pods have of it."""

    index: int
    total: int
    used: int = 0
    healthy: bool = True

    @property
    def free(self) -> int:
        """Free units; 0 where more is used than there is."""
        return max(0, self.total - self.used)


def refusal(node: str, gpus: Iterable[GpushareGpu], asked: int) -> GpushareRefusal | None:
    """The extender's filter: why the node cannot take a pod that asks for so much; None if it can.

    What matters is the free memory of single GPUs, not their sum.
    """
    gpus = tuple(gpus)
    if not any(gpu.total > 0 for gpu in gpus):
        return _refused(GpushareReason.NOT_SHARED, node=node)
    return None if _candidates(gpus, asked) else _refused(GpushareReason.NO_ROOM)


def choose(
    node: str, gpus: Iterable[GpushareGpu], asked: int, pod: PodRef
) -> GpushareGpu | GpushareRefusal:
    """The extender's bind: the GPU for the pod. A pod that asks for nothing gets none."""
    candidates = _candidates(gpus, asked)
    if asked <= 0 or not candidates:
        return _refused(GpushareReason.NOT_PLACED, node=node, pod=pod)
    return min(candidates, key=lambda gpu: (gpu.free, gpu.index))


def _candidates(gpus: Iterable[GpushareGpu], asked: int) -> list[GpushareGpu]:
    return [gpu for gpu in gpus if gpu.healthy and gpu.free >= asked]


def _refused(reason: GpushareReason, **about: str | PodRef) -> GpushareRefusal:
    return GpushareRefusal(reason, reason.format(**about))
