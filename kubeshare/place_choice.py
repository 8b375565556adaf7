"""The choice of a SharePod's place: which nodes take its pod, and which virtual GPU it gets. Pure.

A pod that is created with its node's name passes no scheduler, so its selector, required node
affinity, taints, cordons, readiness, CPU, memory and number of pods are checked here, as
kube-scheduler's filters decide them. Pod affinity, topology spread, host ports and volumes are not.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from kubeshare.model import (
    ClusterNode,
    NodeAmounts,
    NodeNeeds,
    NodeRequirement,
    SharePod,
    VirtualGpuName,
)
from kubeshare.placement import (
    Demand,
    FreeGpus,
    KubeShareAlgorithm,
    VirtualGpu,
    VirtualGpuChoice,
    place,
)
from kubeshare.reasons import UnplacedReason
from kubeshare.virtual_gpu import VirtualGpuState, memory_of
from vgpu.model.taints import untolerated
from vgpu.placement.result import PlacementReason

NAME_FIELD: Final = "metadata.name"
"""The only field that a node affinity can select."""


# ---------------------------------------------------------------- nodes


def node_refusal(
    node: ClusterNode, needs: NodeNeeds, used: NodeAmounts, chosen: str = ""
) -> UnplacedReason | None:
    """Why the node does not take a pod; None if it does.

    ``used`` is what its pods request already, ``chosen`` the node that the pod names, if any.
    """
    free = node.allocatable.minus(used)
    asked = needs.amounts
    checks = (
        (chosen not in ("", node.name), UnplacedReason.OTHER_NODE),
        (not node.is_ready, UnplacedReason.NODE_NOT_READY),
        (node.is_cordoned, UnplacedReason.CORDONED),
        (untolerated(needs.tolerations, node.taints) is not None, UnplacedReason.TAINT),
        (not _is_selected(node, needs), UnplacedReason.SELECTOR),
        (asked.cpu_milli > free.cpu_milli, UnplacedReason.CPU),
        (asked.memory_bytes > free.memory_bytes, UnplacedReason.MEMORY),
        (asked.pods > free.pods, UnplacedReason.PODS),
    )
    return next((reason for is_so, reason in checks if is_so), None)


def _is_selected(node: ClusterNode, needs: NodeNeeds) -> bool:
    selected = all(node.labels.get(key) == value for key, value in needs.selector.items())
    if needs.terms is None:
        return selected
    return selected and any(
        term and all(_meets(node, requirement) for requirement in term) for term in needs.terms
    )


def _meets(node: ClusterNode, requirement: NodeRequirement) -> bool:
    """Whether the node meets a requirement; one that cannot be read is met by no node."""
    if requirement.field and requirement.key != NAME_FIELD:
        return False
    texts: Mapping[str, str] = {NAME_FIELD: node.name} if requirement.field else node.labels
    test = _OPERATORS.get(requirement.operator)
    return test is not None and test(texts.get(requirement.key), requirement.values)


def _compares(text: str | None, values: tuple[str, ...], sign: int) -> bool:
    if text is None or len(values) != 1:
        return False
    try:
        return sign * (int(text) - int(values[0])) > 0
    except ValueError:
        return False


_OPERATORS: Final[Mapping[str, Callable[[str | None, tuple[str, ...]], bool]]] = {
    "In": lambda text, values: text is not None and text in values,
    "NotIn": lambda text, values: text is None or text not in values,
    "Exists": lambda text, values: text is not None and not values,
    "DoesNotExist": lambda text, values: text is None and not values,
    "Gt": lambda text, values: _compares(text, values, 1),
    "Lt": lambda text, values: _compares(text, values, -1),
}
"""Operators of a node affinity (k8s.io/component-helpers, nodeaffinity)."""


_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"
_LENGTH: Final = 5


# ---------------------------------------------------------------- places


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
    """Why no node takes a SharePod.

    Attributes:
        reasons: number of nodes by reason.
        nodes: number of nodes.
        together: the virtual GPUs of its affinity label, if it may go nowhere else.
    """

    reasons: Mapping[UnplacedReason, int]
    nodes: int
    together: tuple[VirtualGpuName, ...] = ()

    @property
    def text(self) -> str:
        """The reasons for people, most frequent first, as kube-scheduler reports them."""
        counts = sorted(self.reasons.items(), key=lambda item: (-item[1], item[0]))
        parts = [
            f"its affinity label is on virtual GPU {gpuid} of node {node or 'unknown'}"
            for node, gpuid in self.together
        ]
        parts += [f"{number} × {reason.explanation}" for reason, number in counts]
        return f"0 of {self.nodes} nodes take it" + (f": {'; '.join(parts)}" if parts else "")

    @property
    def cause(self) -> UnplacedReason:
        """The affinity label if it decides, else the reason of most nodes."""
        if self.together:
            return UnplacedReason.AFFINITY
        if not self.reasons:
            return UnplacedReason.NO_GPUS
        return min(self.reasons, key=lambda reason: (-self.reasons[reason], reason))


def choose_place(
    share_pod: SharePod,
    nodes: Sequence[PlacementNode],
    algorithm: KubeShareAlgorithm,
    lost: Iterable[VirtualGpu] = (),
) -> VirtualGpuChoice | Unplaced:
    """Where a SharePod goes; its GPUID is None for a new virtual GPU, "" if it requests no GPU.

    ``lost`` are closed virtual GPUs of no known node.
    """
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
    label = share_pod.locality.affinity
    looked_at = nodes if label else fitting  # without a label closed ones do not matter
    gpus = [
        gpu
        for view in looked_at
        for gpu in _candidates(view, is_fitting=view.node.name not in reasons)
    ]
    gpus += lost
    choice = place(
        Demand(share_pod.request.request_milli, share_pod.request.memory_bytes, share_pod.locality),
        gpus,
        [
            FreeGpus(view.node.name, view.free_gpus, min(view.node.gpu_bytes.values()))
            for view in fitting
        ],
        algorithm,
    )
    if isinstance(choice, VirtualGpuChoice):
        return choice
    if choice.reason is not PlacementReason.AFFINITY:
        full = [UnplacedReason.NO_FITTING_GPU] * len(fitting)
        return Unplaced(Counter([*reasons.values(), *full]), len(nodes))
    together = sorted(VirtualGpuName(gpu.node, gpu.gpuid) for gpu in gpus if label in gpu.affinity)
    of_label = {name.node: reasons.get(name.node) for name in together}
    why = [of_label.get(view.node.name) or UnplacedReason.AFFINITY for view in nodes]
    return Unplaced(Counter(why), len(nodes), tuple(together))


def _candidates(view: PlacementNode, *, is_fitting: bool) -> Iterator[VirtualGpu]:
    """The virtual GPUs of a node; those that take no SharePod are closed."""
    for gpu in view.gpus:
        memory = memory_of(gpu, view.node.gpu_bytes)
        is_open = is_fitting and gpu.accepts and memory is not None
        yield gpu.candidate(memory or 0, closed=not is_open)


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
