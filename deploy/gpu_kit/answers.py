"""What a driver answers to every query of ours, as a value that can be kept as JSON. Pure.

An answer is kept as the driver gave it (numbers, text, fields of structs, lists) beside the
readings that our table makes of it, so that both can be compared later without a GPU.
"""

import ctypes
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any, Final

import msgspec

from vgpu.sources.nvml_calls import UNSUPPORTED, Code
from vgpu.sources.nvml_queries import GPU_WITH_PCIE_THROUGHPUT, Number, Query

UTILIZATION: Final = "nvmlDeviceGetProcessUtilization"
"""The call whose samples are kept as a list: pid, time in µs, SM, memory, encoder, decoder in %."""


class CallTimes(msgspec.Struct, frozen=True):
    """Durations of a call in microseconds: the first one, and of later ones median and p99."""

    first: float
    p50: float
    p99: float
    count: int


class QueryAnswer(msgspec.Struct, frozen=True):
    """The answer to one query of the tables.

    Attributes:
        call, args: those of the query; with ``each`` the answer is a list.
        answer: as the driver gave it; None if it refused.
        error: NVML's code; 0 if it answered.
        readings: what our table reads from it, by name and labels joined with spaces.
        times: the durations of the call; None if it was called once only.
    """

    call: str
    args: tuple[int, ...]
    each: bool
    answer: Any
    error: int
    readings: Mapping[str, Number]
    times: CallTimes | None = None

    @property
    def key(self) -> str:
        """The query's name: call and arguments."""
        return " ".join((self.call, *map(str, self.args)))


class ListAnswer(msgspec.Struct, frozen=True):
    """A list that the driver fills: process lists and utilisation samples."""

    call: str
    error: int
    entries: tuple[tuple[int, ...], ...] = ()
    times: CallTimes | None = None


class GpuAnswers(msgspec.Struct, frozen=True):
    """Everything that was asked of one GPU; ``again`` are the readings some moments later."""

    index: int
    uuid: str
    info: Mapping[str, str]
    info_errors: Mapping[str, int]
    queries: tuple[QueryAnswer, ...]
    lists: tuple[ListAnswer, ...]
    again: Mapping[str, Number] = {}

    def entries(self, call: str) -> tuple[tuple[int, ...], ...]:
        """The entries of a list; none if the driver refused it."""
        return next((answer.entries for answer in self.lists if answer.call == call), ())

    def readings(self) -> dict[str, Number]:
        """All readings, those of a fallback only where its query has none."""
        merged: dict[str, Number] = {}
        for query in self.queries:
            for name, value in query.readings.items():
                merged.setdefault(name, value)
        return merged


class DriverAnswers(msgspec.Struct, frozen=True):
    """Everything that was asked of a driver; ``between`` is what a program printed meanwhile."""

    driver: Mapping[str, str]
    gpus: tuple[GpuAnswers, ...]
    between: str = ""


def all_queries() -> Iterator[Query]:
    """Every query of the exporter's tables, fallbacks included."""
    tables = GPU_WITH_PCIE_THROUGHPUT
    for first in (*tables.fast, *tables.slow, *tables.rare):
        query: Query | None = first
        while query is not None:
            yield query
            query = query.otherwise


def reading_name(key: tuple[str, ...]) -> str:
    """A reading's name with its label values."""
    return " ".join(key)


def read(query: Query, answer: Any) -> dict[str, Number]:
    """The readings in an answer."""
    values = ((key, pick(answer)) for key, pick in query.parts.items())
    return {reading_name(key): value for key, value in values if value is not None}


def kept(answer: Any) -> Any:
    """An answer of nvidia-ml-py as plain data."""
    if isinstance(answer, ctypes.Structure):
        names = [field[0] for field in answer._fields_]
        return {name: kept(getattr(answer, name)) for name in names}
    if isinstance(answer, bytes):
        return answer.decode(errors="replace")
    if isinstance(answer, (list, tuple)):
        return [kept(item) for item in answer]
    if isinstance(answer, (int, float, str)) or answer is None:
        return answer
    return str(answer)


def restored(answer: Any) -> Any:
    """What :func:`kept` has kept, as our table can read it."""
    if isinstance(answer, dict):
        return SimpleNamespace(**{name: restored(value) for name, value in answer.items()})
    return [restored(item) for item in answer] if isinstance(answer, list) else answer


def code_name(code: int) -> str:
    """NVML's name of a code, with its number."""
    try:
        return f"{Code(code).name} ({code})"
    except ValueError:
        return f"code {code}"


def expected_error(code: int) -> bool:
    """Whether a query may end so: an answer, or what a device does not have."""
    return code == Code.SUCCESS or code in UNSUPPORTED
