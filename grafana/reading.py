"""Reads a dashboard as Grafana does: the panels of its JSON, and their queries for Prometheus.

The tests send every query; ``preview.py`` draws the answers. Of Grafana's format, only the parts
that our dashboards use are read.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

FOLDER: Final = Path(__file__).resolve().parent / "dashboards"

VARIABLE: Final = re.compile(r"\$(?:([a-zA-Z_]\w*)|\{(\w+)(?::\w+)?\})")
"""`$1` belongs to a regular expression, and does not match."""

EVERYTHING: Final[Mapping[str, str]] = {
    "cluster": ".*",
    "node": ".*",
    "namespace": ".*",
    "team": ".*",
    "scheme": ".*",
    "pod": ".*",
    "reconciler": ".*",
    "scheduler": ".*",
}
"""The variables' values when nothing is selected."""


def of_range(seconds: float, step: int = 5) -> Mapping[str, str]:
    """Grafana's own variables for a time range; ``step`` is in seconds."""
    return {
        "__range": f"{seconds:.0f}s",
        "__interval": f"{step}s",
        "__interval_ms": f"{step * 1000}",
        "__rate_interval": f"{3 * step}s",
    }


class Target(msgspec.Struct, frozen=True):
    """One query of a panel; ``letter`` is the answer's name in it."""

    letter: str
    expr: str
    legend: str
    instant: bool


class Shown(msgspec.Struct, frozen=True):
    """A panel; ``raw`` is its whole JSON, ``place`` is x, y, width and height."""

    title: str
    kind: str
    place: tuple[int, int, int, int]
    targets: tuple[Target, ...]
    raw: Mapping[str, Any]


def load(path: Path) -> dict[str, Any]:
    """The JSON of a dashboard. Raises OSError, ValueError."""
    page = json.loads(path.read_text())
    if not isinstance(page, dict):
        raise ValueError(f"{path}: not a dashboard")  # noqa: TRY004  # what json itself raises
    return page


def panels(page: Mapping[str, Any]) -> Iterator[Shown]:
    """The dashboard's panels from top to bottom, headings included."""
    for raw in page["panels"]:
        where = raw["gridPos"]
        targets = tuple(
            Target(t["refId"], t["expr"], t.get("legendFormat", ""), t.get("instant", False))
            for t in raw.get("targets", ())
        )
        place = (where.get("x", 0), where.get("y", 0), where["w"], where["h"])
        yield Shown(raw.get("title", ""), raw["type"], place, targets, raw)


def filled(text: str, values: Mapping[str, str]) -> str:
    """The text with its variables replaced. Raises KeyError for a variable without a value."""
    return VARIABLE.sub(lambda match: values[match[1] or match[2]], text)
