"""What was used over the last hours, by a Prometheus: lines on the pages of pods, GPUs, namespaces.

A page asks when it is shown, at most for SECONDS; an answer is kept for FRESH_SECONDS, a failure
is not.
"""

import json
import math
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import click
import msgspec

from vgpu.sources.http_access import BadOption, ClientOptions
from vgpucli.prometheus_source import PrometheusSource
from vgpucli.top.source import Unanswered

SECONDS: Final = 5.0
"""Maximum time to wait for an answer of Prometheus, in seconds."""

FRESH_SECONDS: Final = 60.0
"""How long an answer is shown before Prometheus is asked again, in seconds."""

MOST_KEPT: Final = 256
"""Maximum number of answers that are kept."""

RANGES: Final = {"1h": 3_600, "24h": 86_400, "7d": 604_800}
"""The ranges by name, in seconds; the first is the default."""

STEPS: Final = 120
"""Number of steps of a line."""

Point = tuple[float, float]
"""Unix seconds, and an amount."""


class HistoryView(msgspec.Struct, frozen=True, rename="camel"):
    """The lines of one range.

    Attributes:
        range: the name of the range.
        begin, end: unix seconds.
        used, limit: memory in bytes: what the containers used, and what they were limited to.
        largest_used_bytes, newest_used_bytes, newest_limit_bytes: of these; null without a point.
        problem: why there are no lines; "" if there are some.
    """

    range: str
    begin: float
    end: float
    used: tuple[Point, ...] = ()
    limit: tuple[Point, ...] = ()
    largest_used_bytes: int | None = None
    newest_used_bytes: int | None = None
    newest_limit_bytes: int | None = None
    problem: str = ""

    @property
    def ends(self) -> tuple[datetime, datetime]:
        """The begin and the end of the range."""
        return datetime.fromtimestamp(self.begin, UTC), datetime.fromtimestamp(self.end, UTC)


class _Line(msgspec.Struct, frozen=True):
    metric: dict[str, str] = {}
    values: list[tuple[float, str]] = []


class _Lines(msgspec.Struct, frozen=True):
    result: list[_Line] = []


class _Answer(msgspec.Struct, frozen=True):
    data: _Lines = _Lines()


_ANSWER: Final = msgspec.json.Decoder(_Answer)

_USED, _LIMIT = "vgpu_container_memory_used_bytes", "vgpu_container_memory_limit_bytes"


def of_pod(uid: str) -> tuple[str, ...]:
    """The selectors of a pod's containers, by its UID on the node."""
    return (f"{{pod_uid={json.dumps(uid)}}}",)


def of_gpu(uuid: str) -> tuple[str, ...]:
    """The selectors of the containers on a GPU."""
    return (f"{{uuid={json.dumps(uuid)}}}",)


def of_namespace(name: str) -> tuple[str, ...]:
    """The selectors of a namespace's containers, also where a scrape has renamed our label."""
    own = json.dumps(name)
    return f"{{exported_namespace={own}}}", f'{{exported_namespace="",namespace={own}}}'


def line_query(selectors: tuple[str, ...]) -> str:
    """The question for both lines; each measurement counts once, as in ``vgpu inspect --by``."""
    return " or ".join(
        f'label_replace({_sum(metric, selectors)}, "line", "{line}", "", "")'
        for line, metric in (("used", _USED), ("limit", _LIMIT))
    )


def _sum(metric: str, selectors: tuple[str, ...]) -> str:
    series = " or ".join(metric + selector for selector in selectors)
    own = f'label_replace({series}, "container", "$1", "exported_container", "(.+)")'
    return f"sum(max by (pod_uid, container, uuid) ({own}))"


class History:
    """Asks a Prometheus for lines, and keeps them for a short time."""

    def __init__(
        self, url: str, access: ClientOptions, clock: Callable[[], float] = time.time
    ) -> None:
        """Read the certificates and the password. Raises click.UsageError."""
        try:
            self._server = PrometheusSource(url, access, SECONDS)
        except BadOption as error:
            raise click.UsageError(str(error)) from error
        self._clock = clock
        self._asking = threading.Lock()
        self._kept: dict[tuple[str, str], HistoryView] = {}

    @property
    def turn(self) -> int:
        """Changes when answers become old."""
        return int(self._clock() // FRESH_SECONDS)

    def lines(self, selectors: tuple[str, ...], wanted: str) -> HistoryView:
        """The lines of a range by its name; an unknown one is the first one."""
        name = wanted if wanted in RANGES else next(iter(RANGES))
        key, end = (line_query(selectors), name), self._clock()
        begin = end - RANGES[name]
        if not self._asking.acquire(timeout=SECONDS):
            return HistoryView(name, begin, end, problem="it is being asked for other pages")
        try:
            known = self._kept.get(key)
            if known is not None and 0 <= end - known.end < FRESH_SECONDS:
                return known
            view = self._asked(key[0], name, begin, end)
            if not view.problem:
                if len(self._kept) >= MOST_KEPT:
                    self._kept.clear()
                self._kept[key] = view
            return view
        finally:
            self._asking.release()

    def _asked(self, query: str, name: str, begin: float, end: float) -> HistoryView:
        parameters = {"query": query, "start": begin, "end": end, "step": RANGES[name] // STEPS}
        try:
            answer = self._server.ask("query_range", parameters, _ANSWER)
        except Unanswered as error:
            return HistoryView(name, begin, end, problem=f"{self._server.name}: {error}")
        lines = {each.metric.get("line", ""): _points(each) for each in answer.data.result}
        used, limit = lines.get("used", ()), lines.get("limit", ())
        if not used:
            problem = f"{self._server.name} has no measurement of it"
            return HistoryView(name, begin, end, problem=problem)
        largest = max(amount for _, amount in used)
        newest_limit = round(limit[-1][1]) if limit else None
        newest = round(used[-1][1])
        return HistoryView(name, begin, end, used, limit, round(largest), newest, newest_limit)


def _points(line: _Line) -> tuple[Point, ...]:
    values = ((moment, _number(text)) for moment, text in line.values)
    return tuple((moment, amount) for moment, amount in values if amount is not None)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


WIDTH, HEIGHT = 600, 100
"""Size of a drawing, in its own units."""


def drawn(view: HistoryView, points: tuple[Point, ...]) -> list[str]:
    """The points of the lines for an SVG: a new line begins where a step is missing."""
    whole = max(amount for _, amount in (*view.used, *view.limit)) or 1
    gap = 1.5 * RANGES[view.range] / STEPS
    parts: list[list[str]] = []
    last = -math.inf
    for moment, amount in points:
        x = WIDTH * (moment - view.begin) / (view.end - view.begin)
        if moment - last > gap:
            parts.append([])
        parts[-1].append(f"{x:.1f},{HEIGHT * (1 - amount / whole):.1f}")
        last = moment
    return [" ".join(part if len(part) > 1 else part * 2) for part in parts]
