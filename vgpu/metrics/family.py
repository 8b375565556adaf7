"""A metric family as a row of a table, and tables of families that share their labels.

A :class:`FamilyTable` is a list of families over the same rows: ``rows`` picks the rows out of a
view, ``labels`` and ``key`` give the label names and a row's values for them, and each family's
``value`` gives the row's number. Nothing here knows what is measured.
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import StrEnum
from math import inf
from typing import Any

import msgspec


class MetricType(StrEnum):
    """The exposition type. Info metrics are gauges that are always 1, as text 0.0.4 has them."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


class Histogram(msgspec.Struct, frozen=True):
    """Observed amounts at one moment.

    Attributes:
        buckets: upper bound -> number of amounts up to it and above the bound before, ascending;
            the last bound is infinite.
        total: sum of all amounts.
    """

    buckets: Mapping[float, int]
    total: float

    @property
    def count(self) -> int:
        """Number of all amounts."""
        return sum(self.buckets.values())


class HistogramCounts:
    """Amounts that are counted one by one, for a :class:`Histogram`. Not for several threads."""

    def __init__(self, bounds: Iterable[float]) -> None:
        """``bounds`` ascend and are finite."""
        self._bounds = (*bounds, inf)
        self._counts = [0] * len(self._bounds)
        self._total = 0.0

    def add(self, amount: float) -> None:
        """Count one more."""
        self._counts[bisect_left(self._bounds, amount)] += 1
        self._total += amount

    def histogram(self) -> Histogram:
        """All of them at this moment."""
        return Histogram(dict(zip(self._bounds, self._counts, strict=True)), self._total)


Number = float | int
Value = Number | None
Labelled = Mapping[tuple[str, ...], Number | Histogram]


class Family(msgspec.Struct, frozen=True):
    """One metric family.

    Attributes:
        name: the sample name; a counter's ends in ``_total``. A histogram's samples add
            ``_bucket``, ``_sum`` and ``_count``.
        kind: gauge, counter or histogram; the values of a histogram are :class:`Histogram`.
        help: what it is, and the call or file it comes from.
        value: a row's number (None: no sample), or with ``extra``, and of a histogram, a mapping
            from the extra label values to numbers.
        extra: label names of this family beyond those of its table.
        unit: base unit, for the documentation: bytes, seconds, ratio, celsius … or "".
        detail: the group of details without which the family is left out, or "".
        briefly: the value without that group; None leaves the family out.
    """

    name: str
    kind: MetricType
    help: str
    value: Callable[[Any], Value | Labelled]
    extra: tuple[str, ...] = ()
    unit: str = ""
    detail: str = ""
    briefly: Callable[[Any], Value | Labelled] | None = None

    @property
    def is_mapped(self) -> bool:
        """Whether ``value`` is a mapping."""
        return bool(self.extra) or self.kind is MetricType.HISTOGRAM

    @property
    def samples(self) -> Mapping[str, tuple[str, ...]]:
        """The names of the family's samples, each with the labels beyond the table's."""
        if self.kind is not MetricType.HISTOGRAM:
            return {self.name: self.extra}
        return {
            f"{self.name}_bucket": (*self.extra, "le"),
            f"{self.name}_sum": self.extra,
            f"{self.name}_count": self.extra,
        }

    def within(self, details: Collection[str]) -> "Family | None":
        """The family where only these groups of details are wanted; None if it is left out."""
        if not self.detail or self.detail in details:
            return self
        if self.briefly is None:
            return None
        return msgspec.structs.replace(self, value=self.briefly, briefly=None)


class FamilyTable(msgspec.Struct, frozen=True):
    """Families over the same rows, with the same labels.

    Attributes:
        title: a heading for the documentation.
        rows: picks the rows out of a view.
        labels: label names.
        key: a row's label values, one for each name; they identify the row.
        families: the table's families.
        note: a sentence for the documentation.
    """

    title: str
    rows: Callable[[Any], Iterable[Any]]
    labels: tuple[str, ...]
    key: Callable[[Any], tuple[str, ...]]
    families: tuple[Family, ...]
    note: str = ""

    def within(self, details: Collection[str]) -> "FamilyTable":
        """The table where only these groups of details are wanted."""
        families = (family.within(details) for family in self.families)
        return msgspec.structs.replace(self, families=tuple(filter(None, families)))
