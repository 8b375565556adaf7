"""When each alert fires, and when it must not.

Series are in promtool's notation, a sample a minute from 0; the labels of the target are added.
"""

from dataclasses import dataclass, field

UUID = 'uuid="GPU-1"'
WHO = 'namespace="team",pod="train-0",container="main",pod_uid="u1"'
OTHER = 'namespace="team",pod="chat-0",container="main",pod_uid="u2"'
GIB = 2**30


@dataclass(frozen=True)
class Case:
    """An alert that fires.

    ``sick`` are the series of a cluster where it does, ``well`` those of one where it does not.
    ``onset`` is the minute in which the trouble begins, ``labels`` what the alert carries beside
    those of the target (but not ``lacks``), ``value`` its value as people read it.
    """

    alert: str
    sick: dict[str, str]
    well: dict[str, str]
    labels: dict[str, str] = field(default_factory=dict)
    value: str = ""
    onset: int = 0
    job: str = "vgpu"
    lacks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Quiet:
    """Series with which an alert stays quiet for half an hour beyond its delay, and why it must."""

    alert: str
    why: str
    series: dict[str, str]
    job: str = "vgpu"


def level(alert, series, sick, well, **rest):
    """An alert on one series that is at one value or at another."""
    return Case(alert, {series: f"{sick}x120"}, {series: f"{well}x120"}, **rest)


def reconciler(alert, series, sick, well, **rest):
    return level(alert, series, sick, well, job="vgpu-reconciler", **rest)


DEVICE = {"uuid": "GPU-1"}
CONTAINER = {"namespace": "team", "pod": "train-0", "container": "main", "pod_uid": "u1"}


def memory(used, limit):
    return {
        f"vgpu_container_memory_used_bytes{{{WHO},{UUID}}}": f"{used}x120",
        f"vgpu_container_memory_limit_bytes{{{WHO},{UUID}}}": f"{limit}x120",
    }


def two_of_a_card(blocked, other_priority=0, other_kernel="0+60x120"):
    """A container on a card, and one that launches kernels, or does not, beside it."""
    return {
        f"vgpu_container_memory_accounted_bytes{{{WHO},{UUID}}}": "7x120",
        f"vgpu_container_memory_accounted_bytes{{{OTHER},{UUID}}}": "7x120",
        f"vgpu_container_blocked{{{WHO}}}": f"{blocked}x120",
        f"vgpu_container_blocked{{{OTHER}}}": "0x120",
        f"vgpu_container_priority{{{WHO}}}": "1x120",
        f"vgpu_container_priority{{{OTHER}}}": f"{other_priority}x120",
        f"vgpu_container_last_kernel_timestamp_seconds{{{WHO}}}": "0x120",
        f"vgpu_container_last_kernel_timestamp_seconds{{{OTHER}}}": other_kernel,
    }


def card(used, allocated, total=100):
    return {
        f"vgpu_gpu_memory_used_bytes{{{UUID}}}": f"{used}x120",
        f"vgpu_gpu_memory_allocated_bytes{{{UUID}}}": f"{allocated}x120",
        f"vgpu_gpu_memory_total_bytes{{{UUID}}}": f"{total}x120",
    }


def gap(unattributed):
    return {
        f"vgpu_gpu_memory_unattributed_bytes{{{UUID}}}": f"{unattributed}x120",
        f"vgpu_gpu_memory_total_bytes{{{UUID}}}": "100x120",
    }


def clock(reason):
    return f'vgpu_gpu_clock_event_active{{{UUID},reason="{reason}"}}'


def refused(reason, collector="shim"):
    return f'vgpu_collector_rejected{{collector="{collector}",reason="{reason}"}}'


def conflicts(kind):
    return f'vgpu_allocation_conflicts{{type="{kind}"}}'


def found(rule):
    return f'vgpu_reconcile_findings{{rule="{rule}"}}'


def cycles(planned, blind):
    return {
        'vgpu_reconcile_cycles_total{result="planned"}': planned,
        'vgpu_reconcile_cycles_total{result="blind"}': blind,
    }


def requests(verb, code):
    return f'vgpu_reconcile_api_requests_total{{verb="{verb}",code="{code}"}}'


XID = f'vgpu_gpu_xid_last_timestamp_seconds{{{UUID},xid="%d"}}'
ECC = f'vgpu_gpu_ecc_errors_total{{{UUID},type="uncorrected",lifetime="%s"}}'
INTERVAL = {"vgpu_sample_interval_seconds": "15x120"}

CASES = (
    # ------------------------------------------------------------ exporters
    level("VgpuExporterDown", "up", 0, 1),
    Case(
        "VgpuExportersAbsent",
        {"up": "1x10 stale", "vgpu_gpus": "2x10 stale"},
        {"up": "1x120", "vgpu_gpus": "2x120"},
        value="2",
        onset=11,
        lacks=("job", "instance"),
    ),
    level(
        "VgpuDriverNotAnswering",
        'vgpu_collector_success{collector="nvml"}',
        0,
        1,
        labels={"collector": "nvml"},
    ),
    level(
        "VgpuCollectorFailing",
        'vgpu_collector_success{collector="shim"}',
        0,
        1,
        labels={"collector": "shim"},
    ),
    Case(
        "VgpuDataStale",
        {"vgpu_snapshot_timestamp_seconds": "0x120", **INTERVAL},
        {"vgpu_snapshot_timestamp_seconds": "0+60x120", **INTERVAL},
        value="9m 0s",
        onset=4,
    ),
    Case(
        "VgpuCollectionSlow",
        {'vgpu_collector_duration_seconds{collector="nvml"}': "9x120", **INTERVAL},
        {'vgpu_collector_duration_seconds{collector="nvml"}': "0.1x120", **INTERVAL},
        labels={"collector": "nvml"},
        value="9s",
    ),
    level("VgpuExporterDefect", "vgpu_dropped_series", 3, 0, value="3"),
    Case(
        "VgpuExporterDefect",
        {"vgpu_join_failures_total": "0+1x120"},
        {"vgpu_join_failures_total": "7x120"},
        value="6",
        onset=1,
    ),
    level("VgpuWebConfigBroken", "vgpu_web_config_last_reload_successful", 0, 1),
    # ------------------------------------------------------------ devices
    Case(
        "VgpuGpuMissing",
        {"vgpu_gpus": "8x10 7x110", "vgpu_gpus_expected": "8x120"},
        {"vgpu_gpus": "8x120", "vgpu_gpus_expected": "8x120"},
        value="7",
        onset=11,
    ),
    Case(  # the node was rebooted: the exporter starts anew and has never seen the card
        "VgpuGpuMissing",
        {"vgpu_gpus": "8x20 7x100", "vgpu_gpus_expected": "8x20 7x100"},
        {"vgpu_gpus": "8x120", "vgpu_gpus_expected": "8x120"},
        value="7",
        onset=21,
    ),
    *(
        Case(
            alert,
            {XID % xid: "_ 60x119"},
            {XID % xid: "-3600x120"},
            labels={**DEVICE, "xid": str(xid)},
            value="0s",
            onset=1,
        )
        for alert, xids in (
            ("VgpuXidCritical", (48, 62, 64, 74, 79, 95, 119, 120)),
            ("VgpuXidWarning", (94,)),
        )
        for xid in xids
    ),
    level("VgpuXidsUnheard", f"vgpu_gpu_xid_watched{{{UUID}}}", 0, 1, labels=DEVICE),
    level(
        "VgpuEccUncorrected",
        ECC % "volatile",
        2,
        0,
        labels={**DEVICE, "type": "uncorrected", "lifetime": "volatile"},
        value="2",
    ),
    level("VgpuRowRemapFailed", f"vgpu_gpu_row_remap_failure{{{UUID}}}", 1, 0, labels=DEVICE),
    level("VgpuResetDue", f"vgpu_gpu_row_remap_pending{{{UUID}}}", 1, 0, labels=DEVICE),
    level("VgpuResetDue", f"vgpu_gpu_retired_pages_pending{{{UUID}}}", 1, 0, labels=DEVICE),
    *(
        level("VgpuThermalSlowdown", clock(reason), 1, 0, labels={**DEVICE, "reason": reason})
        for reason in ("hw_thermal_slowdown", "sw_thermal_slowdown")
    ),
    level(
        "VgpuPowerBrake",
        clock("hw_power_brake_slowdown"),
        1,
        0,
        labels={**DEVICE, "reason": "hw_power_brake_slowdown"},
    ),
    Case("VgpuAttributionGap", gap(25), gap(4), labels=DEVICE, value="25%"),
    # ------------------------------------------------------------ containers
    Case(
        "VgpuContainerMemoryNearLimit",
        memory(98, 100),
        memory(60, 100),
        labels={**CONTAINER, **DEVICE},
        value="98%",
    ),
    Case(
        "VgpuContainerOverLimit",
        memory(150, 100),
        memory(99, 100),
        labels={**CONTAINER, **DEVICE},
        value="150%",
    ),
    Case(  # nothing of a higher priority has launched a kernel since the beginning
        "VgpuContainerBlocked",
        two_of_a_card(1, other_kernel="0x120"),
        two_of_a_card(0),
        labels=CONTAINER,
        onset=2,
    ),
    Case(  # what works beside it is no more important
        "VgpuContainerBlocked",
        two_of_a_card(1, other_priority=1),
        two_of_a_card(1),
        labels=CONTAINER,
    ),
    level(
        "VgpuShimLayoutUnknown",
        refused("unknown_layout"),
        4,
        0,
        labels={"collector": "shim", "reason": "unknown_layout"},
        value="4",
    ),
    *(
        level(
            "VgpuShimUnreadable",
            refused(reason, collector),
            2,
            0,
            labels={"collector": collector, "reason": reason},
            value="2",
        )
        for reason, collector in (("bad_magic", "shim"), ("unreadable", "bare"))
    ),
    # ------------------------------------------------------------ allocations
    *(
        level(alert, conflicts(kind), 1, 0, labels={"type": kind}, value="1")
        for alert, kind in (
            ("VgpuDoubleBooked", "double_booked"),
            ("VgpuOvercommitted", "overcommitted"),
            ("VgpuAllocationConflict", "card_differs"),
            ("VgpuAllocationConflict", "running_without_device"),
            ("VgpuBooksDiffer", "limit_differs"),
            ("VgpuBooksDiffer", "outlives_pod"),
        )
    ),
    Case(
        "VgpuOvercommitPressure",
        card(97, 150),
        card(97, 100),
        labels=DEVICE,
        value="97%",
    ),
    # ------------------------------------------------------------ reconcilers
    *(
        reconciler(alert, found(rule), 3, 0, labels={"rule": rule}, value="3")
        for alert, rule in (
            ("VgpuStuckPods", "refused"),
            ("VgpuStuckPods", "assumed_expired"),
            ("VgpuNodeLockStuck", "stale_lock"),
            ("VgpuFindingsPersist", "card_drift"),
        )
    ),
    reconciler("VgpuReconcilerDown", "up", 0, 1),
    Case(
        "VgpuReconcilerAbsent",
        {"up": "1x10 stale", 'vgpu_reconcile_info{scope="cluster",mode="plan"}': "1x10 stale"},
        {"up": "1x120", 'vgpu_reconcile_info{scope="cluster",mode="plan"}': "1x120"},
        value="1",
        onset=11,
        job="vgpu-reconciler",
        lacks=("job", "instance"),
    ),
    Case(
        "VgpuReconcilerStalled",
        {"vgpu_reconcile_last_cycle_timestamp_seconds": "0x120"},
        {"vgpu_reconcile_last_cycle_timestamp_seconds": "0+60x120"},
        value="36m 0s",
        onset=31,
        job="vgpu-reconciler",
    ),
    Case(
        "VgpuReconcileFailing",
        cycles("5x120", "0+1x120"),
        cycles("0+1x120", "0+1x120"),
        onset=1,
        job="vgpu-reconciler",
    ),
    Case(
        "VgpuReconcileCyclesMissed",
        {'vgpu_reconcile_missed_cycles_total{reason="failed"}': "0+1x120"},
        {'vgpu_reconcile_missed_cycles_total{reason="failed"}': "0x9 1x111"},
        labels={"reason": "failed"},
        value="4",
        onset=4,
        job="vgpu-reconciler",
    ),
    Case(
        "VgpuReconcileActionsFailing",
        {'vgpu_reconcile_actions_total{rule="refused",outcome="forbidden"}': "0+1x120"},
        {'vgpu_reconcile_actions_total{rule="refused",outcome="done"}': "0+1x120"},
        labels={"rule": "refused", "outcome": "forbidden"},
        value="16",
        onset=1,
        job="vgpu-reconciler",
    ),
    reconciler("VgpuBreakerTripped", "vgpu_reconcile_breaker_tripped", 1, 0),
    reconciler("VgpuReconcilerNoLeader", "vgpu_reconcile_leader", 0, 1, lacks=("instance",)),
    Case(
        "VgpuReconcilerApiErrors",
        {
            requests("list", 200): "0+16x120",
            **{requests("get", code): "0+1x120" for code in (0, 401, 403, 503)},
        },
        {requests("list", 200): "0+1x120", requests("evict", 429): "0+1x120"},
        value="20%",
        onset=1,
        job="vgpu-reconciler",
    ),
)

QUIET = (
    Quiet("VgpuXidCritical", "a program's own error", {XID % 31: "0x120"}),
    Quiet("VgpuXidWarning", "a program's own error", {XID % 13: "0x120"}),
    Quiet("VgpuEccUncorrected", "of an earlier life of the card", {ECC % "aggregate": "9x120"}),
    Quiet("VgpuThermalSlowdown", "as the power limit has it", {clock("sw_power_cap"): "1x120"}),
    Quiet("VgpuContainerOverLimit", "contexts are counted differently", memory(104, 100)),
    Quiet("VgpuContainerMemoryNearLimit", "another alert tells of it", memory(150, 100)),
    Quiet("VgpuContainerBlocked", "something more important works", two_of_a_card(1)),
    Quiet(
        "VgpuContainerBlocked",
        "for less than 5 minutes at a time",
        {
            **two_of_a_card(1, other_kernel="0x120"),
            f"vgpu_container_blocked{{{WHO}}}": "1x3 0 1x3 0 1x3 0 1x3 0",
        },
    ),
    Quiet("VgpuShimUnreadable", "its container starts", {refused("initializing"): "1x120"}),
    Quiet("VgpuShimUnreadable", "another collector's", {refused("unreadable", "kubelet"): "1x120"}),
    Quiet("VgpuOvercommitPressure", "there is room", card(60, 150)),
    Quiet(
        "VgpuGpuMissing",
        "more than the operator expects",
        {"vgpu_gpus": "8x120", "vgpu_gpus_expected": "6x120"},
    ),
    Quiet(
        "VgpuGpuMissing",
        "the driver as a whole: another alert",
        {"vgpu_gpus": "8x10 stale", "vgpu_gpus_expected": "8x120"},
    ),
    Quiet(
        "VgpuDataStale",
        "it samples once in ten minutes",
        {"vgpu_snapshot_timestamp_seconds": "0+600x12", "vgpu_sample_interval_seconds": "600x120"},
    ),
    Quiet(
        "VgpuExportersAbsent",
        "they are down, and still targets",
        {"up": "1x10 0x110", "vgpu_gpus": "2x10 stale"},
    ),
    Quiet(
        "VgpuReconcileFailing",
        "a standby has no plan",
        {'vgpu_reconcile_cycles_total{result="standby"}': "0+1x120"},
        "vgpu-reconciler",
    ),
    Quiet(
        "VgpuReconcilerNoLeader",
        "there is no election",
        {"vgpu_reconcile_info": "1x120"},
        "vgpu-reconciler",
    ),
    Quiet("VgpuReconcilerAbsent", "there never was one", {"up": "1x120"}),
    Quiet(
        "VgpuStuckPods",
        "repaired within minutes",
        {found("refused"): "3x30 0 2x40 0 1x30"},
        "vgpu-reconciler",
    ),
    Quiet(
        "VgpuReconcileActionsFailing",
        "the budget will allow it later",
        {'vgpu_reconcile_actions_total{rule="refused",outcome="blocked_by_pdb"}': "0+1x120"},
        "vgpu-reconciler",
    ),
)
