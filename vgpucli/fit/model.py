"""The values of `vgpu fit`: the answer, the defragmentation plan, and what protects pods."""

from collections.abc import Iterable, Mapping
from typing import Self

import msgspec

from vgpu.kube.disruption import DisruptionBudget
from vgpu.kube.kinds import BUDGETS
from vgpu.model.allocation import Device
from vgpu.model.names import PodRef
from vgpu.model.objects import MalformedObject, Pod
from vgpu.model.reasons import Explained


class NodeExclusion(Explained):
    """Why kube-scheduler places no pod on a node, whatever its GPUs are."""

    NOT_READY = "not_ready", "the node is not ready"
    CORDONED = "cordoned", "the node is cordoned"
    DRAINED = "drained", "the node is drained in this question"


class GpuShares(msgspec.Struct, frozen=True):
    """The number of shares that the counted pods have on a GPU.

    ``position`` is that of the GPU in the node's register.
    """

    position: int
    device: Device
    shares: int


class NodeFit(msgspec.Struct, frozen=True):
    """The pods that a node takes, and their shares on each GPU that has some."""

    node: str
    pods: int
    gpus: tuple[GpuShares, ...]


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
    moved: tuple[MovedPod, ...] = ()
    plan: DefragmentationPlan | None = None
