"""Recording rules: the dashboards' sums of a node, a cluster or a namespace, added up once.

Unknown amounts are in no sum: a GPU with a share of unknown size counts neither as allocated nor as
free, and a reserved share without a running container has no unused memory.
"""

from typing import Final, NamedTuple

from grafana.promql import (
    CONTAINER,
    DEVICE,
    GPU,
    NODE,
    SHARE,
    RecordingRule,
    RuleGroup,
    any_of,
    gained,
    named,
    once,
    once_a_node,
    shareable,
)
from grafana.settings import GPUS_REMEMBERED
from vgpu.ledger.limit_verdict import NOT_ENFORCED_STATES, LimitReason

USED_OF_ALLOCATED: Final = (
    "vgpu_container_memory_used_bytes and vgpu_container_memory_allocated_bytes"
)
"""Not of containers to which no amount was allocated, such as those with a replica of a GPU."""

UNUSED: Final = (
    "clamp_min(vgpu_container_memory_allocated_bytes - vgpu_container_memory_used_bytes, 0)"
)
NOT_ENFORCED_BYTES: Final = (
    f"vgpu_container_memory_allocated_bytes and on ({CONTAINER})"
    f' vgpu_container_limit_state{{state=~"{any_of(NOT_ENFORCED_STATES)}"}}'
    f" unless on ({CONTAINER})"
    f' vgpu_container_info{{limit_reason="{LimitReason.WHOLE_DEVICE.value}"}}'
)
_MEMORY_PART: Final = (
    f"vgpu_container_memory_allocated_bytes / on ({GPU}) group_left ()"
    f" max by ({GPU}) (vgpu_gpu_memory_total_bytes)"
)
_CORE_PART: Final = "vgpu_container_core_allocated_ratio"
_REPLICA_PART: Final = (
    f"clamp_max(vgpu_container_shares_allocated / on ({GPU}) group_left ()"
    f" max by ({GPU}) (vgpu_gpu_replicas), 1)"
)
_PART: Final = (
    f"(0.5 * {_CORE_PART} + 0.5 * {_MEMORY_PART})"
    f" or {_MEMORY_PART} or {_CORE_PART} or {_REPLICA_PART}"
)
"""The mean of a share's parts of a device's memory and cores; gpushare has no cores, time-slicing
neither. The rule of ``vgpu bill`` (:mod:`vgpucli.bill.measurement`)."""

_CROWDED: Final = (
    f"/ on ({GPU}) group_left () clamp_min(sum by ({GPU})"
    f" (max by ({GPU}, pod_uid, container, exported_container) ({_PART})), 1)"
)
"""Where the parts of a device have a sum above 1, each is divided by it."""

GPUS_ALLOCATED: Final = f"({_PART}) {_CROWDED}"

_MEMORY_USE: Final = (
    f"vgpu_container_memory_used_bytes / on ({GPU}) group_left ()"
    f" max by ({GPU}) (vgpu_gpu_memory_total_bytes)"
)


def _used(held: str, use: str) -> str:
    """The smaller of the two; nothing where the use is unknown."""
    return f"(({held} <= {use}) or ({use} < {held}))"


def _both(of_cores: str, of_memory: str) -> str:
    return f"(0.5 * {of_cores} + 0.5 * {of_memory})"


_USED_MEMORY: Final = _used(f"({_MEMORY_PART})", f"({_MEMORY_USE})")
_USED_CORES: Final = _used(_CORE_PART, "vgpu_container_sm_utilization_ratio")
_USED_REPLICA: Final = _both(
    _used(_REPLICA_PART, "vgpu_container_sm_utilization_ratio"),
    _used(_REPLICA_PART, f"({_MEMORY_USE})"),
)
GPUS_USED: Final = (
    f"({_both(_USED_CORES, _USED_MEMORY)} or ({_USED_MEMORY} unless {_CORE_PART})"
    f" or ({_USED_CORES} unless vgpu_container_memory_allocated_bytes)"
    f" or ({_USED_REPLICA} unless {_CORE_PART} unless vgpu_container_memory_allocated_bytes))"
    f" {_CROWDED}"
)
"""What of each part is used, of each dimension at most what is held. As in ``vgpu bill``, nothing
counts as used of a share if the use of one of its dimensions is unknown."""

UNALLOCATED: Final = (
    f"clamp_min(({shareable('vgpu_gpu_memory_total_bytes')}) - vgpu_gpu_memory_allocated_bytes, 0)"
)
MISSING: Final = (
    f"clamp_min(max by ({NODE}) (max_over_time(vgpu_gpus_expected[{GPUS_REMEMBERED}])"
    f" or vgpu_gpus_expected) - max by ({NODE}) (vgpu_gpus), 0)"
)
"""By node, so that a new exporter on the node, whose pod has another name, still counts GPUs that
the last exporter saw.

``or``: a new node has no earlier samples yet.
"""

_ALLOCATIONS: Final = f"sum by (cluster) ({gained('vgpu_plugin_allocations_total', '1h')})"


def _refusals(which: str) -> str:
    return f"sum by (cluster) ({gained(f'vgpu_plugin_refusals_total{which}', '1h')})"


_ANSWERED: Final = f"({_ALLOCATIONS} or {_refusals('')} * 0)"
"""Answers within an hour; 0 where plugins have only refused."""


def _refused(which: str) -> str:
    """Refusals within an hour; 0 where there were none."""
    return f"({_refusals(which)} or {_ANSWERED} * 0)"


_IN_ALLOCATE: Final = '{step="allocate"}'
_ASKED: Final = f"({_ANSWERED} + {_refused(_IN_ALLOCATE)})"
ADMISSION_SUCCESS: Final = f"clamp_min(1 - {_refused('')} / ({_ASKED} > 0), 0)"
"""Refusals in Allocate are not answers, later ones are: each asked container counts once."""

UTILIZATION: Final = "vgpu_gpu_utilization_ratio"

_ALLOCATED: Final = "vgpu_container_memory_allocated_bytes"


class Summand(NamedTuple):
    """What is added up: ``expr`` once for each set of ``labels`` of a node.

    ``metric`` is what ``expr`` is made of, ``about`` is the meaning of the sum.
    """

    name: str
    expr: str
    metric: str
    labels: tuple[str, ...]
    about: str

    def of_targets(self) -> str:
        """Once for each target: two pods of the exporter may have one target's labels."""
        return once(", ".join((NODE, *self.labels)), self.expr)

    def of_nodes(self, *more: str) -> str:
        """Once for each node, with ``more`` labels."""
        return once_a_node(self.expr, *more, *self.labels, metric=self.metric)


def _of_gpus(metric: str, about: str, expr: str = "", of: str = "") -> Summand:
    return Summand(metric, expr or metric, of or metric, ("uuid",), about)


def _of_shares(metric: str, about: str, expr: str = "", of: str = _ALLOCATED) -> Summand:
    names = named(expr or metric, "namespace", "container")
    return Summand(metric, names, of, ("pod_uid", "container", "uuid"), about)


def _whole(metric: str, about: str) -> Summand:
    """Of devices that can be allocated."""
    return _of_gpus(metric, about, shareable(metric), metric)


SUMS: Final = (
    _whole("vgpu_gpu_memory_total_bytes", "memory there is"),
    _whole("vgpu_gpu_memory_used_bytes", "memory in use"),
    _of_gpus("vgpu_gpu_memory_allocated_bytes", "memory allocated"),
    _of_gpus(
        "vgpu_gpu_memory_unallocated_bytes",
        "memory still to be allocated",
        UNALLOCATED,
        "vgpu_gpu_memory_total_bytes",
    ),
    _of_shares(
        "vgpu_container_memory_unused_bytes", "waste: memory allocated that is not used", UNUSED
    ),
    _whole("vgpu_gpu_memory_unattributed_bytes", "memory in use that belongs to no container"),
    _of_gpus("vgpu_gpu_core_allocated_ratio", "cores allocated"),
    _of_gpus("vgpu_gpu_shares_allocated", "shares that containers hold"),
    _of_gpus("vgpu_gpu_power_usage_watts", "power drawn"),
)
"""What is added up for each node and each cluster."""

BY_NAMESPACE: Final = (
    _of_shares(_ALLOCATED, "allocated"),
    _of_shares("vgpu_container_memory_used_bytes", "used", of="vgpu_container_memory_used_bytes"),
    _of_shares(
        "vgpu_container_memory_used_of_allocated_bytes", "used of what they hold", USED_OF_ALLOCATED
    ),
    _of_shares("vgpu_container_memory_unused_bytes", "allocated and not used", UNUSED),
    _of_shares(
        "vgpu_container_memory_not_enforced_bytes",
        "allocated, and nothing keeps the container to it",
        NOT_ENFORCED_BYTES,
    ),
    _of_shares(
        "vgpu_container_core_allocated_ratio",
        "cores allocated",
        of="vgpu_container_core_allocated_ratio",
    ),
    _of_shares(
        "vgpu_container_sm_utilization_ratio",
        "cores used",
        of="vgpu_container_sm_utilization_ratio",
    ),
    _of_shares(
        "vgpu_gpus_allocated",
        "GPUs allocated: of each share the mean of its parts of cores and memory",
        GPUS_ALLOCATED,
        f"({_ALLOCATED} or {_CORE_PART} or vgpu_container_shares_allocated)",
    ),
)

HOLDERS: Final = Summand(
    "vgpu_containers",
    named('vgpu_container_info{phase!="released"}', "container"),
    "vgpu_container_info",
    ("pod_uid", "container"),
    "containers that hold shares",
)

WAITING: Final = (
    ("vgpu_reconcile_waiting_pods", "pods that wait for a node"),
    ("vgpu_reconcile_waiting_gpus", "GPUs that containers of waiting pods would see"),
    ("vgpu_reconcile_waiting_memory_bytes", "memory that waiting pods request"),
    ("vgpu_reconcile_waiting_core_ratio", "cores that waiting pods request"),
)
"""(metric, meaning) of what the reconciler that leads knows of each namespace."""

QUOTA: Final = "cluster, namespace, resource, model"
"""Labels of a limit; "model" is empty for all models."""


QUEUE_QUOTA: Final = "cluster, kind, queue, resource, flavor, amount"
"""Labels of an amount of a queue; "queue" is ``<namespace>/<name>`` of a LocalQueue."""

QUEUE_LEVEL: Final = QUEUE_QUOTA.replace(", ", "_")


def quota(amount: str) -> str:
    """``used`` or ``limit`` of each quota: by the scheduler, or else by the reconciler.

    The scheduler counts reservations at once. Without it the reconciler counts what pods hold.
    """
    return " or ".join(
        f"max by ({QUOTA}) ({named(f'vgpu_{program}_quota_{amount}', 'namespace')})"
        for program in ("extender", "reconcile")
    )


def teams(selector: str = "") -> str:
    """The team of each namespace, once: after a change two may be there for a moment."""
    info = named(f"vgpu_reconcile_namespace_info{selector}", "namespace")
    return f"topk by (cluster, namespace) (1, max by (cluster, namespace, team) ({info}))"


def of_team(record: str) -> str:
    """The sum of a namespace's record by team; "team" is empty for namespaces of no team."""
    return (
        f"sum by (cluster, team) ({record} * on (cluster, namespace) group_left (team) {teams()})"
    )


PRICE: Final = "model:vgpu_price_per_gpu_hour:max"
"""The price of a whole device by model and MIG profile, in the rules of ``vgpu bill rules``."""


def cost(of_shares: str) -> str:
    """What parts of GPUs cost in an hour, by namespace, its team, and model of the GPUs.

    Nothing is there while no prices are loaded. "team" is empty for namespaces of no team.
    """
    shares = once(f"{SHARE}, namespace", named(of_shares, "namespace", "container"))
    split = (
        'label_replace(group by (cluster, parent_uuid) (vgpu_gpu_info{parent_uuid!=""}),'
        ' "uuid", "$1", "parent_uuid", "(.+)")'
    )
    price = (
        f"max by ({DEVICE}, model) ((vgpu_gpu_info unless on ({DEVICE}) {split})"
        f" * on (model, mig_profile) group_left () max by (model, mig_profile) ({PRICE}))"
    )
    of_namespace = (
        f"sum by (cluster, namespace, model) ({shares} * on ({DEVICE}) group_left (model) {price})"
    )
    known = (
        f"({teams()} or on (cluster, namespace)"
        " group by (cluster, namespace) (cluster_namespace:vgpu_gpus_allocated:sum))"
    )
    return f"{of_namespace} * on (cluster, namespace) group_left (team) {known}"


COSTS: Final = (
    RecordingRule(
        "cluster_namespace_team_model:vgpu_cost_held_per_hour:sum",
        cost(GPUS_ALLOCATED),
        "price of the GPUs held, for an hour, by namespace, its team, and model",
    ),
    RecordingRule(
        "cluster_namespace_team_model:vgpu_cost_used_per_hour:sum",
        cost(GPUS_USED),
        "price of what is used of the GPUs held, for an hour, by namespace, its team, and model",
    ),
)
"""Money: whoever can read these series can compute the prices."""

GROUPS: Final = (
    RuleGroup(
        "vgpu-nodes",
        (
            *(
                RecordingRule(
                    f"instance:{each.name}:sum",
                    f"sum by ({NODE}) ({each.of_targets()})",
                    f"{each.about}, by node",
                )
                for each in SUMS
            ),
            RecordingRule(
                "instance:vgpu_gpu_utilization_ratio:avg",
                f"avg by ({NODE}) ({once(f'{NODE}, uuid', UTILIZATION)})",
                "utilisation of its GPUs, by node",
            ),
            RecordingRule(
                "instance:vgpu_gpus_missing:max",
                MISSING,
                "GPUs that were or should be there within a day and do not answer, by node",
            ),
        ),
    ),
    RuleGroup(
        "vgpu-clusters",
        (
            *(
                RecordingRule(
                    f"cluster:{each.name}:sum",
                    f"sum by (cluster) ({each.of_nodes()})",
                    f"{each.about}, by cluster",
                )
                for each in SUMS
            ),
            RecordingRule(
                "cluster:vgpu_gpu_utilization_ratio:avg",
                f"avg by (cluster) ({once_a_node(UTILIZATION, 'uuid')})",
                "utilisation of its GPUs, by cluster",
            ),
            RecordingRule(
                "cluster:vgpu_gpus:sum",
                f"sum by (cluster) ({once_a_node('vgpu_gpus')})",
                "GPUs that answer",
            ),
            RecordingRule(
                "cluster:vgpu_gpus_expected:sum",
                f"sum by (cluster) ({once_a_node('vgpu_gpus_expected')})",
                "GPUs that should answer",
            ),
            RecordingRule(
                "cluster_scheme:vgpu_containers:count",
                f"count by (cluster, scheme) ({HOLDERS.of_nodes('scheme')})",
                "containers that hold shares, by sharing system",
            ),
            RecordingRule(
                "cluster_type:vgpu_allocation_conflicts:sum",
                f"sum by (cluster, type) ({once_a_node('vgpu_allocation_conflicts', 'type')})",
                "disagreements between the sources, by type",
            ),
            RecordingRule(
                "cluster:vgpu_reconcilers:count",
                'count by (cluster) (vgpu_reconcile_info{scope="cluster"})',
                "reconcilers that look at the whole cluster",
            ),
            RecordingRule(
                "cluster:vgpu_plugin_admission_success:ratio_rate1h",
                ADMISSION_SUCCESS,
                "containers that got their devices, as a part of those that asked within an hour",
            ),
            RecordingRule(
                "cluster:vgpu_plugins:count",
                "count by (cluster) (vgpu_plugin_info)",
                "device plugins that run",
            ),
            RecordingRule(
                "cluster:vgpu_extenders:count",
                "count by (cluster) (vgpu_extender_ready)",
                "schedulers that run",
            ),
            RecordingRule(
                "cluster:vgpu_kubeshare_controllers:count",
                "count by (cluster) (vgpu_kubeshare_ready)",
                "controllers of KubeShare that run",
            ),
            RecordingRule(
                "cluster:vgpu_token_daemons:count",
                "count by (cluster) (vgpu_token_ready)",
                "token daemons that run",
            ),
            RecordingRule(
                "cluster_resource_health:vgpu_plugin_resource_devices:sum",
                "sum by (cluster, resource, health) (vgpu_plugin_resource_devices)",
                "device IDs that are advertised to kubelets, by resource and health",
            ),
        ),
    ),
    RuleGroup(
        "vgpu-namespaces",
        (
            *(
                RecordingRule(
                    f"cluster_namespace:{each.name}:sum",
                    f"sum by (cluster, namespace) ({each.of_nodes('namespace')})",
                    f"{each.about}, by namespace",
                )
                for each in BY_NAMESPACE
            ),
            *(
                RecordingRule(
                    f"cluster_namespace:{name}:max",
                    f"max by (cluster, namespace) ({named(name, 'namespace')})",
                    f"{about}, by namespace",
                )
                for name, about in WAITING
            ),
            RecordingRule(
                "cluster_namespace_resource_model:vgpu_quota_used:max",
                quota("used"),
                "what is used of a quota, in the unit of its resource",
            ),
            RecordingRule(
                "cluster_namespace_resource_model:vgpu_quota_limit:max",
                quota("limit"),
                "a quota, in the unit of its resource",
            ),
            RecordingRule(
                f"{QUEUE_LEVEL}:vgpu_reconcile_queue_quota:max",
                f"max by ({QUEUE_QUOTA}) (vgpu_reconcile_queue_quota)",
                "an amount of a queue, in the unit of its resource",
            ),
            # After the namespaces' records, which these rules read.
            *(
                RecordingRule(
                    f"cluster_team:{each.name}:sum",
                    of_team(f"cluster_namespace:{each.name}:sum"),
                    f"{each.about}, by team",
                )
                for each in BY_NAMESPACE
            ),
            *(
                RecordingRule(
                    f"cluster_team:{name}:sum",
                    of_team(f"cluster_namespace:{name}:max"),
                    f"{about}, by team",
                )
                for name, about in WAITING
            ),
            *COSTS,
        ),
    ),
)
