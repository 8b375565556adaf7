"""Signals of our programs: what ends one in good order, and what does nothing.

A program that runs until it is told to end waits for the signal instead of handling it: a handler
could meet a lock that the main thread holds.
"""

import signal
from collections.abc import Iterable
from typing import Final

ENDING: Final = frozenset({signal.SIGTERM, signal.SIGINT})
"""What ends a program in good order."""

USER_DEFINED: Final = (signal.SIGUSR1, signal.SIGUSR2)
"""What log rotation sends to programs that open their files again. Ours log to standard error; by
default either signal would end the process at once."""

IGNORED: Final = (signal.SIGHUP, *USER_DEFINED)
"""What does nothing to a program that serves; it reads the web config again by itself."""


def ignore(numbers: Iterable[signal.Signals] = IGNORED) -> None:
    """Let these signals do nothing from now on."""
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)


def block_ending() -> None:
    """Leave the ending signals to ``wait``: called before the first thread, all inherit it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)


def is_ending() -> bool:
    """Whether an ending signal has come since they are blocked."""
    return bool(signal.sigpending() & ENDING)


def wait() -> signal.Signals:
    """The ending signal, once it comes."""
    return signal.Signals(signal.sigwait(ENDING))
