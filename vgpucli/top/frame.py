"""What `vgpu top` shows, as one text of exactly the terminal's size. Pure.

The text has two lines of heading, the GPUs with their containers, and one line of keys; other rows
are scrolled. A dash is a value that the exporter could not read. Colour is never the only
mark: a container near its limit has a ``!`` before its name, one over it a ``>``.
"""

from collections.abc import Callable, Container, Iterator, Mapping
from functools import partial
from typing import Final

import msgspec
from rich.cells import cell_len, set_cell_size
from rich.text import Text

from vgpu.inventory import short_notes
from vgpu.ledger.limit_verdict import UNCAPPED, limit_word
from vgpu.ledger.usage import is_over
from vgpu.model.reasons import NO_DRIVER, NO_DRIVER_ADVICE
from vgpucli.top.columns import OPTIONAL
from vgpucli.top.keys import Sort
from vgpucli.top.reading import (
    PageDevice,
    PageProcess,
    PageReading,
    PageShare,
    PageToken,
)

NEAR = 0.9
"""Part of its limit from which a container is marked."""

SHARE_MISSED, WAITS_MUCH = 0.1, 0.5
"""A pod is marked if it misses more of its request than the first part of a GPU's time, while it
waits for the token for more than the second part of the time."""

LONGEST_TREND = 240
"""Number of samples kept of each line's utilisation: more than any terminal shows."""

MISSED = 3
"""Number of intervals without a new sample after which a page is stale."""

NARROW = 60
"""Width below which a GPU's line has no bars."""

LEAST_NAME, SPACIOUS = 14, 18
"""Minimum width of a name beside optional columns, and the width in which a namespace has room."""

WIDE = 100
"""Minimum width with columns for the state, for the limit as a part of the GPU, and for whether it
is in force."""

HELP = (
    "sort: n name",
    "m memory",
    "u utilisation",
    "l limit",
    "/ filter",
    "p processes",
    "↑↓ PgUp PgDn",
    "h less",
    "q quit",
    "! near its limit",
    "> over it",
    "acct: by the shim",
    "sm: of the GPU",
    "– unknown",
)
"""The explanation of keys and marks; a line break comes only between two of them."""

LEGEND = tuple(text for text in HELP if text[0] in "!>–" or ":" in text[:5])
"""The marks of :data:`HELP`, which stand beside the number of GPUs as far as there is room."""

BLOCKS = " ▏▎▍▌▋▊▉█"
SPARKS = "▁▂▃▄▅▆▇█"
UNITS = "MGT"  # MiB, GiB, TiB
UNKNOWN = "–"

_NO_DRIVER: Final = frozenset(f"nvml ({reason.value})" for reason in NO_DRIVER)
"""How a page without NVIDIA's driver has its failing collector."""

Row = Callable[[], Text]
"""A line that is made only when it is visible."""

Trend = tuple[float | None, ...]
Trends = Mapping[tuple[str, ...], Trend]
"""The utilisation of each line, the newest last; by device, or by container and device."""


Waits = Mapping[tuple[str, ...], float]
"""The part of the time for which pods have waited for the token, by its place."""


class Size(msgspec.Struct, frozen=True):
    """The size of the terminal; ``lines`` None is unlimited."""

    columns: int
    lines: int | None = None


class ScreenState(msgspec.Struct, frozen=True):
    """All that is shown.

    Attributes:
        source: the name of the source.
        reading: the newest page; None before the first.
        trends: the trends of utilisation.
        waits: how much pods have waited between the last two samples.
        trouble: why the last request was not answered; "" if it was.
        age: seconds since the exporter's last new sample came.
        interval: seconds between our requests.
        clock: the time of day.
        pattern: only containers with this text in their names are shown; "" for all.
        typing: whether the pattern is being typed.
        hidden: titles of the columns that are not shown.
        processes: whether the processes are shown.
    """

    source: str
    reading: PageReading | None = None
    trends: Trends = {}
    waits: Waits = {}
    trouble: str = ""
    age: float = 0.0
    interval: float = 2.0
    clock: str = ""
    pattern: str = ""
    typing: bool = False
    hidden: frozenset[str] = frozenset()
    processes: bool = False

    @property
    def filters(self) -> bool:
        """Whether a filter is in force, or being typed."""
        return self.typing or bool(self.pattern)


def grown(trends: Trends, reading: PageReading) -> Trends:
    """The trends with this reading's values, without lines that it does not have."""
    current: dict[tuple[str, ...], float | None] = {
        _place(device): device.utilization for device in reading.devices
    }
    current |= {_line(share): share.utilization for share in reading.shares}
    return {
        line: (*trends.get(line, ()), value)[-LONGEST_TREND:] for line, value in current.items()
    }


def waits_between(before: PageReading | None, reading: PageReading) -> Waits:
    """How much pods have waited since the page before; a daemon that began again is left out."""
    if before is None or reading.timestamp <= before.timestamp:
        return {}
    seconds = reading.timestamp - before.timestamp
    waited = {token.place: token.waited for token in before.tokens}
    return {
        token.place: (token.waited - earlier) / seconds
        for token in reading.tokens
        if token.waited is not None
        and (earlier := waited.get(token.place)) is not None
        and token.waited >= earlier
    }


def frame(
    state: ScreenState, size: Size, sort: Sort, offset: int = 0, *, help_lines: bool = False
) -> Text:
    """The screen, without a newline at its end; ``offset`` is the first visible row."""
    columns = max(1, size.columns)
    layout = layout_of(columns, state)
    rows = body(state, layout, sort)
    top = [title(state, columns), note(state, columns), heading(layout)]
    if size.lines is None:
        lines = [*top, *(row() for row in rows)]
        return Text("\n").join(_fitted(line, columns, fill=False) for line in lines)
    room = room_for_rows(size, help_lines=help_lines, filters=state.filters)
    offset = min(offset, max(0, len(rows) - room))
    visible = [row() for row in rows[offset : offset + room]]
    blank = [Text("")] * (room - len(visible))
    foot_lines = explained(columns) if help_lines else ()
    if state.filters:
        cursor = "_   Enter keeps it, Esc drops it" if state.typing else "   / changes it"
        foot_lines = (*foot_lines, f" /{state.pattern}{cursor}")
    foot_lines = foot_lines or (foot_line(sort, offset, len(visible), len(rows)),)
    lines = [*top, *visible, *blank, *(Text(line, style="reverse") for line in foot_lines)]
    return Text("\n").join(_fitted(line, columns, fill=True) for line in lines[: size.lines])


def layout_of(columns: int, state: ScreenState) -> "ColumnLayout":
    """The columns of the screen."""
    shares = state.reading.shares if state.reading else ()
    limits = any(share.limit_state for share in shares)
    return ColumnLayout(columns, state.hidden, longest_pod(state.reading), limits=limits)


def room_for_rows(size: Size, *, help_lines: bool, filters: bool) -> int:
    """Number of rows that :func:`frame` shows: all but the heading's three and the foot."""
    foot = len(explained(max(1, size.columns))) + filters if help_lines else 1
    return max(1, (size.lines or 0) - 3 - foot)


def explained(columns: int) -> tuple[str, ...]:
    """The explanation of keys and marks in lines of this width."""
    lines = [f" {HELP[0]}"]
    for text in HELP[1:]:
        longer = f"{lines[-1]}   {text}"
        lines[-1:] = [longer] if cell_len(longer) <= columns else [lines[-1], f" {text}"]
    return tuple(lines)


def _fitted(line: Text, columns: int, *, fill: bool) -> Text:
    line = line.copy()
    line.truncate(columns, overflow="ellipsis", pad=fill)
    return line


# ---------------------------------------------------------------- heading and foot


def title(state: ScreenState, columns: int) -> Text:
    """The line with the source and the time."""
    name, clock = f" vgpu top  {state.source}", f"{state.clock} "
    line = Text(name)
    line.truncate(max(0, columns - len(clock) - 1), overflow="ellipsis", pad=True)
    return Text(f"{line.plain} {clock}", style="bold reverse")


def note(state: ScreenState, columns: int) -> Text:
    """The line with the problem of the page; else with the number of GPUs and shares."""
    reading = state.reading
    duration = f"for {state.age:.0f} s"
    if state.trouble:
        text = f"NO ANSWER {duration if reading else ''}: {state.trouble}".replace(" :", ":")
        shown = " - below is the last page" if reading else ""
        return Text(set_cell_size(f" {text}{shown}", columns), style="bold white on red")
    if reading is None:
        return Text(" waiting for the first page", style="dim")
    if state.age > MISSED * max(state.interval, reading.interval):
        text = f" STALE: the exporter has not sampled {duration}"
        return Text(set_cell_size(text, columns), style="bold white on red")
    problems = [f"failing: {', '.join(reading.failing)}"] if reading.failing else []
    problems += short_notes(reading.units)
    if reading.stuck_seconds:
        problems.insert(0, f"the driver is overdue by {reading.stuck_seconds:.0f} s")
    if problems:
        return Text(f" {'; '.join(problems)}", style="bold red")
    gpus = sum(not device.parent for device in reading.devices)
    over = sum(map(_is_over, reading.shares))
    text = f" {_count(gpus, 'GPU')}, {_count(len(reading.shares), 'share')}"
    if state.processes and reading.processes is not None:
        text += f", {_count(len(reading.processes), 'process', 'processes')}"
    line = Text.assemble(text, (f", {over} over the limit" if over else "", "bold red"))
    for mark in LEGEND:
        is_shown = mark.partition(":")[0] not in state.hidden
        if is_shown and cell_len(f"{line.plain}   {mark}") <= columns:
            line.append(f"   {mark}", style="dim")
    return line


def _count(number: int, what: str, several: str = "") -> str:
    return f"{number} {what}" if number == 1 else f"{number} {several or what + 's'}"


def heading(layout: "ColumnLayout") -> Text:
    """The names of the columns."""
    line = "  " + " ".join(
        _aligned(column.title, column.width, right=column.right) for column in layout.columns
    )
    return Text(line, style="dim")


def foot_line(sort: Sort, first: int, seen: int, rows: int) -> str:
    """The line with the order and the visible rows."""
    where = f"   {first + 1}–{first + seen} of {rows} ↑↓" if seen < rows else ""
    return f" h help  q quit   sorted by {sort.value}{where}"


# ---------------------------------------------------------------- columns


class TextColumn(msgspec.Struct, frozen=True):
    """One column of the containers: its heading, width and cells."""

    title: str
    width: int
    cell: Callable[[PageShare, "LinePlace"], Text]
    right: bool = False


class LinePlace(msgspec.Struct, frozen=True):
    """The device and the layout of a line."""

    device: PageDevice
    layout: "ColumnLayout"


class ColumnLayout:
    """The columns that fit, and their widths."""

    def __init__(
        self,
        columns: int,
        hidden: Container[str] = (),
        longest: int = 0,
        *,
        limits: bool = False,
    ) -> None:
        """``hidden`` are titles of columns that are not shown; narrow terminals show fewer.

        ``limits`` is whether the exporter reports if containers are limited.

        ``longest`` is the width of the longest namespace/pod: trend and bars give way to it.
        """
        self.width = columns
        self.wide = columns >= WIDE
        self.narrow = columns < NARROW
        self.limits = limits and self.wide
        self._hidden = {title for title in OPTIONAL if title in hidden}
        for title in OPTIONAL:
            if columns - self._fixed() >= LEAST_NAME:
                break
            self._hidden.add(title)
        rest = max(0, columns - self._fixed())
        self.spark = min(40, rest // 5) if rest >= 30 else 0
        self.bar = min(30, max(8, rest // (8 if self.wide else 4))) if rest >= 30 else 0
        bars = 2 if self.wide else 1
        for trend, bar in ((self.spark, self.bar), (0, self.bar), (0, min(8, self.bar)), (0, 0)):
            self.spark, self.bar = trend, bar
            self.name = min(70, max(8, rest - trend - bars * (bar + bars - 1)))
            if self.name >= longest or longest > rest:
                break
        self.columns = tuple(
            column for column in self._columns() if column.title not in self._hidden
        )

    def _fixed(self) -> int:
        """The width of all that is not a name, a bar or a spark."""
        widths = {"scheme": 10, "acct": 6, "sm": 5}
        shown = sum(width for title, width in widths.items() if title not in self._hidden)
        return 2 + 16 + shown + (10 if self.wide else 0) + (10 if self.limits else 0)

    def _columns(self) -> Iterator[TextColumn]:
        yield TextColumn("container", self.name, _name)
        if self.wide:
            yield TextColumn("scheme", 9, lambda share, _: Text(share.scheme))
            yield TextColumn("state", 9, _state_or_part)
            yield TextColumn("of GPU", self.bar, _limit_bar)
        else:
            yield TextColumn("scheme", 9, _scheme_or_state)
        if self.bar:
            yield TextColumn("of limit", self.bar, _used_bar)
        if self.limits:
            yield TextColumn("LIMIT", 9, _limit_state)
        yield TextColumn("used", 5, lambda share, _: Text(short(share.used), _colour(share)), True)
        yield TextColumn("limit", 5, lambda share, _: Text(_limit(share)), True)
        yield TextColumn("acct", 5, lambda share, _: Text(short(share.accounted)), True)
        yield TextColumn("sm", 4, lambda share, _: Text(percent(share.utilization)), True)


def _aligned(text: str, width: int, *, right: bool) -> str:
    if right:
        text = " " * (width - cell_len(text)) + text
    return set_cell_size(text, width)


def _name(share: PageShare, place: LinePlace) -> Text:
    return Text(fitted_name(share, place.layout.name))


def fitted_name(share: PageShare, width: int) -> str:
    """The name; without enough room first its container is cut, then its namespace goes, then all
    but the end of the pod's name.

    Pods of one controller differ at the end.
    """
    pod_name = f"{share.namespace}/{share.pod}"
    fits = share.pod and SPACIOUS <= width >= cell_len(pod_name)
    if fits and cell_len(share.name) > width:
        rest = width - cell_len(pod_name) - 1
        return f"{pod_name}/{share.container[: rest - 1]}…" if rest > 1 else pod_name
    if width >= SPACIOUS or not share.pod or cell_len(share.name) <= width:
        return middle(share.name, width)
    short_name = f"{share.pod}/{share.container}" if share.container else share.pod
    if cell_len(short_name) <= width:
        return short_name
    return share.pod if cell_len(share.pod) <= width else f"…{share.pod[1 - width :]}"


def longest_pod(reading: PageReading | None) -> int:
    """The width of the longest namespace/pod of a page."""
    shares = (*reading.shares, *reading.idle) if reading else ()
    return max((cell_len(f"{share.namespace}/{share.pod}") for share in shares), default=0)


def _state(share: PageShare, *, limit: bool = True) -> tuple[str, str]:
    """The text for an unusual state, and its style; ``limit`` if LIMIT has no column of its own."""
    if share.blocked:
        return "blocked", "yellow"
    if limit and share.limit_state in UNCAPPED:
        return limit_word(share.limit_state), "bold red"
    return ("", "") if share.phase == "assigned" else (share.phase, "yellow")


def _limit_state(share: PageShare, _: LinePlace) -> Text:
    style = "bold red" if share.limit_state in UNCAPPED else ""
    return Text(limit_word(share.limit_state) or UNKNOWN, style)


def _state_or_part(share: PageShare, place: LinePlace) -> Text:
    """An unusual state; else what a container of NVIDIA's own plugin has of the device."""
    state, style = _state(share, limit=False)
    part = _PARTS.get(share.sharing, "")
    if share.sharing and not part and place.device.replicas:
        part = f"{share.held} of {place.device.replicas}"
    return Text(state or part, style)


_PARTS: Final = {"exclusive": "whole", "mig": "instance"}
"""What a container has where the device has no replicas."""

_SHARED_BY: Final = {
    "time-slicing": "time-sliced",
    "mps": "MPS",
    "mig-time-slicing": "time-sliced",
    "unknown": "replicas",
}
"""How NVIDIA's own plugin shares a device with replicas."""


def _scheme_or_state(share: PageShare, _: LinePlace) -> Text:
    state, style = _state(share)
    return Text(state or share.scheme, style)


def _limit_bar(share: PageShare, place: LinePlace) -> Text:
    if not share.device:
        return Text("")
    limit = place.device.total if share.unlimited else share.limit
    return bar(ratio(limit, place.device.total), place.layout.bar, "blue")


def _used_bar(share: PageShare, place: LinePlace) -> Text:
    if not share.device:
        return Text("")
    if share.limit is None:
        return bar(ratio(share.used, place.device.total), place.layout.bar, "dim")
    return bar(ratio(share.used, share.limit), place.layout.bar, _colour(share) or "green")


def _limit(share: PageShare) -> str:
    return "none" if share.unlimited else short(share.limit)


def _filled(share: PageShare) -> float:
    """The used part of the limit; 0 if either is unknown."""
    return ratio(share.used, share.limit) or 0.0


def _is_over(share: PageShare) -> bool:
    return bool(share.used and share.limit and is_over(share.used, share.limit))


def _colour(share: PageShare) -> str:
    return "bold red" if _is_over(share) else "yellow" if _filled(share) >= NEAR else ""


# ---------------------------------------------------------------- rows


def body(state: ScreenState, layout: ColumnLayout, sort: Sort) -> list[Row]:
    """All rows: each device with its containers, then containers without a device."""
    reading = state.reading
    if reading is None:
        return []
    by_device: dict[tuple[str, ...], list[PageShare]] = {}
    wanted = state.pattern.lower()
    shares = [share for share in reading.shares if wanted in share.name.lower()]
    for share in sorted(shares, key=ORDER[sort]):
        by_device.setdefault((share.node, share.device), []).append(share)
    parents = {(device.node, device.parent) for device in reading.devices}
    processes = _processes_by_place(reading) if state.processes else {}
    tokens = {token.place: token for token in reading.tokens}
    rows: list[Row] = []
    for device in reading.devices:
        place, here = LinePlace(device, layout), _place(device)
        rows.append(partial(device_row, place))
        if device.up:
            rows.append(partial(meters, place, state.trends.get(here, ())))
        for share in by_device.get(here, ()):
            rows.append(partial(share_row, share, place, state.trends.get(_line(share), ())))
            if token := tokens.pop(_token_place(share), None):  # one of all containers of a pod
                rows.append(partial(token_row, token, state.waits.get(token.place)))
            limit = share.process_limit
            rows += [
                partial(process_row, row, layout, limit)
                for row in processes.get(_holder(share), ())
            ]
        if device.up and here not in by_device and here not in parents:
            whose = "such container" if wanted else "container"
            rows.append(partial(Text, f"  no {whose} holds a share of this GPU", style="dim"))
        strangers = () if wanted else processes.get(here, ())
        if strangers:
            rows.append(partial(Text, "  in no known container", style="dim"))
            rows += [partial(process_row, row, layout) for row in strangers]
    if not reading.devices:
        unknown = reading.failing and not reading.shares
        text = " No data of the GPUs." if unknown else " No GPU answers."
        if _NO_DRIVER.intersection(reading.failing):
            text = f" {NO_DRIVER_ADVICE[0].upper()}{NO_DRIVER_ADVICE[1:]}"
        rows.append(partial(Text, text))
    idle_shares = [share for share in reading.idle if wanted in share.name.lower()]
    if idle_shares:
        rows.append(partial(Text, " on no GPU", style="bold"))
        nowhere = LinePlace(PageDevice(""), layout)
        idle = sorted(idle_shares, key=ORDER[Sort.NAME])
        rows += [partial(share_row, share, nowhere, ()) for share in idle]
    return rows


def device_row(place: LinePlace) -> Text:
    """The line that describes a device."""
    device = place.device
    if device.parent:
        name = f" MIG {device.profile or device.index}"
    else:
        name = " GPU ?" if device.index is None else f" GPU {device.index}"
    if device.node:
        name = f" {device.node} {name}"
    facts = [device.model, device.uuid[:12]]
    if device.replicas and (shared := _SHARED_BY.get(device.sharing)):
        facts.append(f"{shared} {device.replicas_held} of {device.replicas}")
    facts += [f"{device.celsius:.0f} °C"] if device.celsius is not None else []
    if device.watts is not None:
        limit = "" if device.watts_limit is None else f" of {device.watts_limit:.0f}"
        facts.append(f"{device.watts:.0f}{limit} W")
    if device.unattributed and device.unattributed > 0 and place.layout.wide:
        facts.append(f"{short(device.unattributed)} in no container")
    bad = "" if device.up else "   DOES NOT ANSWER"
    bad += "" if device.unit_confirmed else "   unit unconfirmed"
    while facts and cell_len(f"{name}  {'   '.join(facts)}{bad}") > place.layout.width:
        facts.pop()
    line = Text.assemble((name, "bold"), "  ", "   ".join(fact for fact in facts if fact))
    return line.append(bad, style="bold red")


def meters(place: LinePlace, trend: Trend) -> Text:
    """The line with a device's utilisation and memory."""
    device, layout = place.device, place.layout
    if layout.narrow:
        memory = f"{short(device.used)} of {short(device.total)}"
        return Text(f"   busy {percent(device.utilization)}  mem {memory}")
    width = max(6, layout.bar + layout.name // 4)
    return Text.assemble(
        "   busy ",
        bar(device.utilization, width, "green"),
        f" {percent(device.utilization):>4} ",
        (spark(trend, layout.spark), "cyan"),
        "   mem ",
        bar(ratio(device.used, device.total), width, "green"),
        f" {short(device.used)} of {short(device.total)}",
    )


def share_row(share: PageShare, place: LinePlace, trend: Trend) -> Text:
    """The line of one container."""
    mark = ">" if _is_over(share) else "!" if _filled(share) >= NEAR else " "
    line = Text.assemble((mark, _colour(share)), " ")
    for column in place.layout.columns:
        cell = column.cell(share, place)
        if column.right:
            cell.pad_left(max(0, column.width - cell.cell_len))
        cell.truncate(column.width, pad=True)
        line.append_text(cell).append(" ")
    return line.append(spark(trend, place.layout.spark), style="cyan")


def token_row(token: PageToken, waits: float | None) -> Text:
    """The line with a pod's part of the GPU's time; yellow if it waits below its request."""
    missing = (token.request or 0.0) - (token.share or 0.0)
    waits = None if waits is None else min(waits, 1.0)
    style = "yellow" if missing > SHARE_MISSED and (waits or 0.0) > WAITS_MUCH else "dim"
    return Text(
        f"    token {percent(token.share)}  request {percent(token.request)}"
        f"  limit {percent(token.limit)}  waits {percent(waits)}",
        style,
    )


def process_row(process: PageProcess, layout: ColumnLayout, limit: float | None = None) -> Text:
    """The line of one process, in the columns of its container; ``limit`` is that of MPS."""
    cells = {
        "container": f"  pid {process.pid}",
        "used": short(process.used_bytes),
        "limit": "" if limit is None else short(limit),
        "sm": percent(process.sm_utilization_ratio),
    }
    line = "  " + " ".join(
        _aligned(cells.get(column.title, ""), column.width, right=column.right)
        for column in layout.columns
    )
    return Text(line, style="dim")


def _processes_by_place(reading: PageReading) -> dict[tuple[str, ...], list[PageProcess]]:
    """The processes of each share; by the device alone if no share has them."""
    holders = {_holder(share) for share in reading.shares}
    processes: dict[tuple[str, ...], list[PageProcess]] = {}
    for row in reading.processes or ():
        holder = row.node, row.uuid, row.pod_uid, row.container
        place = holder if holder in holders else (row.node, row.uuid)
        processes.setdefault(place, []).append(row)
    return processes


def _holder(share: PageShare) -> tuple[str, ...]:
    return share.node, share.device, share.pod_uid, share.container


def _token_place(share: PageShare) -> tuple[str, ...]:
    return share.node, share.device, share.pod_uid, share.namespace, share.pod


def _place(device: PageDevice) -> tuple[str, ...]:
    return device.node, device.uuid


def _by_name(share: PageShare) -> tuple[str, ...]:
    return (share.name, share.pod_uid)


def _largest(
    value: Callable[[PageShare], float | None],
) -> Callable[[PageShare], tuple[object, ...]]:
    """The order by a value: the largest first, unknown values last."""

    def order(share: PageShare) -> tuple[object, ...]:
        amount = value(share)
        return (amount is None, -(amount or 0.0), _by_name(share))

    return order


ORDER: Mapping[Sort, Callable[[PageShare], tuple[object, ...]]] = {
    Sort.NAME: _by_name,
    Sort.MEMORY: _largest(lambda share: share.used),
    Sort.UTILIZATION: _largest(lambda share: share.utilization),
    Sort.LIMIT: _largest(lambda share: float("inf") if share.unlimited else share.limit),
}


def _line(share: PageShare) -> tuple[str, ...]:
    return (
        share.namespace,
        share.pod,
        share.container,
        share.pod_uid,
        share.device,
        share.node,
    )


# ---------------------------------------------------------------- numbers and bars


def ratio(part: float | None, whole: float | None) -> float | None:
    """``part / whole``; None if either is unknown, or ``whole`` is 0."""
    return None if part is None or not whole else part / whole


def bar(filled: float | None, width: int, style: str) -> Text:
    """A bar to an eighth of a cell; the rest is dots, and all of it for an unknown value."""
    eighths = round(min(1.0, max(0.0, filled or 0.0)) * width * 8)
    whole, part = divmod(eighths, 8)
    solid = "█" * whole + (BLOCKS[part] if part else "")
    return Text.assemble((solid, style), ("·" * (width - len(solid)), "dim"))


def spark(trend: Trend, width: int) -> str:
    """The newest values, aligned right; a blank is an unknown value."""
    newest = trend[-width:] if width else ()
    top = len(SPARKS) - 1
    drawn = (
        " " if value is None else SPARKS[round(min(1.0, max(0.0, value)) * top)] for value in newest
    )
    return "".join(drawn).rjust(width)


def percent(part: float | None) -> str:
    """A ratio for people."""
    return UNKNOWN if part is None else f"{min(part, 9.99):.0%}"


def short(count: float | None) -> str:
    """Bytes in at most five characters: 512M, 9.7G, 79.6G, in MiB and GiB."""
    if count is None:
        return UNKNOWN
    if not count:
        return "0"
    size = abs(count) / 2**20
    unit = 0
    while size >= 999.5 and unit < len(UNITS) - 1:
        size, unit = size / 1024, unit + 1
    sign = "-" if count < 0 else ""
    if not unit:
        return f"{sign}{size:.0f}M" if size >= 0.5 else f"{sign}<1M"
    return f"{sign}{size:.{0 if size >= 99.95 else 1}f}{UNITS[unit]}"


def middle(text: str, width: int) -> str:
    """The text, without its middle if it is too long: pods differ at the end."""
    if cell_len(text) <= width:
        return text
    keep = max(0, width - 1)
    head = keep // 3
    tail = keep - head
    return f"{text[:head]}…{text[len(text) - tail :]}" if width > 0 else ""
