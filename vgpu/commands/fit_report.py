"""The answer of `vgpu fit` for people, and as a document."""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import msgspec

from vgpu.commands.fit_answer import FitAnswer, GpuShares, MovedPod
from vgpu.commands.inspect_document import API_VERSION
from vgpu.tabwriter import align
from vgpu.units import count

_MOST_LINES = 40
"""Maximum number of nodes that the text names; the document names all."""


def report_lines(answer: FitAnswer, demand: str, wanted: int | None) -> Iterator[str]:
    """The lines of the text; ``demand`` is what one pod requests."""
    yield from _moved_lines(answer.moved)
    yield _summary(answer, demand, wanted)
    if answer.nodes:
        yield ""
        rows = ["NODE\tPODS\tSHARES BY GPU"]
        ordered = sorted(answer.nodes, key=lambda node: (-node.pods, node.node))
        rows += (
            f"{node.node}\t{node.pods}\t{', '.join(map(_gpu, node.gpus))}"
            for node in ordered[:_MOST_LINES]
        )
        yield align("\n".join(rows))
        if len(ordered) > _MOST_LINES:
            yield f"and {count(len(ordered) - _MOST_LINES, 'more node')} (-o json names all)"
    reasons = [f"{count(nodes, 'node')}: {text}" for text, nodes in _excluded(answer).items()]
    if answer.rejection:
        reasons.append(answer.rejection)
    if reasons:
        yield ""
        yield "No more pods fit:" if answer.pods else "Why no pod fits:"
        yield from (f"  {line}" for reason in reasons for line in reason.split("; "))


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


class FitDocument(msgspec.Struct, frozen=True, rename="camel"):
    """The whole document.

    ``complete`` is whether no more pods fit than ``pods``; ``refusedNodes`` are numbers of nodes by
    reason code, ``excludedNodes`` reason codes by node.
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
        [
            FitNodeDocument(node.node, node.pods, [_gpu_document(gpu) for gpu in node.gpus])
            for node in answer.nodes
        ],
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
    )


def _gpu_document(gpu: GpuShares) -> FitGpuDocument:
    device = gpu.device
    return FitGpuDocument(device.uuid, gpu.position, device.model, gpu.shares)
