"""The alerts of `vgpu feedback`, which runs on nodes without HAMi's monitor."""

from typing import Final

from grafana.promql import Alert, AlertSeverity, RuleGroup
from grafana.settings import FEEDBACK, FEEDBACK_SECONDS
from grafana.templates import THE_NODE

FEEDBACKS: Final = RuleGroup(
    "vgpu-feedback",
    (
        Alert(
            "VgpuFeedbackDown",
            AlertSeverity.WARNING,
            f"up{{{FEEDBACK}}} == 0",
            "10m",
            f"The feedback on {THE_NODE} cannot be scraped",
            "If it does not run, no low priority waits there, and after a kill containers may stay"
            " blocked. First: read the end of its log; it is refused beside HAMi's monitor.",
        ),
        Alert(
            "VgpuFeedbackNotReady",
            AlertSeverity.WARNING,
            "vgpu_feedback_ready == 0"
            f" or time() - vgpu_feedback_last_round_timestamp_seconds > {FEEDBACK_SECONDS}",
            "10m",
            f"The feedback on {THE_NODE} does not do its work",
            "Containers may run beside a higher priority, or wait for none. First: /-/ready of its"
            " port 9403 has the reason: a checkpoint, or a folder that is mounted read-only.",
        ),
    ),
)
