"""Columns as Go's text/tabwriter aligns them, for output that must equal a Go program's.

It has only the settings that those programs use: no minimal width, cells padded with blanks on the
right, no flags. A tab ends a cell. The cells of a column in consecutive lines are as wide as the
widest of them; a line without such a cell ends the column, and another begins below it. The text
after a line's last tab belongs to no column.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby

from vgpu.model.printable_text import printable

PADDING = 2
"""Number of blanks after the widest cell of a column."""


def align(text: str) -> str:
    """The text with its tabs replaced by blanks; a cell is as wide as it has code points."""
    lines = [line.split("\t") for line in text.split("\n")]
    if not lines[-1][-1]:
        lines[-1].pop()  # without a newline after it, Go takes the last cell for the line's rest
    for column in range(max(map(len, lines)) - 1):
        _pad(lines, column)
    return "\n".join("".join(cells) for cells in lines)


def table(rows: Iterable[Sequence[str]]) -> list[str]:
    """The rows' cells as aligned lines, in printable characters: no cell breaks a row."""
    text = "".join("\t".join(map(printable, cells)) + "\n" for cells in rows)
    return [line.rstrip() for line in align(text).splitlines()]


def _pad(lines: list[list[str]], column: int) -> None:
    for has_cell, block in groupby(lines, lambda cells: len(cells) > column + 1):
        if has_cell:
            rows = list(block)
            width = max(len(cells[column]) for cells in rows) + PADDING
            for cells in rows:
                cells[column] = cells[column].ljust(width)
