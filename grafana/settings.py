"""Every selector and threshold of the rules, to be changed here; then run `make docs`."""

from typing import Final

from deviceplugin.metrics import Wait
from exporter.problems import SERIOUS
from reconciler.reasons import ActionOutcome, Rule
from vgpu.ledger import ConflictKind
from vgpu.ledger.usage import OVER_LIMIT_PERCENT
from vgpu.reasons import Reason

EXPORTER: Final = 'job=~"vgpu(-exporter)?"'
"""The exporters' scrape job. Only `up` needs it: our own series are known by their names."""

RECONCILER: Final = 'job=~"vgpu-reconciler.*"'
"""The reconcilers' scrape jobs, of either scope."""

CLUSTER_RECONCILER: Final = f'{RECONCILER}, job!~".*-node"'
"""Those of the cluster's reconcilers only."""

PLUGIN: Final = 'job=~"vgpu-device-plugin.*"'
"""The device plugins' scrape job; a node has one target for each scheme."""

RUNBOOKS: Final = "docs/runbooks/alerts"
"""What runbook links begin with: the folder in this repository, or wherever you publish it."""

# ---------------------------------------------------------------- the exporter

STALE_INTERVALS: Final = 4
"""A page is stale when it is older than so many sampling intervals,"""

SCRAPE_SECONDS: Final = 120
"""and so much more, for the time between two scrapes and for clocks that differ."""

SLOW_PART: Final = 0.5
"""A collector is slow when a pass takes more than this part of the sampling interval."""

# ---------------------------------------------------------------- devices

GPUS_REMEMBERED: Final = "1d:1m"
"""For how long a GPU that is gone is missed: a day, looked at every minute."""

XID_SECONDS: Final = 3600
"""Maximum age of an XID error in alerts, in seconds, as on the exporter's status page."""

XIDS_CRITICAL: Final = (48, 62, 64, 74, 79, 95, 119, 120)
"""The GPU, not the program on it, is broken (NVIDIA's XID catalogue)."""

XIDS_WARNING: Final = (94,)
"""A memory error that was contained: the GPU works on, but wants a reset."""

GAP_RATIO: Final = 0.1
"""Maximum part of a GPU's memory that may be used outside containers."""

THERMAL: Final = ("hw_thermal_slowdown", "sw_thermal_slowdown")
POWER_BRAKE: Final = ("hw_power_brake_slowdown",)

# ---------------------------------------------------------------- containers

NEAR_LIMIT_RATIO: Final = 0.95
OVER_LIMIT_RATIO: Final = OVER_LIMIT_PERCENT / 100
"""Used memory by limit. What the reconciler takes for over the limit is so here, too."""

ACTIVE_SECONDS: Final = 120
"""A container is active if it launched a kernel within this time."""

HARMLESS_REFUSALS: Final = (
    Reason.ABSENT,
    Reason.INITIALIZING,
    Reason.CHANGED_WHILE_READ,
    Reason.EXHAUSTED,
)
"""Reasons of refused regions that come and go by themselves."""

# ---------------------------------------------------------------- allocations

FULL_RATIO: Final = 0.95
"""An oversold GPU is under pressure when so much of its memory is in use."""

OWN_ALERTS: Final = (ConflictKind.DOUBLE_BOOKED, ConflictKind.OVERCOMMITTED)
SERIOUS_CONFLICTS: Final = tuple(sorted(SERIOUS - set(OWN_ALERTS)))
OTHER_CONFLICTS: Final = tuple(sorted(set(ConflictKind) - SERIOUS - set(OWN_ALERTS)))
"""Conflicts by how loud they are; what is serious the exporter's status page decides."""

# ---------------------------------------------------------------- the reconciler

STUCK_PODS: Final = (
    Rule.REFUSED,
    Rule.OVER_PROMISED,
    Rule.PRESTART_FAILED,
    Rule.NO_GPU_MATCHED,
    Rule.ASSUMED_EXPIRED,
    Rule.ASSUMED_UNBOUND,
    Rule.KUBESHARE,
)
LOCKS: Final = (Rule.STALE_LOCK,)
HARMLESS_RULES: Final = (Rule.TERMINATED,)
OTHER_RULES: Final = tuple(
    rule for rule in Rule if rule not in {*STUCK_PODS, *LOCKS, *HARMLESS_RULES}
)
"""Rules of the reconciler by the alert about their persisting findings.

What ran until its node was shut down holds nothing, and lies there until it is collected.
"""

CYCLE_SECONDS: Final = 1800
"""A reconciler is stalled when it has begun no cycle for so long; by default it does every 2 m."""

MISSED_CYCLES: Final = 3
"""Maximum number of missed cycles an hour."""

FAILURES: Final = (
    ActionOutcome.FORBIDDEN,
    ActionOutcome.FAILED,
    ActionOutcome.UNKNOWN,
    ActionOutcome.SEVERAL_PDBS,
    ActionOutcome.THROTTLED,
    ActionOutcome.OUT_OF_TIME,
)
"""Outcomes of actions that need a person if they come again and again."""

API_ERRORS: Final = "0|401|403|5.."
"""Codes of failed requests; 404, 409, 422 and 429 are answers that our programs ask for."""

API_ERROR_RATIO: Final = 0.1

# ---------------------------------------------------------------- the device plugin

REFUSED_PODS: Final = 3
"""Maximum number of refused pods of a node in an hour, for each reason."""

SLOW_SECONDS: Final = 5
"""The kubelet admits one pod after the other: an answer, or a binding, takes milliseconds."""

SLOW_STEPS: Final = (Wait.ALLOCATE, Wait.BIND)
"""A start waits for its binding, so that the third step reports nothing of its own."""
