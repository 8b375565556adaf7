"""Tables over a view, rendered once into the bytes that every scrape then copies.

Label strings are kept between renders, since they are what costs; the numbers are formatted again.
The body of a family is the same in text 0.0.4 and OpenMetrics 1.0, only its header differs, so a
render makes the bodies and an :class:`Exposition` joins them into the format asked for.
"""

import threading
import zlib
from collections.abc import Iterable, Sequence
from enum import Enum
from functools import lru_cache
from math import isfinite
from typing import Any

from vgpu.metrics.family import Family, FamilyTable, Labelled, MetricType


class Format(Enum):
    """The exposition formats, with their Content-Type."""

    TEXT = "text/plain; version=0.0.4; charset=utf-8"
    OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


GZIP_LEVEL = 1
"""Level 9 costs five times the CPU for one tenth fewer bytes."""


def escape_label(value: str) -> str:
    """A label value as both formats write it between quotes."""
    if "\\" in value or '"' in value or "\n" in value:
        return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return value


def label_pairs(names: Sequence[str], values: Sequence[str]) -> str:
    """``a="x",b="y"``; an empty value is the same as no label and is left out."""
    pairs = zip(names, values, strict=True)
    return ",".join(f'{name}="{escape_label(value)}"' for name, value in pairs if value)


@lru_cache(maxsize=4096)
def _extra_pairs(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    """The same pairs come again for every row: a clock's name, a memory kind."""
    return label_pairs(names, values)


def headers(family: Family, fmt: Format) -> bytes:
    """The HELP and TYPE lines of a family."""
    text = family.help.replace("\\", "\\\\").replace("\n", "\\n")
    name = family.name
    if fmt is Format.OPENMETRICS:
        text = text.replace('"', '\\"')
        if family.kind is MetricType.COUNTER:
            name = name.removesuffix("_total")
    return f"# HELP {name} {text}\n# TYPE {name} {family.kind}\n".encode()


class Exposition:
    """One rendered snapshot. Each form of it is made at most once, however many ask at a time."""

    def __init__(self, bodies: Sequence[tuple[Family, bytes]], series: int, dropped: int) -> None:
        self.series = series
        """Number of samples."""
        self.dropped = dropped
        """Rows left out because another row already had the same labels."""
        self._bodies = bodies
        self._forms: dict[tuple[Format, bool], bytes] = {}
        self._lock = threading.Lock()

    def body(self, fmt: Format, gzip: bool = False) -> bytes:
        """The whole page in one format, compressed or not."""
        form = self._forms.get((fmt, gzip))
        if form is not None:
            return form
        with self._lock:
            return self._make(fmt, gzip)

    def _make(self, fmt: Format, gzip: bool) -> bytes:
        form = self._forms.get((fmt, gzip))
        if form is None:
            if gzip:
                packer = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, zlib.MAX_WBITS | 16)
                form = packer.compress(self._make(fmt, gzip=False)) + packer.flush()
            else:
                parts = [
                    part for family, body in self._bodies for part in (headers(family, fmt), body)
                ]
                if fmt is Format.OPENMETRICS:
                    parts.append(b"# EOF\n")
                form = b"".join(parts)
            self._forms[fmt, gzip] = form
        return form


class Renderer:
    """Renders the same tables again and again. One thread at a time."""

    def __init__(self, tables: Iterable[FamilyTable]) -> None:
        self._tables = tuple(tables)
        self._labels: list[dict[tuple[str, ...], str]] = [{} for _ in self._tables]

    def render(self, view: Any) -> Exposition:
        """Every family that has a sample, in table order."""
        bodies: list[tuple[Family, bytes]] = []
        series = dropped = 0
        for position, table in enumerate(self._tables):
            previous = self._labels[position]
            rows: dict[tuple[str, ...], Any] = {}
            labels: dict[tuple[str, ...], str] = {}
            for row in table.rows(view):
                key = table.key(row)
                if key in rows:
                    dropped += 1
                    continue
                rows[key] = row
                labels[key] = previous.get(key) or label_pairs(table.labels, key)
            self._labels[position] = labels  # what vanished is forgotten
            pairs = list(zip(rows.values(), labels.values(), strict=True))
            for family in table.families:
                lines = _labelled(family, pairs) if family.extra else _plain(family, pairs)
                if lines:
                    series += len(lines)
                    bodies.append((family, "".join(lines).encode("utf-8", "replace")))
        return Exposition(bodies, series, dropped)


def _plain(family: Family, pairs: list[tuple[Any, str]]) -> list[str]:
    name, value = family.name, family.value
    lines = []
    for row, labels in pairs:
        number = value(row)
        if number is None or not isfinite(number):  # type: ignore[arg-type]  # no extra: a number
            continue
        lines.append(f"{name}{{{labels}}} {number}\n" if labels else f"{name} {number}\n")
    return lines


def _labelled(family: Family, pairs: list[tuple[Any, str]]) -> list[str]:
    name, value, extra = family.name, family.value, family.extra
    lines = []
    for row, labels in pairs:
        numbers = value(row)
        if not numbers:
            continue
        comma = "," if labels else ""
        items: Labelled = numbers  # type: ignore[assignment]  # with extra: a mapping
        for values, number in items.items():
            if isfinite(number):
                lines.append(f"{name}{{{labels}{comma}{_extra_pairs(extra, values)}}} {number}\n")
    return lines
