"""Groups of metrics that are served only on request: each series costs memory in Prometheus."""

from enum import StrEnum


class Detail(StrEnum):
    """The values of ``--metrics.detail``."""

    ACCOUNTING = "accounting"
    LIMITS = "limits"
    PROCESSES = "processes"
    STATES = "states"
    DEVICES = "devices"
    CALLS = "calls"


MEANING: dict[Detail, str] = {
    Detail.ACCOUNTING: "what the sharing library accounts by kind of memory and for dead processes",
    Detail.LIMITS: "core limits that are enforced, beside the cores that are allocated",
    Detail.PROCESSES: "numbers of processes",
    Detail.STATES: "zeros of states that are off: unlimited, blocked, clocks held down",
    Detail.DEVICES: "clocks, PCIe, BAR1, encoder, decoder and other readings of the devices",
    Detail.CALLS: "numbers of driver calls, beside their seconds",
}
"""What each group adds."""
