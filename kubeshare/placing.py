"""The placement of one SharePod in a view of the cluster. Pure."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from kubeshare.model import ClusterNode, NodeAmounts, SharePod, VirtualGpuName
from kubeshare.node_fit import node_refusal
from kubeshare.placement import (
    Demand,
    FreeGpus,
    KubeShareAlgorithm,
    VirtualGpuChoice,
    place,
)
from kubeshare.reasons import UnplacedReason
from kubeshare.virtual_gpu import VirtualGpuState, memory_of
from vgpu.placement.result import PlacementReason

_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"
_LENGTH: Final = 5


class PlacementNode(msgspec.Struct, frozen=True):
    """A node with its use.

    Attributes:
        used: what its pods and placed SharePods request.
        gpus: its virtual GPUs.
        free_gpus: number of its GPUs that no pod and no virtual GPU has.
    """

    node: ClusterNode
    used: NodeAmounts
    gpus: tuple[VirtualGpuState, ...]
    free_gpus: int


class Unplaced(msgspec.Struct, frozen=True):
    """Why no node takes a SharePod: number of nodes by reason."""

    reasons: Mapping[UnplacedReason, int]
    nodes: int

    @property
    def text(self) -> str:
        """The reasons for people, most frequent first, as kube-scheduler reports them."""
        counts = sorted(self.reasons.items(), key=lambda item: (-item[1], item[0]))
        parts = [f"{number} × {reason.explanation}" for reason, number in counts]
        return f"0 of {self.nodes} nodes take it" + (f": {'; '.join(parts)}" if parts else "")

    @property
    def cause(self) -> UnplacedReason:
        """The reason of most nodes."""
        if not self.reasons:
            return UnplacedReason.NO_GPUS
        return min(self.reasons, key=lambda reason: (-self.reasons[reason], reason))


def choose_place(
    share_pod: SharePod, nodes: Sequence[PlacementNode], algorithm: KubeShareAlgorithm
) -> VirtualGpuChoice | Unplaced:
    """Where a SharePod goes; its GPUID is None for a new virtual GPU, "" if it requests no GPU."""
    reasons: dict[str, UnplacedReason] = {}
    for view in nodes:
        refusal = _refusal(share_pod, view)
        if refusal is not None:
            reasons[view.node.name] = refusal
    fitting = [view for view in nodes if view.node.name not in reasons]
    if share_pod.request is None:
        if fitting:
            return VirtualGpuChoice(min(fitting, key=_cpu_left).node.name, "")
        return Unplaced(Counter(reasons.values()), len(nodes))
    choice = place(
        Demand(share_pod.request.request_milli, share_pod.request.memory_bytes, share_pod.locality),
        [
            gpu.candidate(memory)
            for view in fitting
            for gpu in view.gpus
            if gpu.accepts and (memory := memory_of(gpu, view.node.gpu_bytes)) is not None
        ],
        [
            FreeGpus(view.node.name, view.free_gpus, min(view.node.gpu_bytes.values()))
            for view in fitting
        ],
        algorithm,
    )
    if isinstance(choice, VirtualGpuChoice):
        return choice
    is_affinity = choice.reason is PlacementReason.AFFINITY
    last = UnplacedReason.AFFINITY if is_affinity else UnplacedReason.NO_FITTING_GPU
    return Unplaced(Counter([*reasons.values(), *([last] * len(fitting))]), len(nodes))


def _refusal(share_pod: SharePod, view: PlacementNode) -> UnplacedReason | None:
    refusal = node_refusal(view.node, share_pod.needs, view.used, share_pod.node)
    if refusal is not None or share_pod.request is None:
        return refusal
    if not view.node.allocatable.gpus:
        return UnplacedReason.NO_GPUS
    return None if view.node.gpu_bytes else UnplacedReason.UNKNOWN_SIZE


def _cpu_left(view: PlacementNode) -> tuple[int, str]:
    return view.node.allocatable.cpu_milli - view.used.cpu_milli, view.node.name


def new_gpuid(is_used: Callable[[str], bool], letter: Callable[[str], str]) -> str:
    """A GPUID of five letters that is not in use; ``letter`` chooses one of some letters."""
    while True:
        gpuid = "".join(letter(_LETTERS) for _ in range(_LENGTH))
        if not is_used(gpuid):
            return gpuid


def place_name(choice: VirtualGpuChoice, gpuid: str) -> VirtualGpuName:
    """The chosen virtual GPU; ``gpuid`` is the name of a new one."""
    return VirtualGpuName(choice.node, gpuid if choice.gpuid is None else choice.gpuid)
