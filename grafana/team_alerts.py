"""The alerts of namespaces: quotas, and memory that is allocated and not used.

They have the label ``team`` where the reconciler reports a team, so that they can be routed to it.
"""

from typing import Final

from grafana.promql import Alert, AlertSeverity, RuleGroup, named
from grafana.recording import QUOTA, teams
from grafana.settings import FLAPS, QUOTA_NEAR_RATIO, UNUSED_GIB, UNUSED_RATIO
from grafana.templates import COUNT, RATIO
from vgpu.model.units import GIB

_USED: Final = "cluster_namespace_resource_model:vgpu_quota_used:max"
_LIMIT: Final = "cluster_namespace_resource_model:vgpu_quota_limit:max"
_UNUSED: Final = "cluster_namespace:vgpu_container_memory_unused_bytes:sum"
_ALLOCATED: Final = "cluster_namespace:vgpu_container_memory_allocated_bytes:sum"

_UNREADABLE: Final = " or ".join(
    named(f"vgpu_{program}_quota_unreadable", "namespace") for program in ("extender", "reconcile")
)
"""By every program that reads quotas: each may be there without the other."""

NAMESPACE: Final = "cluster, namespace"


def with_team(expr: str, labels: str) -> str:
    """``expr``, which has these labels, with the team of the namespace where it is known."""
    return f"({expr}) * on ({NAMESPACE}) group_left (team) {teams()} or on ({labels}) ({expr})"


TEAMS: Final = RuleGroup(
    "vgpu-teams",
    (
        Alert(
            "VgpuQuotaUnreadable",
            AlertSeverity.WARNING,
            with_team(f"max by ({NAMESPACE}) ({_UNREADABLE}) > 0", NAMESPACE),
            "10m",
            "A GPU quota of namespace {{ $labels.namespace }} cannot be read",
            f"{COUNT} declarations: vgpu scheduler places no pod that they limit, and the"
            " reconciler does not see who exceeds them. First: vgpu inspect --by namespace names"
            " each one, and what is wrong with it.",
        ),
        Alert(
            "VgpuQuotaExceeded",
            AlertSeverity.INFO,
            with_team(f"{_USED} > on ({QUOTA}) {_LIMIT}", QUOTA),
            "1h",
            "Namespace {{ $labels.namespace }} exceeds its GPU quota of {{ $labels.resource }}",
            "Its new pods get no GPU; nothing ends by itself. First: vgpu inspect --by namespace"
            " has the amounts; vgpu reconcile plan names the pods that would have to end.",
        ),
        Alert(
            "VgpuQuotaNearLimit",
            AlertSeverity.INFO,
            with_team(f"{_USED} / on ({QUOTA}) ({_LIMIT} > 0) > {QUOTA_NEAR_RATIO} <= 1", QUOTA),
            "1h",
            "Namespace {{ $labels.namespace }} is near its GPU quota of {{ $labels.resource }}",
            f"It holds {RATIO} of the quota. Its next pods may get no GPU. First: vgpu inspect --by"
            " namespace has the amounts, and dashboard Teams what is idle.",
            keep=FLAPS,
        ),
        Alert(
            "VgpuMemoryUnused",
            AlertSeverity.INFO,
            with_team(
                f"{_UNUSED} / {_ALLOCATED} > {UNUSED_RATIO} and {_UNUSED} > {UNUSED_GIB * GIB}",
                NAMESPACE,
            ),
            "24h",
            "Namespace {{ $labels.namespace }} does not use its GPU memory",
            f"For a day {RATIO} of the memory that its containers were allocated is not used, and"
            " nobody else can have it. First: dashboard Workload names the containers; ask their"
            " owner.",
        ),
    ),
)
