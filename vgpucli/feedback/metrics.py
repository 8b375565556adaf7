"""The metric families of `vgpu feedback`."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec

from vgpu.metrics.family import Family, FamilyTable, MetricType
from vgpu.model.reasons import Reason

GAUGE: Final = MetricType.GAUGE
COUNTER: Final = MetricType.COUNTER


class FeedbackState(StrEnum):
    """What the last round decided about a container."""

    ACTIVE = "active"
    IDLE = "idle"
    BLOCKED = "blocked"
    UNCONFIRMED = "unconfirmed"


class FeedbackView(msgspec.Struct, frozen=True):
    """All values of a page.

    Attributes:
        ready: whether the last round had everything that it needs.
        rounds: number of rounds since start.
        last_round: unix seconds at the end of the last round; None before it.
        containers: number of containers by state, after the last round.
        unlimited: number of containers whose core limit is lifted, after the last round.
        writes: number of writes by word.
        rejected: inputs that the last round refused, by reason.
    """

    ready: bool = False
    rounds: int = 0
    last_round: float | None = None
    containers: Mapping[FeedbackState, int] = {}
    unlimited: int = 0
    writes: Mapping[str, int] = {}
    rejected: Mapping[Reason, int] = {}


FEEDBACK: Final = FamilyTable(
    "The feedback",
    lambda view: (view,),
    (),
    lambda _: (),
    (
        Family(
            "vgpu_feedback_ready",
            GAUGE,
            "1 if the last round could read both checkpoints, and may write to all folders of"
            " regions.",
            lambda view: int(view.ready),
        ),
        Family(
            "vgpu_feedback_rounds_total",
            COUNTER,
            "Rounds: in each one every region is read, and words that differ are written.",
            lambda view: view.rounds,
        ),
        Family(
            "vgpu_feedback_last_round_timestamp_seconds",
            GAUGE,
            "When the last round ended, in unix time.",
            lambda view: view.last_round,
            unit="seconds",
        ),
        Family(
            "vgpu_feedback_containers",
            GAUGE,
            "Containers with a region, by state: active (it launches kernels), idle, blocked (it"
            " waits for a higher priority), or unconfirmed (no checkpoint has a device of its"
            " region, or its priority is impossible; it is never blocked).",
            lambda view: {(state,): view.containers.get(state, 0) for state in FeedbackState},
            ("state",),
        ),
        Family(
            "vgpu_feedback_unlimited_containers",
            GAUGE,
            "Containers whose core limit is lifted, since no other one competes for their GPUs.",
            lambda view: view.unlimited,
        ),
        Family(
            "vgpu_feedback_writes_total",
            COUNTER,
            "Words written, by word: recent_kernel and utilization_switch.",
            lambda view: {(word,): count for word, count in view.writes.items()},
            ("word",),
        ),
        Family(
            "vgpu_feedback_rejected",
            GAUGE,
            "Files, folders and writes that the last round refused.",
            lambda view: {(reason,): count for reason, count in view.rejected.items()},
            ("reason",),
        ),
    ),
)

TABLES: Final = (FEEDBACK,)
