"""The lines of a table's families, kept from one render to the next.

A line is formatted again only if its number has changed, and a family's lines are joined again only
if one of them has. Most of a node's numbers are the same from one sample to the next.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from math import isfinite
from typing import Any, Final

from vgpu.metrics.family import Family, FamilyTable, Histogram, MetricType

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
                _update_row(table.families, kept, row, changed)
        if list(rows) != list(before):
            changed.update(range(len(table.families)))
        self.rows = rows
        for index in changed:
            self.bodies[index] = b"".join([kept.lines[index] for kept in rows.values()])
        if changed:
            self.series = sum(body.count(b"\n") for body in self.bodies)


def _update_row(families: Sequence[Family], kept: _Row, row: Any, changed: set[int]) -> None:
    """Make the lines whose number has changed, and add the indexes of their families."""
    numbers = kept.numbers
    for index, family in enumerate(families):
        number = family.value(row)
        if number == numbers[index]:
            continue
        if family.is_mapped:
            numbers[index] = dict(number or {})  # type: ignore[arg-type]  # it is a mapping
            text = _labelled(family, kept.labels, numbers[index])
        else:
            numbers[index] = number
            text = _plain(family.name, kept.labels, number)
        line = text.encode("utf-8", "replace")
        if line != kept.lines[index]:
            kept.lines[index] = line
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
