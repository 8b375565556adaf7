"""Durations as Prometheus writes them, and as Go does. Pure.

Prometheus: 15s, 500ms, 1m30s, or a bare number of seconds. Go's ``time.ParseDuration``: 1.5h,
300ms, 2h45m. Kubernetes writes a third form, see :mod:`vgpu.kube.quantities`.
"""

import re
from decimal import Decimal
from typing import Final

_NUMBER: Final = re.compile(r"\d{1,12}(?:\.\d{1,9})?", re.ASCII)
_PATTERN: Final = re.compile(
    r"(?:(\d{1,9})d)?(?:(\d{1,9})h)?(?:(\d{1,9})m)?(?:(\d{1,9}(?:\.\d{1,9})?)s)?(?:(\d{1,9})ms)?",
    re.ASCII,
)
PATTERN: Final = (
    r"^([0-9]+(\.[0-9]+)?|([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+(\.[0-9]+)?s)?([0-9]+ms)?)$"
)
"""The form of a duration that is not empty, for a JSON schema."""

_FACTORS: Final = (86400.0, 3600.0, 60.0, 1.0, 0.001)
_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "m"))


def parse_duration(text: str) -> float:
    """Seconds. Raises ValueError for what is no duration."""
    if _NUMBER.fullmatch(text):
        return float(text)
    match = _PATTERN.fullmatch(text)
    if match is None or not text:
        raise ValueError(f"{text!r} is not a duration such as 15s, 500ms or 1m30s")
    return sum(
        float(number) * factor
        for number, factor in zip(match.groups(), _FACTORS, strict=True)
        if number
    )


def duration_text(seconds: float) -> str:
    """The shortest text that :func:`parse_duration` reads as so many seconds."""
    if seconds != int(seconds) or not seconds:
        return f"{seconds:.9f}".rstrip("0").rstrip(".") + "s"
    rest, parts = int(seconds), []
    for length, unit in _UNITS:
        count, rest = divmod(rest, length)
        parts.append(f"{count}{unit}" if count else "")
    return "".join(parts) + (f"{rest}s" if rest else "")


_AGES: Final = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


def age(seconds: float) -> str:
    """A duration in its largest unit; "" for one below 0."""
    for length, unit in _AGES:
        if seconds >= length:
            return f"{int(seconds // length)}{unit}"
    return "0s" if seconds >= 0 else ""


UNITS: Final = {
    "ns": Decimal("1e-9"),
    "us": Decimal("1e-6"),
    "\N{MICRO SIGN}s": Decimal("1e-6"),
    "\N{GREEK SMALL LETTER MU}s": Decimal("1e-6"),
    "ms": Decimal("1e-3"),
    "s": Decimal(1),
    "m": Decimal(60),
    "h": Decimal(3600),
}
"""The seconds of each unit; no unit follows one that it begins with."""

_PART: Final = re.compile(rf"([0-9]+\.?[0-9]*|\.[0-9]+)({'|'.join(UNITS)})")


def parts_of(text: str) -> list[tuple[str, Decimal]]:
    """The numbers of an unsigned duration, each with the seconds of its unit; [] if it is none."""
    if _PART.sub("", text):
        return []
    return [(number, UNITS[unit]) for number, unit in _PART.findall(text)]
