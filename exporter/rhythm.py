"""When to sample: just before the next scrape, if the scrapers have a rhythm; else each interval.

Pure: times in seconds go in, the time of the next sample comes out. A scrape only ever copies a
finished page, so a page is as old as the time since its sample.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

HISTORY: Final = 16
"""Number of the last scrapes that are looked at."""

IN_A_ROW: Final = 3
"""Number of scrapes at equal distances that make a rhythm."""

TOLERANCE_SECONDS: Final = 0.8
"""Maximum difference of a scrape from its rhythm, in seconds."""

GOOD_FIT_SECONDS: Final = 0.4
"""Maximum difference of a scrape from a rhythm that needs no comparison with a slower one, in
seconds."""

SHORTEST_SECONDS: Final = 4.0
"""Minimum distance of the scrapes of a rhythm, in seconds: a page is never much older than that."""

LEAD_SECONDS: Final = 0.75
"""Time between the end of a sample and the scrape that it is meant for, in seconds."""

LONGEST_LEAD_SECONDS: Final = 2.0
"""Maximum time between the begin of a sample and the scrape that it is meant for, in seconds."""

FRESH_SECONDS: Final = 1.8
"""Age up to which a page is fresh enough for a scrape, in seconds."""

LONGEST_GAP: Final = 2.1
"""Maximum number of intervals between two samples: two, and a late scrape."""


class ScrapeStream(msgspec.Struct, frozen=True):
    """The scrapes of one scraper: the last one, and the time between two."""

    last: float
    period: float

    def following(self, now: float) -> Iterator[float]:
        """The next two scrapes after ``now``; none if the scraper seems to have gone."""
        for number in (1, 2):
            at = self.last + number * self.period
            if at > now - TOLERANCE_SECONDS:
                yield at
                yield at + self.period
                return


def streams(scrapes: Sequence[float], shortest: float, now: float) -> Iterator[ScrapeStream]:
    """The scrapers with a rhythm that go on, of periods of at least ``shortest`` seconds.

    ``scrapes`` are the times of all scrapes in their order; the scrapers need not be known.
    """
    for position in range(len(scrapes) - 1, IN_A_ROW - 2, -1):
        last = scrapes[position]
        rows = [
            row
            for before in reversed(scrapes[:position])
            if last - before >= shortest
            and len(row := _row(scrapes, last, last - before)) >= IN_A_ROW
        ]
        if not rows:
            continue
        # Two scrapers with one interval may look like one with half of it.
        good = [row for row in rows if _misfit(row) <= GOOD_FIT_SECONDS]
        row = good[0] if good else min(rows, key=_misfit)
        period = _period(row)
        # A scrape that came early may be somebody else's.
        if last + period > now or _near(scrapes[position + 1 :], last + period) is None:
            yield ScrapeStream(_earliest(row, period), period)


def _period(row: Sequence[float]) -> float:
    return (row[0] - row[-1]) / (len(row) - 1)


def _misfit(row: Sequence[float]) -> float:
    """The maximum difference of a scrape from the rhythm of the row, in seconds."""
    period = _period(row)
    return max(abs(scrape - row[0] + number * period) for number, scrape in enumerate(row))


def _row(scrapes: Sequence[float], last: float, period: float) -> list[float]:
    """The scrapes that are ``period`` apart, from ``last`` back."""
    row = [last]
    while (before := _near(scrapes, row[-1] - period)) is not None:
        longer = [*row, before]
        if len(row) >= IN_A_ROW and _misfit(longer) > GOOD_FIT_SECONDS:
            break
        row, period = longer, _period(longer)
    return row


def _near(scrapes: Sequence[float], at: float) -> float | None:
    nearest = min(scrapes, key=lambda scrape: abs(scrape - at), default=None)
    return None if nearest is None or abs(nearest - at) > TOLERANCE_SECONDS else nearest


def _earliest(row: Sequence[float], period: float) -> float:
    """The time of the last scrape by the rhythm, if the earliest of them were exact."""
    return min(scrape + number * period for number, scrape in enumerate(row[:IN_A_ROW]))


class SamplePlan:
    """Plans the samples of a program. Not safe to use from several threads at once.

    There are at most two samples in an interval, and one at least in ``LONGEST_GAP`` intervals.
    """

    def __init__(self, interval: float) -> None:
        """``interval`` is the time between two samples without a rhythm, in seconds."""
        self._interval = interval
        self._scrapes: deque[float] = deque(maxlen=HISTORY)
        self._samples: deque[float] = deque(maxlen=2)
        self._duration = 0.0
        self.due = 0.0
        """When to take the next sample."""

    def scraped(self, at: float) -> bool:
        """Note a scrape; whether the next sample is due earlier than before."""
        self._scrapes.append(at)
        before, self.due = self.due, self._next(at)
        return self.due < before

    def sampled(self, begun: float, finished: float) -> None:
        """Note a sample."""
        self._samples.append(begun)
        self._duration = finished - begun
        self.due = self._next(finished)

    def _next(self, now: float) -> float:
        if not self._samples:
            return now
        interval, last = self._interval, self._samples[-1]
        lead = min(LEAD_SECONDS + self._duration, LONGEST_LEAD_SECONDS)
        shortest = max(SHORTEST_SECONDS, interval / 2 - TOLERANCE_SECONDS)
        # Not the whole interval: a sample that was late would delay all that follow.
        earliest = self._samples[0] + interval - LEAD_SECONDS if len(self._samples) > 1 else now
        due = min(
            (
                scrape - lead
                for stream in streams(tuple(self._scrapes), shortest, now)
                for scrape in stream.following(now)
                if scrape - last > FRESH_SECONDS and scrape - lead >= earliest
            ),
            default=last + interval,
        )
        return due if due - last <= LONGEST_GAP * interval else last + interval
