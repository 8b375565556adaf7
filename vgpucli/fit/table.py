"""The answer of `vgpu fit` for people."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from vgpu.kube.closed_nodes import ClosedReason
from vgpu.model.units import count, count_more
from vgpucli.fit.model import (
    STATES,
    DefragmentationPlan,
    FitAnswer,
    FreeUnits,
    GpuShares,
    MovedPod,
    NodeExclusion,
    NodeFit,
    PlannedEviction,
)
from vgpucli.tabwriter import table

_MOST_LINES = 40
"""Maximum number of nodes that the text names; the document names all."""

_MOST_NAMED: Final = 5
"""Maximum number of nodes that a note names."""

_FLAG: Final = re.compile(r" \([^)]*\)$")
"""The flag of the reconciler in the explanation of one of its reasons; `vgpu fit` has none such."""


def table_lines(answer: FitAnswer, demand: str, wanted: int | None) -> Iterator[str]:
    """The lines of the text; ``demand`` is what one pod requests."""
    yield from _moved_lines(answer.moved)
    yield _summary(answer, demand, wanted)
    if answer.nodes:
        yield ""
        by_units = any(node.units for node in answer.nodes)
        rows = [("NODE", "PODS", "FREE UNITS" if by_units else "SHARES BY GPU")]
        ordered = sorted(answer.nodes, key=lambda node: (-node.pods, node.node))
        rows += (
            (node.node, str(node.pods), ", ".join((*map(_gpu, node.gpus), *map(_free, node.units))))
            for node in ordered[:_MOST_LINES]
        )
        yield from table(rows)
        if len(ordered) > _MOST_LINES:
            yield f"and {count_more(len(ordered) - _MOST_LINES, 'node')} (-o json names all)"
    reasons = [*_exclusions(answer)]
    if answer.rejection:
        reasons.append(answer.rejection)
    if reasons:
        yield ""
        yield "No more pods fit:" if answer.pods else "Why no pod fits:"
        yield from (f"  {line}" for reason in reasons for line in reason.split("; "))
    if answer.unchecked:
        yield ""
        yield f"Not checked: {'; '.join(each.text for each in answer.unchecked)}"
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


def _free(units: FreeUnits) -> str:
    return f"{units.free} of {units.allocatable} {units.resource}"


def _exclusions(answer: FitAnswer) -> Iterator[str]:
    """Why kube-scheduler places no pod on nodes with GPUs of the system, or no more."""
    excluded = {name: why for name, why in answer.excluded.items() if name in answer.of_system}
    yield from _by_reason(excluded, "")
    yield from _by_reason(answer.limited, "then ")


def tolerations_note(answer: FitAnswer) -> Iterator[str]:
    """That nodes with GPUs of the pods' system are closed by taints, and how to count them."""
    taints: dict[str, list[str]] = {}
    for name, why in sorted(answer.excluded.items()):
        is_state = why.detail.startswith(STATES)
        if why.code == ClosedReason.TAINTED_NODE and name in answer.of_system and not is_state:
            taints.setdefault(why.detail, []).append(name)
    for taint, names in taints.items():
        key, _, effect = taint.rpartition(":")
        shown = ", ".join(names[:_MOST_NAMED])
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        verb = "has" if len(names) == 1 else "have"
        yield (
            f"{shown}{more} {verb} the taint {taint}, which the pods do not tolerate:"
            f" --toleration {key.partition('=')[0]}:{effect} counts what fits there (Kubernetes'"
            " admission plugin ExtendedResourceToleration adds the toleration of a requested"
            " resource's name by itself)"
        )


def _by_reason(nodes: Mapping[str, NodeExclusion], prefix: str) -> Iterator[str]:
    """The number of nodes by reason, each with the detail that all have, or with that of one.

    Each taint is a reason of its own.
    """
    by_reason: dict[tuple[str, str], dict[str, str]] = {}
    for name, why in nodes.items():
        taint = why.detail if why.code == ClosedReason.TAINTED_NODE else ""
        by_reason.setdefault((why.explanation, taint), {})[name] = why.detail
    for (explanation, _), details in sorted(by_reason.items(), key=lambda each: -len(each[1])):
        name, detail = min(details.items())
        where = f"{name}: " if len(set(details.values())) > 1 else ""
        shown = f" ({where}{detail})" if detail else ""
        yield f"{count(len(details), 'node')}: {prefix}{explanation}{shown}"


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
    return ", ".join(named) + (f" and {count_more(more, 'node')}" if more else "")
