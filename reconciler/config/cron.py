"""Parses cron expressions by crontab(5): five fields in, the numbers that each allows out. Pure.

Weekdays count from Sunday, 0 or 7. If neither day field begins with ``*``, a day that one of them
names is enough.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

DAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_MONTHS: Final = (
    "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
)  # fmt: skip
_LONGEST: Final = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
"""Days of each month, in a leap year."""


class _Field(msgspec.Struct, frozen=True):
    """A field: its name, its numbers from ``least`` to ``most``, and words for them.

    ``last`` is the end of a range without an end.
    """

    name: str
    least: int
    most: int
    last: int
    words: Mapping[str, int] = {}


_FIELDS: Final = (
    _Field("minute", 0, 59, 59),
    _Field("hour", 0, 23, 23),
    _Field("day of month", 1, 31, 31),
    _Field("month", 1, 12, 12, {word: number for number, word in enumerate(_MONTHS, 1)}),
    _Field("day of week", 0, 7, 6, {word: number for number, word in enumerate(DAYS)}),
)


def _pattern(field: _Field) -> str:
    numbers = range(field.least, field.most + 1)
    values = [f"0?{number}" if number < 10 else str(number) for number in numbers]
    values += [form for word in field.words for form in (word, word.upper(), word.capitalize())]
    value = f"({'|'.join(values)})"
    span = rf"(\*|{value}(-{value})?)(/[0-9]{{1,2}})?"
    return f"{span}(,{span})*"


PATTERN: Final = r"\s*" + r"\s+".join(map(_pattern, _FIELDS)) + r"\s*"
"""The form of an expression, for a JSON schema; :func:`parse_cron` is stricter."""


class Cron(msgspec.Struct, frozen=True):
    """A parsed expression: the allowed numbers of each field; ``weekdays`` are 0 (Sunday) to 6.

    ``either_day``: a day that ``days`` or ``weekdays`` allow is enough; else both must allow it.
    """

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    either_day: bool


def parse_cron(text: str) -> Cron:
    """The expression's meaning. Raises ValueError that names the field."""
    parts = text.lower().split()
    if len(parts) != len(_FIELDS):
        names = ", ".join(field.name for field in _FIELDS)
        raise ValueError(f"{len(parts)} fields, not five: {names}")
    minutes, hours, days, months, weekdays = map(_numbers, _FIELDS, parts)
    either = not parts[2].startswith("*") and not parts[4].startswith("*")
    if not either and min(days) > max(_LONGEST[month - 1] for month in months):
        raise ValueError(f"never comes: no such month has a day {min(days)}")
    sunday_first = frozenset(day % len(DAYS) for day in weekdays)
    return Cron(minutes, hours, days, months, sunday_first, either)


def _numbers(field: _Field, text: str) -> frozenset[int]:
    return frozenset(number for part in text.split(",") for number in _range(field, part))


def _range(field: _Field, part: str) -> range:
    """The numbers of ``*``, ``n`` or ``n-m``, each with ``/step``; ``n/step`` has no end."""
    span, slash, step = part.partition("/")
    first, dash, last = span.partition("-")
    every = _number(field, step, 1, field.most) if slash else 1
    if span == "*":
        low, high = field.least, field.last
    else:
        low = _number(field, first, field.least, field.most)
        high = field.last if slash and not dash else low
        if dash:
            high = _number(field, last, field.least, field.most)
            if last == DAYS[0] and field.words.get(last) == 0:
                high = field.most  # a week that begins on another day ends on Sunday
    if low > high:
        raise ValueError(f"{field.name} {part!r}: {first} is after {last}")
    return range(low, high + 1, every)


def _number(field: _Field, text: str, least: int, most: int) -> int:
    number = field.words.get(text, -1)
    if text.isascii() and text.isdecimal() and len(text) <= 2:
        number = int(text)
    if not least <= number <= most:
        words = f" or {', '.join(field.words)}" if field.words and least == field.least else ""
        raise ValueError(f"{field.name} {text!r}: must be from {least} to {most}{words}")
    return number
