"""The values of `vgpu fit`: the answer, the defragmentation plan, and what protects pods."""

from collections.abc import Iterable, Mapping
from typing import Final, Self

import msgspec

from vgpu.kube.closed_nodes import ClosedNode, ClosedReason
from vgpu.kube.disruption import DisruptionBudget
from vgpu.kube.kinds import BUDGETS
from vgpu.kube.scheduling_objects import Unchecked
from vgpu.model.allocation import Device
from vgpu.model.names import PodRef
from vgpu.model.objects import MalformedObject, Pod
from vgpu.model.reasons import Explained

STATES: Final = "node.kubernetes.io/"
"""The beginning of the keys of taints that show the state of one node."""


class FitReason(Explained):
    """Why pods do not fit, beside the reasons of the scheduler and of kube-scheduler's checks."""

    DRAINED = "drained", "the node is drained in this question"
    MISSING_RESOURCE = "missing_resource", "no node advertises a resource that the pod requests"
    ONE_UNIT = "one_unit", "the device plugin allocates only one unit to a container there"
    UNITS_MISSING = (
        "units_missing",
        "no node has as many free units of the resource as the pod requests",
    )


_CODES: Final[Mapping[ClosedReason, str]] = {ClosedReason.CORDONED_NODE: "cordoned"}
"""The code of a reason, where that of this command is another one."""


class NodeExclusion(msgspec.Struct, frozen=True):
    """Why kube-scheduler places no pod on a node, or no more; ``detail`` is what exactly is wrong.

    ``code`` is that of the document.
    """

    code: str
    explanation: str
    detail: str = ""

    @classmethod
    def of(cls, closed: ClosedNode) -> Self:
        """From a check of kube-scheduler."""
        code = _CODES.get(closed.reason, closed.reason.value)
        return cls(code, closed.reason.explanation, closed.detail)


DRAINED: Final = NodeExclusion(FitReason.DRAINED.value, FitReason.DRAINED.explanation)


class GpuShares(msgspec.Struct, frozen=True):
    """The number of shares that the counted pods have on a GPU.

    ``position`` is that of the GPU in the node's register.
    """

    position: int
    device: Device
    shares: int


class FreeUnits(msgspec.Struct, frozen=True):
    """The units of an extended resource that are free on a node before the pods come."""

    resource: str
    free: int
    allocatable: int


class NodeFit(msgspec.Struct, frozen=True):
    """The pods that a node takes, and their shares on each GPU that has some.

    ``units`` are those of pods whose GPUs the kubelet chooses.
    """

    node: str
    pods: int
    gpus: tuple[GpuShares, ...] = ()
    units: tuple[FreeUnits, ...] = ()


class MovedPod(msgspec.Struct, frozen=True):
    """A pod of a drained node: the node that takes it, or "" and why none does."""

    pod: PodRef
    source: str
    target: str = ""
    refusal: str = ""


class EvictionObstacle(Explained):
    """Why a pod is not evicted, beside the reasons of the reconciler."""

    HIGHER_PRIORITY = "higher_priority", "the pod has a higher priority than the wanted pods"
    BUDGET = "disruption_budget", "its PodDisruptionBudget allows no disruption now"
    SEVERAL_BUDGETS = (
        "several_budgets",
        "the API server evicts no pod with several PodDisruptionBudgets",
    )
    BUDGET_UNREAD = "budget_unread", "the PodDisruptionBudgets of its namespace cannot be read"
    UNREADABLE = "unreadable", "its request or its GPUs cannot be read"


class Budgets(msgspec.Struct, frozen=True):
    """The PodDisruptionBudgets of a cluster.

    Attributes:
        budgets: the readable ones.
        labels: all labels of the pods of their namespaces, by UID.
        unread: namespaces with an unreadable one.
    """

    budgets: tuple[DisruptionBudget, ...] = ()
    labels: Mapping[str, Mapping[str, str]] = {}
    unread: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls,
        budgets: tuple[DisruptionBudget, ...],
        labels: Mapping[str, Mapping[str, str]],
        malformed: Iterable[MalformedObject],
    ) -> Self:
        """From what was read; ``malformed`` are unreadable objects of any kind."""
        unread = (each.ref.namespace for each in malformed if each.kind == BUDGETS.name)
        return cls(budgets, labels, frozenset(unread))


class PlannedEviction(msgspec.Struct, frozen=True):
    """A pod to evict, and where its replacement fits once the wanted pods are placed.

    ``budget`` are the namespace and the name of the PodDisruptionBudget that counts the eviction.
    """

    pod: Pod
    replacement: MovedPod
    budget: tuple[str, str] | None = None


class DefragmentationPlan(msgspec.Struct, frozen=True):
    """The plan.

    Attributes:
        fits: whether the wanted pods fit after the evictions; False if no plan was found.
        evictions: the least important pods first; none are needed if the pods fit already.
        nodes: where the wanted pods go after the evictions.
        any_order: whether the wanted pods also fit if the replacements are placed first.
        complete: whether the search was not ended by a maximum.
        evictable: number of pods that may be evicted.
        obstacles: number of the other pods, by why they may not.
    """

    fits: bool
    evictions: tuple[PlannedEviction, ...] = ()
    nodes: tuple[NodeFit, ...] = ()
    any_order: bool = True
    complete: bool = True
    evictable: int = 0
    obstacles: Mapping[Explained, int] = {}


class FitAnswer(msgspec.Struct, frozen=True):
    """The answer.

    Attributes:
        scheme: the sharing system of the pods.
        pods: number of pods that fit.
        is_all: whether no more fit; False where only as many were asked for, or counted.
        nodes: the nodes that take some, by name.
        rejection: why the others, or the next pod, do not fit; the text of the scheduler's event.
        refused: number of nodes by the reason code for which they take none.
        excluded: why kube-scheduler places no pod on these nodes, by name.
        limited: why nodes that take some pods take no more, as far as it is not for their GPUs.
        of_system: the nodes with GPUs of the pods' system: the others never take one.
        unchecked: what the pods have by which kube-scheduler chooses nodes, and which is not
            judged.
        moved: the pods of drained nodes.
        plan: the defragmentation plan; None if it was not asked for.
    """

    scheme: str
    pods: int
    is_all: bool
    nodes: tuple[NodeFit, ...]
    rejection: str = ""
    refused: Mapping[str, int] = {}
    excluded: Mapping[str, NodeExclusion] = {}
    limited: Mapping[str, NodeExclusion] = {}
    of_system: frozenset[str] = frozenset()
    unchecked: tuple[Unchecked, ...] = ()
    moved: tuple[MovedPod, ...] = ()
    plan: DefragmentationPlan | None = None
