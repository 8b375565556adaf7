"""Prometheus' answers to a dashboard's queries, as Grafana would show them."""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlencode
from urllib.request import urlopen

import msgspec

from grafana.reading import Shown, Target, filled

POINTS: Final = 240
"""Number of points of a line: about one for each pixel."""

SECONDS: Final = 30.0
"""Maximum time to wait for an answer, in seconds."""

Labels = Mapping[str, str]
Cell = str | float | None


class Line(msgspec.Struct, frozen=True):
    """A series over time: its name, unix seconds and values, NaN where there is no value."""

    name: str
    times: tuple[float, ...]
    values: tuple[float, ...]


class Server:
    """A Prometheus server, asked over its HTTP API; ``values`` are the variables' values."""

    def __init__(self, url: str, values: Mapping[str, str], since: float, until: float) -> None:
        """``since`` and ``until``: the time range in unix seconds."""
        self._url = url.rstrip("/")
        self._values = values
        self.since, self.until = since, until

    def now(self, target: Target) -> list[tuple[Labels, float]]:
        """Each series of an instant query, at the end of the time range."""
        result = self._ask("query", target, time=self.until)
        return [(series["metric"], float(series["value"][1])) for series in result]

    def lines(self, target: Target) -> list[Line]:
        """Each series of a range query."""
        step = max(1.0, (self.until - self.since) / POINTS)
        result = self._ask("query_range", target, start=self.since, end=self.until, step=step)
        return [_line(target, series, self.since, self.until, step) for series in result]

    def _ask(self, how: str, target: Target, **when: float) -> list[Any]:
        query = urlencode({"query": filled(target.expr, self._values), **when})
        with urlopen(f"{self._url}/api/v1/{how}?{query}", timeout=SECONDS) as answer:  # noqa: S310  # the user's own URL
            result: list[Any] = json.load(answer)["data"]["result"]
        return result


def _line(target: Target, series: Any, since: float, until: float, step: float) -> Line:
    value_at = {round((when - since) / step): float(value) for when, value in series["values"]}
    places = range(int((until - since) / step) + 1)
    return Line(
        name_of(target, series["metric"]),
        tuple(since + step * place for place in places),
        tuple(value_at.get(place, math.nan) for place in places),
    )


def name_of(target: Target, labels: Labels) -> str:
    """The legend with its labels filled in."""
    text = target.legend
    if text in {"", "__auto"}:
        return ", ".join(labels.values())
    for label in text.split("{{")[1:]:
        name = label.partition("}}")[0]
        text = text.replace(f"{{{{{name}}}}}", labels.get(name, ""))
    return text.strip()


def rows(panel: Shown, server: Server) -> tuple[list[str], list[list[Cell]]]:
    """A table's columns and rows, after its transformations `merge` and `organize`, in order."""
    frames = [(target.letter, server.now(target)) for target in panel.targets]
    labels_of_frames = [{frozenset(labels) for labels, _ in frame} for _, frame in frames if frame]
    all_labels = [frozenset[str]().union(*labels) for labels in labels_of_frames]
    shared = sorted(all_labels[0].intersection(*all_labels)) if all_labels else []
    merged: dict[tuple[str, ...], dict[str, Cell]] = {}
    for letter, frame in frames:
        for labels, value in frame:
            row = merged.setdefault(tuple(labels.get(label, "") for label in shared), {})
            row.update(labels)
            row[f"Value #{letter}"] = value
    (organize,) = (t["options"] for t in panel.raw["transformations"] if t["id"] == "organize")
    names = [name for name, _ in sorted(organize["indexByName"].items(), key=lambda item: item[1])]
    names = [name for name in names if name not in organize["excludeByName"]]
    titles = [organize["renameByName"][name] for name in names]
    cells = [[row.get(name) for name in names] for row in merged.values()]
    (order,) = panel.raw["options"]["sortBy"]
    place = titles.index(order["displayName"])
    cells.sort(key=lambda row: _sortable(row[place]), reverse=order["desc"])
    return titles, cells


def _sortable(cell: Cell) -> float:
    return cell if isinstance(cell, float) and not math.isnan(cell) else -math.inf


def everything(panel: Shown, server: Server) -> Iterator[tuple[str, float]]:
    """Name and value of each series of a panel of numbers or bars."""
    for target in panel.targets:
        for labels, value in server.now(target):
            yield name_of(target, labels), value
