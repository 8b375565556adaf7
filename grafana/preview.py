"""Draws each dashboard as a picture, from a Prometheus server's answers to its queries.

    python -m grafana.preview http://localhost:9090 --set node=gpu-node-1

The pictures show panels, numbers and words without a Grafana; Grafana's own drawing differs.
"""

import io
import math
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, repeat
from pathlib import Path
from typing import Any, Final

import click
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator
from PIL import Image

from grafana.answers import Cell, Line, Server, everything, rows
from grafana.reading import EVERYTHING, FOLDER, Shown, load, of_range, panels

COLUMN, LINE, GAP = 58, 34, 3
"""A 24th of the width, a line of Grafana's grid, the gap around a panel; in pixels."""

HEAD: Final = 44
"""Height of the dashboard's title, in pixels."""

TABLE_LINE, LETTER = 21, 6.1
"""Height of a table's line, and width of a letter in it, in pixels."""

WIDE: Final = 600
"""Width from which a graph has room for its legend's names beside it, in pixels."""

COLOURS: Final = 200
"""Number of colours in a picture's palette: enough for lines and letters, and few for size."""

GROUND, PANEL, RULE, TEXT, FAINT = "#111217", "#181b1f", "#2c3235", "#ccccdc", "#8e9297"
NAMED: Final = {"green": "#73bf69", "orange": "#ff9830", "red": "#f2495c", "blue": "#8ab8ff"}
PALETTE: Final = (
    "#73bf69", "#f2cc0c", "#8ab8ff", "#ff780a", "#f2495c", "#b877d9", "#5794f2", "#37872d",
    "#fade2a", "#c15c17", "#447ebc", "#a352cc", "#96d98d", "#ffb357", "#c0d8ff", "#ff7383",
)  # fmt: skip

# ---------------------------------------------------------------- words


def _scaled(value: float, base: float, names: tuple[str, ...]) -> str:
    place = 0
    while abs(value) >= base and place < len(names) - 1:
        value, place = value / base, place + 1
    digits = f"{value:.3g}" if abs(value) < 999.5 else f"{value:.0f}"
    return f"{digits} {names[place]}".rstrip()


def _duration(seconds: float) -> str:
    for size, name in ((86400, "days"), (3600, "hours"), (60, "mins")):
        if abs(seconds) >= size:
            return f"{seconds / size:.3g} {name}"
    return f"{seconds:.2g} s" if abs(seconds) >= 1 or not seconds else f"{seconds * 1000:.3g} ms"


UNITS: Final[Mapping[str, Callable[[float], str]]] = {
    "short": lambda value: _scaled(value, 1000, ("", "K", "Mil", "Bil")),
    "bytes": lambda value: _scaled(value, 1024, ("B", "KiB", "MiB", "GiB", "TiB", "PiB")),
    "percentunit": lambda value: f"{value:.1%}",
    "s": _duration,
    "celsius": lambda value: f"{value:.3g} °C",
    "watt": lambda value: _scaled(value, 1000, ("W", "kW", "MW")),
    "reqps": lambda value: f"{value:.3g} req/s",
    "dateTimeFromNow": lambda value: f"{_duration(time.time() - value / 1000)} ago",
}


class FieldStyle:
    """The style of a field's values: the unit, words for some values, colours by steps."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._unit = UNITS[settings.get("unit", "short")]
        self._steps = settings.get("thresholds", {}).get("steps", ())
        self.bar = settings.get("custom.cellOptions", {}).get("type") == "gauge"
        self._words: dict[str, str] = {}
        self._unknown = "–"
        for mapping in settings.get("mappings", ()):
            if mapping["type"] == "value":
                self._words |= {key: option["text"] for key, option in mapping["options"].items()}
            else:
                self._unknown = mapping["options"]["result"]["text"]

    def text(self, value: float) -> str:
        """The value in words."""
        if math.isnan(value):
            return self._unknown
        return self._words.get(f"{value:g}") or self._unit(value)

    def colour(self, value: float) -> str:
        """The colour of the value's step; the colour of text where there are no steps."""
        colour = TEXT if not math.isnan(value) else FAINT
        for step in self._steps:
            if step["value"] is None or value >= step["value"]:
                colour = NAMED.get(step["color"], FAINT)
        return colour


def style_of(panel: Shown, column: str = "") -> FieldStyle:
    """The style of a panel, or of one of its columns."""
    config = panel.raw["fieldConfig"]
    if not column:
        return FieldStyle(config["defaults"])
    own = {
        entry["id"]: entry["value"]
        for override in config["overrides"]
        if override["matcher"]["options"] == column
        for entry in override["properties"]
    }
    mappings = [*own.get("mappings", ()), *config["defaults"]["mappings"]]
    return FieldStyle({**own, "mappings": mappings})


# ---------------------------------------------------------------- the sheet


class Sheet:
    """A figure measured in pixels from the top left, as screens are."""

    def __init__(self, width: float, height: float) -> None:
        self.width, self.height = width, height
        self.figure = Figure(figsize=(width / 100, height / 100), dpi=100, facecolor=GROUND)

    def text(self, left: float, middle: float, content: str, **style: Any) -> None:
        """Draw a text with its middle line at ``middle``."""
        style = {"color": TEXT, "fontsize": 7.5, "va": "center", **style}
        self.figure.text(left / self.width, 1 - middle / self.height, content, **style)

    def box(self, left: float, top: float, width: float, height: float, colour: str) -> None:
        """Draw a filled rectangle."""
        corner = (left / self.width, 1 - (top + height) / self.height)
        box = Rectangle(
            corner, width / self.width, height / self.height, facecolor=colour, zorder=-1
        )
        box.set_transform(self.figure.transFigure)
        self.figure.add_artist(box)

    def axes(self, left: float, top: float, width: float, height: float) -> Axes:
        """Axes for lines."""
        bottom = 1 - (top + height) / self.height
        made: Axes = self.figure.add_axes(
            (left / self.width, bottom, width / self.width, height / self.height), facecolor=PANEL
        )
        return made

    def png(self) -> bytes:
        """The picture as a small PNG."""
        drawn, small = io.BytesIO(), io.BytesIO()
        self.figure.savefig(drawn, format="png")
        image = Image.open(drawn).convert("RGB")
        image.quantize(COLOURS, dither=Image.Dither.NONE).save(small, "PNG", optimize=True)
        return small.getvalue()


# ---------------------------------------------------------------- the kinds of panels


def draw_nothing(sheet: Sheet, panel: Shown, room: "DrawingArea") -> None:
    """Draw the text of an empty panel."""
    content = panel.raw["fieldConfig"]["defaults"]["noValue"]
    lines = textwrap.wrap(content, int(room.width / LETTER))
    middle = room.top + room.height / 2
    sheet.text(room.left + room.width / 2, middle, "\n".join(lines), color=FAINT, ha="center")


def draw_stat(sheet: Sheet, panel: Shown, server: Server, room: "DrawingArea") -> None:
    """Draw one number, or several with their names side by side."""
    series = list(everything(panel, server))
    if not series:
        draw_nothing(sheet, panel, room)
        return
    style, width = style_of(panel), room.width / len(series)
    for place, (name, value) in enumerate(series):
        centre, middle = room.left + width * (place + 0.5), room.top + room.height / 2
        shown = style.text(value)
        sheet.text(centre, middle, shown, color=style.colour(value), fontsize=20, ha="center")
        if len(series) > 1:
            sheet.text(centre, room.top + room.height - 2, name, color=FAINT, ha="center")


def draw_bars(sheet: Sheet, panel: Shown, server: Server, room: "DrawingArea") -> None:
    """Draw a bar for each series."""
    style = style_of(panel)
    series = list(everything(panel, server))
    if not series:
        draw_nothing(sheet, panel, room)
        return
    most = max([*(value for _, value in series if not math.isnan(value)), 1e-9])
    step = min(34.0, room.height / len(series))
    names = min(room.width * 0.55, max(len(name) for name, _ in series) * LETTER + 8)
    for place, (name, value) in enumerate(series):
        middle = room.top + step * (place + 0.5)
        sheet.text(room.left, middle, _cut(name, names))
        left, width = room.left + names, room.width - names - 62
        sheet.box(left, middle - step * 0.32, width, step * 0.64, RULE)
        part = 0 if math.isnan(value) else max(value, 0) / most
        sheet.box(left, middle - step * 0.32, width * part, step * 0.64, style.colour(value))
        right = room.left + room.width
        sheet.text(right, middle, style.text(value), color=style.colour(value), ha="right")


def draw_table(sheet: Sheet, panel: Shown, server: Server, room: "DrawingArea") -> None:
    """Draw the table's first lines, as many as there is room for."""
    titles, table_rows = rows(panel, server)
    if not table_rows:
        draw_nothing(sheet, panel, room)
        return
    looks = [style_of(panel, title) for title in titles]
    shown = [
        [_cell(style, cell) for style, cell in zip(looks, row, strict=True)]
        for row in table_rows[: int(room.height / TABLE_LINE) - 1]
    ]
    wide = [
        max(len(title), *(len(row[place][0]) for row in shown), 12 if looks[place].bar else 0) + 2
        for place, title in enumerate(titles)
    ]
    letter = room.width / sum(wide)
    left = room.left
    for place, title in enumerate(titles):
        width = wide[place] * letter
        sheet.text(left, room.top + TABLE_LINE / 2, _cut(title, width), color=NAMED["blue"])
        for number, row in enumerate(shown, start=1):
            middle = room.top + TABLE_LINE * (number + 0.5)
            content, colour, part = row[place]
            if looks[place].bar:
                sheet.box(left, middle - 6, width - 52, 12, RULE)
                sheet.box(left, middle - 6, (width - 52) * min(part, 1), 12, NAMED["blue"])
                sheet.text(left + width - 8, middle, content, ha="right")
            else:
                sheet.text(left, middle, _cut(content, width), color=colour)
        left += width
    for number in range(1, len(shown) + 1):
        sheet.box(room.left, room.top + TABLE_LINE * number, room.width, 1, RULE)
    if len(table_rows) > len(shown):
        sheet.text(
            room.left + room.width,
            room.top - 9,
            f"{len(table_rows)} lines",
            ha="right",
            color=FAINT,
        )


def _cell(style: FieldStyle, cell: Cell) -> tuple[str, str, float]:
    if isinstance(cell, float):
        return style.text(cell), style.colour(cell), max(cell, 0) if cell == cell else 0  # noqa: PLR0124  # NaN
    return (cell, TEXT, 0) if cell else (style.text(math.nan), FAINT, 0)


def _cut(content: str, width: float) -> str:
    """The text without its middle if it is too long: names often differ in their last letters."""
    letters = max(int(width / LETTER) - 1, 3)
    end = letters // 2
    return (
        content if len(content) <= letters else f"{content[: letters - 1 - end]}…{content[-end:]}"
    )


def draw_graph(sheet: Sheet, panel: Shown, server: Server, room: "DrawingArea") -> None:
    """Draw lines over time, and their names with the last and the highest value."""
    style = style_of(panel)
    lines = ranked(line for target in panel.targets for line in server.lines(target))
    if not lines:
        draw_nothing(sheet, panel, room)
        return
    legend = room.width * (0.42 if room.width > WIDE else 0.55)
    axes = sheet.axes(room.left + 48, room.top + 4, room.width - legend - 56, room.height - 24)
    _dress(axes, style, server)
    stacked = panel.raw["fieldConfig"]["defaults"]["custom"]["stacking"]["mode"] == "normal"
    base = [0.0] * len(lines[0].times)
    coloured = list(zip(lines, _colours(), strict=False))
    for line, colour in coloured if stacked else reversed(coloured):  # the first in front
        minutes = [(when - server.until) / 60 for when in line.times]
        if not stacked:
            axes.plot(minutes, line.values, color=colour, linewidth=1)
        elif any(value > 0 for value in line.values):
            parts = [0 if math.isnan(value) else value for value in line.values]
            top = [low + part for low, part in zip(base, parts, strict=True)]
            axes.fill_between(minutes, base, top, color=colour, alpha=0.3, linewidth=0)
            axes.plot(minutes, top, color=colour, linewidth=0.8)
            base = top
    known = [value for line in lines for value in line.values if not math.isnan(value)]
    axes.set_ylim(min([*known, 0]), axes.get_ylim()[1] if any(known) else 1)
    _legend(
        sheet,
        lines,
        style,
        DrawingArea(room.left + room.width - legend + 4, room.top, legend, room.height),
    )


def _colours() -> Iterator[str]:
    """The colours of the lines from the top; lines beyond the palette have one common colour."""
    return chain(PALETTE, repeat(FAINT))


def ranked(lines: Iterable[Line]) -> list[Line]:
    """The lines in the legend's order: by the last value, then the highest; ended lines last."""

    def rank(line: Line) -> tuple[float, float]:
        known = [value for value in line.values if not math.isnan(value)]
        last = -math.inf if math.isnan(line.values[-1]) else line.values[-1]
        return last, max(known, default=-math.inf)

    return sorted(lines, key=rank, reverse=True)


def _dress(axes: Axes, style: FieldStyle, server: Server) -> None:
    axes.set_xlim((server.since - server.until) / 60, 0)
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} min"))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: style.text(value)))
    axes.tick_params(colors=FAINT, labelsize=6.5, length=0)
    axes.grid(color=RULE, linewidth=0.6)
    for side in axes.spines.values():
        side.set_visible(False)


def _legend(sheet: Sheet, lines: list[Line], style: FieldStyle, room: "DrawingArea") -> None:
    step = 15.0
    right = room.left + room.width
    for title, place in (("last", right - 70), ("max", right - 4)):
        sheet.text(place, room.top + 6, title, color=NAMED["blue"], ha="right", fontsize=7)
    shown = zip(lines[: int(room.height / step) - 1], _colours(), strict=False)
    for number, (line, colour) in enumerate(shown, start=1):
        middle = room.top + 6 + step * number
        known = [value for value in line.values if not math.isnan(value)]
        sheet.box(room.left, middle - 2, 9, 3, colour)
        sheet.text(room.left + 14, middle, _cut(line.name, room.width - 125), fontsize=7)
        for value, place in (
            (line.values[-1], right - 70),
            (max(known, default=math.nan), right - 4),
        ):
            sheet.text(place, middle, style.text(value), fontsize=7, ha="right")


DRAW: Final[Mapping[str, Callable[[Sheet, Shown, Server, "DrawingArea"], None]]] = {
    "stat": draw_stat,
    "bargauge": draw_bars,
    "table": draw_table,
    "timeseries": draw_graph,
}

# ---------------------------------------------------------------- a whole dashboard


class DrawingArea:
    """A rectangle to draw in, in pixels from the top left."""

    def __init__(self, left: float, top: float, width: float, height: float) -> None:
        self.left, self.top, self.width, self.height = left, top, width, height


def picture(page: Mapping[str, Any], server: Server) -> bytes:
    """A PNG of the dashboard."""
    shown = list(panels(page))
    lines = max(panel.place[1] + panel.place[3] for panel in shown)
    sheet = Sheet(24 * COLUMN + 2 * GAP, HEAD + lines * LINE + 2 * GAP)
    sheet.text(12, HEAD / 2, page["title"], fontsize=13, weight="bold")
    sheet.text(240, HEAD / 2 + 1, page["description"], fontsize=9, color=FAINT)
    for panel in shown:
        column, line, width, height = panel.place
        left, top = GAP + column * COLUMN + GAP, HEAD + line * LINE + GAP
        if panel.kind == "row":
            sheet.text(left + 6, top + LINE / 2, panel.title, fontsize=9, weight="bold")
            continue
        sheet.box(left, top, width * COLUMN - 2 * GAP, height * LINE - 2 * GAP, PANEL)
        sheet.text(left + 9, top + 13, panel.title, fontsize=8, weight="bold")
        room = DrawingArea(left + 10, top + 28, width * COLUMN - 26, height * LINE - 40)
        DRAW[panel.kind](sheet, panel, server, room)
    return sheet.png()


def pictures(
    url: str,
    values: Mapping[str, str],
    seconds: float,
    output: Path,
    of_one: Mapping[str, Mapping[str, str]] = {},
) -> None:
    """Write a PNG of each dashboard, of the last ``seconds``, into the folder ``output``.

    ``values`` of variables are for all dashboards, those in ``of_one`` for the dashboard of that
    name.
    """
    output.mkdir(parents=True, exist_ok=True)
    until = time.time()
    for file in sorted(FOLDER.glob("*.json")):
        chosen = {**values, **of_one.get(file.stem, {})}
        filling = {**EVERYTHING, **of_range(seconds), **chosen}
        server = Server(url, filling, until - seconds, until)
        (output / f"{file.stem}.png").write_bytes(picture(load(file), server))


@click.command(help=textwrap.dedent(__doc__ or ""))
@click.argument("url")
@click.option("--set", "values", multiple=True, metavar="NAME=VALUE", help="Choose a variable.")
@click.option("--seconds", default=300.0, show_default=True, help="How far to look back.")
@click.option("--output", default=Path(), type=click.Path(path_type=Path), help="A folder.")
def main(*, url: str, values: tuple[str, ...], seconds: float, output: Path) -> None:
    """Draw each dashboard."""
    chosen = dict(value.split("=", 1) for value in values if "=" in value)
    pictures(url, chosen, seconds, output)


if __name__ == "__main__":
    main()
