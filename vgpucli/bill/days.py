"""Days of a time zone. Pure."""

import datetime as dt
import re
from typing import Final
from zoneinfo import ZoneInfo

_DAY: Final = re.compile(r"\d{4}-\d{2}-\d{2}")


def is_day(text: str) -> bool:
    """Whether the text is a date as YYYY-MM-DD."""
    if not _DAY.fullmatch(text):
        return False
    try:
        dt.date.fromisoformat(text)
    except ValueError:
        return False
    return True


def bounds(day: str, zone: ZoneInfo) -> tuple[int, int]:
    """Begin and end of a day in unix time. A day on which clocks change has 23 or 25 hours."""
    date = dt.date.fromisoformat(day)
    begin, end = (
        dt.datetime.combine(each, dt.time(), zone) for each in (date, date + dt.timedelta(days=1))
    )
    return int(begin.timestamp()), int(end.timestamp())


def days_between(first: str, until: str) -> list[str]:
    """The days from ``first`` to the day before ``until``."""
    begin, end = (dt.date.fromisoformat(each) for each in (first, until))
    return [
        (begin + dt.timedelta(days=number)).isoformat()
        for number in range(max(0, (end - begin).days))
    ]
