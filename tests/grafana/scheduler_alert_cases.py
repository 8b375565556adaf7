"""When each alert of the scheduler fires, and when it must not."""

from tests.grafana.alert_case import Case, Quiet, level

JOB = "vgpu-scheduler"
READY = "vgpu_extender_ready"
RESERVED = "vgpu_extender_reservations"


def scheduler(alert, series, sick, well, **rest):
    return level(alert, series, sick, well, job=JOB, **rest)


def requests(verb, result, of="requests_total"):
    return f'vgpu_extender_{of}{{verb="{verb}",result="{result}"}}'


def seconds(verb, per_minute):
    """Ten requests a minute, which together take so many seconds."""
    return {
        requests(verb, "success"): "0+10x120",
        requests(verb, "success", "request_duration_seconds_sum"): f"0+{per_minute}x120",
    }


def failures(reason):
    return f'vgpu_extender_bind_failures_total{{reason="{reason}"}}'


def api(verb, code):
    return f'vgpu_extender_api_requests_total{{verb="{verb}",code="{code}"}}'


CASES = (
    scheduler("VgpuSchedulerDown", "up", 0, 1),
    Case(
        "VgpuSchedulersAbsent",
        {"up": "1x10 stale", READY: "1x10 stale"},
        {"up": "1x120", READY: "1x120"},
        value="1",
        onset=11,
        job=JOB,
        lacks=("job", "instance"),
    ),
    scheduler("VgpuSchedulersNotReady", READY, 0, 1, lacks=("instance",)),
    scheduler("VgpuSchedulerNotReady", READY, 0, 1),
    scheduler(
        "VgpuSchedulerViewOld",
        'vgpu_extender_view_age_seconds{kind="pods"}',
        200,
        60,
        labels={"kind": "pods"},
        value="3m 20s",
    ),
    Case(
        "VgpuSchedulerErrors",
        {requests("bind", "error"): "0+1x120", requests("bind", "success"): "0+4x120"},
        {requests("bind", "error"): "0+1x120", requests("bind", "success"): "0+19x120"},
        labels={"verb": "bind"},
        value="20%",
        onset=1,
        job=JOB,
    ),
    *(
        Case(
            "VgpuSchedulerBindsFail",
            {failures(reason): "_x5 1 2 4x113"},
            {failures(reason): "_x5 1 2x114"},
            labels={"reason": reason},
            value="4",
            onset=7,
            job=JOB,
        )
        for reason in ("refused", "unreachable", "pod_unreadable", "lease_unreadable")
    ),
    Case(
        "VgpuSchedulerSlow",
        seconds("filter", 20),
        seconds("filter", 5),
        labels={"verb": "filter"},
        value="2s",
        onset=1,
        job=JOB,
    ),
    Case(
        "VgpuSchedulerReservationsStay",
        {RESERVED: "3x120", requests("bind", "success"): "7x120"},
        {RESERVED: "3x120", requests("bind", "success"): "0+1x120"},
        value="3",
        job=JOB,
    ),
    Case(
        "VgpuSchedulerApiErrors",
        {
            api("list", 200): "0+16x120",
            **{api("get", each): "0+1x120" for each in (0, 401, 403, 503)},
        },
        {api("list", 200): "0+1x120", api("create", 409): "0+1x120"},
        value="20%",
        onset=1,
        job=JOB,
    ),
    scheduler(
        "VgpuPodsWaitForGpus", "vgpu_extender_rejected_pods", 5, 0, lacks=("instance",), value="5"
    ),
)

QUIET = (
    Quiet("VgpuSchedulersAbsent", "there never was one", {"up": "1x120"}, JOB),
    Quiet("VgpuSchedulersAbsent", "it is down", {"up": "1x10 0x110", READY: "1x10 stale"}, JOB),
    Quiet(
        "VgpuSchedulersNotReady",
        "another replica answers",
        {f'{READY}{{pod="a"}}': "0x120", f'{READY}{{pod="b"}}': "1x120"},
        JOB,
    ),
    Quiet("VgpuSchedulerNotReady", "it starts", {READY: "0x5 1x115"}, JOB),
    Quiet(
        "VgpuSchedulerBindsFail",
        "a pod that was deleted or bound meanwhile is a race",
        {failures(reason): "0+1x120" for reason in ("gone", "bound_elsewhere", "memory")},
        JOB,
    ),
    Quiet("VgpuSchedulerSlow", "nobody asks", dict.fromkeys(seconds("filter", 20), "7x120"), JOB),
    Quiet(
        "VgpuSchedulerReservationsStay",
        "they come and go",
        {RESERVED: "3x9 0 3x9 0 3x9 0 3x9 0 3x9"},
        JOB,
    ),
    Quiet(
        "VgpuPodsWaitForGpus", "they were placed", {"vgpu_extender_rejected_pods": "5x50 0x70"}, JOB
    ),
)
