"""Lines for people: styled pieces, printed as they are, without control characters.

rich's own Table would measure every cell of a cluster's 60,000 lines, which takes half a minute.
"""

import io
import sys
from collections.abc import Iterable, Sequence
from typing import Final

from rich.console import Console
from rich.segment import Segment, Segments
from rich.style import Style
from rich.text import Text

from vgpu.model.printable_text import printable, printable_lines

NARROWEST: Final = 80
"""Number of columns below which the terminal wraps the lines of tables."""

NARROWEST_TEXT: Final = 40
"""Number of columns below which the terminal wraps sentences."""

PLAIN: Final = Style()
BOLD: Final = Style(bold=True)
DIM: Final = Style(dim=True)
GOOD: Final = Style(color="cyan")
DOUBTFUL: Final = Style(color="yellow")
BAD: Final = Style(color="red", bold=True)

Piece = tuple[str, Style]
Line = Sequence[Piece]

_NEWLINE: Final = Segment("\n")


def standard_output(*, stderr: bool = False) -> Console:
    """Standard output, or standard error, in characters that it can show."""
    stream = sys.stderr if stderr else sys.stdout
    if isinstance(stream, io.TextIOWrapper):  # some terminals cannot show every name
        stream.reconfigure(errors="replace")
    return Console(highlight=False, stderr=stderr)


def text_width(console: Console) -> int:
    """The number of columns for sentences."""
    return max(NARROWEST_TEXT, console.width)


def write(console: Console, lines: Iterable[Line]) -> None:
    """Print the lines at their full length."""
    segments: list[Segment] = []
    for line in lines:
        *before, (last, style) = line or [("", PLAIN)]
        pieces = (*before, (last.rstrip(), style))
        segments += (Segment(printable(text), style) for text, style in pieces if text)
        segments.append(_NEWLINE)
    console.print(Segments(segments), end="", crop=False, overflow="ignore", no_wrap=True)


def write_text(console: Console, text: Text) -> None:
    """Print the text, which fits the terminal."""
    console.print(of_printable(text), no_wrap=True, overflow="ignore", crop=False)


def of_printable(text: Text) -> Text:
    """The text without control characters, in the same styles."""
    text.plain = printable_lines(text.plain)
    return text
