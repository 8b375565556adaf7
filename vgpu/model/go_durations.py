"""Durations as Go's time.ParseDuration reads them: 1.5h, 300ms, 2h45m. Pure.

Prometheus and Kubernetes write other forms: :mod:`vgpu.model.durations` reads Prometheus's.
"""

import re
from decimal import Decimal
from typing import Final

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
