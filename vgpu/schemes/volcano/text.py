"""Numbers and points in time in Volcano's and HAMi's annotations.

Each reader gives None for any other text, however long. The limits are those of the originals:
their numbers are Go's int32.
"""

import re
from datetime import UTC, datetime
from typing import Annotated, Final

import msgspec

MOST: Final = 2**31 - 1
"""The largest number in an annotation."""

MOST_SECONDS: Final = 253402300799
"""The last second of the year 9999."""

BOOLEANS: Final = {
    **dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True),
    **dict.fromkeys(("0", "f", "F", "FALSE", "false", "False"), False),
}
"""The texts that Go's ``strconv.ParseBool`` reads."""

_Instant = Annotated[datetime, msgspec.Meta(tz=True)]
_STAMP = re.compile(
    r"(?P<date>[0-9]{4}[-.][0-9]{2}[-.][0-9]{2}) (?P<time>[0-9]{2}:[0-9]{2}:[0-9]{2})"
    r"(?P<fraction>\.[0-9]{1,9})?(?: (?P<hours>[+-][0-9]{2})(?P<minutes>[0-9]{2})(?: .*)?)?",
    re.DOTALL,
)


def instant(rfc3339: str) -> float | None:
    """Unix seconds of a time with its zone, like ``2026-08-20T03:04:05Z``."""
    try:
        return msgspec.convert(rfc3339, _Instant).timestamp()
    except (msgspec.ValidationError, UnicodeEncodeError):  # the latter for a lone surrogate
        return None


def stamp(text: str) -> float | None:
    """Unix seconds of Go's ``Time.String()``, or of a time without zone, which is taken for UTC.

    Both ``2006-01-02`` and ``2006.01.02`` are dates; what follows the zone (its name, and a
    monotonic reading like ``m=+0.1``) is not looked at.
    """
    match = _STAMP.fullmatch(text)
    if match is None:
        return None
    zone = f"{match['hours']}:{match['minutes']}" if match["hours"] else "Z"
    date = match["date"].replace(".", "-")
    return instant(f"{date}T{match['time']}{match['fraction'] or ''}{zone}")


def moment(seconds: float) -> datetime:
    """The whole second, in UTC, for writing it."""
    return datetime.fromtimestamp(int(seconds), UTC)
