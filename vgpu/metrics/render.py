"""Tables over a view, rendered once into the bytes that every scrape then copies.

The body of a family is the same in text 0.0.4 and OpenMetrics 1.0, only its header differs, so a
render makes the bodies and an :class:`Exposition` joins them into the format asked for.

Lines are kept from one render to the next: a line is formatted again only if its number has
changed, and a family's lines are joined again only if one of them has. Most of a node's numbers are
the same from one sample to the next.
"""

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from itertools import accumulate
from math import isfinite
from typing import Any, Final

from vgpu.metrics.family import Family, FamilyTable, Histogram, MetricType
from vgpu.metrics.gzip_parts import GzipParts, Part

_NOTHING: Final = object()
"""In place of the number of a line that was never made."""


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


class _Row:
    """The last row of a key, with each family's number (or mapping) and lines."""

    __slots__ = ("labels", "lines", "numbers", "row")

    def __init__(self, labels: str, families: int) -> None:
        self.row: Any = _NOTHING
        self.labels = labels
        self.numbers: list[Any] = [_NOTHING] * families
        self.lines = [b""] * families


class TableLines:
    """The lines of one table. One thread at a time.

    Attributes:
        bodies: the lines of each family, in the table's order.
        series: number of lines.
        dropped: number of rows of the last view whose labels another row had.
        rows: the rows of the last view by their labels' values; what vanished is forgotten.
    """

    def __init__(self, table: FamilyTable, *, values: bool) -> None:
        """``values`` promises that a row that equals an earlier one has the same numbers."""
        self._table = table
        self._values = values and bool(table.labels)
        self._columns = tuple(_Column(*column) for column in enumerate(table.families))
        self._forget()

    def _forget(self) -> None:
        self._given: list[Any] = []
        self.bodies = [b""] * len(self._table.families)
        self.series = 0
        self.dropped = 0
        self.rows: dict[tuple[str, ...], _Row] = {}

    def update(self, view: Any) -> None:
        """Bring all lines up to date; none is kept if one of the table's functions raises."""
        try:
            self._update(view)
        except Exception:
            self._forget()  # some lines are new, but not in their family's
            raise

    def _update(self, view: Any) -> None:
        table = self._table
        given = list(table.rows(view))
        if self._values:
            if given == self._given:
                return
            self._given = given
        before, rows = self.rows, dict[tuple[str, ...], _Row]()
        changed: set[int] = set()
        self.dropped = 0
        for row in given:
            key = table.key(row)
            if key in rows:
                self.dropped += 1
                continue
            kept = before.get(key)
            if kept is None:
                kept = _Row(label_pairs(table.labels, key), len(table.families))
            rows[key] = kept
            if not self._values or (kept.row is not row and kept.row != row):
                kept.row = row if self._values else None
                _update_row(self._columns, kept, row, changed)
        if list(rows) != list(before):
            changed.update(range(len(table.families)))
        self.rows = rows
        for index in changed:
            self.bodies[index] = b"".join([kept.lines[index] for kept in rows.values()])
        if changed:
            self.series = sum(body.count(b"\n") for body in self.bodies)


class _Column:
    """A family with its place in the table; what each changed number needs is computed once."""

    __slots__ = ("family", "index", "is_mapped", "name", "value")

    def __init__(self, index: int, family: Family) -> None:
        self.index = index
        self.family = family
        self.name = family.name
        self.value = family.value
        self.is_mapped = family.is_mapped


def _update_row(columns: Sequence[_Column], kept: _Row, row: Any, changed: set[int]) -> None:
    """Make the lines whose number has changed, and add the indexes of their families."""
    numbers, lines, labels = kept.numbers, kept.lines, kept.labels
    for column in columns:
        number: Any = column.value(row)
        index = column.index
        if number == numbers[index]:
            continue
        if column.is_mapped:
            number = dict(number or {})
            text = _labelled(column.family, labels, number)
        else:
            text = _plain(column.name, labels, number)
        numbers[index] = number
        line = text.encode("utf-8", "replace")
        if line != lines[index]:
            lines[index] = line
            changed.add(index)


def _plain(name: str, labels: str, number: Any) -> str:
    if number is None or not isfinite(number):
        return ""
    return f"{name}{{{labels}}} {number}\n" if labels else f"{name} {number}\n"


def _labelled(family: Family, labels: str, numbers: dict[tuple[str, ...], Any]) -> str:
    name, extra = family.name, family.extra
    if family.kind is MetricType.HISTOGRAM:
        return "".join(
            _buckets(name, [*filter(None, (labels, _extra_pairs(extra, values)))], histogram)
            for values, histogram in numbers.items()
        )
    comma = "," if labels else ""
    return "".join(
        f"{name}{{{labels}{comma}{_extra_pairs(extra, values)}}} {number}\n"
        for values, number in numbers.items()
        if isfinite(number)
    )


def _buckets(name: str, labels: Sequence[str], histogram: Histogram) -> str:
    """The samples of a histogram: each bucket with all amounts up to its bound, sum and count."""
    up_to = accumulate(histogram.buckets.values())
    samples: list[tuple[str, tuple[str, ...], float]] = [
        (f"{name}_bucket", (*labels, f'le="{bound if isfinite(bound) else "+Inf"}"'), number)
        for bound, number in zip(histogram.buckets, up_to, strict=True)
    ]
    samples.append((f"{name}_sum", (*labels,), histogram.total))
    samples.append((f"{name}_count", (*labels,), histogram.count))
    return "".join(_plain(each, ",".join(pairs), number) for each, pairs, number in samples)


class Format(Enum):
    """The exposition formats, with their Content-Type."""

    TEXT = "text/plain; version=0.0.4; charset=utf-8"
    OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


PART_BYTES: Final = 32_768
"""Minimum size of the lines that are compressed by themselves: a small part compresses badly."""

_ENDS: Final[Mapping[Format, bytes]] = {Format.TEXT: b"", Format.OPENMETRICS: b"# EOF\n"}


def headers(family: Family, fmt: Format) -> bytes:
    """The HELP and TYPE lines of a family."""
    text = family.help.replace("\\", "\\\\").replace("\n", "\\n")
    name = family.name
    if fmt is Format.OPENMETRICS:
        text = text.replace('"', '\\"')
        if family.kind is MetricType.COUNTER:
            name = name.removesuffix("_total")
    return f"# HELP {name} {text}\n# TYPE {name} {family.kind}\n".encode()


Body = tuple[Mapping[Format, bytes], bytes]
"""A family's headers by format, and its lines."""


class Exposition:
    """One rendered snapshot. Each form of it is made at most once, however many ask at a time."""

    def __init__(
        self, bodies: Sequence[Body], packer: GzipParts, *, series: int, dropped: int
    ) -> None:
        self.series = series
        """Number of samples."""
        self.dropped = dropped
        """Rows left out because another row already had the same labels."""
        self._bodies = bodies
        self._packer = packer
        self._forms: dict[tuple[Format, bool], bytes] = {}
        self._lock = threading.Lock()

    def body(self, fmt: Format, gzip: bool = False) -> bytes:
        """The whole page in one format, compressed or not."""
        form = self._forms.get((fmt, gzip))
        if form is not None:
            return form
        with self._lock:
            form = self._forms.get((fmt, gzip))
            if form is None:
                form = self._packer.pack(list(self._parts(fmt))) if gzip else self._text(fmt)
                self._forms[fmt, gzip] = form
            return form

    def _text(self, fmt: Format) -> bytes:
        pieces = [piece for headers, lines in self._bodies for piece in (headers[fmt], lines)]
        return b"".join([*pieces, _ENDS[fmt]])

    def _parts(self, fmt: Format) -> Iterator[tuple[bytes, Part]]:
        """The page in parts that change apart, each with the first header as its key."""
        pieces: list[bytes] = []
        size = 0
        for headers, lines in self._bodies:
            if pieces and len(lines) >= PART_BYTES:
                yield pieces[0], tuple(pieces)
                pieces, size = [], 0
            pieces += (headers[fmt], lines)
            size += len(lines)
            if size >= PART_BYTES:
                yield pieces[0], tuple(pieces)
                pieces, size = [], 0
        pieces.append(_ENDS[fmt])
        yield b"", tuple(pieces)


class Renderer:
    """Renders the same tables again and again. One thread at a time."""

    def __init__(self, tables: Iterable[FamilyTable], *, values: bool = False) -> None:
        """``values`` promises that rows are values: an equal row has equal numbers."""
        self._packer = GzipParts()
        self._tables = [
            (
                TableLines(table, values=values),
                [{fmt: headers(family, fmt) for fmt in Format} for family in table.families],
            )
            for table in tables
        ]

    def render(self, view: Any) -> Exposition:
        """Every family that has a sample, in table order."""
        bodies: list[Body] = []
        series = dropped = 0
        for table, family_headers in self._tables:
            table.update(view)
            bodies += (body for body in zip(family_headers, table.bodies, strict=True) if body[1])
            series += table.series
            dropped += table.dropped
        return Exposition(bodies, self._packer, series=series, dropped=dropped)
