"""The answer of `vgpu fit` as a document with stable fields; docs/fit.md describes it."""

from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from vgpucli.fit.model import (
    DefragmentationPlan,
    FitAnswer,
    GpuShares,
    NodeFit,
    PlannedEviction,
)
from vgpucli.inspect.document import API_VERSION


class FitGpuDocument(msgspec.Struct, frozen=True, rename="camel"):
    """A GPU with the number of shares that the pods have on it; ``uuid`` may be unknown, "".

    ``index`` is the position in the node's register.
    """

    uuid: str
    index: int
    model: str
    shares: int


class FitUnitsDocument(msgspec.Struct, frozen=True, rename="camel"):
    """The units of an extended resource that are free on a node before the pods come."""

    resource: str
    free: int
    allocatable: int


class FitNodeDocument(msgspec.Struct, frozen=True, rename="camel"):
    """A node that takes pods; ``units`` are those of pods whose GPUs the kubelet chooses."""

    name: str
    pods: int
    gpus: list[FitGpuDocument]
    units: list[FitUnitsDocument] = []


class MovedPodDocument(msgspec.Struct, frozen=True, rename="camel"):
    """A pod of a drained node; ``target`` is "" if no node takes it."""

    namespace: str
    name: str
    source: str
    target: str
    refusal: str


class EvictionDocument(msgspec.Struct, frozen=True, rename="camel"):
    """A planned eviction.

    ``budget`` is the name of the PodDisruptionBudget that counts it, "" if there is none.
    ``target`` is the node on which the pod's replacement fits beside the wanted pods, "" if there
    is none: then ``refusal`` is why.
    """

    namespace: str
    name: str
    uid: str
    node: str
    owner_kind: str
    owner_name: str
    priority: int
    budget: str
    target: str
    refusal: str


class DefragmentationDocument(msgspec.Struct, frozen=True, rename="camel"):
    """The defragmentation plan.

    ``fits`` is whether a plan was found. ``nodes`` are those of the wanted pods after the
    evictions. ``anyOrder`` is whether the wanted pods fit, too, if the replacements of the evicted
    pods are placed before them. ``complete`` is whether the search has not ended at a maximum.
    ``obstacles`` are numbers of pods that may not be evicted, by reason code.
    """

    fits: bool
    evictions: list[EvictionDocument]
    nodes: list[FitNodeDocument]
    any_order: bool
    complete: bool
    evictable: int
    obstacles: dict[str, int]


class FitDocument(msgspec.Struct, frozen=True, rename="camel"):
    """The whole document.

    ``complete`` is whether no more pods fit than ``pods``; ``refusedNodes`` are numbers of nodes by
    reason code, ``excludedNodes`` reason codes by node, and ``limitedNodes`` likewise of nodes that
    take some pods and no more for another reason than their GPUs. ``notChecked`` has what the pods
    have by which kube-scheduler chooses nodes, and which is not judged: texts by code.
    ``excludedDetails`` is what a reason of ``excludedNodes`` does not say, such as the taint.
    ``defragmentation`` is null unless it was asked for.
    """

    api_version: str
    kind: str
    as_of: datetime
    scheme: str
    demand: str
    wanted: int | None
    pods: int
    complete: bool
    nodes: list[FitNodeDocument]
    rejection: str
    refused_nodes: dict[str, int]
    excluded_nodes: dict[str, str]
    moved: list[MovedPodDocument]
    notes: list[str]
    defragmentation: DefragmentationDocument | None = None
    limited_nodes: dict[str, str] = {}
    not_checked: dict[str, str] = {}
    excluded_details: dict[str, str] = {}


def fit_document(
    answer: FitAnswer, demand: str, wanted: int | None, as_of: float, notes: Sequence[str]
) -> FitDocument:
    """The document; ``as_of`` is in unix seconds."""
    return FitDocument(
        API_VERSION,
        "Fit",
        datetime.fromtimestamp(as_of, UTC),
        answer.scheme,
        demand,
        wanted,
        answer.pods,
        answer.is_all,
        _node_documents(answer.nodes),
        answer.rejection,
        dict(answer.refused),
        {name: why.code for name, why in answer.excluded.items()},
        [
            MovedPodDocument(
                each.pod.namespace, each.pod.name, each.source, each.target, each.refusal
            )
            for each in answer.moved
        ],
        list(notes),
        None if answer.plan is None else _plan_document(answer.plan),
        {name: why.code for name, why in answer.limited.items()},
        {each.part.value: each.text for each in answer.unchecked},
        {name: why.detail for name, why in answer.excluded.items() if why.detail},
    )


def _plan_document(plan: DefragmentationPlan) -> DefragmentationDocument:
    return DefragmentationDocument(
        plan.fits,
        [_eviction_document(each) for each in plan.evictions],
        _node_documents(plan.nodes),
        plan.any_order,
        plan.complete,
        plan.evictable,
        {obstacle.value: pods for obstacle, pods in plan.obstacles.items()},
    )


def _eviction_document(eviction: PlannedEviction) -> EvictionDocument:
    pod, replacement = eviction.pod, eviction.replacement
    return EvictionDocument(
        pod.ref.namespace,
        pod.ref.name,
        pod.ref.uid,
        pod.node,
        pod.owner.kind if pod.owner else "",
        pod.owner.name if pod.owner else "",
        pod.priority,
        eviction.budget[1] if eviction.budget else "",
        replacement.target,
        replacement.refusal,
    )


def _node_documents(nodes: Sequence[NodeFit]) -> list[FitNodeDocument]:
    return [
        FitNodeDocument(
            node.node,
            node.pods,
            [_gpu_document(gpu) for gpu in node.gpus],
            [FitUnitsDocument(*msgspec.structs.astuple(each)) for each in node.units],
        )
        for node in nodes
    ]


def _gpu_document(gpu: GpuShares) -> FitGpuDocument:
    device = gpu.device
    return FitGpuDocument(device.uuid, gpu.position, device.model, gpu.shares)
