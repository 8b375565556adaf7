"""Times that are counted by size, as a histogram of the page of metrics. Pure.

A tally is handed over to the next daemon as it is, in whole microseconds;
:class:`vgpu.metrics.family.HistogramCounts` counts the same in one process.
"""

from bisect import bisect_left
from math import inf
from typing import Self

import msgspec

from vgpu.metrics.family import Histogram


class Tally(msgspec.Struct):
    """Times in microseconds.

    Attributes:
        bounds: maximum times of the buckets, ascending. One that was handed over keeps its own.
        counts: number of times in each bucket, and at the end of those above all bounds.
        total: all times together.
    """

    bounds: tuple[int, ...]
    counts: list[int]
    total: int = 0

    @classmethod
    def of(cls, *bounds: int) -> Self:
        """Nothing yet."""
        return cls(bounds, [0] * (len(bounds) + 1))

    def add(self, time: int, number: int = 1) -> None:
        """Count a time, or so many equal ones."""
        self.counts[bisect_left(self.bounds, time)] += number
        self.total += time * number

    def histogram(self) -> Histogram:
        """What was counted until now, in seconds."""
        bounds = (*(bound / 1e6 for bound in self.bounds), inf)
        return Histogram(dict(zip(bounds, self.counts, strict=True)), self.total / 1e6)


def no_waits() -> Tally:
    """How long a pod waits for a token: up to the tokens of all other pods, or for its limit."""
    return Tally.of(
        1_000, 5_000, 20_000, 50_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000
    )


def no_token_switches() -> Tally:
    """Time that the daemon takes for a token switch."""
    return Tally.of(50, 100, 150, 200, 500, 1_000, 2_000, 5_000, 20_000, 100_000)


def no_lags() -> Tally:
    """By how much a timer is late; the kernel's resolution is a millisecond."""
    return Tally.of(500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 1_000_000)
