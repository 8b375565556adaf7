"""When each alert fires, and when it must not.

Series are in promtool's notation, a sample a minute from 0; the labels of the target are added.
"""

from tests.grafana import (
    feedback_alert_cases,
    kubeshare_alert_cases,
    scheduler_alert_cases,
    team_alert_cases,
    token_alert_cases,
)
from tests.grafana.alert_case import Case, Quiet, level

UUID = 'uuid="GPU-1"'
WHO = 'namespace="team",pod="train-0",container="main",pod_uid="u1"'
OTHER = 'namespace="team",pod="chat-0",container="main",pod_uid="u2"'
GIB = 2**30


def reconciler(alert, series, sick, well, **rest):
    return level(alert, series, sick, well, job="vgpu-reconciler", **rest)


def plugin(alert, series, sick, well, **rest):
    return level(alert, series, sick, well, job="vgpu-device-plugin", **rest)


IDLE = {'vgpu_reconcile_findings{rule="idle_holder"}': "1x120"}
_WAITING_POD = 'namespace="team",pod="new-0"'
_ASKS = {
    f'kube_pod_container_resource_requests{{{_WAITING_POD},resource="volcano_sh_vgpu_number"}}': (
        "1x120"
    )
}
WAITS = {f"kube_pod_status_unschedulable{{{_WAITING_POD}}}": "1x120"} | _ASKS
WAITS_FOR_RENAMED = {
    series.replace("volcano_sh_vgpu_number", "nvidia_com_vgpu"): values
    for series, values in WAITS.items()
}
PLACED = {f"kube_pod_status_unschedulable{{{_WAITING_POD}}}": "0x120"} | _ASKS

DEVICE = {"uuid": "GPU-1"}
CONTAINER = {"namespace": "team", "pod": "train-0", "container": "main", "pod_uid": "u1"}


def memory(used, limit):
    return {
        f"vgpu_container_memory_used_bytes{{{WHO},{UUID}}}": f"{used}x120",
        f"vgpu_container_memory_limit_bytes{{{WHO},{UUID}}}": f"{limit}x120",
    }


def two_of_a_gpu(blocked, other_priority=0, other_kernel="0+60x120", known="accounted"):
    """A container on a GPU, and one that launches kernels, or does not, beside it.

    ``known`` is what is known of their memory on it: without the host's PIDs only the limit.
    """
    return {
        f"vgpu_container_memory_{known}_bytes{{{WHO},{UUID}}}": "7x120",
        f"vgpu_container_memory_{known}_bytes{{{OTHER},{UUID}}}": "7x120",
        f"vgpu_container_blocked{{{WHO}}}": f"{blocked}x120",
        f"vgpu_container_blocked{{{OTHER}}}": "0x120",
        f"vgpu_container_priority{{{WHO}}}": "1x120",
        f"vgpu_container_priority{{{OTHER}}}": f"{other_priority}x120",
        f"vgpu_container_last_kernel_timestamp_seconds{{{WHO}}}": "0x120",
        f"vgpu_container_last_kernel_timestamp_seconds{{{OTHER}}}": other_kernel,
    }


def gpu(used, allocated, total=100):
    return {
        f"vgpu_gpu_memory_used_bytes{{{UUID}}}": f"{used}x120",
        f"vgpu_gpu_memory_allocated_bytes{{{UUID}}}": f"{allocated}x120",
        f"vgpu_gpu_memory_total_bytes{{{UUID}}}": f"{total}x120",
    }


def replicas(used, other_used, gpu_used, shares=(25, 25)):
    """Two containers with a replica of a GPU of 100; a share of None is no replica."""
    fair = "vgpu_container_memory_fair_share_bytes"
    return {
        f"vgpu_container_memory_used_bytes{{{WHO},{UUID}}}": f"{used}x120",
        f"vgpu_container_memory_used_bytes{{{OTHER},{UUID}}}": f"{other_used}x120",
        f"vgpu_gpu_memory_used_bytes{{{UUID}}}": f"{gpu_used}x120",
        f"vgpu_gpu_memory_total_bytes{{{UUID}}}": "100x120",
        **{
            f"{fair}{{{who},{UUID}}}": f"{share}x120"
            for who, share in zip((WHO, OTHER), shares, strict=True)
            if share is not None
        },
    }


def resource_claim_use(used, *, share="s1", limit=None, who=WHO):
    """A container with a ResourceClaim of 25 of a GPU's memory."""
    labels = f'{who},{UUID},resource_claim="c",share_id="{share}"'
    limits = {} if limit is None else {f"vgpu_container_memory_limit_bytes{{{who},{UUID}}}": limit}
    return {
        f"vgpu_container_memory_used_bytes{{{who},{UUID}}}": f"{used}x120",
        f"vgpu_container_memory_allocated_bytes{{{who},{UUID}}}": "25x120",
        f"vgpu_container_resource_claim_info{{{labels}}}": "1x120",
        **limits,
    }


def resource_claim_of_two(used, other_used, **other):
    """A ResourceClaim of 25 of a GPU's memory, which two containers use."""
    return resource_claim_use(used) | resource_claim_use(other_used, who=OTHER, **other)


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


def requests(verb, code, of="reconcile"):
    return f'vgpu_{of}_api_requests_total{{verb="{verb}",code="{code}"}}'


def turned_down(step, reason):
    return f'vgpu_plugin_refusals_total{{step="{step}",reason="{reason}"}}'


def writes(kind, result):
    return f'vgpu_plugin_told_total{{subject="{kind}",result="{result}"}}'


def waits(step, seconds):
    """A wait a minute, so long each time."""
    return {
        f'vgpu_plugin_waits_total{{step="{step}"}}': "0+1x120",
        f'vgpu_plugin_wait_seconds_total{{step="{step}"}}': f"0+{seconds}x120",
    }


def plugin_state(ready, recovered, registered):
    return {
        "vgpu_plugin_ready": f"{ready}x120",
        "vgpu_plugin_recovered": f"{recovered}x120",
        REGISTERED: f"{registered}x120",
    }


RESOURCE = {"resource": "volcano.sh/vgpu-memory"}
REGISTERED = 'vgpu_plugin_resource_registered{resource="volcano.sh/vgpu-memory"}'
UNIT = 'vgpu_plugin_resource_smallest_unit_bytes{resource="volcano.sh/vgpu-memory"}'
WRITE_FAILURES = "vgpu_plugin_checkpoint_write_failures_total"
PLUGIN = "vgpu-device-plugin"

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
        value="1",
        onset=11,
    ),
    Case(  # another pod of the exporter, after a reboot or an update, has never seen the GPU
        "VgpuGpuMissing",
        {
            f'{name}{{pod="vgpu-{pod}"}}': values
            for name in ("vgpu_gpus", "vgpu_gpus_expected")
            for pod, values in (("old", "8x20 stale"), ("new", "_x20 7x100"))
        },
        {"vgpu_gpus": "8x120", "vgpu_gpus_expected": "8x120"},
        value="1",
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
            ("VgpuXidCritical", (46, 48, 62, 64, 74, 79, 95, 110, 119, 120, 140, 143)),
            ("VgpuXidWarning", (92, 94, 109, 137, 144, 150, 154)),
            ("VgpuXidUnknown", (999,)),
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
    Case(
        "VgpuContainerUncapped",
        {f'vgpu_container_limit_state{{{WHO},state="missing"}}': "1x120"},
        {f'vgpu_container_limit_state{{{WHO},state="in_place"}}': "1x120"},
        labels={"namespace": "team", "pod": "train-0", "container": "main", "node": "node-1"},
        lacks=("instance", "job"),
    ),
    Case(  # nothing of a higher priority has launched a kernel since the beginning
        "VgpuContainerBlocked",
        two_of_a_gpu(1, other_kernel="0x120"),
        two_of_a_gpu(0),
        labels=CONTAINER,
        onset=2,
    ),
    Case(  # what works beside it is no more important
        "VgpuContainerBlocked",
        two_of_a_gpu(1, other_priority=1),
        two_of_a_gpu(1),
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
        gpu(97, 150),
        gpu(97, 100),
        labels=DEVICE,
        value="97%",
    ),
    Case(
        "VgpuFairShareExceeded",
        replicas(80, 17, 97),
        replicas(25, 72, 97, shares=(25, 75)),
        labels=CONTAINER | DEVICE,
        value="320%",
    ),
    Case(
        "VgpuResourceClaimExceeded",
        resource_claim_use(50),
        resource_claim_use(26),
        labels=CONTAINER | DEVICE,
        value="200%",
    ),
    Case(
        "VgpuSharedResourceClaimExceeded",
        resource_claim_of_two(20, 20),
        resource_claim_of_two(20, 6),
        labels=DEVICE | {"namespace": "team", "resource_claim": "c", "share_id": "s1"},
        value="160%",
    ),
    # ------------------------------------------------------------ device plugins
    plugin("VgpuPluginDown", "up", 0, 1),
    Case(
        "VgpuPluginsAbsent",
        {"up": "1x10 stale", 'vgpu_plugin_info{scheme="volcano",mode="cdi"}': "1x10 stale"},
        {"up": "1x120", 'vgpu_plugin_info{scheme="volcano",mode="cdi"}': "1x120"},
        value="1",
        onset=11,
        job=PLUGIN,
        lacks=("job", "instance"),
    ),
    Case(  # it knows no GPUs
        "VgpuPluginNotReady",
        {"vgpu_plugin_ready": "0x120", "vgpu_plugin_recovered": "1x120"},
        plugin_state(1, 1, 1),
        job=PLUGIN,
    ),
    Case(  # it does not know who holds them, whatever else is wrong
        "VgpuPluginNotReady",
        plugin_state(0, 0, 0),
        plugin_state(1, 1, 1),
        job=PLUGIN,
    ),
    plugin("VgpuPluginNotRegistered", REGISTERED, 0, 1, labels=RESOURCE),
    plugin("VgpuPluginUnitTooSmall", UNIT, 19 * 2**20, "_", labels=RESOURCE, value="19Mi"),
    plugin(
        "VgpuPluginCardUnhealthy",
        f'vgpu_plugin_device_unhealthy_info{{{UUID},gpu="0",reason="lost"}}',
        1,
        "_",
        labels={**DEVICE, "gpu": "0", "reason": "lost"},
    ),
    Case(
        "VgpuPluginRefusing",
        {turned_down("allocate", "no_candidate"): "0+1x120"},
        {turned_down("allocate", "no_candidate"): "0x9 3x111"},
        labels={"step": "allocate", "reason": "no_candidate"},
        value="4",
        onset=4,
        job=PLUGIN,
    ),
    Case(  # what begins with the first refusals
        "VgpuPluginRefusing",
        {turned_down("allocate", "not_recovered"): "_x5 4x114"},
        {turned_down("allocate", "not_recovered"): "_x5 3x114"},
        labels={"step": "allocate", "reason": "not_recovered"},
        value="4",
        onset=5,
        job=PLUGIN,
    ),
    plugin(
        "VgpuPluginUnbound",
        'vgpu_plugin_unbound_containers{reason="no_room"}',
        2,
        "_",
        labels={"reason": "no_room"},
        value="2",
    ),
    Case(
        "VgpuPluginCrossed",
        {turned_down("bind", "crossed"): "_x5 1x114"},
        {turned_down("bind", "no_room"): "0+1x120"},
        labels={"step": "bind", "reason": "crossed"},
        value="1",
        onset=5,
        job=PLUGIN,
    ),
    plugin("VgpuPluginConflicts", "vgpu_plugin_conflicts", 3, 0, value="3"),
    Case(
        "VgpuPluginCheckpointFailing",
        {WRITE_FAILURES: "0+30x120"},
        {WRITE_FAILURES: "7x120"},
        value="150",
        onset=1,
        job=PLUGIN,
    ),
    plugin(
        "VgpuPluginCheckpointDamaged",
        'vgpu_plugin_checkpoint_problem_info{problem="truncated"}',
        1,
        "_",
        labels={"problem": "truncated"},
    ),
    *(
        Case(
            "VgpuPluginSlow",
            waits(step, 6),
            waits(step, 1),
            labels={"step": step},
            value="6s",
            onset=1,
            job=PLUGIN,
        )
        for step in ("allocate", "bind")
    ),
    Case(
        "VgpuPluginNotTelling",
        {writes("lock", "failed"): "0+1x120"},
        {writes("lock", "told"): "0+1x120"},
        labels={"subject": "lock", "result": "failed"},
        value="10",
        onset=1,
        job=PLUGIN,
    ),
    Case(
        "VgpuPluginApiErrors",
        {
            requests("list", 200, "plugin"): "0+16x120",
            **{requests("patch", code, "plugin"): "0+1x120" for code in (0, 401, 403, 503)},
        },
        {requests("list", 200, "plugin"): "0+1x120", requests("patch", 409, "plugin"): "0+1x120"},
        value="20%",
        onset=1,
        job=PLUGIN,
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
        "VgpuIdleWhileOthersWait",
        IDLE | WAITS,
        IDLE | PLACED,
        value="1",
        job="vgpu-reconciler",
        lacks=("job", "instance"),
    ),
    Case(
        "VgpuIdleWhileOthersWait",
        IDLE | WAITS_FOR_RENAMED,
        IDLE | PLACED,
        value="1",
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
    *scheduler_alert_cases.CASES,
    *kubeshare_alert_cases.CASES,
    *feedback_alert_cases.CASES,
    *team_alert_cases.CASES,
    *token_alert_cases.CASES,
)

QUIET = (
    Quiet("VgpuXidCritical", "a program's own error", {XID % 31: "0x120"}),
    Quiet("VgpuXidWarning", "a program's own error", {XID % 13: "0x120"}),
    Quiet("VgpuXidUnknown", "a program's own error", {XID % 13: "0x120"}),
    Quiet("VgpuXidUnknown", "another alert knows it", {XID % 140: "0x120"}),
    Quiet("VgpuIdleWhileOthersWait", "nobody waits", IDLE, job="vgpu-reconciler"),
    Quiet("VgpuIdleWhileOthersWait", "nobody is idle", WAITS, job="vgpu-reconciler"),
    Quiet("VgpuEccUncorrected", "of an earlier life of the GPU", {ECC % "aggregate": "9x120"}),
    Quiet("VgpuThermalSlowdown", "as the power limit has it", {clock("sw_power_cap"): "1x120"}),
    *(
        Quiet(
            "VgpuContainerUncapped",
            why,
            {f'vgpu_container_limit_state{{{WHO},state="{state}"}}': "1x120"},
        )
        for state, why in (
            ("unknown", "nothing shows that it is not limited"),
            ("different", "it is limited"),
            ("none_by_design", "its system limits nothing"),
        )
    ),
    Quiet("VgpuContainerOverLimit", "contexts are counted differently", memory(104, 100)),
    Quiet("VgpuContainerMemoryNearLimit", "another alert reports it", memory(150, 100)),
    Quiet("VgpuContainerBlocked", "something more important works", two_of_a_gpu(1)),
    Quiet(
        "VgpuContainerBlocked",
        "something more important works, and the exporter does not see the host's PIDs",
        two_of_a_gpu(1, known="limit"),
    ),
    Quiet(
        "VgpuContainerBlocked",
        "for less than 5 minutes at a time",
        {
            **two_of_a_gpu(1, other_kernel="0x120"),
            f"vgpu_container_blocked{{{WHO}}}": "1x3 0 1x3 0 1x3 0 1x3 0",
        },
    ),
    Quiet("VgpuShimUnreadable", "its container starts", {refused("initializing"): "1x120"}),
    Quiet("VgpuShimUnreadable", "another collector's", {refused("unreadable", "kubelet"): "1x120"}),
    Quiet("VgpuOvercommitPressure", "there is room", gpu(60, 150)),
    Quiet("VgpuResourceClaimExceeded", "the device is its own", resource_claim_use(50, share="")),
    Quiet(
        "VgpuResourceClaimExceeded", "a library limits it", resource_claim_use(50, limit="25x120")
    ),
    Quiet(
        "VgpuSharedResourceClaimExceeded", "one container: another alert", resource_claim_use(50)
    ),
    Quiet(
        "VgpuSharedResourceClaimExceeded", "two shares", resource_claim_of_two(20, 20, share="s2")
    ),
    Quiet(
        "VgpuSharedResourceClaimExceeded",
        "a library",
        resource_claim_of_two(20, 20, limit="25x120"),
    ),
    Quiet(
        "VgpuSharedResourceClaimExceeded",
        "one of them has more of the GPU",
        resource_claim_of_two(20, 20)
        | {f'vgpu_container_resource_claim_info{{{OTHER},{UUID},resource_claim="d"}}': "1x120"},
    ),
    Quiet("VgpuFairShareExceeded", "there is room", replicas(80, 10, 90)),
    Quiet("VgpuFairShareExceeded", "no other holder", replicas(97, 0, 97, shares=(25, None))),
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
        "VgpuReconcilerAbsent",
        "it is down, and still a target",
        {"up": "1x10 0x110", 'vgpu_reconcile_info{scope="cluster",mode="plan"}': "1x10 stale"},
        "vgpu-reconciler",
    ),
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
    Quiet("VgpuPluginsAbsent", "there never was one", {"up": "1x120"}, PLUGIN),
    Quiet("VgpuPluginsAbsent", "they are down", {"up": "1x10 0x110"}, PLUGIN),
    Quiet(
        "VgpuPluginNotReady",
        "the kubelet does not take a resource: another alert",
        plugin_state(0, 1, 0),
        PLUGIN,
    ),
    Quiet(
        "VgpuPluginNotRegistered",
        "its unit is too small: another alert",
        {REGISTERED: "0x120", UNIT: "1e6x120"},
        PLUGIN,
    ),
    Quiet(
        "VgpuPluginNotRegistered",
        "the kubelet restarts",
        {REGISTERED: "1x10 0x5 1x105"},
        PLUGIN,
    ),
    Quiet(
        "VgpuPluginRefusing",
        "what has to wait is no refusal",
        {turned_down(step, "no_room"): "0+1x120" for step in ("bind", "prestart")},
        PLUGIN,
    ),
    Quiet(
        "VgpuPluginUnbound",
        "another one each time",
        {'vgpu_plugin_unbound_containers{reason="no_claim"}': "1x10 stale 1x10 stale 1x10"},
        PLUGIN,
    ),
    Quiet("VgpuPluginCheckpointFailing", "it failed once", {WRITE_FAILURES: "0x9 1x111"}, PLUGIN),
    Quiet(
        "VgpuPluginApiErrors",
        "an optional permission is tested hourly",
        {
            requests("watch", 200, "plugin"): "0+0.2x120",
            requests("get", 403, "plugin"): "1x9 2x111",
        },
        PLUGIN,
    ),
    Quiet("VgpuPluginNotTelling", "it failed once", {writes("pod", "failed"): "_x5 1x114"}, PLUGIN),
    Quiet(
        "VgpuPluginNotTelling",
        "the pod had changed, and is looked at again",
        {writes("pod", "moved_on"): "0+1x120", writes("pod", "gone"): "0+1x120"},
        PLUGIN,
    ),
    Quiet("VgpuPluginSlow", "a start waits for its binding", waits("prestart", 19), PLUGIN),
    Quiet(
        "VgpuPluginSlow",
        "nobody asks",
        dict.fromkeys(waits("bind", 1), "7x120"),
        PLUGIN,
    ),
    *scheduler_alert_cases.QUIET,
    *kubeshare_alert_cases.QUIET,
    *feedback_alert_cases.QUIET,
    *team_alert_cases.QUIET,
    *token_alert_cases.QUIET,
)
