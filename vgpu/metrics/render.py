"""Tables over a view, rendered once into the bytes that every scrape then copies.

The body of a family is the same in text 0.0.4 and OpenMetrics 1.0, only its header differs, so a
render makes the bodies and an :class:`Exposition` joins them into the format asked for.
"""

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, Final

from vgpu.metrics.family import Family, FamilyTable, MetricType
from vgpu.metrics.gzip_parts import GzipParts, Part
from vgpu.metrics.lines import TableLines


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
