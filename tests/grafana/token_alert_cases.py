"""When each alert of the token daemon fires, and when it must not."""

from tests.grafana.alert_case import Case, Quiet, level

JOB = "vgpu-tokens"
READY = "vgpu_token_ready"
TIMERS = "vgpu_token_loop_lag_seconds_count"
POD = {"uuid": "GPU-1", "namespace": "team", "pod": "train-0"}
WHO = ",".join(f'{name}="{value}"' for name, value in POD.items())


def of_pod(**values):
    """Series of the pod, by the name's end."""
    return {f"vgpu_token_{name}{{{WHO}}}": series for name, series in values.items()}


def shares(share, waiting):
    return of_pod(
        request_ratio="0.5x120", window_share_ratio=f"{share}x120", waiting=f"{waiting}x120"
    )


def overrun(seconds):
    return of_pod(overrun_seconds_total=f"0+{seconds}x120", used_seconds_total="0+20x120")


def lag(late):
    """Of 100 timers a minute so many are late by 5 to 10 ms, and the others are not."""
    counts = {"0.005": 100 - late, "0.01": 100, "+Inf": 100}
    return {
        f'vgpu_token_loop_lag_seconds_bucket{{le="{bound}"}}': f"0+{count}x120"
        for bound, count in counts.items()
    }


CASES = (
    level("VgpuTokensDown", "up", 0, 1, job=JOB),
    Case(
        "VgpuTokensAbsent",
        {"up": "1x10 stale", READY: "1x10 stale"},
        {"up": "1x120", READY: "1x120"},
        value="1",
        onset=11,
        job=JOB,
        lacks=("job", "instance"),
    ),
    Case(
        "VgpuTokensRestarted",
        {TIMERS: "500+9x10 0+9x109"},
        {TIMERS: "500+9x120"},
        onset=11,
        job=JOB,
    ),
    level("VgpuTokensNotReady", READY, 0, 1, job=JOB),
    Case("VgpuTokenShareMissed", shares(0.3, 1), shares(0.45, 1), labels=POD, value="20%", job=JOB),
    Case("VgpuTokenOverruns", overrun(5), overrun(3), labels=POD, value="25%", onset=1, job=JOB),
    Case("VgpuTokensLate", lag(4), lag(0), value="8.75ms", onset=1, job=JOB),
)

QUIET = (
    Quiet("VgpuTokensDown", "it is replaced by a newer one", {"up": "1x10 0x3 1x105"}, JOB),
    Quiet("VgpuTokensAbsent", "there never was one", {"up": "1x120"}, JOB),
    Quiet(
        "VgpuTokensRestarted",
        "the next pod has taken over",
        {f'{TIMERS}{{pod="a"}}': "0+9x10 stale", f'{TIMERS}{{pod="b"}}': "_x10 99+9x109"},
        JOB,
    ),
    Quiet("VgpuTokensNotReady", "it starts", {READY: "0x5 1x115"}, JOB),
    Quiet("VgpuTokenShareMissed", "the pod does not want more", shares(0.1, 0), JOB),
    Quiet(
        "VgpuTokenShareMissed",
        "it begins to work",
        of_pod(request_ratio="0.5x120", window_share_ratio="0x3 0.5x110", waiting="1x120"),
        JOB,
    ),
    Quiet("VgpuTokenOverruns", "no tokens are granted", dict.fromkeys(overrun(1), "7x120"), JOB),
    Quiet("VgpuTokensLate", "no timer passes", dict.fromkeys(lag(1), "7x120"), JOB),
)
