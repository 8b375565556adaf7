"""When each alert of the feedback fires, and when it must not."""

from tests.grafana.alert_case import Case, Quiet, level

JOB = "vgpu-feedback"
READY = "vgpu_feedback_ready"
LAST_ROUND = "vgpu_feedback_last_round_timestamp_seconds"

CASES = (
    level("VgpuFeedbackDown", "up", 0, 1, job=JOB),
    level("VgpuFeedbackNotReady", READY, 0, 1, job=JOB),
    Case(  # a round hangs
        "VgpuFeedbackNotReady",
        {READY: "1x120", LAST_ROUND: "0x120"},
        {READY: "1x120", LAST_ROUND: "0+60x120"},
        onset=2,
        job=JOB,
    ),
)

QUIET = (
    Quiet("VgpuFeedbackNotReady", "it starts", {READY: "0x5 1x115"}, JOB),
    Quiet("VgpuFeedbackDown", "it is replaced by a newer one", {"up": "1x10 0x5 1x105"}, JOB),
)
