"""The answer of `vgpu fit` for people, and as a document."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from vgpu.model.units import count
from vgpucli.fit.model import (
    DefragmentationPlan,
    FitAnswer,
    GpuShares,
    MovedPod,
    NodeFit,
    PlannedEviction,
)
from vgpucli.inspect.document import API_VERSION
from vgpucli.tabwriter import table

_MOST_LINES = 40
"""Maximum number of nodes that the text names; the document names all."""

_FLAG: Final = re.compile(r" \([^)]*\)$")
"""The flag of the reconciler in the explanation of one of its reasons; `vgpu fit` has none such."""


def report_lines(answer: FitAnswer, demand: str, wanted: int | None) -> Iterator[str]:
    """The lines of the text; ``demand`` is what one pod requests."""
    yield from _moved_lines(answer.moved)
    yield _summary(answer, demand, wanted)
    if answer.nodes:
        yield ""
        rows = [("NODE", "PODS", "SHARES BY GPU")]
        ordered = sorted(answer.nodes, key=lambda node: (-node.pods, node.node))
        rows += (
            (node.node, str(node.pods), ", ".join(map(_gpu, node.gpus)))
            for node in ordered[:_MOST_LINES]
        )
        yield from table(rows)
        if len(ordered) > _MOST_LINES:
            yield f"and {count(len(ordered) - _MOST_LINES, 'more node')} (-o json names all)"
    reasons = [f"{count(nodes, 'node')}: {text}" for text, nodes in _excluded(answer).items()]
    if answer.rejection:
        reasons.append(answer.rejection)
    if reasons:
        yield ""
        yield "No more pods fit:" if answer.pods else "Why no pod fits:"
        yield from (f"  {line}" for reason in reasons for line in reason.split("; "))
    if answer.plan is not None and wanted is not None:
        yield ""
        yield from _plan_lines(answer.plan, wanted)


def _summary(answer: FitAnswer, demand: str, wanted: int | None) -> str:
    if wanted is not None:
        verb = "fit" if answer.pods >= wanted else f"requested, {answer.pods} fit"
        return f"{count(wanted, 'pod')} {verb} ({demand})"
    least = "" if answer.is_all else "at least "
    fit = "fits" if answer.pods == 1 else "fit"
    return f"{least}{count(answer.pods, 'pod')} {fit} ({demand})"


def _gpu(gpu: GpuShares) -> str:
    return f"GPU {gpu.position}: {gpu.shares}"


def _excluded(answer: FitAnswer) -> dict[str, int]:
    """The number of nodes by why kube-scheduler places no pod on them."""
    return dict(Counter(each.explanation for each in answer.excluded.values()).most_common())


def _moved_lines(moved: Sequence[MovedPod]) -> Iterator[str]:
    if not moved:
        return
    homeless = [pod for pod in moved if not pod.target]
    placed = len(moved) - len(homeless)
    yield f"Of the drained nodes' {count(len(moved), 'pod')} with GPUs, {placed} fit elsewhere."
    for pod in homeless:
        yield f"  {pod.pod.namespace}/{pod.pod.name} of {pod.source} does not: {pod.refusal}"
    yield ""


def _plan_lines(plan: DefragmentationPlan, wanted: int) -> Iterator[str]:
    """The plan; nothing of it is done."""
    number = len(plan.evictions)
    if not plan.fits:
        yield f"No defragmentation plan was found after which {count(wanted, 'pod')} fit."
    elif not number:
        yield "Defragmentation plan: no eviction is needed."
        return
    else:
        yield (
            f"Defragmentation plan: after {count(number, 'eviction')} {count(wanted, 'pod')}"
            f" {'fits' if wanted == 1 else 'fit'}. Nothing was evicted."
        )
        yield ""
        rows = [("EVICT", "FROM", "OWNER", "PRIORITY", "THEN FITS ON")]
        rows += map(_eviction_row, plan.evictions)
        yield from table(rows)
        yield ""
        yield f"The wanted pods then go to {_placed(plan.nodes)}."
        if not plan.any_order:
            yield (
                "Create them before the evictions: else the pods that replace the evicted ones may"
                " take the freed GPUs."
            )
    if plan.obstacles:
        yield f"{count(plan.evictable, 'pod')} may be evicted. The others:"
        for obstacle, pods in sorted(plan.obstacles.items(), key=lambda item: -item[1]):
            yield f"  {count(pods, 'pod')}: {_FLAG.sub('', obstacle.explanation)}"
    if not plan.complete:
        yield "The search has ended at its maximum: there may be a better plan."


def _eviction_row(eviction: PlannedEviction) -> tuple[str, str, str, str, str]:
    pod, replacement = eviction.pod, eviction.replacement
    owner = f"{pod.owner.kind} {pod.owner.name}" if pod.owner else ""
    target = replacement.target or f"no node: {replacement.refusal}"
    named = f"{pod.ref.namespace}/{pod.ref.name}"
    return named, pod.node, owner, str(pod.priority), target


def _placed(nodes: Sequence[NodeFit]) -> str:
    """Nodes with their numbers of pods."""
    named = [f"{node.node} ({node.pods})" for node in nodes[:_MOST_LINES]]
    more = len(nodes) - len(named)
    return ", ".join(named) + (f" and {count(more, 'more node')}" if more else "")


# ---------------------------------------------------------------- the document


class FitGpuDocument(msgspec.Struct, frozen=True, rename="camel"):
    """A GPU with the number of shares that the pods have on it; ``uuid`` may be unknown, "".

    ``index`` is the position in the node's register.
    """

    uuid: str
    index: int
    model: str
    shares: int


class FitNodeDocument(msgspec.Struct, frozen=True, rename="camel"):
    """A node that takes pods."""

    name: str
    pods: int
    gpus: list[FitGpuDocument]


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
    reason code, ``excludedNodes`` reason codes by node. ``defragmentation`` is null unless it was
    asked for.
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
        {name: why.value for name, why in answer.excluded.items()},
        [
            MovedPodDocument(
                each.pod.namespace, each.pod.name, each.source, each.target, each.refusal
            )
            for each in answer.moved
        ],
        list(notes),
        None if answer.plan is None else _plan_document(answer.plan),
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
        FitNodeDocument(node.node, node.pods, [_gpu_document(gpu) for gpu in node.gpus])
        for node in nodes
    ]


def _gpu_document(gpu: GpuShares) -> FitGpuDocument:
    device = gpu.device
    return FitGpuDocument(device.uuid, gpu.position, device.model, gpu.shares)
