"""A dashboard as a value: rows of panels, each with its queries in PromQL. ``build.py`` draws it.

``build.py`` has the common settings of all panels, so that a panel has only its own.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec


class GrafanaUnit(StrEnum):
    """Grafana's names of units."""

    COUNT = "short"
    BYTES = "bytes"
    RATIO = "percentunit"
    SECONDS = "s"
    CELSIUS = "celsius"
    WATTS = "watt"
    PER_SECOND = "reqps"
    AGO = "dateTimeFromNow"


class Colour(StrEnum):
    """The meanings of colours: neutral, good, check, act. Grey means unknown."""

    PLAIN = "blue"
    GOOD = "green"
    ODD = "orange"
    BAD = "red"
    UNKNOWN = "#808080"


Steps = tuple[tuple[float | None, Colour], ...]
"""The values from which colours hold; None is the lowest."""

PLAIN: Final[Steps] = ((None, Colour.PLAIN),)
NONE_IS_GOOD: Final[Steps] = ((None, Colour.GOOD), (1, Colour.BAD))
NONE_IS_BETTER: Final[Steps] = ((None, Colour.GOOD), (1, Colour.ODD))


class PanelKind(StrEnum):
    """The kind of a panel: current numbers, current bars, or lines over time."""

    STAT = "stat"
    BARS = "bargauge"
    GRAPH = "timeseries"


class Link(msgspec.Struct, frozen=True):
    """The link of a value; ``url`` has Grafana's variables."""

    title: str
    url: str


class RunbookLink(msgspec.Struct, frozen=True):
    """The link of a value to a runbook, by its page's path in docs/runbooks without a suffix."""

    page: str


class PanelQuery(msgspec.Struct, frozen=True):
    """A query, and the name of its series: ``legend`` with ``{{label}}``."""

    expr: str
    legend: str = ""


class Panel(msgspec.Struct, frozen=True):
    """Numbers, bars or lines.

    Attributes:
        title, about: what the panel shows, and how to read it.
        empty: the meaning of an empty panel; never that all is well.
        width, height: in Grafana's grid, which is 24 wide.
        steps: colours by value.
        value_texts: texts in place of some values.
        stacked: the lines of a graph are parts of a whole.
        most: the end of the axis or the bars, None for the end of the values.
    """

    kind: PanelKind
    title: str
    about: str
    unit: GrafanaUnit
    queries: tuple[PanelQuery, ...]
    empty: str
    width: int = 6
    height: int = 7
    steps: Steps = PLAIN
    value_texts: Mapping[float, str] = {}
    stacked: bool = False
    most: float | None = None
    link: Link | RunbookLink | None = None


class Column(msgspec.Struct, frozen=True):
    """A column of a table: a number for each row.

    ``expr`` is aggregated to the table's labels, and to ``more`` if it has labels of its own.
    """

    title: str
    expr: str
    unit: GrafanaUnit = GrafanaUnit.COUNT
    steps: Steps = ()
    value_texts: Mapping[float, str] = {}
    bar: bool = False
    more: Mapping[str, str] = {}


class TablePanel(msgspec.Struct, frozen=True):
    """A row for each set of labels, with current values.

    Attributes:
        labels: the labels that distinguish rows, with the titles of their columns; "" hides one.
        columns: at least two.
        order: the title of the column to sort by, highest first.
        links: by the title of the column that they are on.
    """

    title: str
    about: str
    labels: Mapping[str, str]
    columns: tuple[Column, ...]
    order: str
    empty: str
    width: int = 24
    height: int = 9
    links: Mapping[str, Link] = {}


class PanelRow(msgspec.Struct, frozen=True):
    """Panels under a heading, from left to right and line by line."""

    title: str
    panels: tuple[Panel | TablePanel, ...]


class Variable(msgspec.Struct, frozen=True):
    """A variable at the top of a dashboard; its values are those of a label.

    ``several`` values, or all of them, can be selected, unless the dashboard shows one object.
    ``shown_as`` is the label that people see in place of the value; it follows ``label`` in the
    alphabet, as Prometheus sorts labels.
    """

    name: str
    title: str
    query: str
    label: str
    several: bool = True
    shown_as: str = ""


class Dashboard(msgspec.Struct, frozen=True):
    """A page; ``uid`` is its address and its file's name, ``since`` its default time range."""

    uid: str
    title: str
    about: str
    variables: tuple[Variable, ...]
    rows: tuple[PanelRow, ...]
    since: str


def stat(title: str, about: str, unit: GrafanaUnit, expr: str, empty: str, **more: object) -> Panel:
    """One current number."""
    made = Panel(PanelKind.STAT, title, about, unit, (PanelQuery(expr),), empty, 4, 4)
    return msgspec.structs.replace(made, **more)


def graph(
    title: str,
    about: str,
    unit: GrafanaUnit,
    queries: tuple[PanelQuery, ...],
    empty: str,
    **more: object,
) -> Panel:
    """Lines over time."""
    made = Panel(PanelKind.GRAPH, title, about, unit, queries, empty, 12, 8)
    return msgspec.structs.replace(made, **more)


def bars(
    title: str,
    about: str,
    unit: GrafanaUnit,
    queries: tuple[PanelQuery, ...],
    empty: str,
    **more: object,
) -> Panel:
    """A bar with the current value of each series."""
    made = Panel(PanelKind.BARS, title, about, unit, queries, empty, 8, 9)
    return msgspec.structs.replace(made, **more)
