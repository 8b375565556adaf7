"""The alerts. Each description begins with the first step, and each alert has a runbook of its
name.

Alerts find an event by its timestamp or by a level that stays: `increase()` does not see the
first event of a series. No sum drops a label that names the place of the problem.
"""

from typing import Final

from grafana.plugin_alerts import DEVICE_PLUGINS
from grafana.promql import (
    CONTAINER,
    GPU,
    TARGET,
    Alert,
    AlertSeverity,
    RuleGroup,
    any_of,
    failed_part,
    gained,
    named,
)
from grafana.settings import (
    ABSENT_REMEMBERED,
    ACTIVE_SECONDS,
    API_ERROR_RATIO,
    API_ERRORS,
    CLUSTER_RECONCILER,
    CYCLE_SECONDS,
    ECC_WINDOW,
    EXPORTER,
    FAILURES,
    FLAPS,
    FULL_RATIO,
    GAP_RATIO,
    HARMLESS_REFUSALS,
    LOCKS,
    MISSED_CYCLES,
    NEAR_LIMIT_RATIO,
    OTHER_CONFLICTS,
    OTHER_RULES,
    OVER_LIMIT_RATIO,
    POWER_BRAKE,
    RECONCILER,
    SCRAPE_SECONDS,
    SERIOUS_CONFLICTS,
    SHARED_RESOURCES,
    SLOW_PART,
    STALE_INTERVALS,
    STUCK_PODS,
    THERMAL,
    XID_SECONDS,
    XIDS_CRITICAL,
    XIDS_WARNING,
)
from grafana.templates import COUNT, RATIO, THE_CONTAINER, THE_GPU, THE_NODE, TIME
from vgpu.ledger import ConflictKind
from vgpu.reasons import Reason

FAILED_ACTIONS: Final = f'vgpu_reconcile_actions_total{{outcome=~"{any_of(FAILURES)}"}}'

CRITICAL, WARNING, INFO = AlertSeverity.CRITICAL, AlertSeverity.WARNING, AlertSeverity.INFO

ECC_ERRORS: Final = 'vgpu_gpu_ecc_errors_total{type="uncorrected", lifetime="volatile"}'

_POD: Final = "cluster, namespace, pod"
WAITING_PODS: Final = (
    f"sum by (cluster) (max by ({_POD}) (kube_pod_status_unschedulable) * on ({_POD})"
    f" group by ({_POD}) (kube_pod_container_resource_requests"
    f'{{resource=~"{any_of(SHARED_RESOURCES)}"}} > 0))'
)
"""Pods that ask for a share of a GPU and fit nowhere, by kube-state-metrics."""

EXPORTERS: Final = RuleGroup(
    "vgpu-exporters",
    (
        Alert(
            "VgpuExporterDown",
            WARNING,
            f"up{{{EXPORTER}}} == 0",
            "10m",
            f"The exporter on {THE_NODE} cannot be scraped",
            "This node's GPUs are not monitored. First: check whether the exporter's pod runs"
            " there, and read the end of its log.",
        ),
        Alert(
            "VgpuExportersAbsent",
            CRITICAL,
            f"last_over_time(cluster:vgpu_gpus:sum[{ABSENT_REMEMBERED}])"
            f" unless on (cluster) up{{{EXPORTER}}}",
            "15m",
            "Prometheus has no exporter to scrape any more",
            f"{COUNT} GPUs were seen within the last week, and now no exporter is a target. First:"
            " look for the scrape job, its ServiceMonitor or PodMonitor, and the DaemonSet.",
        ),
        Alert(
            "VgpuDriverNotAnswering",
            CRITICAL,
            'vgpu_collector_success{collector="nvml"} == 0',
            "5m",
            f"The NVIDIA driver on {THE_NODE} does not answer",
            "The driver cannot be read, and its series are withdrawn. First: run nvidia-smi on the"
            " node, and look at dmesg for NVRM lines; if it hangs, drain the node.",
        ),
        Alert(
            "VgpuCollectorFailing",
            WARNING,
            'vgpu_collector_success{collector!="nvml"} == 0',
            "15m",
            f"The collector {{{{ $labels.collector }}}} on {THE_NODE} brings no data",
            "Data that only this collector reads is missing. First: see the reason in"
            " vgpu_collector_failures_total, or the error on the exporter's status page.",
        ),
        Alert(
            "VgpuDataStale",
            WARNING,
            "time() - vgpu_snapshot_timestamp_seconds"
            f" > {STALE_INTERVALS} * vgpu_sample_interval_seconds + {SCRAPE_SECONDS}",
            "5m",
            f"The exporter on {THE_NODE} serves an old page",
            f"The page is {TIME} old: the exporter answers, but no longer takes samples. First:"
            " compare"
            " the node's clock with this server's; if both are right, restart the exporter.",
        ),
        Alert(
            "VgpuCollectionSlow",
            WARNING,
            f"vgpu_collector_duration_seconds > on ({TARGET}) group_left ()"
            f" ({SLOW_PART} * vgpu_sample_interval_seconds)",
            "15m",
            f"The collector {{{{ $labels.collector }}}} on {THE_NODE} is slow",
            f"A pass takes {TIME}. First: look at the node's load and disk; for nvml, see which"
            " call takes long in vgpu_nvml_call_seconds_total.",
        ),
        Alert(
            "VgpuExporterDefect",
            WARNING,
            "increase(vgpu_join_failures_total[15m]) > 0 or vgpu_dropped_series > 0",
            "5m",
            f"The exporter on {THE_NODE} lost data to a defect of its own",
            f"{COUNT} samples or series were left out. First: save the exporter's log, which has"
            " the details, and report it.",
        ),
        Alert(
            "VgpuWebConfigBroken",
            WARNING,
            "vgpu_web_config_last_reload_successful == 0",
            "5m",
            f"The web config file of {THE_NODE} is broken",
            "The version before it stays in force; a restart would fail. First: run promtool check"
            " web-config on the file, and look at the log.",
        ),
    ),
)

DEVICES: Final = RuleGroup(
    "vgpu-devices",
    (
        Alert(
            "VgpuGpuMissing",
            CRITICAL,
            "instance:vgpu_gpus_missing:max > 0",
            "5m",
            f"A GPU is missing on {THE_NODE}",
            f"{COUNT} GPUs do not answer. First: cordon the node, see which GPU is gone in"
            " vgpu_gpu_up and why in dmesg (XID 79: it fell off the bus).",
        ),
        Alert(
            "VgpuXidCritical",
            CRITICAL,
            "time() - vgpu_gpu_xid_last_timestamp_seconds"
            f'{{xid=~"{any_of(XIDS_CRITICAL)}"}} < {XID_SECONDS}',
            "",
            f"XID {{{{ $labels.xid }}}} on {THE_GPU}",
            f"Reported {TIME} ago: the GPU is broken until it is reset or replaced. First: cordon"
            " the node and see which containers use the GPU in vgpu_container_memory_used_bytes.",
        ),
        Alert(
            "VgpuXidWarning",
            WARNING,
            "time() - vgpu_gpu_xid_last_timestamp_seconds"
            f'{{xid=~"{any_of(XIDS_WARNING)}"}} < {XID_SECONDS}',
            "",
            f"XID {{{{ $labels.xid }}}} on {THE_GPU}",
            f"Reported {TIME} ago: an error of the GPU's memory ended one program, the others"
            " continue. First: plan a reset of the GPU when it is next free.",
        ),
        Alert(
            "VgpuXidsUnheard",
            INFO,
            "vgpu_gpu_xid_watched == 0",
            "15m",
            f"XID errors of {THE_GPU} are not recorded",
            "The absence of XID series means nothing for this GPU. First: check whether the"
            " collector xid is switched off; else the exporter's log has the driver's reason.",
        ),
        Alert(
            "VgpuEccUncorrected",
            WARNING,
            f"{gained(ECC_ERRORS, ECC_WINDOW)} > 0",
            "",
            f"Uncorrected memory errors on {THE_GPU}",
            f"{COUNT} within a day; affected programs have failed or computed wrong results."
            " First: look for XIDs 48, 94 and 95, then reset the GPU when it is free.",
        ),
        Alert(
            "VgpuRowRemapFailed",
            CRITICAL,
            "vgpu_gpu_row_remap_failure == 1",
            "",
            f"The memory of {THE_GPU} can no longer be repaired",
            "A remapping of memory rows has failed: no spare rows are left. First: cordon the node,"
            " and have the GPU replaced.",
        ),
        Alert(
            "VgpuResetDue",
            WARNING,
            "vgpu_gpu_row_remap_pending == 1 or vgpu_gpu_retired_pages_pending == 1",
            "1h",
            f"{THE_GPU} waits for a reset",
            "Broken memory is retired only when the GPU is reset. First: drain the node at a"
            " suitable time, and run nvidia-smi --gpu-reset or reboot.",
        ),
        Alert(
            "VgpuThermalSlowdown",
            WARNING,
            f'vgpu_gpu_clock_event_active{{reason=~"{any_of(THERMAL)}"}} == 1',
            "5m",
            f"{THE_GPU} is too hot",
            "The driver slows it down ({{ $labels.reason }}). First: compare its temperature with"
            " its neighbours', then look at fans, airflow and the room.",
            keep=FLAPS,
        ),
        Alert(
            "VgpuPowerBrake",
            WARNING,
            f'vgpu_gpu_clock_event_active{{reason=~"{any_of(POWER_BRAKE)}"}} == 1',
            "5m",
            f"{THE_GPU} is held down by its power supply",
            "The machine asserts the external power brake. First: look at the power supplies and"
            " the power cap of chassis and rack.",
            keep=FLAPS,
        ),
        Alert(
            "VgpuAttributionGap",
            WARNING,
            f"vgpu_gpu_memory_unattributed_bytes / vgpu_gpu_memory_total_bytes > {GAP_RATIO}",
            "15m",
            f"Memory of {THE_GPU} is used outside containers",
            f"{RATIO} of it is used, and no scheduler counts it. First: run vgpu top on the node,"
            " or nvidia-smi, and find the owners of the processes.",
            keep=FLAPS,
        ),
    ),
)

ON_GPU: Final = (
    f"max by ({CONTAINER}, uuid) (vgpu_container_memory_accounted_bytes) * 0"
    f" + on ({CONTAINER}) group_left () max by ({CONTAINER})"
)
"""The container's series that follows, once for each GPU that the container's region names."""

HELD_BACK: Final = f"{ON_GPU} (vgpu_container_priority and (vgpu_container_blocked == 1))"
HIGHEST: Final = (
    f"min by ({GPU}) ({ON_GPU} (vgpu_container_priority and (time()"
    f" - vgpu_container_last_kernel_timestamp_seconds < {ACTIVE_SECONDS})))"
)
"""The highest priority (0 is the highest) of the active containers on a GPU."""

CONTAINERS: Final = RuleGroup(
    "vgpu-containers",
    (
        Alert(
            "VgpuContainerMemoryNearLimit",
            INFO,
            named(
                "vgpu_container_memory_used_bytes / vgpu_container_memory_limit_bytes"
                f" > {NEAR_LIMIT_RATIO} <= {OVER_LIMIT_RATIO}"
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
            named(
                "vgpu_container_memory_used_bytes / vgpu_container_memory_limit_bytes"
                f" > {OVER_LIMIT_RATIO}"
            ),
            "5m",
            f"{THE_CONTAINER} is over its GPU memory limit",
            f"It uses {RATIO} of its limit on {THE_GPU}, at its neighbours' cost. First: compare"
            " with vgpu_container_memory_accounted_bytes to see what the sharing library misses."
            " The"
            " reconciler's rule over_limit can evict a pod that stays over it.",
        ),
        Alert(
            "VgpuContainerBlocked",
            WARNING,
            named(
                f"(vgpu_container_blocked == 1) unless on ({CONTAINER})"
                f" ({HELD_BACK} > on ({GPU}) group_left () {HIGHEST})"
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


def _found(*rules: str) -> str:
    return f'vgpu_reconcile_findings{{rule=~"{any_of(rules)}"}} > 0'


def _cycles(*results: str) -> str:
    matcher = f'{{result=~"{any_of(results)}"}}'
    return f"sum without (result) (increase(vgpu_reconcile_cycles_total{matcher}[30m])) > 0"


RECONCILERS: Final = RuleGroup(
    "vgpu-reconcilers",
    (
        Alert(
            "VgpuStuckPods",
            WARNING,
            _found(*STUCK_PODS),
            "1h",
            "Pods that request a GPU are stuck: {{ $labels.rule }}",
            f"{COUNT} pods have failed or waited for an hour and were not repaired. First: vgpu"
            " reconcile plan names them, and the reason why each is skipped.",
        ),
        Alert(
            "VgpuNodeLockStuck",
            WARNING,
            _found(*LOCKS),
            "15m",
            "A GPU node is locked and no pod needs the lock",
            f"{COUNT} nodes accept no new GPU pod. First: vgpu reconcile plan names the node, the"
            " lock's owner, and why the lock is kept.",
        ),
        Alert(
            "VgpuFindingsPersist",
            INFO,
            _found(*OTHER_RULES),
            "1h",
            "Findings of the rule {{ $labels.rule }} persist",
            f"{COUNT} objects, for an hour. First: vgpu reconcile plan shows what would be done,"
            " and why it is not done; the rule may be set to plan only.",
        ),
        Alert(
            "VgpuIdleWhileOthersWait",
            WARNING,
            'sum by (cluster) (vgpu_reconcile_findings{rule="idle_holder"}) > 0'
            f" and on (cluster) {WAITING_PODS} > 0",
            "30m",
            "Containers hold shares of GPUs idle while other pods wait",
            f"{COUNT} containers have launched no kernel for --idle-after, and pods that ask for a"
            " share fit nowhere. First: vgpu reconcile plan --scope node on the nodes names them.",
        ),
        Alert(
            "VgpuReconcilerDown",
            WARNING,
            f"up{{{RECONCILER}}} == 0",
            "10m",
            f"The reconciler {THE_NODE} cannot be scraped",
            "A node's reconciler repairs nothing there now; a cluster's repairs nothing unless"
            " another one is the leader. First: check whether its pod runs, and read the end of"
            " its log.",
        ),
        Alert(
            "VgpuReconcilerAbsent",
            WARNING,
            f"last_over_time(cluster:vgpu_reconcilers:count[{ABSENT_REMEMBERED}])"
            f" unless on (cluster) up{{{CLUSTER_RECONCILER}}}",
            "15m",
            "No reconciler of the cluster is scraped",
            f"{COUNT} ran within the last week. First: look for its Deployment and its scrape job.",
        ),
        Alert(
            "VgpuReconcilerStalled",
            WARNING,
            f"time() - vgpu_reconcile_last_cycle_timestamp_seconds > {CYCLE_SECONDS}",
            "5m",
            f"The reconciler {THE_NODE} starts no cycles",
            f"Its newest cycle began {TIME} ago. First: compare with its schedule (--every,"
            " --cron); else see /-/healthy and the log, and restart it.",
        ),
        Alert(
            "VgpuReconcileFailing",
            WARNING,
            f"{_cycles('blind', 'untold')} unless {_cycles('planned', 'applied', 'partly')}",
            "10m",
            f"The reconciler {THE_NODE} fails in every cycle",
            "For half an hour it could not read the cluster or not write its audit. First: its log"
            " has the API server's error; look for a missing permission or a full disk.",
        ),
        Alert(
            "VgpuReconcileCyclesMissed",
            WARNING,
            f"increase(vgpu_reconcile_missed_cycles_total[1h]) > {MISSED_CYCLES}",
            "",
            f"The reconciler {THE_NODE} misses cycles: {{{{ $labels.reason }}}}",
            f"{COUNT} in an hour. First: the reason failed is a defect, with details in the log;"
            " else compare vgpu_reconcile_stage_duration_seconds with --every.",
        ),
        Alert(
            "VgpuReconcileActionsFailing",
            WARNING,
            f"{gained(FAILED_ACTIONS, '1h')} > 0",
            "15m",
            "Repairs end as {{ $labels.outcome }}",
            f"{COUNT} actions of rule {{{{ $labels.rule }}}} in an hour. First: the log's lines"
            " msg=action have the objects and the API server's error.",
        ),
        Alert(
            "VgpuBreakerTripped",
            CRITICAL,
            "vgpu_reconcile_breaker_tripped == 1",
            "10m",
            "The circuit breaker has tripped: the reconciler does nothing",
            "More pods need an action than the circuit breaker allows. First: find the common"
            " cause in vgpu reconcile report; a person has to decide.",
        ),
        Alert(
            "VgpuReconcilerNoLeader",
            WARNING,
            "max by (cluster, namespace, job) (vgpu_reconcile_leader) == 0",
            "10m",
            "No reconciler is the leader",
            "All of {{ $labels.job }} wait for a leader, and nothing is repaired. First: kubectl"
            " get lease vgpu-reconciler -o yaml shows the holder.",
        ),
        Alert(
            "VgpuReconcilerApiErrors",
            WARNING,
            f"{failed_part('vgpu_reconcile_api_requests_total', API_ERRORS)} > {API_ERROR_RATIO}",
            "15m",
            f"Requests of the reconciler {THE_NODE} fail",
            f"{RATIO} of its requests to the API server. First: by code: 0 is the network, 401 and"
            " 403 are rights, 5xx the API server itself.",
        ),
    ),
)

GROUPS: Final = (EXPORTERS, DEVICES, CONTAINERS, ALLOCATIONS, DEVICE_PLUGINS, RECONCILERS)
