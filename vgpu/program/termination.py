"""How a program ends: by a signal, in good order, or although a thread of it is stuck.

A program that runs until a signal ends it waits for the signal instead of handling it: a handler
could meet a lock that the main thread holds.
"""

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable
from typing import Final, NoReturn

ENDING: Final = frozenset({signal.SIGTERM, signal.SIGINT})
"""Signals that end a program in good order."""

USER_DEFINED: Final = (signal.SIGUSR1, signal.SIGUSR2)
"""Signals that log rotation sends to programs that open their files again. Ours log to standard
error; by default either signal would end the process at once."""

IGNORED: Final = (signal.SIGHUP, *USER_DEFINED)
"""Signals that a server ignores; it reads the web config again by itself."""


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
    """Wait for an ending signal, and return it."""
    return signal.Signals(signal.sigwait(ENDING))


EXIT_FAILURE: Final = 1


def exit_now(status: int) -> NoReturn:
    """End the process without its threads: nothing would bring back a call that hangs."""
    with contextlib.suppress(OSError, ValueError):  # nobody reads it, or it is closed
        sys.stdout.flush()
    logging.shutdown()
    os._exit(status)


def outlasting(threads: Iterable[threading.Thread], seconds: float) -> list[threading.Thread]:
    """The threads that would keep the process and have not ended within ``seconds`` together."""
    until = time.monotonic() + seconds
    keeping = [
        thread
        for thread in threads
        if not thread.daemon and thread is not threading.current_thread()
    ]
    for thread in keeping:
        thread.join(max(0.0, until - time.monotonic()))
    return [thread for thread in keeping if thread.is_alive()]
