"""The message of a scheduler that refuses a pod, in its parts. Pure.

kube-scheduler 1.34.4 (``pkg/scheduler``) writes ``0/<nodes> nodes are available: <n> <reason>,
<n> <reason>. preemption: …`` (``framework/types.go`` 764 to 835), or in place of the parts the one
message of a PreFilter plugin. A reason of an extender is the text that the extender has answered
for the nodes. An error of an extender, or of a bind, is the whole message
(``schedule_one.go`` 1056). Volcano writes ``nodes are unavailable`` and puts the state of the
PodGroup in front (``pkg/scheduler/api/unschedule_info.go`` 103 to 128, ``job_info.go`` 858 to 877).

The texts of the reasons are those of kube-scheduler's plugins (``framework/plugins``):
``noderesources/fit.go`` 571 to 650, ``tainttoleration/taint_toleration.go`` 120,
``nodeaffinity/node_affinity.go`` 64 to 70, ``nodeunschedulable/node_unschedulable.go`` 47 to 49,
``nodename/node_name.go`` 43, ``nodeports/node_ports.go`` 51,
``interpodaffinity/filtering.go`` 37 to 41, ``podtopologyspread/plugin.go`` 43,
``volumebinding/binder.go`` 65 to 71, ``dynamicresources/dynamicresources.go`` 586 to 1042,
``schedulinggates/scheduling_gates.go`` 57. HAMi's codes are in ``pkg/device/common/common.go`` 26
to 45, its other texts in ``pkg/scheduler/scheduler.go`` 851 to 884 and
``pkg/util/nodelock/nodelock.go`` 290; gpushare's in ``pkg/scheduler/predicate.go`` 26 to 34;
Volcano's in ``pkg/scheduler/api/devices/nvidia/vgpu`` (``utils.go`` 390 to 522, ``device_info.go``
313 and 335) and ``pkg/scheduler/plugins/capacity/capacity.go`` 1738.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Final

import msgspec

from scheduler.reasons import NOT_READY, BindFailure
from vgpu.kube.errors import one_line
from vgpu.placement.result import OF_QUOTA, PlacementReason


class PartKind(StrEnum):
    """What a part of the message is about."""

    SHARES = "shares"  # the pod's own shares do not fit the GPUs
    GPUS = "gpus"  # the GPUs or their node, by a GPU scheduler
    RESOURCE = "resource"  # a resource whose units do not suffice
    QUOTA = "quota"  # a quota of a GPU scheduler
    TAINT = "taint"
    CHECK = "check"  # another check of kube-scheduler
    LOCK = "lock"  # the lock of a node
    BIND = "bind"  # a bind of our own scheduler fails
    EXTENDER = "extender"  # an extender that does not answer, or answers an error
    RESOURCE_CLAIM = "resource_claim"
    GATE = "gate"
    GROUP = "group"  # the PodGroup is not complete
    QUEUE = "queue"  # the queue of the PodGroup has no room
    UNKNOWN = "unknown"


class MessagePart(msgspec.Struct, frozen=True):
    """A part of a message.

    Attributes:
        kind: what it is about.
        text: the part as it is written, without the number of nodes.
        nodes: number of nodes that refuse by it; None if it has none.
        name: the resource, the key of the taint, or the node of the lock; "" if none is named.
        failure: why our own scheduler has not bound the pod, or offers no node; None of another
            text.
    """

    kind: PartKind
    text: str
    nodes: int | None = None
    name: str = ""
    failure: BindFailure | PlacementReason | None = None

    @property
    def names_gpus(self) -> bool:
        """Whether the text is a GPU scheduler's, or about one of its resources by its form."""
        return self.kind in _OF_GPUS


_OF_GPUS: Final = frozenset(
    {
        PartKind.SHARES,
        PartKind.GPUS,
        PartKind.QUOTA,
        PartKind.LOCK,
        PartKind.BIND,
        PartKind.EXTENDER,
    }
)


class SchedulerMessage(msgspec.Struct, frozen=True):
    """A message in its parts; ``total`` is the number of nodes, None if it has none."""

    text: str
    total: int | None = None
    parts: tuple[MessagePart, ...] = ()

    def of_kind(self, *kinds: PartKind) -> tuple[MessagePart, ...]:
        """The parts of these kinds."""
        return tuple(part for part in self.parts if part.kind in kinds)


HAMI_CODES: Final[Mapping[str, PartKind]] = {
    "CardTypeMismatch": PartKind.GPUS,
    "CardUuidMismatch": PartKind.GPUS,
    "CardTimeSlicingExhausted": PartKind.SHARES,
    "CardComputeUnitsExhausted": PartKind.SHARES,
    "CardInsufficientMemory": PartKind.SHARES,
    "CardInsufficientCore": PartKind.SHARES,
    "CardNotHealth": PartKind.GPUS,
    "CardCordoned": PartKind.GPUS,
    "NumaNotFit": PartKind.SHARES,
    "ExclusiveDeviceAllocateConflict": PartKind.SHARES,
    "CardNotFoundCustomFilterRule": PartKind.GPUS,
    "CardMigTopologyInfeasible": PartKind.GPUS,
    "NodeInsufficientDevice": PartKind.SHARES,
    "AllocatedCardsInsufficientRequest": PartKind.SHARES,
    "NodeUnfitPod": PartKind.GPUS,
    "ResourceQuotaNotFit": PartKind.QUOTA,
    "ModeNotFit": PartKind.GPUS,
}
"""HAMi's codes for GPUs and nodes."""

_OWN_SHARES: Final = frozenset(
    {
        PlacementReason.TOO_FEW_GPUS,
        PlacementReason.NO_FITTING_GPU,
        PlacementReason.SLOTS,
        PlacementReason.MEMORY,
        PlacementReason.CORES,
        PlacementReason.EXCLUSIVE,
        PlacementReason.EXCLUSIVELY_USED,
        PlacementReason.NUMA,
    }
)

_OWN: Final[tuple[tuple[str, PartKind, PlacementReason | None], ...]] = (
    (NOT_READY, PartKind.EXTENDER, None),
    *(
        (
            reason.explanation,
            PartKind.SHARES
            if reason in _OWN_SHARES
            else PartKind.QUOTA
            if reason in OF_QUOTA
            else PartKind.GPUS,
            reason,
        )
        for reason in PlacementReason
    ),
)
"""The beginnings of our own extender's answers, which kube-scheduler repeats."""

_OWN_BINDS: Final[tuple[tuple[BindFailure, re.Pattern[str]], ...]] = (
    *((failure, re.compile(re.escape(failure.explanation))) for failure in BindFailure),
    *(
        (failure, re.compile(pattern))
        for failure, pattern in (
            (BindFailure.GONE, r"pod \S+ (?:is being deleted|does not exist any more)$"),
            (BindFailure.GONE, r"pod \S+ is another pod of the same name now$"),
            (BindFailure.BOUND_ELSEWHERE, r"already assigned to node \S+$"),
            (
                BindFailure.CONFLICT,
                r"(?:pod \S+|(?:the Lease of )?node \S+) changes all the time$",
            ),
            (BindFailure.UNREACHABLE, r"pod \S+ cannot be read: "),
            (
                BindFailure.UNREACHABLE,
                r"the Lease of node \S+ (?:cannot be read|was not written): ",
            ),
            (BindFailure.UNREACHABLE, r"node \S+ cannot be locked: "),
            (BindFailure.UNREACHABLE, "the binding was not answered: "),
        )
    ),
)
"""The beginnings of the texts of our own failed binds; the first that a text has decides."""

_REJECTED: Final = "binding rejected: "
"""What kube-scheduler puts in front of the error of a bind."""

_TEXTS: Final[tuple[tuple[PartKind, re.Pattern[str]], ...]] = tuple(
    (kind, re.compile("|".join(patterns), re.IGNORECASE))
    for kind, *patterns in (
        (PartKind.LOCK, r"node (?P<name>\S+) has been locked within", "node lock contention"),
        (PartKind.LOCK, r"node (?P<name>\S+) locked for"),
        (
            PartKind.EXTENDER,
            "connection refused",
            "connection reset",
            "i/o timeout",
            "no such host",
            "no route to host",
            "context deadline exceeded",
            r"Client\.Timeout",
            "x509:",
            r"\btls: ",
            "server gave HTTP response",
            r"(?:post|get) \"https?://\S+\":",
            r"failed \S+ with extender",
        ),
        (
            PartKind.QUEUE,
            "queue resource quota insufficient",
            "resource in cluster is overused",
            r"queue \S+ is closed",
        ),
        (PartKind.GROUP, "pod ?group is not ready", "not enough (?:valid )?pods"),
        (PartKind.GATE, "scheduling gates?"),
        (
            PartKind.RESOURCE_CLAIM,
            "resource ?claim",
            "cannot allocate all claims",
            "device ?class",
            "timed out trying to allocate",
        ),
        (PartKind.SHARES, "insufficient gpu memory", "not? enough gpu", "hami-vgpuDeviceSharing"),
        (
            PartKind.GPUS,
            "node unregistered",
            "node usage unavailable",
            "no gpu matches uuid",
            "required sharing mode",
            "is not for gpu share",
        ),
        (PartKind.RESOURCE, r"^insufficient (?P<name>\S+)$"),
        (PartKind.TAINT, r"taint\S* \{(?P<name>[^:}]+)"),
        (PartKind.TAINT, "taints? that the pod didn't tolerate", "untolerated taint"),
        (
            PartKind.CHECK,
            "affinity",
            "selector",
            "didn't match",
            "didn't satisfy",
            "free ports",
            "too many pods",
            "topology spread",
            "were unschedulable",
            "unknown conditions",
            "persistent ?volume",
            r"\bpvc\b",
            "volume",
            "free storage",
            "available disk",
            "requested node name",
            "pod number exceeded",
        ),
    )
)
"""The first pattern that a part has decides."""

_NODES: Final = re.compile(
    r"(?:0/(?P<total>\d+) |all )nodes are (?:un)?available: (?P<body>.*)", re.DOTALL
)
_PREEMPTION: Final = re.compile(
    r"(?:^|\.? )(?:(?:still not schedulable|no new claims to deallocate), )?preemption: .*$",
    re.DOTALL,
)
"""What PostFilter plugins add: preemption, and before it ResourceClaims
(``dynamicresources/dynamicresources.go``, PostFilter)."""
_COUNTED: Final = re.compile(r"(?P<nodes>\d+) (?:node\(s\) )?(?P<text>.+)", re.DOTALL)
_CARDS: Final = re.compile(r"(?:\d+/\d+ )?(?P<code>[A-Z][A-Za-z]+)$")
_NEXT: Final = re.compile(r", (?=\d+ )")
_GROUP: Final = re.compile(r"(?P<group>.*?)[.;] Origin reason is (?P<origin>.*)", re.DOTALL)


def parsed(message: str) -> SchedulerMessage:
    """The message in its parts; what preemption could do about it is none of them."""
    text = _PREEMPTION.sub("", one_line(message)).strip()
    parts: list[MessagePart] = []
    group = _GROUP.fullmatch(text)
    rest = text if group is None else group["origin"]
    if group is not None:
        parts.append(_part(group["group"]))
    refused = _NODES.search(rest)
    if refused is None:
        if rest:
            parts.append(_part(rest))
        return SchedulerMessage(text, None, tuple(parts))
    for piece in _NEXT.split(refused["body"].rstrip(". ")):
        parts += _counted(piece) if piece else ()
    total = refused["total"]
    return SchedulerMessage(text, None if total is None else int(total), tuple(parts))


def _counted(piece: str) -> Iterator[MessagePart]:
    """The parts of one counted reason; HAMi's has a code for each kind of GPU."""
    match = _COUNTED.fullmatch(piece.strip())
    if match is None:
        yield _part(piece.strip())
        return
    nodes, text = int(match["nodes"]), match["text"]
    codes = [_CARDS.fullmatch(each) for each in text.split(", ")]
    if all(code is not None and code["code"] in HAMI_CODES for code in codes):
        for code in filter(None, codes):
            yield MessagePart(HAMI_CODES[code["code"]], code[0], nodes)
        return
    yield _part(text, nodes)


def _part(text: str, nodes: int | None = None) -> MessagePart:
    text = text.strip().rstrip(".") or text
    answer = text.removeprefix(_REJECTED)
    for beginning, own_kind, reason in _OWN:
        if answer.startswith(beginning):
            return MessagePart(own_kind, text, nodes, failure=reason)
    for failure, pattern in _OWN_BINDS:
        if pattern.match(answer) is not None:
            kind = PartKind.LOCK if failure is BindFailure.NODE_LOCKED else PartKind.BIND
            return MessagePart(kind, text, nodes, failure=failure)
    for kind, pattern in _TEXTS:
        if (match := pattern.search(text)) is not None:
            name = match.groupdict().get("name") or ""
            return MessagePart(kind, text, nodes, name.strip())
    return MessagePart(PartKind.UNKNOWN, text, nodes)


def named(parts: Iterable[MessagePart]) -> str:
    """The parts for people."""
    return ", ".join(
        part.text if part.nodes is None else f"{part.nodes} {part.text}" for part in parts
    )
