"""The scheduler's metric families as tables, and the counters behind them."""

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

import msgspec

from scheduler.cluster.quota_state import QuotaView
from scheduler.compat.rows import SchemeHoldings
from scheduler.reasons import BindFailure
from vgpu.metrics.family import Family, FamilyTable, Histogram, HistogramCounts, MetricType
from vgpu.placement.node_view import StandingPod
from vgpu.placement.result import PlacementReason
from vgpu.quota.limits import QuotaLimit

GAUGE: Final = MetricType.GAUGE
COUNTER: Final = MetricType.COUNTER

# fmt: off
BOUNDS: Final = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)
# fmt: on
"""Bounds of durations in seconds: from a filter with remembered answers to the time after
which kube-scheduler gives up."""


class Verb(StrEnum):
    """The verbs of an extender."""

    FILTER = "filter"
    PRIORITIZE = "prioritize"
    PREEMPT = "preempt"
    BIND = "bind"


class Outcome(StrEnum):
    """The result of a request."""

    SUCCESS = "success"
    ERROR = "error"


class SchedulerView(msgspec.Struct, frozen=True):
    """All values of a page.

    Attributes:
        ready: whether requests are answered.
        ages: seconds since the last event, by kind of object.
        nodes, pods, reservations, rejected: what the cache has.
        woken: rejected pods that were woken.
        requests: verb and outcome -> durations of requests, in seconds.
        rejections: rejected pods by reason; bind_failures: failed bindings by reason.
        api_requests: requests to the API server by verb and HTTP status.
        held: what the chosen compatibility sets need.
        quotas: the quotas of namespaces, with what their pods use.
        standing: node and pod of those that stand in the way of others.
    """

    ready: bool
    ages: Mapping[str, float]
    nodes: int
    pods: int
    reservations: int
    rejected: int
    woken: int
    requests: Mapping[tuple[Verb, Outcome], Histogram]
    rejections: Mapping[PlacementReason, int]
    bind_failures: Mapping[str, int]
    api_requests: Mapping[tuple[str, str], int]
    held: SchemeHoldings = SchemeHoldings()
    quotas: Sequence[QuotaView] = ()
    standing: Sequence[tuple[str, StandingPod]] = ()


class SchedulerMetrics:
    """The counters. Any thread may call every method."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: dict[tuple[Verb, Outcome], HistogramCounts] = {}
        self._rejections: Counter[PlacementReason] = Counter()
        self._bind_failures: Counter[str] = Counter()

    def note_request(self, verb: Verb, outcome: Outcome, seconds: float) -> None:
        """Count a request with its duration."""
        with self._lock:
            durations = self._requests.get((verb, outcome))
            if durations is None:
                durations = self._requests[verb, outcome] = HistogramCounts(BOUNDS)
            durations.add(seconds)

    def note_rejection(self, reason: PlacementReason) -> None:
        """Count a pod that no node takes, by the reason of most nodes."""
        with self._lock:
            self._rejections[reason] += 1

    def note_bind_failure(self, reason: BindFailure | PlacementReason) -> None:
        """Count a pod that was not bound."""
        with self._lock:
            self._bind_failures[reason] += 1

    def counts(self) -> dict[str, Any]:
        """The fields of :class:`SchedulerView` that are counters."""
        with self._lock:
            return {
                "requests": {key: each.histogram() for key, each in self._requests.items()},
                "rejections": dict(self._rejections),
                "bind_failures": dict(self._bind_failures),
            }


def _of_limits(
    amount: Callable[[QuotaView, QuotaLimit], int],
) -> Callable[[SchedulerView], Mapping[tuple[str, ...], int]]:
    """An amount of each limit of a quota."""
    return lambda view: {
        (each.quota.namespace, limit.resource, limit.model): amount(each, limit)
        for each in view.quotas
        for limit in each.quota.limits
    }


SCHEDULER: Final = FamilyTable(
    "The scheduler",
    lambda view: (view,),
    (),
    lambda _: (),
    (
        Family(
            "vgpu_extender_ready",
            GAUGE,
            "1 if requests are answered: the cluster was read completely and events arrive.",
            lambda view: int(view.ready),
        ),
        Family(
            "vgpu_extender_view_age_seconds",
            GAUGE,
            "Time since the last event about a kind of object; a bookmark comes every minute.",
            lambda view: {(kind,): age for kind, age in view.ages.items()},
            ("kind",),
            unit="seconds",
        ),
        Family(
            "vgpu_extender_nodes",
            GAUGE,
            "Nodes with GPUs of a sharing system.",
            lambda view: view.nodes,
        ),
        Family(
            "vgpu_extender_pods",
            GAUGE,
            "Pods that share GPUs, bound or not.",
            lambda view: view.pods,
        ),
        Family(
            "vgpu_extender_reservations",
            GAUGE,
            "Pods with reserved GPUs whose binding the API server has not shown yet.",
            lambda view: view.reservations,
        ),
        Family(
            "vgpu_extender_rejected_pods",
            GAUGE,
            "Pods that no node took when kube-scheduler last asked.",
            lambda view: view.rejected,
        ),
        Family(
            "vgpu_extender_standing_pod_info",
            GAUGE,
            "1 for each pod that takes something off what is free of a node, and is on no GPU that"
            " is known for certain: its annotations do not name its GPUs, or it is not bound.",
            lambda view: {
                (node, each.pod.namespace, each.pod.name, each.reason): 1
                for node, each in view.standing
            },
            ("node", "namespace", "pod", "reason"),
        ),
        Family(
            "vgpu_extender_woken_pods_total",
            COUNTER,
            "Rejected pods that were woken by the annotation vgpu.dev/retry: they fit now.",
            lambda view: view.woken,
        ),
        Family(
            "vgpu_extender_requests_total",
            COUNTER,
            "Requests of kube-scheduler.",
            lambda view: {key: each.count for key, each in view.requests.items()},
            ("verb", "result"),
        ),
        Family(
            "vgpu_extender_request_duration_seconds",
            MetricType.HISTOGRAM,
            "Time that a request of kube-scheduler took.",
            lambda view: view.requests,
            ("verb", "result"),
            unit="seconds",
        ),
        Family(
            "vgpu_extender_rejections_total",
            COUNTER,
            "Requests for nodes for a pod that no node takes, by the reason of most nodes.",
            lambda view: {(reason,): count for reason, count in view.rejections.items()},
            ("reason",),
        ),
        Family(
            "vgpu_extender_bind_failures_total",
            COUNTER,
            "Pods that were not bound, by reason.",
            lambda view: {(reason,): count for reason, count in view.bind_failures.items()},
            ("reason",),
        ),
        Family(
            "vgpu_extender_quota_limit",
            GAUGE,
            "A quota of a namespace, in the unit of its resource: bytes of memory, thousandths of"
            " a GPU's cores, GPUs, or units of an extended resource.",
            _of_limits(lambda _, limit: limit.amount),
            ("namespace", "resource", "model"),
        ),
        Family(
            "vgpu_extender_quota_used",
            GAUGE,
            "What bound pods and reservations use of a quota, in the same unit.",
            _of_limits(lambda each, limit: limit.of(each.used)),
            ("namespace", "resource", "model"),
        ),
        Family(
            "vgpu_extender_quota_unreadable",
            GAUGE,
            "Declarations of a quota that cannot be read: the pods that they limit are refused.",
            lambda view: {
                (each.quota.namespace,): len(each.quota.unreadable)
                for each in view.quotas
                if each.quota.unreadable
            },
            ("namespace",),
        ),
        Family(
            "vgpu_extender_api_requests_total",
            COUNTER,
            "Requests to the API server; code 0 is no answer.",
            lambda view: view.api_requests,
            ("verb", "code"),
        ),
    ),
)

TABLES: Final = (SCHEDULER,)
