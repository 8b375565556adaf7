"""The choice of a virtual GPU for a pod by KubeShare's scheduler.

The default is the algorithm of the paper (Yeh, Chen, Chou: KubeShare, HPDC'20, algorithm 1);
:class:`KubeShareAlgorithm` names KubeShare 1's own code too, which differs.
"""

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final

import msgspec

from vgpu.model.units import WHOLE_DEVICE_MILLI
from vgpu.placement.result import PlacementReason, PlacementRefusal
from vgpu.schemes.kubeshare.sharepod import Locality


class KubeShareAlgorithm(Enum):
    """The author of the algorithm."""

    PAPER = "paper"
    KUBESHARE_1 = "kubeshare-1"


class Demand(msgspec.Struct, frozen=True):
    """The request of a pod."""

    request_milli: int
    memory_bytes: int
    locality: Locality = Locality()


class VirtualGpu(msgspec.Struct, frozen=True):
    """A virtual GPU, with what is free of it and the labels of the pods on it.

    Attributes:
        node: the node of its GPU.
        gpuid: its name.
        free_milli: thousandths that no pod requests.
        free_bytes: memory in bytes that no pod requests.
        affinity, anti_affinity, exclusion: its pods' labels.
        idle: whether no pod is on it (a holder that is kept in reserve).
        closed: whether it takes no pod, whatever its labels and its room: its node does not take
            the pod, or its GPU is lost. Its labels count nevertheless.
    """

    node: str
    gpuid: str
    free_milli: int
    free_bytes: int
    affinity: frozenset[str] = frozenset()
    anti_affinity: frozenset[str] = frozenset()
    exclusion: frozenset[str] = frozenset()
    idle: bool = False
    closed: bool = False


def occupied(
    node: str, gpuid: str, memory_bytes: int, pods: Iterable[Demand], *, closed: bool = False
) -> VirtualGpu:
    """The virtual GPU on a GPU of so much memory that these pods leave."""
    pods = tuple(pods)
    wishes = [pod.locality for pod in pods]
    return VirtualGpu(
        node,
        gpuid,
        WHOLE_DEVICE_MILLI - sum(pod.request_milli for pod in pods),
        memory_bytes - sum(pod.memory_bytes for pod in pods),
        frozenset(wish.affinity for wish in wishes) - {""},
        frozenset(wish.anti_affinity for wish in wishes) - {""},
        frozenset(wish.exclusion for wish in wishes) - {""},
        idle=not pods,
        closed=closed,
    )


class FreeGpus(msgspec.Struct, frozen=True):
    """GPUs of a node that no virtual GPU and no plain pod has, all of ``memory_bytes``."""

    node: str
    count: int
    memory_bytes: int


class VirtualGpuChoice(msgspec.Struct, frozen=True):
    """The placement of a pod; ``gpuid`` is None for a virtual GPU that is to be made."""

    node: str
    gpuid: str | None


_MESSAGES: Final[Mapping[PlacementReason, str]] = {
    PlacementReason.NO_FITTING_GPU: "No enough resources for SharePod",
    PlacementReason.AFFINITY: PlacementReason.AFFINITY.explanation,
}
"""Why the pod has to wait, in KubeShare's message where it has one."""


def place(
    demand: Demand,
    virtual: Iterable[VirtualGpu],
    free: Iterable[FreeGpus],
    policy: KubeShareAlgorithm = KubeShareAlgorithm.PAPER,
) -> VirtualGpuChoice | PlacementRefusal:
    """The placement of a pod. Ties go to the first node, then the first GPUID, by name.

    ``free`` are of nodes where the pod fits otherwise (processors, memory, taints); the virtual
    GPUs of other nodes are closed. By the paper the pods of one affinity label are on one GPU:

        a virtual GPU of the label exists, closed or not ⇒ the pod goes there, or waits
    """
    gpus = sorted(virtual, key=lambda gpu: (gpu.node, gpu.gpuid))
    nodes = sorted((node for node in free if node.count > 0), key=lambda node: node.node)
    if policy is KubeShareAlgorithm.PAPER:
        return _place_by_paper(demand, gpus, nodes)
    return _place_by_kubeshare_1(demand, gpus, nodes)


def _place_by_paper(
    demand: Demand, gpus: list[VirtualGpu], nodes: list[FreeGpus]
) -> VirtualGpuChoice | PlacementRefusal:
    label = demand.locality.affinity
    together = [gpu for gpu in gpus if label and label in gpu.affinity]
    if together:
        fitting = [gpu for gpu in together if _may_join(demand, gpu)]
        return _on(max(fitting, key=_room)) if fitting else _refused(PlacementReason.AFFINITY)
    fitting = [gpu for gpu in gpus if _may_join(demand, gpu)]
    if not label:  # the first of its label starts on a GPU of its own
        shared = [gpu for gpu in fitting if not gpu.idle]
        plain = [gpu for gpu in shared if not gpu.affinity]
        if plain:
            return _on(min(plain, key=_room))
        if shared:
            return _on(max(shared, key=_room))
    idle = [gpu for gpu in fitting if gpu.idle]
    return _on(idle[0]) if idle else _new(demand, nodes)


def _place_by_kubeshare_1(
    demand: Demand, gpus: list[VirtualGpu], nodes: list[FreeGpus]
) -> VirtualGpuChoice | PlacementRefusal:
    """Filters, then the least room that is left, over all nodes.

    A pod goes to a virtual GPU of its label or, if none takes it, to an idle or a new one (README
    of release 1). A new one counts only on nodes where none that is there fits, and its GPU's
    memory is not asked. The exclusion filter is as it was
    meant: upstream it overlooks those that come after the first virtual GPU without label.
    """
    label = demand.locality.affinity
    fitting = [
        gpu
        for gpu in gpus
        if _may_join(demand, gpu) and (not label or gpu.idle or label in gpu.affinity)
    ]
    taken = {gpu.node for gpu in fitting}
    scores = [(gpu.free_milli - demand.request_milli, gpu.node, gpu.gpuid) for gpu in fitting]
    scores += [
        (WHOLE_DEVICE_MILLI - demand.request_milli, node.node, "")
        for node in nodes
        if node.node not in taken
    ]
    if not scores:
        return _refused(PlacementReason.NO_FITTING_GPU)
    _, name, gpuid = min(scores)
    return VirtualGpuChoice(name, gpuid or None)


def _may_join(demand: Demand, gpu: VirtualGpu) -> bool:
    """Whether it is open and has room for the pod, and neither it nor the pods there mind."""
    wish = demand.locality
    return (
        not gpu.closed
        and gpu.free_milli >= demand.request_milli
        and gpu.free_bytes >= demand.memory_bytes
        and (not wish.anti_affinity or wish.anti_affinity not in gpu.anti_affinity)
        and (gpu.idle or gpu.exclusion == ({wish.exclusion} if wish.exclusion else frozenset()))
    )


def _room(gpu: VirtualGpu) -> int:
    return gpu.free_milli


def _refused(reason: PlacementReason) -> PlacementRefusal:
    return PlacementRefusal(reason, _MESSAGES[reason])


def _on(gpu: VirtualGpu) -> VirtualGpuChoice:
    return VirtualGpuChoice(gpu.node, gpu.gpuid)


def _new(demand: Demand, nodes: list[FreeGpus]) -> VirtualGpuChoice | PlacementRefusal:
    """A new virtual GPU on the first node that has a GPU of enough memory."""
    large = (node for node in nodes if node.memory_bytes >= demand.memory_bytes)
    node = next(large, None)
    return (
        _refused(PlacementReason.NO_FITTING_GPU)
        if node is None
        else VirtualGpuChoice(node.node, None)
    )
