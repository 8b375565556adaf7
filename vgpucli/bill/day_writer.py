"""Days are closed one after another: measured, and written to their files."""

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo

from vgpu.model.printable_text import printable
from vgpu.program.version import version_text
from vgpucli.bill.close import begins_later, closed, differences, last_seen, unseen
from vgpucli.bill.day_file import (
    FORMAT,
    closed_days,
    corrections,
    head_of,
    path_of,
    read_day,
    write_day,
)
from vgpucli.bill.days import bounds, days_between
from vgpucli.bill.measurement import Method, PartRule
from vgpucli.bill.model import ClosedDay, DayHead, GpuDay, ShareDay
from vgpucli.bill.prometheus import BillSource
from vgpucli.bill.timeline import STEP, DaySum
from vgpucli.top.source import Unanswered

SETTLED_SECONDS: Final = 3600
"""Time after the end of a day before it is closed: late samples have come by then."""

MOST_DAYS: Final = 31
"""Number of closed days in which a device is looked for that was not there in between."""


class DayWriter:
    """Closes days of one folder, in one time zone, by one method."""

    def __init__(
        self,
        folder: Path,
        zone: ZoneInfo,
        method: Method,
        source: BillSource,
        labels: Sequence[str],
        *,
        allow_empty: bool = False,
    ) -> None:
        """``allow_empty``: a day on which no device was measured waits for no later one."""
        self._folder = folder
        self._zone = zone
        self._method = method
        self._source = source
        self._labels = labels
        self._allow_empty = allow_empty
        self._gpus: dict[str, ClosedDay] = {}
        """Days that were read, without their shares."""
        self.notes: list[str] = []
        """What a person has to know about the days that were closed."""

    def due(self, now: float, first: str | None) -> list[str]:
        """The days that have ended and are not closed, in their order.

        The folder exists. ``first`` counts while no day is closed; else it is the day after the
        last one. Raises OSError and BadDay, and ValueError if the closed days do not allow it.
        """
        settled = dt.datetime.fromtimestamp(now - SETTLED_SECONDS, self._zone)
        today = settled.date().isoformat()
        done = closed_days(self._folder)
        if not done:
            yesterday = (settled.date() - dt.timedelta(days=1)).isoformat()
            return days_between(first or yesterday, today)
        newest = path_of(self._folder, done[-1])
        if head_of(newest).end > now:
            raise ValueError(f"{printable(str(newest))}: this day has not ended yet")
        zone = head_of(newest).timezone
        if zone != self._zone.key:
            raise ValueError(
                f"--timezone {self._zone.key}: {done[-1]} was closed with {printable(zone)}"
            )
        following = (dt.date.fromisoformat(done[-1]) + dt.timedelta(days=1)).isoformat()
        if first is not None and first < following:
            raise ValueError(
                f"--from {first}: {done[-1]} is closed already; --correct measures a day again"
            )
        if first is not None and first > following:
            raise ValueError(
                f"--from {first}: {done[-1]} is the last closed day, so the next is {following}"
            )
        return days_between(following, today)

    def check_corrections(self, corrected: Sequence[str], due: Sequence[str]) -> None:
        """Raises ValueError if a day cannot be corrected now."""
        done = closed_days(self._folder)
        for day in corrected:
            if day not in done:
                raise ValueError(f"--correct {day}: this day is not closed")
        if corrected and not due:
            raise ValueError("--correct: there is no day to close, whose file would have the rows")

    def close_all(
        self, days: Sequence[str], now: float, corrected: Sequence[str] = ()
    ) -> Iterator[tuple[str, Path]]:
        """Measure days in their order and write a file for each; the first one has the corrections.

        A day on which no device was measured is closed when a later day is. Until then it waits:
        the exporters may only be away, or the samples may come late.

        Raises Unanswered, BadDay and OSError, and ValueError if a day goes on waiting.
        """
        waiting: list[str] = []
        for day in days:
            head = self._head(day, now)
            try:
                measured = self._measured(head, self._method)
            except Unanswered as error:
                raise Unanswered(f"{day}: {error}", refused=error.refused) from error
            if not self._allow_empty and not any(True for _ in measured.devices()):
                waiting.append(day)
                continue
            for empty in waiting:
                of_empty = self._head(empty, now)
                path = self._written(of_empty, DaySum(of_empty, self._method), corrected)
                corrected = ()
                self.notes.append(
                    f"{empty}: no device was measured; it is closed because {day} has samples"
                )
                yield empty, path
            waiting.clear()
            yield day, self._written(head, measured, corrected)
            corrected = ()
        if waiting:
            names = " to ".join(dict.fromkeys((waiting[0], waiting[-1])))
            raise ValueError(
                f"{names}: no device was measured, so it is not closed; --allow-empty closes a day"
                " on which the cluster had none"
            )

    def close(self, day: str, now: float, corrected: Sequence[str] = ()) -> Path:
        """Close one day; as :meth:`close_all`."""
        ((_, path),) = self.close_all([day], now, corrected)
        return path

    def _written(self, head: DayHead, measured: DaySum, corrected: Sequence[str]) -> Path:
        day = head.day
        earlier = [name for name in closed_days(self._folder) if name < day][-MOST_DAYS:]
        before = last_seen(self._devices_of(name) for name in earlier)
        rows: list[GpuDay | ShareDay] = []
        for name in dict.fromkeys(corrected):
            rows += self._differences(name, day)
        labels: Mapping[str, Mapping[str, str]] = (
            self._source.node_labels(head.end, self._labels) if self._labels else {}
        )
        return write_day(self._folder, closed(head, measured, before, labels, rows))

    def _devices_of(self, day: str) -> ClosedDay:
        """A closed day without its shares. No file changes, so each is read once."""
        if day not in self._gpus:
            file = read_day(path_of(self._folder, day))
            self._gpus[day] = ClosedDay(file.head, file.gpus, ())
        return self._gpus[day]

    def _differences(self, day: str, correction: str) -> list[GpuDay | ShareDay]:
        """What a closed day lacks, by the method of its file; notes on what is left as it is."""
        old = self._as_closed(day)
        method = Method(PartRule(old.head.rule), float(old.head.memory_weight))
        new = self._measured(old.head, method)
        if first := begins_later(old, new):
            moment = dt.datetime.fromtimestamp(first, self._zone)
            self.notes.append(
                f"{day} is left as it is: its samples begin at {moment:%H:%M} now, those before are"
                " no longer there"
            )
            return []
        self.notes += (
            f"{day}: {printable(uuid)} is left as it is: there are no samples of it any more"
            for uuid in unseen(old, new)
        )
        return differences(old, new, correction)

    def _head(self, day: str, now: float) -> DayHead:
        begin, end = bounds(day, self._zone)
        moment = dt.datetime.fromtimestamp(int(now), dt.UTC)
        return DayHead(
            FORMAT,
            day,
            self._zone.key,
            begin,
            end,
            STEP,
            str(self._method.rule),
            str(self._method.memory_weight),
            closed=moment.strftime("%Y-%m-%dT%H:%M:%SZ"),
            version=version_text(),
        )

    def _measured(self, head: DayHead, method: Method) -> DaySum:
        sums = DaySum(head, method)
        for hour in self._source.hours(head.start, head.end):
            sums.add(hour)
        return sums

    def _as_closed(self, day: str) -> ClosedDay:
        """The rows of a day, with all corrections until now."""
        file = read_day(path_of(self._folder, day))
        gpus, shares = corrections(self._folder, [day])
        return ClosedDay(
            file.head,
            (*(row for row in file.gpus if row.key.day == day), *gpus),
            (*(row for row in file.shares if row.gpu.day == day), *shares),
        )
