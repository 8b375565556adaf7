"""A dashboard as Grafana reads it: its JSON's panels, and their questions as Prometheus gets them.

For the tests, which ask every one of them, and for ``preview.py``, which draws the answers. Of
Grafana's language only what our dashboards use is known.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

FOLDER: Final = Path(__file__).resolve().parent / "dashboards"

VARIABLE: Final = re.compile(r"\$(?:([a-zA-Z_]\w*)|\{(\w+)(?::\w+)?\})")
"""`$1` is of a regular expression, and left as it is."""

EVERYTHING: Final[Mapping[str, str]] = {
    "cluster": ".*",
    "node": ".*",
    "namespace": ".*",
    "scheme": ".*",
    "pod": ".*",
    "reconciler": ".*",
}
"""The variables as they are when nothing was chosen."""


class Target(msgspec.Struct, frozen=True):
    """One question of a panel; ``letter`` is what the answer is called in it."""

    letter: str
    expr: str
    legend: str
    instant: bool


class Shown(msgspec.Struct, frozen=True):
    """A panel; ``raw`` is all that its JSON reports, ``place`` is x, y, width and height."""

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
    """Its panels from top to bottom, headings included."""
    for raw in page["panels"]:
        where = raw["gridPos"]
        targets = tuple(
            Target(t["refId"], t["expr"], t.get("legendFormat", ""), t.get("instant", False))
            for t in raw.get("targets", ())
        )
        place = (where.get("x", 0), where.get("y", 0), where["w"], where["h"])
        yield Shown(raw.get("title", ""), raw["type"], place, targets, raw)


def filled(text: str, values: Mapping[str, str]) -> str:
    """The text with its variables replaced. Raises KeyError for one that has no value."""
    return VARIABLE.sub(lambda found: values[found[1] or found[2]], text)
