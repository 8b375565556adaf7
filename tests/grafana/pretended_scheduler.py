"""Pages of schedulers: the scheduler's own metrics over made-up counts.

What was asked, answered and rejected is a function of the seconds since it began.
"""

import time
from collections.abc import Callable, Iterable
from typing import Any, Self

from scheduler.cluster.quota_state import QuotaView
from scheduler.metrics import BOUNDS, TABLES, Outcome, SchedulerView, Verb
from scheduler.reasons import BindFailure
from vgpu.metrics.family import FamilyTable, Histogram, HistogramCounts
from vgpu.model.units import GIB
from vgpu.placement.result import PlacementReason
from vgpu.quota.declarations import DeclaredLimit, UnreadableLimit
from vgpu.quota.limits import NamespaceQuota, QuotaLimit
from vgpu.quota.resources import GPUS, MEMORY
from vgpu.web.metrics import LiveMetrics, metrics_page
from vgpu.web.server import WebServer

JOB = "vgpu-scheduler"

KINDS = ("pods", "nodes", "configmaps of kube-system")

SECONDS = {Verb.FILTER: 0.0008, Verb.PRIORITIZE: 0.0004, Verb.BIND: 0.012}
"""Seconds that each verb takes."""

QUOTA = NamespaceQuota(
    "research",
    (QuotaLimit(MEMORY, "", 64 * GIB, (DeclaredLimit(MEMORY, 64 * GIB, "Namespace"),)),),
    (UnreadableLimit(GPUS, "Namespace", "eight"),),
)
EXCEEDED = QuotaView(QUOTA, {"": {MEMORY: 96 * GIB}})
"""More is used than is declared, and another amount cannot be read."""


def durations(seconds: float, requests: int) -> Histogram:
    """Of requests that took equally long."""
    counts = HistogramCounts(BOUNDS)
    for _ in range(requests):
        counts.add(seconds)
    return counts.histogram()


def view_of(t: float, **fields: object) -> SchedulerView:
    """A scheduler that has answered for so many seconds."""
    pods = 40 + int(t / 2)
    requests = {
        (verb, Outcome.SUCCESS): durations(seconds, pods * (3 if verb is Verb.FILTER else 1))
        for verb, seconds in SECONDS.items()
    }
    return SchedulerView(
        **{
            "ready": True,
            "ages": dict.fromkeys(KINDS, t % 20),
            "nodes": 20,
            "pods": 60 + pods % 7,
            "reservations": pods % 3,
            "rejected": 2 + pods % 4,
            "woken": pods // 5,
            "requests": requests,
            "rejections": {
                PlacementReason.MEMORY: pods * 2,
                PlacementReason.CORES: pods // 2,
                PlacementReason.UNHEALTHY: pods // 4,
            },
            "bind_failures": {},
            "api_requests": {
                ("create", "201"): pods,
                ("update", "200"): pods,
                ("update", "409"): 3,
            },
            **fields,
        }
    )


def answering(t: float) -> SchedulerView:
    """One that places pods."""
    return view_of(t)


def failing(t: float) -> SchedulerView:
    """One that sees nothing any more, and whose answers are errors and take long."""
    now = int(t) + 5
    return view_of(
        t,
        ready=False,
        ages=dict.fromkeys(KINDS, 400.0 + t),
        requests={
            (Verb.FILTER, Outcome.SUCCESS): durations(2.5, now),
            (Verb.BIND, Outcome.ERROR): durations(3.5, now),
        },
        bind_failures={BindFailure.REFUSED: now, BindFailure.LEASE_UNREADABLE: now},
        api_requests={("list", "0"): now, ("create", "403"): now},
    )


def stuck(t: float) -> SchedulerView:
    """One with reservations that do not end, that nobody asks to bind, and with broken quotas."""
    return view_of(t, ready=False, reservations=3, requests={}, quotas=(EXCEEDED,))


class PretendedScheduler:
    """Serves the page of what is ``seen`` of it; with other ``tables`` it is another program."""

    def __init__(
        self, seen: Callable[[float], Any], tables: Iterable[FamilyTable] = TABLES
    ) -> None:
        start = time.time()
        metrics = LiveMetrics(tables, lambda: seen(time.time() - start))
        self._server = WebServer({"/metrics": metrics_page(metrics.body)}, ["127.0.0.1:0"])

    @property
    def target(self) -> str:
        """Where Prometheus finds it."""
        return self._server.addresses[0]

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()
