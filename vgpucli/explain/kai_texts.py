"""The texts with which KAI Scheduler refuses a pod, and what each means. Pure.

Its scheduler writes a code and a message on the PodGroup, and the message on the pod's condition
``PodScheduled``; its binder writes on the BindRequest and on the pod's condition ``PodBound``
(kai-scheduler/KAI-Scheduler v0.17: ``pkg/scheduler/api/unschedule_info.go``,
``pkg/scheduler/api/common_info/{pod_errors,job_errors}.go``,
``pkg/scheduler/plugins/predicates/predicates.go``, ``pkg/scheduler/actions/common/allocate.go``,
``pkg/scheduler/actions/utils/input_jobs.go``, ``pkg/scheduler/cache/cluster_info``,
``pkg/binder/binding/resourcereservation/resource_reservation.go``).

A message about nodes is ``<prefix>: <n> <reason>.``, and a further line for each further reason.
For a group of several pods it begins with the number of those that fit.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

import msgspec

from vgpu.kube.closed_nodes import ClosedReason
from vgpu.kube.errors import one_line
from vgpu.kube.kai_groups import Unschedulable
from vgpu.model.reasons import Explained
from vgpu.placement.result import PlacementReason
from vgpu.quota.queue_answer import QueueReason
from vgpucli.explain.model import ExplainReason, WayStep
from vgpucli.explain.sentences import names_text


class KaiCause(msgspec.Struct, frozen=True):
    """A cause of KAI's: the step that fails by it, its reason, and what to do ("" is by reason)."""

    step: WayStep
    reason: Explained
    advice: str = ""


class KaiPart(msgspec.Struct, frozen=True):
    """A part of KAI's messages: its text, its cause, and the number of nodes, if it has one."""

    text: str
    cause: KaiCause
    nodes: int | None = None

    @property
    def is_known(self) -> bool:
        """Whether the text is one of the table."""
        return self.cause.reason is not ExplainReason.UNKNOWN_REFUSAL


_OVER_LIMIT: Final = KaiCause(
    WayStep.QUOTA,
    ExplainReason.QUEUE_FULL,
    "wait for other workloads of the queue that is named, request less, or raise its limit",
)
_NEVER: Final = KaiCause(
    WayStep.QUOTA,
    QueueReason.NEVER_FITS,
    "request less, or raise the limit of the queue that is named",
)
_OVER_QUOTA: Final = KaiCause(
    WayStep.QUOTA,
    ExplainReason.SCHEDULER_QUOTA,
    "use a priority class below 100, whose pods may be evicted, or raise the quota of the queue"
    " that is named",
)
_NO_QUEUE: Final = KaiCause(
    WayStep.QUOTA,
    QueueReason.NO_QUEUE,
    "correct the pod's label that names the queue, or create the queue",
)
_DELAYED: Final = KaiCause(
    WayStep.NODES,
    ExplainReason.PREEMPTION_DELAY,
    "wait: the workload may evict others when its preemptionDelay is over",
)
_NO_ROOM: Final = KaiCause(
    WayStep.NODES,
    PlacementReason.MEMORY,
    "end other pods (vgpu inspect names the holders), request less, or add a GPU",
)
_NO_MIG: Final = KaiCause(
    WayStep.NODES,
    PlacementReason.MIG_SLOT,
    "end other pods, request a smaller profile, or create MIG instances of this one",
)
_TOO_LARGE: Final = KaiCause(
    WayStep.NODES,
    ExplainReason.GPU_TOO_SMALL,
    "correct gpu-memory, which is in MiB, or add a node with larger GPUs",
)
_NO_SIZE: Final = KaiCause(
    WayStep.NODES,
    PlacementReason.UNKNOWN_SIZE,
    "look at GPU feature discovery, which sets the label nvidia.com/gpu.memory of nodes",
)
_PODS: Final = KaiCause(
    WayStep.NODES,
    ClosedReason.TOO_MANY_PODS,
    "end or move pods of a node: a share on a GPU that nobody shares yet needs room for two, since"
    " a pod keeps the GPU",
)
_CPU: Final = KaiCause(WayStep.NODES, ClosedReason.INSUFFICIENT_CPU, "request less CPU")
_MEMORY: Final = KaiCause(WayStep.NODES, ClosedReason.INSUFFICIENT_MEMORY, "request less memory")
_RESOURCE: Final = KaiCause(
    WayStep.NODES, ClosedReason.INSUFFICIENT_RESOURCE, "request less of what is named"
)
_LABELS: Final = KaiCause(
    WayStep.NODES,
    ClosedReason.NODE_AFFINITY,
    "correct the pod's nodeSelector or node affinity, or label a node so",
)
_TAINTS: Final = KaiCause(
    WayStep.NODES,
    ClosedReason.TAINTED_NODE,
    "find out why the nodes have their taints, or let the pod tolerate them",
)
_CHECKS: Final = KaiCause(
    WayStep.NODES, ExplainReason.NODES_CLOSED, "correct what KAI Scheduler names"
)
_RESERVATION: Final = KaiCause(
    WayStep.RESERVED,
    ExplainReason.RESERVATION_FAILED,
    "kubectl describe and kubectl logs of the pod that is named show why, as long as it is there:"
    " the kubelet has no GPU for it, or its container sees none or several",
)
_SCALING: Final = KaiCause(
    WayStep.RESERVED,
    ExplainReason.SCALING_UP,
    "kubectl get pods -n kai-scale-adjust names the pods that are not scheduled; delete one that"
    " nobody needs",
)
_BINDER: Final = KaiCause(
    WayStep.RESERVED,
    ExplainReason.BINDER_FAILED,
    "look at the log of KAI's binder; KAI's scheduler tries again",
)
_UNKNOWN: Final = KaiCause(
    WayStep.NODES, ExplainReason.UNKNOWN_REFUSAL, "look at the log of KAI's scheduler"
)

CODES: Final[Mapping[str, KaiCause]] = {
    "OverLimit": _OVER_LIMIT,
    "NonPreemptibleOverQuota": _OVER_QUOTA,
    "QueueDoesNotExist": _NO_QUEUE,
    "PreemptionDelayNotElapsed": _DELAYED,
}
"""The codes of reasons on a PodGroup. Others say nothing by themselves."""

TEXTS: Final[tuple[tuple[re.Pattern[str], KaiCause], ...]] = tuple(
    (re.compile("|".join(patterns), re.IGNORECASE), cause)
    for cause, *patterns in (
        (_OVER_LIMIT, "quota has reached the allowable limit of"),
        (_OVER_QUOTA, "non-preemptible workload is over quota"),
        (_NO_QUEUE, "queue '[^']*' does not exist"),
        (_DELAYED, "preemption delay window"),
        (
            _RESERVATION,
            "failed waiting for GPU reservation pod to allocate",
            "failed to find annotation on reservation pod",
        ),
        (_SCALING, "cluster is scaling up, could not create reservation pod"),
        (_BINDER, "failed to (?:bind|reserve|patch|update|create|get) "),
        (_NO_SIZE, "gpu memory count on the node was not synced yet"),
        (
            _TOO_LARGE,
            "each gpu on the node has a gpu memory capacity of",
            "didn't have enough resources: GPU memory",
        ),
        (_NO_ROOM, "didn't have enough resources?: GPUs"),
        (_NO_MIG, "didn't have enough of mig profile"),
        # the checks of all nodes pass, and still no GPU can be allocated
        (_NO_ROOM, "^unable to schedule pod", "^no nodes with enough resources were found$"),
        (_CPU, "didn't have enough resources: CPU"),
        (_MEMORY, "didn't have enough resources: memory"),
        (_PODS, "pod number exceeded"),
        (_RESOURCE, "didn't have enough resources?: "),
        (_LABELS, "node affinity", "node ?selector"),
        (_TAINTS, "taint"),
        (
            _CHECKS,
            "affinity",
            "didn't match",
            "didn't satisfy",
            "free ports",
            "topology spread",
            "unschedulable",
            "persistent ?volume",
            "storage",
            "resource ?claim",
            "[cg]pu nodes",
            "scheduling conditions were not met",
            "does not have enough capacity",
            "MIG job",
        ),
    )
)
"""The first pattern that a part has decides."""

_GANG: Final = re.compile(
    r"Resources were found for (?P<found>\d{1,9}) pods? .{0,300}?(?P<least>\d{1,9}) (?:pods |are )"
    r".{0,40}?gang scheduling\. Additional pods cannot be scheduled.{0,40}? due to: ",
    re.DOTALL | re.ASCII,
)
_PREFIX: Final = re.compile(
    r"^(?:Node-Pool '[^']*': )?"
    r"(?:(?:[A-Za-z]+|Unable to schedule pod(?:group)?|Resources were not found for pod \S+ due to"
    r"|no nodes with enough resources were found): )*"
)
_SEPARATOR: Final = re.compile(r"\.? ?\n+")
_AMOUNTS: Final = re.compile(
    r"Limit is (?P<limit>\d+(?:\.\d+)?) .*requested (?P<asked>\d+(?:\.\d+)?) ", re.ASCII
)
_OF_NODE: Final = re.compile(r", node: <(?P<node>[^>]+)>")
_COUNTED: Final = re.compile(r"(?P<nodes>\d{1,9}) (?P<text>\D.+)", re.DOTALL | re.ASCII)

_LONGEST: Final = 8192
"""Maximum number of characters of a message that are read."""

_RANK: Final[tuple[KaiCause, ...]] = (
    _NO_QUEUE,
    _NEVER,
    _OVER_LIMIT,
    _OVER_QUOTA,
    _NO_ROOM,
    _NO_MIG,
    _TOO_LARGE,
    _PODS,
    _CPU,
    _MEMORY,
    _RESOURCE,
    _DELAYED,
    _NO_SIZE,
    _LABELS,
    _TAINTS,
    _CHECKS,
    _UNKNOWN,
)
"""Causes in the order in which they decide: what may become free comes before what other nodes,
such as those without GPUs, lack."""


def gang_text(message: str) -> str:
    """How many pods of a group fit, for people; "" if the message does not have it."""
    found = _GANG.search(message[:_LONGEST])
    if found is None:
        return ""
    return f"{found['found']} pods of the group fit, {found['least']} have to run together"


def parts_of(message: str) -> Iterator[KaiPart]:
    """The parts of a message of KAI's scheduler or binder."""
    rest = _GANG.sub("", message[:_LONGEST].strip())
    rest = _PREFIX.sub("", rest)
    whole = _cause(rest)
    if whole is not None and whole.step is not WayStep.NODES:
        yield _known(one_line(rest).rstrip(". ") or whole.reason.value, whole)
        return
    for piece in _SEPARATOR.split(rest):
        text = one_line(_PREFIX.sub("", piece.strip())).rstrip(". ")
        counted = _COUNTED.fullmatch(text)
        nodes = None if counted is None else int(counted["nodes"])
        text = text if counted is None else counted["text"]
        if text:
            yield KaiPart(text, _cause(text) or _UNKNOWN, nodes)


def _known(text: str, cause: KaiCause) -> KaiPart:
    """The part; a request that is larger than the limit itself never fits."""
    amounts = _AMOUNTS.search(text) if cause is _OVER_LIMIT else None
    if amounts is not None and float(amounts["asked"]) > float(amounts["limit"]):
        return KaiPart(text, _NEVER)
    return KaiPart(text, cause)


def _cause(text: str) -> KaiCause | None:
    return next((cause for pattern, cause in TEXTS if pattern.search(text)), None)


_OF_GPUS: Final = (_NO_ROOM, _NO_MIG, _TOO_LARGE, _NO_SIZE)
"""Causes that nodes without GPUs have for every pod."""


def causes(
    reasons: Iterable[Unschedulable], without_gpus: Collection[str] = ()
) -> tuple[KaiPart, ...]:
    """The parts of what a PodGroup or a pod reports, the decisive one first, each once.

    KAI counts the nodes ``without_gpus`` among those that lack GPUs, so that a part about no more
    nodes than these, or about one of them, decides last. GPUs that are too small decide over GPUs
    that are not free only if they are all of them.
    """
    parts: dict[str, KaiPart] = {}
    for each in reasons:
        cause = CODES.get(each.code)
        if cause is not None:
            text = one_line(each.message[:_LONGEST]).rstrip(". ") or each.code
            parts.setdefault(text, _known(text, cause))
            continue
        for part in parts_of(each.message):
            parts.setdefault(part.text, part)
    shown = tuple(_by_node(parts.values(), without_gpus))
    of_gpu_nodes = [each for each in shown if each.cause is _NO_SIZE and each.nodes is not None]
    full = max((each.nodes or 0 for each in parts.values() if each.cause is _NO_ROOM), default=0)

    def rank(part: KaiPart) -> tuple[bool, bool, int]:
        nodes = part.nodes
        few = nodes is not None and nodes <= len(without_gpus)
        is_of_others = part.cause in _OF_GPUS and few and part not in of_gpu_nodes
        is_hopeless = part.cause is _TOO_LARGE and nodes is not None and nodes >= full
        cause = part.cause if part.cause in _RANK else _UNKNOWN
        return is_of_others, not is_hopeless and cause.step is WayStep.NODES, _RANK.index(cause)

    return tuple(sorted(shown, key=rank))


def _by_node(parts: Iterable[KaiPart], without_gpus: Collection[str]) -> Iterator[KaiPart]:
    """The parts; those that name a node each are one, without the nodes that have no GPU."""
    names = []
    for part in parts:
        named = _OF_NODE.search(part.text) if part.cause is _NO_SIZE else None
        if named is None:
            yield part
        elif named["node"] not in without_gpus:
            names.append(named["node"])
    if names:
        text = f"the gpu memory count was not synced yet of {names_text(sorted(names))}"
        yield KaiPart(text, _NO_SIZE, len(names))


def binding_part(message: str) -> KaiPart:
    """What a message of the binder means."""
    text = one_line(message[:_LONGEST])
    cause = _cause(text)
    return KaiPart(text, cause if cause is not None and cause.step is WayStep.RESERVED else _BINDER)
