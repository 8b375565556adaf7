"""Files of closed days: ``<folder>/2026-11-01.jsonl``, one JSON object on a line.

The first line is a :class:`DayHead`, each further line a row. A file is written once, with mode
0600, and never changed: a file of a later day has the corrections of earlier days, as rows of their
own. Amounts are times, not money, so that prices stay in the price table.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from vgpu.io import atomic_files
from vgpu.model.printable_text import printable
from vgpu.model.reasons import SourceError
from vgpu.sources.files import read_file
from vgpucli.bill.days import is_day
from vgpucli.bill.model import ClosedDay, DayHead, GpuDay, Row, ShareDay

FORMAT: Final = 1
SUFFIX: Final = ".jsonl"
MODE: Final = 0o600
LOCK: Final = ".lock"
"""The file by which one process alone closes days of a folder."""

_LIMIT: Final = 2**30
_OTHERS: Final = 0o007
_HEAD: Final = msgspec.json.Decoder(DayHead)
_ROW: Final = msgspec.json.Decoder(Row)
_ENCODER: Final = msgspec.json.Encoder()


class BadDay(Exception):  # noqa: N818  # it names what is on the disk
    """A file cannot be used; the message has its name and line."""


def path_of(folder: Path, day: str) -> Path:
    """The file of a day."""
    return folder / f"{day}{SUFFIX}"


def encoded(closed: ClosedDay) -> bytes:
    """The content of a file; equal days have equal content."""
    rows = (closed.head, *closed.gpus, *closed.shares)
    return b"".join(_ENCODER.encode(row) + b"\n" for row in rows)


def write_day(folder: Path, closed: ClosedDay) -> Path:
    """Write a day for the first time. Raises FileExistsError if it is closed, and OSError."""
    path = path_of(folder, closed.head.day)
    if path.exists():
        raise FileExistsError(path)
    atomic_files.write(path, encoded(closed), MODE)
    return path


def closed_days(folder: Path) -> list[str]:
    """The days that have a file, in their order. Raises OSError."""
    names = (entry.name for entry in folder.iterdir() if entry.suffix == SUFFIX)
    return sorted(name for name in (each.removesuffix(SUFFIX) for each in names) if is_day(name))


def read_day(path: Path) -> ClosedDay:
    """A file's head and rows. Raises BadDay."""
    shown = printable(str(path))
    try:
        if path.stat().st_mode & _OTHERS:
            raise BadDay(f"{shown}: other users may read it; chmod 600 it first")
        content = read_file(str(path), _LIMIT)
    except SourceError as error:
        raise BadDay(str(error)) from error
    except OSError as error:
        raise BadDay(f"{shown}: {error.strerror}") from error
    head: DayHead | None = None
    gpus: list[GpuDay] = []
    shares: list[ShareDay] = []
    for number, line in _lines(content):
        try:
            if head is None:
                head = _checked(_HEAD.decode(line), path)
                continue
            row = _ROW.decode(line)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise BadDay(f"{shown}: line {number}: {printable(str(error))}") from error
        if isinstance(row, GpuDay):
            gpus.append(row)
        else:
            shares.append(row)
    if head is None:
        raise BadDay(f"{shown}: it is empty")
    strange = {row.key.day for row in gpus} - {head.day, *head.corrects}
    if strange:
        raise BadDay(f"{shown}: its first line does not name {printable(min(strange))}")
    return ClosedDay(head, (*gpus,), (*shares,))


def _lines(content: bytes) -> Iterator[tuple[int, bytes]]:
    for number, line in enumerate(content.split(b"\n"), 1):
        if line.strip():
            yield number, line


def _checked(head: DayHead, path: Path) -> DayHead:
    if head.format != FORMAT:
        raise ValueError(f"format {head.format}, of a newer version")
    if path.name != f"{head.day}{SUFFIX}":
        raise ValueError(f"it is the file of {head.day}")
    if not is_day(head.day) or head.end <= head.start:
        raise ValueError("its day has no time")
    return head


def head_of(path: Path) -> DayHead:
    """The first line alone. Raises BadDay."""
    try:
        with path.open("rb") as file:
            line = file.readline(1 << 20)
        return _checked(_HEAD.decode(line), path)
    except OSError as error:
        raise BadDay(f"{printable(str(path))}: {error.strerror}") from error
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BadDay(f"{printable(str(path))}: line 1: {printable(str(error))}") from error


def corrections(folder: Path, days: Sequence[str]) -> tuple[list[GpuDay], list[ShareDay]]:
    """The rows about ``days`` in files of other, later days. Raises BadDay and OSError."""
    wanted = frozenset(days)
    gpus: list[GpuDay] = []
    shares: list[ShareDay] = []
    for day in closed_days(folder):
        path = path_of(folder, day)
        if wanted.intersection(head_of(path).corrects):
            closed = read_day(path)
            gpus += (row for row in closed.gpus if row.key.day in wanted and row.key.day != day)
            shares += (row for row in closed.shares if row.gpu.day in wanted and row.gpu.day != day)
    return gpus, shares
