"""The alerts of what containers hold and use: limits, regions, conflicts between sources."""

from typing import Final

from grafana.promql import (
    CONTAINER,
    GPU,
    Alert,
    AlertSeverity,
    RuleGroup,
    any_of,
    named,
    once,
    once_a_node,
    own_names,
)
from grafana.settings import (
    ACTIVE_SECONDS,
    FLAPS,
    FULL_RATIO,
    HARMLESS_REFUSALS,
    NEAR_LIMIT_RATIO,
    OTHER_CONFLICTS,
    OVER_LIMIT_RATIO,
    SERIOUS_CONFLICTS,
)
from grafana.templates import (
    COUNT,
    RATIO,
    THE_CONTAINER,
    THE_GPU,
    THE_NODE,
    THE_RESOURCE_CLAIM,
)
from vgpu.ledger import ConflictKind
from vgpu.ledger.limit_verdict import UNCAPPED
from vgpu.model.reasons import Reason

CRITICAL, WARNING, INFO = AlertSeverity.CRITICAL, AlertSeverity.WARNING, AlertSeverity.INFO

ON_GPU: Final = (
    f"max by ({CONTAINER}, uuid)"
    " (vgpu_container_memory_limit_bytes or vgpu_container_memory_accounted_bytes) * 0"
    f" + on ({CONTAINER}) group_left () max by ({CONTAINER})"
)
"""The container's series that follows, once for each GPU that the container's region names.

Accounted memory is unknown without the host's PIDs, and there is a limit for most containers."""

HELD_BACK: Final = f"{ON_GPU} (vgpu_container_priority and (vgpu_container_blocked == 1))"
HIGHEST: Final = (
    f"min by ({GPU}) ({ON_GPU} (vgpu_container_priority and (time()"
    f" - vgpu_container_last_kernel_timestamp_seconds < {ACTIVE_SECONDS})))"
)
"""The highest priority (0 is the highest) of the active containers on a GPU."""

_ON_SHARE: Final = f"on ({CONTAINER}, uuid)"
_OF_CLAIM: Final = "namespace, exported_namespace, resource_claim, share_id"


def _claims(which: str = "") -> str:
    """The containers' ResourceClaims, once for two pods of one target."""
    return once(f"{CONTAINER}, uuid, {_OF_CLAIM}", f"vgpu_container_resource_claim_info{which}")


_OF_A_SHARE: Final = '{share_id!=""}'
_USES_RESOURCE_CLAIM: Final = (
    f"({_claims(_OF_A_SHARE)}"
    f" unless {_ON_SHARE} vgpu_container_memory_limit_bytes"
    f" unless {_ON_SHARE} (count by ({CONTAINER}, uuid) ({_claims()}) > 1))"
)
"""Containers that use one share of a GPU by a ResourceClaim, which nothing limits."""

_SHARE: Final = f"{GPU}, {_OF_CLAIM}"


def _of_claims(metric: str) -> str:
    """The metric of the containers that use one share of a GPU by a ResourceClaim."""
    return (
        f"{_USES_RESOURCE_CLAIM} * {_ON_SHARE} group_left () {once(f'{CONTAINER}, uuid', metric)}"
    )


_USED_OF_SHARE: Final = f"sum by ({_SHARE}) ({_of_claims('vgpu_container_memory_used_bytes')})"
_CONSUMED: Final = once(_SHARE, _of_claims("vgpu_container_memory_allocated_bytes"))
"""What all containers of a share use together, and what its ResourceClaim consumes."""

_REPLICAS: Final = once(f"{CONTAINER}, uuid", "vgpu_container_memory_fair_share_bytes")


def _used_of(amount: str, which: str) -> str:
    """Used memory by ``amount``, of the containers that the matcher ``which`` selects."""
    return f"vgpu_container_memory_used_bytes{{{which}}} / {amount}"


CONTAINERS: Final = RuleGroup(
    "vgpu-containers",
    (
        Alert(
            "VgpuContainerMemoryNearLimit",
            INFO,
            own_names(
                lambda which: (
                    f"{_used_of('vgpu_container_memory_limit_bytes', which)}"
                    f" > {NEAR_LIMIT_RATIO} <= {OVER_LIMIT_RATIO}"
                )
            ),
            "15m",
            f"{THE_CONTAINER} is near its GPU memory limit",
            f"It uses {RATIO} of its limit on {THE_GPU}. First: does the program take all memory"
            " that it finds on purpose? Else raise its limit before it fails.",
            keep=FLAPS,
        ),
        Alert(
            "VgpuContainerOverLimit",
            WARNING,
            own_names(
                lambda which: (
                    f"{_used_of('vgpu_container_memory_limit_bytes', which)} > {OVER_LIMIT_RATIO}"
                )
            ),
            "5m",
            f"{THE_CONTAINER} is over its GPU memory limit",
            f"It uses {RATIO} of its limit on {THE_GPU}, at its neighbours' cost. First: compare"
            " with vgpu_container_memory_accounted_bytes to see what the sharing library misses."
            " The"
            " reconciler's rule over_limit can evict a pod that stays over it.",
        ),
        Alert(
            "VgpuContainerUncapped",
            WARNING,
            once_a_node(
                own_names(
                    lambda which: (
                        f'vgpu_container_limit_state{{state=~"{any_of(UNCAPPED)}", {which}}}'
                    )
                ),
                "namespace",
                "pod",
                "container",
                metric="vgpu_container_limit_state",
            ),
            "5m",
            f"{THE_CONTAINER} has no GPU memory limit in force",
            "Its sharing system limits containers. This one on {{ $labels.node }} is not limited,"
            " or uses more. First: read the label limit_reason of its vgpu_container_info. The"
            " runbook has the remedy for each reason.",
        ),
        Alert(
            "VgpuContainerBlocked",
            WARNING,
            own_names(
                lambda which: (
                    f"(vgpu_container_blocked{{{which}}} == 1) unless on ({CONTAINER})"
                    f" ({HELD_BACK} > on ({GPU}) group_left () {HIGHEST})"
                )
            ),
            "5m",
            f"{THE_CONTAINER} is blocked without need",
            f"The sharing library stops its kernels on {THE_NODE}, but no container of a higher"
            " priority uses its GPUs. First: check whether the original monitor, which lifts the"
            " block, runs there.",
        ),
        Alert(
            "VgpuShimLayoutUnknown",
            WARNING,
            'vgpu_collector_rejected{collector=~"shim|bare", '
            f'reason="{Reason.UNKNOWN_LAYOUT}"}} > 0',
            "15m",
            f"Shim regions on {THE_NODE} have an unknown layout",
            f"{COUNT} containers have no limit and no accounted memory here. First: check whether"
            " the sharing system was updated. The status page names the files.",
        ),
        Alert(
            "VgpuShimUnreadable",
            WARNING,
            'vgpu_collector_rejected{collector=~"shim|bare", '
            f'reason!~"{any_of((Reason.UNKNOWN_LAYOUT, *HARMLESS_REFUSALS))}"}} > 0',
            "15m",
            f"Shim regions on {THE_NODE} are refused: {{{{ $labels.reason }}}}",
            f"{COUNT} regions, which tenants can write, are invalid. First: the exporter's status"
            " page names the files and so the pods.",
        ),
    ),
)


def _conflicts(*types: str) -> str:
    return f'vgpu_allocation_conflicts{{type=~"{any_of(types)}"}} > 0'


ALLOCATIONS: Final = RuleGroup(
    "vgpu-allocations",
    (
        Alert(
            "VgpuDoubleBooked",
            CRITICAL,
            _conflicts(ConflictKind.DOUBLE_BOOKED),
            "5m",
            f"Two pods hold the same slice of a GPU on {THE_NODE}",
            f"{COUNT} slices were allocated twice. First: the exporter's status page names the"
            " pods; evict the younger pod, which its controller recreates.",
        ),
        Alert(
            "VgpuOvercommitted",
            WARNING,
            _conflicts(ConflictKind.OVERCOMMITTED),
            "10m",
            f"More of a GPU is allocated than it has on {THE_NODE}",
            f"{COUNT} GPUs are affected: with too little memory, the last allocation fails; with"
            " too few cores, all containers are slower. First: check whether the GPUs are oversold"
            " on purpose; else vgpu inspect shows the holders.",
        ),
        Alert(
            "VgpuOvercommitPressure",
            WARNING,
            f"vgpu_gpu_memory_used_bytes / vgpu_gpu_memory_total_bytes > {FULL_RATIO}"
            " and vgpu_gpu_memory_allocated_bytes > vgpu_gpu_memory_total_bytes",
            "5m",
            f"{THE_GPU} is oversold and nearly full",
            f"{RATIO} of its memory is in use, and more is allocated than it has. First: find the"
            " largest users in vgpu_container_memory_used_bytes, and move one of them.",
        ),
        Alert(
            "VgpuFairShareExceeded",
            WARNING,
            own_names(
                lambda which: (
                    f"{_used_of('vgpu_container_memory_fair_share_bytes', which)} > 1"
                    f" and on ({GPU}) vgpu_gpu_memory_used_bytes / vgpu_gpu_memory_total_bytes"
                    f" > {FULL_RATIO}"
                    f" and on ({GPU}) count by ({GPU}) ({_REPLICAS}) > 1"
                )
            ),
            "5m",
            f"{THE_CONTAINER} takes too much of a full GPU",
            f"It uses {RATIO} of its fair share of {THE_GPU}, which is nearly full, and another"
            " container holds a replica of this GPU. Nothing limits either of them. First: find the"
            " holders of this GPU with vgpu top, and ask the owner of the largest to use less.",
        ),
        Alert(
            "VgpuResourceClaimExceeded",
            WARNING,
            own_names(
                lambda which: (
                    f"{_used_of('vgpu_container_memory_allocated_bytes', which)}"
                    f" > {OVER_LIMIT_RATIO}"
                    f' and {_ON_SHARE} vgpu_container_resource_claim_info{{share_id!=""}}'
                    " unless vgpu_container_memory_limit_bytes"
                )
            ),
            "5m",
            f"{THE_CONTAINER} uses more than its ResourceClaim",
            f"It uses {RATIO} of the memory that its ResourceClaim consumes of {THE_GPU}. Nothing"
            " limits it, and the others that share this GPU have too little. First: ask its owner"
            " to use less, or to request more in the ResourceClaim.",
        ),
        Alert(
            "VgpuSharedResourceClaimExceeded",
            WARNING,
            named(
                f"{_USED_OF_SHARE} / {_CONSUMED} > {OVER_LIMIT_RATIO}"
                f" and on ({_SHARE}) count by ({_SHARE}) ({_USES_RESOURCE_CLAIM}) > 1",
                "namespace",
            ),
            "5m",
            f"The containers of a ResourceClaim on {THE_NODE} use more than it together",
            f"The containers of ResourceClaim {THE_RESOURCE_CLAIM} use {RATIO} of the memory that"
            f" it consumes of {THE_GPU}. Nothing limits them, and the others that share this GPU"
            " have too little. First: find the largest of them with vgpu top, and ask its owner to"
            " use less, or to request more in the ResourceClaim.",
        ),
        Alert(
            "VgpuAllocationConflict",
            WARNING,
            _conflicts(*SERIOUS_CONFLICTS),
            "15m",
            f"A container on {THE_NODE} uses a GPU that was not allocated to it",
            f"{COUNT} conflicts of type {{{{ $labels.type }}}}. First: the exporter's status page"
            " names the pods, and what each source reports.",
        ),
        Alert(
            "VgpuBooksDiffer",
            INFO,
            _conflicts(*OTHER_CONFLICTS),
            "1h",
            f"The allocation records of {THE_NODE} differ",
            f"{COUNT} conflicts of type {{{{ $labels.type }}}}. First: the exporter's status page"
            " names the pods; the reconciler repairs most of them.",
        ),
    ),
)
