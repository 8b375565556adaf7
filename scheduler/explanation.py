"""Why a pod is pending, in sentences for people; pure.

The event and the page of ``/explain`` have the same causes: counts of nodes by reason, with the
amounts that are missing. No sentence of an event names a node.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from scheduler.refused_nodes import RefusedNodes
from vgpu.model.allocation import Request
from vgpu.model.units import count, exact_size, percentage, rounded_size
from vgpu.placement.candidate import PodDemand, UsedGpu
from vgpu.placement.node_view import CandidateView
from vgpu.placement.result import OF_QUOTA, OF_STANDING, PlacementReason, PlacementRefusal
from vgpu.quota.check import Overrun
from vgpu.quota.limits import NamespaceQuota
from vgpu.quota.resources import Amounts, amount_text


class RejectionSummary(msgspec.Struct, frozen=True):
    """Why no node takes a pod.

    Attributes:
        counts: reasons with the number of nodes, the most frequent first.
        free_bytes: memory of the GPU with the most free memory, of the nodes with too little; None
            if memory is missing nowhere.
        quota: the limit of a quota that refuses the pod, with its amounts; "" if none does.
        standing: the pods that stand in the way of this one, each with the reason.
        outranked: number of the nodes that would take the pod without pods of lower priority, as
            far as they were examined.
    """

    counts: tuple[tuple[PlacementReason, int], ...] = ()
    free_bytes: int | None = None
    outranked: int = 0
    quota: str = ""
    standing: str = ""


def summary_of(refused: RefusedNodes) -> RejectionSummary:
    """The summary of the refusals."""
    distinct = refused.distinct()
    free = [
        refusal.free_bytes
        for refusal in distinct
        if refusal.cause is PlacementReason.MEMORY and refusal.free_bytes is not None
    ]
    over_quota = (each.message for each in distinct if each.reason in OF_QUOTA)
    in_the_way = dict.fromkeys(
        text for each in distinct if each.reason in OF_STANDING for text in each.message.split("; ")
    )
    return RejectionSummary(
        refused.counts(),
        max(free, default=None),
        quota=next(over_quota, ""),
        standing=", ".join(in_the_way),
    )


def rejection_text(summary: RejectionSummary, demand: PodDemand) -> str:
    """The event of a rejected pod."""
    parts = []
    for reason, number in summary.counts:
        text = f"{count(number, 'node')}: {reason.explanation}"
        if reason is PlacementReason.MEMORY:
            text += _missing_memory(summary, demand)
        if reason in OF_QUOTA and summary.quota:
            text += f" ({summary.quota})"
        parts.append(text)
    if summary.standing:
        parts.append(f"in the way: {summary.standing}")
    if summary.outranked:
        parts.append(
            f"{count(summary.outranked, 'node')} would take the pod without pods of lower priority,"
            " which kube-scheduler does not preempt: the sums of the resources suffice there"
        )
    return "; ".join(parts) or "kube-scheduler offered no node"


def request_text(requests: Iterable[Request]) -> str:
    """What containers request, for people."""
    return ", ".join(
        f"{request.container or 'the pod'}: {count(request.count, 'GPU')}"
        f" with {_memory(request)}{_cores(request)}"
        for request in requests
    )


def node_lines(
    name: str,
    view: CandidateView | None,
    refusal: PlacementRefusal | None,
    *,
    closed: str = "",
    shares_cores: bool = True,
) -> Sequence[str]:
    """A node of the page: its answer, and its GPUs with what is free of them.

    ``closed`` is why kube-scheduler does not offer it, if that is known. A node without UUIDs has
    registered only the sum of its GPUs' memory.
    """
    if refusal is not None:
        answer = refusal.cause.explanation
    else:
        answer = f"has room, but {closed}" if closed else "takes the pod"
    if view is None:
        return (f"node {name}: {answer}",)
    detail = f" ({view.detail})" if view.detail else ""
    skipped = dict(refusal.skipped) if refusal else {}
    gpus = view.candidate.gpus
    is_average = len(gpus) > 1 and not any(gpu.device.uuid for gpu in gpus)
    lines = (
        _gpu_line(gpu, skipped.get(gpu.device.name), shares_cores, is_average=is_average)
        for gpu in gpus
    )
    return (f"node {name}: {answer}{detail}", *lines)


def quota_lines(quota: NamespaceQuota, used: Mapping[str, Amounts]) -> Iterable[str]:
    """The quota of a namespace on the page: each limit with what is used of it."""
    for limit in quota.limits:
        yield f"  {Overrun(limit, limit.of(used)).text}"
        for other in limit.contradicted_by:
            amount = amount_text(other.resource, other.amount)
            yield f"    contradicted by {amount} ({other.declared_in})"
    for unreadable in quota.unreadable:
        yield f"  {unreadable.declared_in} cannot be read: {unreadable.detail}"
    if quota.node_rule is not None:
        yield f"  {quota.node_rule.text}"
    for name in quota.left_to_kubernetes:
        yield f"  {name} is about some of the pods only: left to Kubernetes"


def _gpu_line(
    gpu: UsedGpu, reason: PlacementReason | None, shares_cores: bool, *, is_average: bool
) -> str:
    device = gpu.device
    parts = [
        f"{rounded_size(gpu.free_bytes)} of {rounded_size(gpu.capacity_bytes)} free",
        *([f"{percentage(gpu.free_milli)} of the cores free"] if shares_cores else []),
        count(gpu.users, "share") + ("" if device.slots is None else f" of {device.slots}"),
    ]
    parts += ["average size"] * is_average
    parts += ["unhealthy"] * (not device.healthy) + ["cordoned"] * gpu.cordoned
    why = f": {reason.explanation}" if reason else ""
    return f"  GPU {device.name}: {', '.join(parts)}{why}"


def _missing_memory(summary: RejectionSummary, demand: PodDemand) -> str:
    requested = max((request.memory_bytes or 0 for request in demand.requests), default=0)
    parts = []
    if requested:
        parts.append(f"{exact_size(requested)} requested")
    if summary.free_bytes is not None:
        parts.append(f"the largest free amount is {exact_size(summary.free_bytes)}")
    return f" ({', '.join(parts)})" if parts else ""


def _memory(request: Request) -> str:
    if request.memory_bytes is not None:
        return rounded_size(request.memory_bytes)
    return f"{100 if request.memory_percent is None else request.memory_percent} % of the memory"


def _cores(request: Request) -> str:
    milli = request.cores_milli
    return f" and {percentage(milli)} of the cores" if milli else ""
