"""Every selector and threshold of the rules. After a change, run `make docs`."""

from typing import Final

from deviceplugin.metrics import Wait
from exporter.problems import SERIOUS
from reconciler.reasons import ActionOutcome, Rule
from scheduler.reasons import BindFailure
from vgpu.ledger import ConflictKind
from vgpu.ledger.usage import OVER_LIMIT_PERCENT
from vgpu.model.reasons import Reason
from vgpu.model.xids import RECENT_SECONDS, XIDS, XidSeverity

EXPORTER: Final = 'job=~"vgpu(-exporter)?"'
"""The exporters' scrape job. Only `up` needs it: our own series are known by their names."""

RECONCILER: Final = 'job=~"vgpu-reconciler.*"'
"""The reconcilers' scrape jobs, of either scope."""

CLUSTER_RECONCILER: Final = f'{RECONCILER}, job!~".*-node"'
"""The scrape jobs of the cluster's reconcilers only."""

PLUGIN: Final = 'job=~"vgpu-device-plugin.*"'
"""The device plugins' scrape job; a node has one target for each scheme."""

SCHEDULER: Final = 'job=~"vgpu-scheduler.*"'
"""The schedulers' scrape job."""

KUBESHARE: Final = 'job=~"vgpu-kubeshare.*"'
"""The scrape jobs of KubeShare's controllers and of their node component."""

KUBESHARE_CONTROLLERS: Final = 'job=~"vgpu-kubeshare-controller.*"'
"""The scrape job of KubeShare's controllers alone."""

FEEDBACK: Final = 'job=~"vgpu-feedback.*"'
"""The scrape job of `vgpu feedback`."""

TOKENS: Final = 'job=~"vgpu-tokens.*"'
"""The scrape job of `vgpu tokens`."""

ABSENT_REMEMBERED: Final = "7d"
"""Time after which an outage of everything is taken for a removal, and its alert ends."""

# ---------------------------------------------------------------- the exporter

STALE_INTERVALS: Final = 4
"""Maximum age of a page that is not stale, in sampling intervals; SCRAPE_SECONDS are added."""

SCRAPE_SECONDS: Final = 120
"""Additional age of a page for the interval between two scrapes and for clock skew, in seconds."""

SLOW_PART: Final = 0.5
"""Maximum time of a collector's pass that is not slow, as a part of the sampling interval."""

# ---------------------------------------------------------------- the feedback

FEEDBACK_SECONDS: Final = 60
"""Maximum age of the last round of `vgpu feedback`, in seconds: rounds are 5 s apart."""

# ---------------------------------------------------------------- devices

GPUS_REMEMBERED: Final = "1d:1m"
"""Time for which a lost GPU is reported: a day, with a resolution of a minute."""

XID_SECONDS: Final = RECENT_SECONDS
"""Maximum age of an XID error in alerts, in seconds, as on the exporter's status page."""


def _of_severity(severity: XidSeverity) -> tuple[int, ...]:
    """The XIDs of the severity, in ascending order."""
    return tuple(number for number, row in XIDS.items() if row.severity is severity)


XIDS_CRITICAL: Final = _of_severity(XidSeverity.CRITICAL)
"""XIDs of a broken GPU, not of a broken program on it."""

XIDS_WARNING: Final = _of_severity(XidSeverity.WARNING)
"""XIDs of a GPU that may go on, but has to be looked at."""

XIDS_KNOWN: Final = tuple(XIDS)
"""All XIDs that NVIDIA documents; any other has an alert of its own."""

GAP_RATIO: Final = 0.1
"""Maximum part of a GPU's memory that may be used outside containers."""

ECC_WINDOW: Final = "1d"
"""Time for which an uncorrected memory error is reported."""

FLAPS: Final = "15m"
"""Time for which an alert about a value around its threshold goes on firing."""

SHARED_RESOURCES: Final = (
    "volcano_sh_vgpu_.*",
    "nvidia_com_.*gpu.*",
    "aliyun_com_gpu_.*",
    "tencent_com_vcuda_.*",
)
"""Patterns of the resources of pods that share GPUs, as kube-state-metrics spells them: most other
names that operators choose are of these domains, such as ``nvidia.com/vgpu``."""

THERMAL: Final = ("hw_thermal_slowdown", "sw_thermal_slowdown")
POWER_BRAKE: Final = ("hw_power_brake_slowdown",)

# ---------------------------------------------------------------- containers

NEAR_LIMIT_RATIO: Final = 0.95
OVER_LIMIT_RATIO: Final = OVER_LIMIT_PERCENT / 100
"""Used memory by limit; the reconciler's threshold is the same."""

ACTIVE_SECONDS: Final = 120
"""Maximum time since the last kernel launch of an active container, in seconds."""

HARMLESS_REFUSALS: Final = (
    Reason.ABSENT,
    Reason.INITIALIZING,
    Reason.CHANGED_WHILE_READ,
    Reason.EXHAUSTED,
)
"""Reasons of refused regions that need no action: they end by themselves."""

# ---------------------------------------------------------------- allocations

FULL_RATIO: Final = 0.95
"""Part of an oversold GPU's used memory above which the GPU is under pressure."""

OWN_ALERTS: Final = (ConflictKind.DOUBLE_BOOKED, ConflictKind.OVERCOMMITTED)
SERIOUS_CONFLICTS: Final = tuple(sorted(SERIOUS - set(OWN_ALERTS)))
OTHER_CONFLICTS: Final = tuple(sorted(set(ConflictKind) - SERIOUS - set(OWN_ALERTS)))
"""Conflicts by severity, which is that of the exporter's status page."""

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

A pod that ran until its node was shut down holds nothing, and stays until it is collected.
"""

CYCLE_SECONDS: Final = 1800
"""Maximum time since the last cycle's begin, in seconds; the default interval is 120 s."""

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
"""Outcomes of actions that need a person if they are repeated."""

API_ERRORS: Final = "0|401|403|5.."
"""Codes of failed requests; 404, 409, 422 and 429 are answers that our programs expect."""

API_ERROR_RATIO: Final = 0.1

# ---------------------------------------------------------------- the device plugin

REFUSED_PODS: Final = 3
"""Maximum number of refused pods of a node in an hour, for each reason."""

SLOW_SECONDS: Final = 5
"""Maximum time of an answer or a binding, in seconds: usually milliseconds, and the kubelet admits
one pod after the other."""

SLOW_STEPS: Final = (Wait.ALLOCATE, Wait.BIND)
"""Steps with an alert; the third step, a container's start, waits for its binding."""

# ---------------------------------------------------------------- teams

QUOTA_NEAR_RATIO: Final = 0.9
"""Part of a quota from which its namespace is near it."""

UNUSED_RATIO: Final = 0.9
"""Part of a namespace's allocated memory that is not used, from which it is reported."""

UNUSED_GIB: Final = 16
"""Minimum unused memory that is reported, in GiB: less is no GPU that another team could have."""

# ---------------------------------------------------------------- the scheduler

VIEW_SECONDS: Final = 180
"""Maximum age of the scheduler's view, in seconds: the API server sends a bookmark each minute."""

REQUEST_SECONDS: Final = 1
"""Maximum time of an answer to kube-scheduler, in seconds: usually milliseconds, and kube-scheduler
waits for a filter before it goes on with the next pod."""

REQUEST_ERROR_RATIO: Final = 0.1
"""Maximum part of kube-scheduler's requests whose answer is an error."""

BIND_FAILURES: Final = (
    BindFailure.REFUSED,
    BindFailure.UNREACHABLE,
    BindFailure.POD_UNREADABLE,
    BindFailure.LEASE_UNREADABLE,
)
"""Failures of bindings that need a person if they are repeated; the others are races."""

FAILED_BINDS: Final = 3
"""Maximum number of failed bindings in an hour, for each of these reasons."""

# ---------------------------------------------------------------- KubeShare's controllers

STEP_ERROR_RATIO: Final = 0.1
"""Maximum part of the writes of KubeShare's controllers that fail."""

# ---------------------------------------------------------------- the token daemon

TOKEN_SHARE_MISSED: Final = 0.1
"""Maximum part of a GPU's time that a pod may miss of its request while it waits for the token."""

TOKEN_WAIT_RATIO: Final = 0.5
"""Part of the time for which a pod waits, from which it would use more than it gets."""

TOKEN_OVERRUN_RATIO: Final = 0.2
"""Maximum time beyond its quotas for which a pod may use its GPU, as a part of all its time."""

TOKEN_LAG_SECONDS: Final = 0.005
"""Maximum time by which 99 % of the timers of the daemon may be late, in seconds. A token has
20 ms or more."""
