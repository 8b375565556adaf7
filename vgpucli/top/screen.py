"""The terminal of `vgpu top`: its own screen, keys without Enter, everything restored at the end.

Only changed lines are written, in one piece that newer terminals show at once: nothing flickers.
Sequences are those of xterm (ctlseqs), which every current terminal supports; terminals that do not
know the synchronised update (mode 2026) ignore it.
"""

import io
import os
import signal
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Self

from rich.console import Console
from rich.text import Text

from vgpu.program.terminal import of_printable
from vgpu.program.termination import USER_DEFINED
from vgpucli.top.frame import Size

ENTER = "\x1b[?1049h\x1b[?25l"  # the other screen, no cursor
CLEAR = "\x1b[0m\x1b[2J"
LEAVE = "\x1b[0m\x1b[?25h\x1b[?1049l"
UPDATE, UPDATED = "\x1b[?2026h", "\x1b[?2026l"


class Screen:
    """The terminal between ``with`` and its end; ``source`` and ``target`` are its descriptors.

    Writing raises OSError once the terminal is gone.
    """

    def __init__(self, source: int, target: int) -> None:
        """Read keys from ``source`` if it is a terminal; else there are no keys."""
        self._source = source if os.isatty(source) else None
        self._target = target
        self._modes = None if self._source is None else termios.tcgetattr(self._source)
        self._lines: list[str] = []

    def __enter__(self) -> Self:
        if self._source is not None:
            tty.setcbreak(self._source)
        self._write(ENTER)
        self._lines = []
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._write(LEAVE)
        if self._source is not None and self._modes is not None:
            with suppress(termios.error):
                termios.tcsetattr(self._source, termios.TCSADRAIN, self._modes)

    def size(self) -> Size:
        """The current size."""
        try:
            columns, lines = os.get_terminal_size(self._target)
        except OSError:
            columns, lines = 0, 0
        return Size(columns or 80, lines or 24)  # 0x0 is a serial line of unknown size

    def repaint(self) -> None:
        """Let the next drawing clear the screen and write all lines."""
        self._lines = []

    def draw(self, text: Text, size: Size) -> None:
        """Show the text, whose lines fill the terminal's ``size``."""
        lines = painted(text, size)
        changed = [
            f"\x1b[{number};1H{line}"
            for number, line in enumerate(lines, start=1)
            if number > len(self._lines) or line != self._lines[number - 1]
        ]
        if changed:
            clear = "" if self._lines else CLEAR
            self._write(f"{UPDATE}{clear}{''.join(changed)}{UPDATED}")
        self._lines = lines

    def stop(self) -> None:
        """Restore the terminal, stop as Ctrl-Z does, and take it again when continued."""
        self.__exit__()
        os.kill(os.getpid(), signal.SIGSTOP)
        self.__enter__()

    def _write(self, text: str) -> None:
        data = text.encode("utf-8", "replace")
        while data:
            data = data[os.write(self._target, data) :]


def painted(text: Text, size: Size) -> list[str]:
    """The lines, each with all escape sequences of its styles."""
    console = Console(
        file=io.StringIO(),
        force_terminal=True,
        width=size.columns,
        height=size.lines,
        legacy_windows=False,
        highlight=False,
    )
    with console.capture() as capture:
        console.print(of_printable(text), no_wrap=True, overflow="ignore", crop=False, end="")
    return capture.get().split("\n")


NEWS = 0
"""The event of :func:`events` that is no signal."""

SIGNALS = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGWINCH,
    signal.SIGTSTP,
    *USER_DEFINED,  # they do nothing; by default they would leave the terminal without its modes
)


class Events:
    """A descriptor that becomes readable at a signal, or when another thread has news."""

    def __init__(self) -> None:
        self.source, self._target = os.pipe()
        for end in (self.source, self._target):
            os.set_blocking(end, False)

    def notify(self) -> None:
        """Notify the reader of news."""
        with suppress(OSError):  # the pipe is full, so it is readable anyway; or closed
            os.write(self._target, bytes([NEWS]))

    def read(self) -> frozenset[int]:
        """The signals since the last time, and NEWS."""
        try:
            return frozenset(os.read(self.source, 4096))
        except BlockingIOError:
            return frozenset()


@contextmanager
def events() -> Iterator[Events]:
    """Signals as events, until the end of the block."""
    news = Events()
    former = {number: signal.signal(number, lambda *_: None) for number in SIGNALS}
    wakeup = signal.set_wakeup_fd(news._target, warn_on_full_buffer=False)  # noqa: SLF001
    try:
        yield news
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in former.items():
            signal.signal(number, handler)
