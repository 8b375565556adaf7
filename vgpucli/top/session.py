"""The session of `vgpu top`: a node's GPUs and who is on them, live in the terminal.

One thread requests pages, so that a slow exporter never delays a key; the other waits for pages,
keys and signals, and draws. If an exporter stops answering, its last page stays below a red line,
and further requests follow.
"""

import logging
import os
import queue
import select
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import click
from msgspec.structs import replace

from exporter.flags import DEFAULT_PORT
from vgpu.program.flags import field, is_typed
from vgpu.program.output import say
from vgpu.program.terminal import standard_output, write_text
from vgpu.program.termination import EXIT_FAILURE
from vgpu.sources.http_access import BadOption, ClientOptions
from vgpucli.flags import ACCESS
from vgpucli.node_flags import FLAGS
from vgpucli.this_node import this_node
from vgpucli.top.frame import (
    ColumnLayout,
    ScreenState,
    Size,
    body,
    frame,
    grown,
    room_for_rows,
    waits_between,
)
from vgpucli.top.keys import Command, Key, Move, Sort, edited, scrolled, typed
from vgpucli.top.reading import PageError, PageReading, read_page, read_processes
from vgpucli.top.screen import Events, Screen, events
from vgpucli.top.source import Exporter, PageSource, Sampled, SeveralExporters, Unanswered

LOCAL = f"http://localhost:{DEFAULT_PORT}"
TICK_SECONDS = 1.0
"""Interval between two updates of a page's age, in seconds."""


def ask(source: PageSource, *, processes: bool = False) -> PageReading | str:
    """A page as values, or the reason why there is none; with the processes if asked for."""
    if isinstance(source, SeveralExporters):
        return source.read(partial(ask, processes=processes))
    try:
        reading = read_page(source.page())
    except (Unanswered, PageError) as error:
        return str(error)
    if not processes:
        return reading
    try:
        rows = read_processes(source.processes())
    except (Unanswered, PageError) as error:
        return replace(reading, failing=(*reading.failing, f"processes ({error})"))
    return replace(reading, processes=rows)


class Poller:
    """Requests pages every ``interval`` seconds in a thread of its own, one at a time."""

    def __init__(
        self, source: PageSource, interval: float, news: Events, *, processes: bool
    ) -> None:
        """``news`` is notified of each answer; ``processes``: whether to request them, too."""
        self.answers: queue.SimpleQueue[PageReading | str] = queue.SimpleQueue()
        self._source = source
        self._interval = interval
        self._news = news
        self._ended = threading.Event()
        self._due = threading.Event()
        self._processes = processes
        self._thread = threading.Thread(target=self._loop, name="poller", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop requesting; a pending answer is abandoned."""
        self._ended.set()
        self._due.set()

    def request_processes(self, *, wanted: bool) -> None:
        """Request the processes, too, or no longer; after a change at once."""
        if wanted != self._processes:
            self._processes = wanted
            self._due.set()

    def _loop(self) -> None:
        while not self._ended.is_set():
            begun = time.monotonic()
            self._due.clear()
            try:
                answer = ask(self._source, processes=self._processes)
            except Exception as error:  # noqa: BLE001  # an old screen must not look like a new one
                answer = f"unexpected error: {error!r}"
            self.answers.put(answer)
            self._news.notify()
            self._due.wait(max(0.0, begun + self._interval - time.monotonic()))


class Live:
    """The shown state, which only answers and keys change."""

    def __init__(
        self, source: str, interval: float, hidden: Iterable[str] = (), *, processes: bool = False
    ) -> None:
        self.state = ScreenState(
            source, interval=interval, hidden=frozenset(hidden), processes=processes
        )
        self.sort = Sort.NAME
        self.offset = 0
        self.help_lines = False
        self._sampled = time.monotonic()
        self._rest = b""

    def answered(self, answer: PageReading | str) -> None:
        """Show a page, which is new only if the exporter has sampled since: clocks may differ."""
        if isinstance(answer, str):
            self.state = replace(self.state, trouble=answer)
            return
        trends, before, waits = self.state.trends, self.state.reading, self.state.waits
        if before is None or answer.timestamp != before.timestamp:
            self._sampled = time.monotonic()
            trends, waits = grown(trends, answer), waits_between(before, answer)
        self.state = replace(self.state, reading=answer, trends=trends, waits=waits, trouble="")

    def pressed(self, key: Key, size: Size) -> None:
        """Do what the key means, unless it concerns the terminal."""
        if isinstance(key, Sort):
            self.sort = key
        elif isinstance(key, Move):
            layout = ColumnLayout(size.columns, self.state.hidden)
            rows = len(body(self.state, layout, self.sort))
            room = room_for_rows(size, help_lines=self.help_lines, filters=self.state.filters)
            self.offset = scrolled(self.offset, key, room, rows)
        elif key is Command.HELP:
            self.help_lines = not self.help_lines
        elif key is Command.PROCESSES:
            self.state = replace(self.state, processes=not self.state.processes)
        elif key is Command.FILTER:
            self.state = replace(self.state, typing=True)

    def typed(self, sent: bytes, size: Size) -> tuple[Key, ...]:
        """Do what the bytes mean, as keys or as the text of the filter; returns the keys.

        Many bytes may come at once, over a slow connection or from a clipboard.
        """
        keys: list[Key] = []
        rest = self._rest + sent
        while rest:
            if self.state.typing:
                text = edited(self.state.pattern, rest)
                self.offset, rest = 0, text.rest
                self.state = replace(self.state, pattern=text.pattern, typing=text.typing)
                continue
            chunk = typed(rest)
            for key in chunk.keys:
                self.pressed(key, size)
            keys += chunk.keys
            rest = chunk.rest
            if not self.state.typing:
                break  # the start of a key
        self._rest = rest
        return tuple(keys)

    def draw(self, screen: Screen) -> None:
        """Draw the current state."""
        now = replace(
            self.state,
            age=time.monotonic() - self._sampled,
            clock=time.strftime("%H:%M:%S"),
        )
        size = screen.size()
        text = frame(now, size, self.sort, self.offset, help_lines=self.help_lines)
        screen.draw(text, size)


def watch(
    source: PageSource, interval: float, hidden: Iterable[str] = (), *, processes: bool = False
) -> int:
    """Show ``source`` until q or a signal; returns the exit status."""
    keyboard = sys.stdin.fileno()
    with events() as news, Screen(keyboard, sys.stdout.fileno()) as screen:
        live = Live(source.name, interval, hidden, processes=processes)
        poller = Poller(source, interval, news, processes=processes)
        waited = [news.source, *([keyboard] if os.isatty(keyboard) else [])]
        try:
            while True:
                live.draw(screen)
                ready, _, _ = select.select(waited, [], [], TICK_SECONDS)
                signals = news.read() if news.source in ready else frozenset()
                if ended := signals & {signal.SIGTERM, signal.SIGHUP}:
                    return 128 + min(ended)
                if signal.SIGTSTP in signals:
                    screen.stop()
                if signal.SIGWINCH in signals:
                    screen.repaint()
                while not poller.answers.empty():
                    live.answered(poller.answers.get())
                sent = os.read(keyboard, 4096) if keyboard in ready else b""
                if keyboard in ready and not sent:
                    return 128 + signal.SIGHUP  # the terminal is gone
                interrupt = b"\x03" if signal.SIGINT in signals else b""
                keys = live.typed(sent + interrupt, screen.size())
                poller.request_processes(wanted=live.state.processes)
                if Command.REPAINT in keys:
                    screen.repaint()
                if Command.QUIT in keys:
                    return 0
        except OSError:
            return 128 + signal.SIGHUP  # the terminal is gone, found by writing
        finally:
            poller.stop()


def once(
    source: PageSource,
    hidden: Iterable[str] = (),
    pattern: str = "",
    *,
    processes: bool = False,
) -> int:
    """Print one frame; returns the exit status."""
    answer = ask(source, processes=processes)
    if isinstance(answer, str):
        say(f"Error: {source.name}: {answer}", err=True)
        return EXIT_FAILURE
    state = ScreenState(
        source.name,
        answer,
        grown({}, answer),
        clock=time.strftime("%H:%M:%S"),
        hidden=frozenset(hidden),
        pattern=pattern,
        processes=processes,
    )
    console = standard_output()
    text = frame(state, Size(console.width), Sort.NAME)
    if console.is_terminal:
        write_text(console, text)
    else:
        say(*(line.rstrip() for line in text.plain.split("\n")))
    return 0


@contextmanager
def open_source(ctx: click.Context, urls: Sequence[str], interval: float) -> Iterator[PageSource]:
    """The source of pages: ``--url``, else the exporter on this node, else the node itself.

    With a flag about the node it is the node itself: the exporter would not know of the flag.
    """
    url = urls[0] if urls else None
    access = ClientOptions(**{name: ctx.params[name] for name in ACCESS})
    flags = [f"--{name.replace('_', '-')}" for name in ACCESS if is_typed(ctx, name)]
    if url is None and flags:
        raise click.UsageError(f"{', '.join(flags)}: needs --url", ctx)
    of_node = [name for name in FLAGS if is_typed(ctx, field(name))]
    if url is not None and of_node:
        raise click.UsageError(f"{', '.join(of_node)}: for this node, without --url", ctx)
    if url is not None and ctx.params["simulate"]:
        raise click.UsageError("--simulate and --url: choose one", ctx)
    try:
        exporter = Exporter(url or LOCAL, access)
        if len(set(urls)) > 1:
            yield SeveralExporters(
                tuple(dict.fromkeys(urls)), lambda other: Exporter(other, access)
            )
            return
    except BadOption as error:
        raise click.UsageError(str(error), ctx) from error
    if url is None and (ctx.params["simulate"] or of_node or not listens(exporter)):
        logging.getLogger().addHandler(logging.NullHandler())  # the screen is no place for a log
        with this_node(ctx, interval) as node:
            yield Sampled(node)
    else:
        yield exporter


def listens(exporter: Exporter) -> bool:
    """Whether a server listens; even one with bad answers, which are shown as errors."""
    try:
        exporter.page()
    except Unanswered as error:
        return not error.refused
    return True
