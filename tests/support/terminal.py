"""A program in a real pseudo-terminal, and what a person would see on it.

    with Terminal([sys.executable, "-m", "vgpu", "top"], columns=80, lines=24) as terminal:
        terminal.wait_for("sorted by name")
        terminal.type("q")

The other end is pyte's emulation of a VT220 and xterm; it knows no alternate screen, so what the
program leaves behind is read from the bytes it has ``written``.
"""

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Sequence
from typing import IO, Self

import pyte

from tests.support.waiting import WAIT_SECONDS, wait_until

OWN_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
    " os.execvp(sys.argv[1], sys.argv[1:])"
)
"""Takes the terminal as the session's own, so that its keys and size make signals."""


class Terminal:
    """The program runs between ``with`` and its end, as leader of the terminal's session."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        columns: int = 80,
        lines: int = 24,
        stdout: IO[bytes] | None = None,
        **env: str,
    ) -> None:
        """``stdout`` is where standard output goes; None is the terminal."""
        self._command = command
        self._stdout = stdout
        self._env = {**os.environ, "TERM": "xterm-256color", **env}
        for name in ("COLUMNS", "LINES", "NO_COLOR"):
            self._env.pop(name, None)
        self._ours, self._theirs = pty.openpty()
        self.screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self.screen)
        self._set_size(columns, lines)
        self.written = b""
        self.modes = termios.tcgetattr(self._theirs)

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWN_TERMINAL, *self._command],
            env=self._env,
            stdin=self._theirs,
            stdout=self._stdout or self._theirs,
            stderr=self._theirs,
            start_new_session=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(WAIT_SECONDS)
        os.close(self._ours)
        os.close(self._theirs)

    def type(self, keys: str) -> None:
        """As if typed."""
        os.write(self._ours, keys.encode())

    def resize(self, columns: int, lines: int) -> None:
        """As if the window were dragged: the kernel signals the program."""
        self.screen.resize(lines, columns)
        self._set_size(columns, lines)

    @property
    def lines(self) -> list[str]:
        """What stands on the screen."""
        return list(self.screen.display)

    def wait_for(self, shown: str | Callable[[list[str]], bool]) -> list[str]:
        """The screen once the text is on it, or the condition on its lines holds."""
        if isinstance(shown, str):
            return self._read_until(lambda: any(shown in line for line in self.lines), repr(shown))
        return self._read_until(lambda: shown(self.lines), "the screen that is waited for")

    def wait_for_written(self, data: bytes) -> None:
        """Until the program has written this."""
        self._read_until(lambda: data in self.written, f"{data!r} written")

    def status(self) -> int:
        """The exit status of the program, as a shell shows it."""
        self._read_until(lambda: self.process.poll() is not None, "the program's end")
        self._read(0.1)
        return self.process.returncode

    def now(self) -> list:
        """The terminal's modes as they are."""
        return termios.tcgetattr(self._theirs)

    def _read_until(self, done: Callable[[], bool], what: str) -> list[str]:
        def seen() -> bool:
            if done():
                return True
            self._read(0.05)
            return False

        def screen() -> str:
            return f"its status: {self.process.poll()}; the screen:\n" + "\n".join(self.lines)

        wait_until(seen, f"seen: {what}", context=screen, pause=0)
        return self.lines

    def _read(self, patience: float) -> None:
        while select.select([self._ours], [], [], patience)[0]:
            data = os.read(self._ours, 65536)
            self.written += data
            self._stream.feed(data)
            patience = 0

    def _set_size(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
