"""The types of values in the configuration: text in, checked value out, and back. Pure.

Cron expressions are those of crontab(5): five fields in, the numbers that each allows out. Weekdays
count from Sunday, 0 or 7. If neither day field begins with ``*``, a day that one of them names is
enough.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from reconciler.policy import Mode, NamespacePolicy
from vgpu.model.durations import PATTERN as DURATION_PATTERN
from vgpu.model.durations import duration_text, parse_duration

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


CRON_PATTERN: Final = r"\s*" + r"\s+".join(map(_pattern, _FIELDS)) + r"\s*"
"""The form of an expression, for a JSON schema; :func:`parse_cron` is stricter."""


# ---------------------------------------------------------------- cron expressions


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


# ---------------------------------------------------------------- types


class ValueType(msgspec.Struct, frozen=True):
    """A type of values.

    Attributes:
        allowed: the allowed values, in words that follow "must be".
        read: text -> value; raises ValueError.
        write: value -> text.
        many: whether the key has a list of them.
        bare: whether the file has it without quotes.
        mapping: whether one value is a mapping, which ``read`` and ``write`` have as JSON.
        schema: JSON schema of one value; looser than ``read`` where a schema cannot be as strict.
    """

    allowed: str
    read: Callable[[str], Any]
    schema: Mapping[str, Any]
    write: Callable[[Any], str] = str
    many: bool = False
    bare: bool = False
    mapping: bool = False


_WHOLE: Final = re.compile(r"-?\d{1,10}", re.ASCII)
_LABEL_KEY: Final = re.compile(
    r"([a-z0-9][-a-z0-9.]{0,251}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)
_DECIMAL: Final = re.compile(r"\d{1,3}(\.\d{1,20})?(e-\d{1,3})?", re.ASCII)


def whole(least: int, most: int) -> ValueType:
    """A whole number."""

    def read(text: str) -> int:
        if not _WHOLE.fullmatch(text) or not least <= int(text) <= most:
            raise ValueError(text)
        return int(text)

    schema = {"type": "integer", "minimum": least, "maximum": most}
    return ValueType(f"a whole number from {least} to {most}", read, schema, bare=True)


def part() -> ValueType:
    """A number from 0 to 1."""

    def read(text: str) -> float:
        if not _DECIMAL.fullmatch(text) or float(text) > 1:
            raise ValueError(text)
        return float(text)

    schema = {"type": "number", "minimum": 0, "maximum": 1}
    return ValueType("a number from 0 to 1", read, schema, repr, bare=True)


def duration(least: float, most: float) -> ValueType:
    """Seconds."""

    def read(text: str) -> float:
        seconds = parse_duration(text)
        if not least <= seconds <= most:
            raise ValueError(text)
        return seconds

    allowed = f"a duration from {duration_text(least)} to {duration_text(most)}, such as 90s or 2m"
    bounds = {"minimum": least, "maximum": most}
    form = {"pattern": DURATION_PATTERN, "minLength": 1}
    schema = {"type": ["string", "number"], **form, **bounds}
    return ValueType(allowed, read, schema, duration_text)


def yes_no() -> ValueType:
    """Either true or false."""
    values = {"true": True, "false": False}

    def read(text: str) -> bool:
        if text not in values:
            raise ValueError(text)
        return values[text]

    schema = {"type": "boolean"}
    return ValueType("true or false", read, schema, lambda value: str(value).lower(), bare=True)


def choice(*values: Mode) -> ValueType:
    """One of these values."""
    names = {str(value): value for value in values}

    def read(text: str) -> Mode:
        if text not in names:
            raise ValueError(text)
        return names[text]

    schema = {"enum": list(names)}
    return ValueType(f"{', '.join(list(names)[:-1])} or {values[-1]}", read, schema)


def names(what: str, pattern: str) -> ValueType:
    """A list of names."""
    compiled = re.compile(pattern, re.ASCII)

    def read(text: str) -> str:
        if not compiled.fullmatch(text):
            raise ValueError(text)
        return text

    schema = {"type": "string", "pattern": f"^{pattern}$"}
    return ValueType(f"a list of {what}", read, schema, many=True)


def label_key() -> ValueType:
    """The key of a label: a name of at most 63 characters, after a DNS name and a slash or not."""

    def read(text: str) -> str:
        if not _LABEL_KEY.fullmatch(text):
            raise ValueError(text)
        return text

    schema = {"type": "string", "pattern": f"^{_LABEL_KEY.pattern}$"}
    return ValueType("the key of a label, such as team or example.com/team", read, schema)


def cron() -> ValueType:
    """A cron expression, or none."""

    def read(text: str) -> str:
        if text:
            parse_cron(text)
        return text

    schema = {"type": "string", "pattern": f"^({CRON_PATTERN})?$"}
    return ValueType("a cron expression of five fields, such as '*/2 * * * *', or ''", read, schema)


def policies() -> ValueType:
    """A list of policies by namespace."""

    def read(text: str) -> NamespacePolicy:
        try:
            return msgspec.json.decode(text, type=NamespacePolicy)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise ValueError(str(error)) from error

    def write(policy: NamespacePolicy) -> str:
        return msgspec.json.encode(policy).decode()

    allowed = (
        "a list of policies, such as {name: ml, selector: {matchLabels: {team: ml}}, mode: plan}"
    )
    return ValueType(allowed, read, _inlined(NamespacePolicy), write, many=True, mapping=True)


def _inlined(struct: type[msgspec.Struct]) -> Mapping[str, Any]:
    """The JSON schema of a struct, without references and texts."""
    whole_schema = msgspec.json.schema(struct)
    definitions = whole_schema["$defs"]

    def inline(schema: Any) -> Any:
        if isinstance(schema, list):
            return [inline(item) for item in schema]
        if not isinstance(schema, dict):
            return schema
        if "$ref" in schema:
            schema = definitions[schema["$ref"].rpartition("/")[2]]
        return {
            key: inline(value)
            for key, value in schema.items()
            if key not in ("title", "description", "default") and value != []
        }

    return dict(inline({"$ref": whole_schema["$ref"]}))
