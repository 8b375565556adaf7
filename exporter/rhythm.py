"""When to sample: just before the next scrape, if the scrapers have a rhythm; else each interval.

Pure: times in seconds go in, the time of the next sample comes out. A scrape only ever copies a
finished page, so a page is as old as the time since its sample. A scrape that comes while a sample
is late or under way waits a moment for its page.
"""

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import pairwise
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

RHYTHMS_IN_AN_INTERVAL: Final = 3
"""The part of the interval that the distance of the scrapes of a rhythm may be, as a divisor."""

LEAD_SECONDS: Final = 0.75
"""Time between the end of a sample and the scrape that it is meant for, in seconds."""

LONGEST_LEAD_SECONDS: Final = 2.0
"""Maximum time between the begin of a sample and the scrape that it is meant for, in seconds."""

FRESH_SECONDS: Final = 1.8
"""Age up to which a page is fresh enough for a scrape, in seconds."""

MOST_SCRAPERS: Final = 2
"""Maximum number of scrapers of one period that all get fresh pages."""

WAIT_SECONDS: Final = 0.5
"""Maximum time for which scrapes wait for one sample, from the first of them on, in seconds."""

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


class Scrape(msgspec.Struct, frozen=True):
    """A scrape, and those before it that make a rhythm with it, from it back; () without one."""

    at: float
    row: tuple[float, ...] = ()


def scrape_at(at: float, before: Sequence[float], shortest: float) -> Scrape:
    """The scrape, by the times of those before it; a period is at least ``shortest`` seconds."""
    times = (*before, at)
    rows: list[tuple[float, ...]] = []
    for other in reversed(before):
        if at - other >= shortest:
            row = tuple(_row(times, at, at - other))
            if len(row) >= IN_A_ROW:
                # Two scrapers with one interval may look like one with half of it.
                if _misfit(row) <= GOOD_FIT_SECONDS:
                    return Scrape(at, row)
                rows.append(row)
    return Scrape(at, min(rows, key=_misfit, default=()))


def streams(scrapes: Sequence[Scrape], now: float) -> Iterator[ScrapeStream]:
    """The scrapers with a rhythm that go on.

    ``scrapes`` are all scrapes in their order; the scrapers need not be known.
    """
    times = [scrape.at for scrape in scrapes]
    for position, scrape in enumerate(scrapes, start=1):
        if scrape.row:
            period = _period(scrape.row)
            due = scrape.at + period
            # A scrape that came early may be somebody else's.
            if due > now or _near(times[position:], due) is None:
                yield ScrapeStream(_earliest(scrape.row, period), period)


def pace(scrapers: Sequence[ScrapeStream]) -> float:
    """The period of the fastest scrapers; infinite if they are more than ``MOST_SCRAPERS``.

    One scraper that is faster than any rhythm looks like several, each with a multiple of its
    period.
    """
    fastest = min((scraper.period for scraper in scrapers), default=math.inf)
    alike = (one.last for one in scrapers if one.period - fastest <= TOLERANCE_SECONDS)
    phases = 1 + sum(after - one > TOLERANCE_SECONDS for one, after in pairwise(sorted(alike)))
    return fastest if phases <= MOST_SCRAPERS else math.inf


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
    """The scrape that is nearest to this time, unless it is too far from it."""
    right = bisect_left(scrapes, at)
    around = scrapes[max(0, right - 1) : right + 1]
    nearest = min(around, key=lambda scrape: abs(scrape - at), default=None)
    return None if nearest is None or abs(nearest - at) > TOLERANCE_SECONDS else nearest


def _earliest(row: Sequence[float], period: float) -> float:
    """The time of the last scrape by the rhythm, if the earliest of them were exact."""
    return min(scrape + number * period for number, scrape in enumerate(row[:IN_A_ROW]))


class SamplePlan:
    """Plans the samples of a program. Not safe to use from several threads at once.

    There are at most two samples in an interval, or in the shortest period of a scraper if that is
    less, and one at least in ``LONGEST_GAP`` intervals.
    """

    def __init__(self, interval: float) -> None:
        """``interval`` is the time between two samples without a rhythm, in seconds."""
        self._interval = interval
        shortest = interval / RHYTHMS_IN_AN_INTERVAL - TOLERANCE_SECONDS
        self._shortest = max(SHORTEST_SECONDS, shortest)
        self._scrapes: deque[Scrape] = deque(maxlen=HISTORY)
        self._samples: deque[float] = deque(maxlen=2)
        self._duration = 0.0
        self._is_under_way = False
        self._waited_since: float | None = None
        self.due = 0.0
        """When to take the next sample."""

    def scraped(self, at: float) -> bool:
        """Note a scrape; whether the next sample is due earlier than before."""
        before = [scrape.at for scrape in self._scrapes]
        self._scrapes.append(scrape_at(at, before, self._shortest))
        due, self.due = self.due, self._next(at)
        return self.due < due

    def begins(self) -> None:
        """Note that a sample begins."""
        self._is_under_way = True

    def patience(self, now: float) -> float:
        """For how many seconds a scrape may wait for a newer page, 0 if there is no reason to.

        All that wait for one sample have ``WAIT_SECONDS`` together, so one that hangs costs no
        more than that.
        """
        if not self._is_under_way and not (self._samples and self.due <= now):
            return 0.0
        if self._samples and now - self._samples[-1] <= FRESH_SECONDS:
            return 0.0
        if self._waited_since is None:
            self._waited_since = now
        return max(0.0, self._waited_since + WAIT_SECONDS - now)

    def sampled(self, begun: float, finished: float) -> None:
        """Note a sample."""
        self._is_under_way, self._waited_since = False, None
        self._samples.append(begun)
        self._duration = finished - begun
        self.due = self._next(finished)

    def _next(self, now: float) -> float:
        if not self._samples:
            return now
        interval, last = self._interval, self._samples[-1]
        scrapers = tuple(streams(tuple(self._scrapes), now))
        lead = min(LEAD_SECONDS + self._duration, LONGEST_LEAD_SECONDS)
        # Not the whole interval: a sample that was late would delay all that follow.
        between = min(interval, pace(scrapers)) - LEAD_SECONDS
        earliest = self._samples[0] + between if len(self._samples) > 1 else now
        due = min(
            (
                scrape - lead
                for scraper in scrapers
                for scrape in scraper.following(now)
                if scrape - last > FRESH_SECONDS and scrape - lead >= earliest
            ),
            default=last + interval,
        )
        return due if due - last <= LONGEST_GAP * interval else last + interval
