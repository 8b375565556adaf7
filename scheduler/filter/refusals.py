"""Why nodes refuse a pod, for kube-scheduler and in sentences for people; pure.

Nodes that answer alike share one answer, so that thousands of nodes have a few refusals.

The event and the page of ``/explain`` have the same causes: counts of nodes by reason, with the
amounts that are missing. No sentence of an event names a node.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, Self

import msgspec

from vgpu.model.allocation import Request
from vgpu.model.folding import MOST_EQUAL, folded_texts
from vgpu.model.units import count, exact_size, percentage, rounded_size
from vgpu.placement.candidate import NO_WISHES, PodDemand, UsedGpu
from vgpu.placement.dialects import SchedulerScheme
from vgpu.placement.node_view import CandidateView
from vgpu.placement.result import (
    EXCLUDING,
    OF_QUOTA,
    OF_STANDING,
    UNRESOLVABLE,
    PlacementReason,
    PlacementRefusal,
)
from vgpu.quota.check import Overrun
from vgpu.quota.limits import NamespaceQuota
from vgpu.quota.resources import Amounts, amount_text

_ORDER: Final = {reason: number for number, reason in enumerate(PlacementReason)}

_NEVER: Final = frozenset({PlacementReason.NO_GPUS, PlacementReason.UNKNOWN_NODE})

NodeTexts = Mapping[str, str] | msgspec.Raw
"""Texts by the name of the node; Raw is that in JSON."""


class NodeAnswer(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Whether a node takes a demand. An answer is equal to itself only, so that it is hashed fast.

    Attributes:
        refusal: its cause and the free memory, without the node's GPUs, and the pods that stand in
            the way; None if it takes it.
        score: how well the node suits the pod, from 0 to 1; 0 with a refusal.
    """

    refusal: PlacementRefusal | None = None
    score: float = 0.0

    @classmethod
    def refused(cls, refusal: PlacementRefusal) -> Self:
        """The answer of a node that refuses."""
        cause = refusal.cause
        message = refusal.message if cause in OF_STANDING else cause.explanation
        return cls(PlacementRefusal(cause, message, free_bytes=refusal.free_bytes))


UNKNOWN: Final = NodeAnswer(PlacementRefusal.of(PlacementReason.UNKNOWN_NODE))
"""The answer of a node of which nothing is known."""


def answer_text(refusal: PlacementRefusal) -> str:
    """The text of a node's answer: its cause, and the pods that stand in the way."""
    cause = refusal.cause
    return refusal.text if cause in OF_STANDING else cause.explanation


class RefusedNodes:
    """The refusals of nodes. Each question looks at a shared refusal only once."""

    def __init__(
        self,
        names: Sequence[str] = (),
        answers: Sequence[NodeAnswer] = (),
        distinct: AbstractSet[NodeAnswer] | None = None,
    ) -> None:
        """Each of the answers is a refusal, by the node whose name is at the same place.

        ``distinct`` has each of the answers once, if that is known.
        """
        self.names = names
        self._answers = answers
        self._refusals: Mapping[NodeAnswer, PlacementRefusal] = {
            answer: answer.refusal
            for answer in (set(answers) if distinct is None else distinct)
            if answer.refusal is not None
        }

    @classmethod
    def of(cls, by_name: Mapping[str, PlacementRefusal]) -> Self:
        """From refusals by the name of the node."""
        return cls(tuple(by_name), tuple(map(NodeAnswer, by_name.values())))

    @classmethod
    def alike(cls, names: Sequence[str], refusal: PlacementRefusal) -> Self:
        """Every node refuses for the same reason."""
        return cls(names, (NodeAnswer(refusal),) * len(names))

    @classmethod
    def for_one_cause(cls, names: Sequence[str], distinct: AbstractSet[NodeAnswer]) -> Self:
        """Every node refuses by one of these answers, which have one cause.

        Whose answer is which is not known: they differ in the free memory only.
        """
        return cls(names, (next(iter(distinct)),) * len(names), distinct)

    def and_also(self, by_name: Mapping[str, PlacementRefusal]) -> Self:
        """These refusals, and those of further nodes."""
        answers = (*self._answers, *map(NodeAnswer, by_name.values()))
        return type(self)((*self.names, *by_name), answers) if by_name else self

    def of_quota(self) -> Mapping[str, PlacementRefusal]:
        """The refusals by the quota of the pod's namespace, by node."""
        refusals = zip(self.names, map(self._refusals.__getitem__, self._answers), strict=True)
        return {name: refusal for name, refusal in refusals if refusal.reason in OF_QUOTA}

    def distinct(self) -> Iterable[PlacementRefusal]:
        """Each refusal once."""
        return self._refusals.values()

    def counts(self) -> tuple[tuple[PlacementReason, int], ...]:
        """The causes with the number of their nodes, the most frequent first.

        Causes that are equally frequent are in the order of the enum. Nodes that the pod's own
        annotations exclude come after those that it could use, and last come unknown ones and those
        without a GPU of the pod's system.
        """
        only = self.only_cause()
        if only is not None:
            return ((only, len(self.names)),)
        counts: Counter[PlacementReason] = Counter()
        for answer, nodes in Counter(self._answers).items():
            counts[self._refusals[answer].cause] += nodes
        return tuple(
            sorted(
                counts.items(),
                key=lambda item: (
                    item[0] in _NEVER,
                    item[0] in EXCLUDING,
                    -item[1],
                    _ORDER[item[0]],
                ),
            )
        )

    def most_frequent(self) -> PlacementReason | None:
        """The first of the counts: the cause of most nodes; None without nodes."""
        return next((cause for cause, _ in self.counts()), None)

    def only_cause(self) -> PlacementReason | None:
        """The cause of all nodes; None if there are several, or no nodes.

        Nearly always there is one: every node has too little of the same.
        """
        causes = {refusal.cause for refusal in self._refusals.values()}
        return causes.pop() if len(causes) == 1 else None

    def resolvable(self) -> Iterator[str]:
        """Names of the nodes whose answer other pods may change."""
        lasting = self._lasting()
        for name, answer in zip(self.names, self._answers, strict=True):
            if answer not in lasting:
                yield name

    def texts(self, each: Callable[[str], NodeTexts] | None = None) -> tuple[NodeTexts, NodeTexts]:
        """The causes by node: those that other pods may change, and those that they do not.

        ``each`` makes one text for all of these nodes.
        """
        only = self.only_cause()
        if only is not None and only not in OF_STANDING:
            text = only.explanation
            alike = dict.fromkeys(self.names, text) if each is None else each(text)
            return ({}, alike) if only in UNRESOLVABLE else (alike, {})
        explained = {answer: answer_text(it) for answer, it in self._refusals.items()}
        texts = dict(zip(self.names, map(explained.__getitem__, self._answers), strict=True))
        lasting = self._lasting()
        if not lasting:  # nearly always
            return texts, {}
        if len(lasting) == len(explained):
            return {}, texts
        failed = {name: texts[name] for name in self.resolvable()}
        return failed, {name: text for name, text in texts.items() if name not in failed}

    def _lasting(self) -> set[NodeAnswer]:
        return {answer for answer, each in self._refusals.items() if each.cause in UNRESOLVABLE}


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
        largest_bytes: memory of the largest GPU that the pod could have, whatever is free; None if
            that was not looked at.
    """

    counts: tuple[tuple[PlacementReason, int], ...] = ()
    free_bytes: int | None = None
    outranked: int = 0
    quota: str = ""
    standing: str = ""
    largest_bytes: int | None = None


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
    standing: Iterable[str] = in_the_way
    if len(in_the_way) > MOST_EQUAL:
        standing = folded_texts((text.partition(": ")[0], text) for text in in_the_way)
    return RejectionSummary(
        refused.counts(),
        max(free, default=None),
        quota=next(over_quota, ""),
        standing=", ".join(standing),
    )


def largest_share(scheme: SchedulerScheme, demand: PodDemand) -> tuple[int, str]:
    """The most memory that the pod requests of one GPU, in bytes, and as text; 0 is none.

    A sharing system may place the sum of several containers on one GPU.
    """
    placed = scheme.dialect.requests(demand)
    of_container = max((each.memory_bytes or 0 for each in demand.requests), default=0)
    most = max((each.memory_bytes or 0 for each in placed), default=0)
    if most > of_container:
        return most, f"{exact_size(most)} in one GPU requested"
    shares = sum(each.count for each in placed if each.memory_bytes)
    if shares > 1:
        up_to = "" if len({each.memory_bytes for each in placed}) == 1 else "up to "
        return of_container, f"{shares} shares of {up_to}{exact_size(of_container)} requested"
    return of_container, f"{exact_size(of_container)} requested"


def largest_gpu(
    scheme: SchedulerScheme, demand: PodDemand, views: Iterable[CandidateView | None]
) -> int | None:
    """Memory of the largest GPU that the pod's annotations do not exclude; None without one."""
    sizes = (
        gpu.capacity_bytes
        for view in views
        for gpu in (() if view is None else view.candidate.gpus)
        if demand.wishes is NO_WISHES or scheme.dialect.exclusion(gpu, demand.wishes) is None
    )
    return max(sizes, default=None) or None


def rejection_text(summary: RejectionSummary, scheme: SchedulerScheme, demand: PodDemand) -> str:
    """The event of a rejected pod."""
    parts = []
    for reason, number in summary.counts:
        text = f"{count(number, 'node')}: {reason.explanation}"
        if reason is PlacementReason.MEMORY:
            text += _missing_memory(summary, scheme, demand)
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
        f"{request.container or 'the pod'}: {count(request.count, 'GPU')} with {_amounts(request)}"
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


def _missing_memory(summary: RejectionSummary, scheme: SchedulerScheme, demand: PodDemand) -> str:
    requested, text = largest_share(scheme, demand)
    parts = [text] if requested else []
    if summary.largest_bytes is not None and requested > summary.largest_bytes:
        parts.append(f"the largest GPU has {exact_size(summary.largest_bytes)}")
    elif summary.free_bytes is not None:
        parts.append(f"the largest free amount is {exact_size(summary.free_bytes)}")
    return f" ({', '.join(parts)})" if parts else ""


def _amounts(request: Request) -> str:
    if request.has_unknown_amounts:
        return "unknown memory and cores"
    return f"{_memory(request)}{_cores(request)}"


def _memory(request: Request) -> str:
    if request.memory_bytes is not None:
        return rounded_size(request.memory_bytes)
    return f"{100 if request.memory_percent is None else request.memory_percent} % of the memory"


def _cores(request: Request) -> str:
    milli = request.cores_milli
    return f" and {percentage(milli)} of the cores" if milli else ""
