"""The time that a run has, and the part of it that one check may take."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

T = TypeVar("T")

PAUSE_SECONDS = 0.05
"""Interval between two looks at a condition, in seconds."""


class TimeUp(Exception):  # noqa: N818  # not an error of what was interrupted
    """The time of a check is over."""


class Interrupted(BaseException):
    """Whoever runs the kit wants it to end; no check may catch this by accident."""


class Deadline:
    """A moment from which on nothing more is begun."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds until then; 0 afterwards."""
        return max(0.0, self._end - time.monotonic())


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise :class:`TimeUp` in the block after so many seconds. Only in the main thread."""

    def strike(_signal: int, _frame: FrameType | None) -> None:
        raise TimeUp

    before = signal.signal(signal.SIGALRM, strike)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.001))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def signals_interrupt() -> Iterator[None]:
    """Ctrl-C and SIGTERM raise :class:`Interrupted` in the block, once: what then cleans up is not
    interrupted itself.
    """

    def strike(_signal: int, _frame: FrameType | None) -> None:
        for number in before:
            signal.signal(number, signal.SIG_IGN)
        raise Interrupted

    before = {
        number: signal.signal(number, strike)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def until(condition: Callable[[], T], seconds: float) -> T:
    """The first true answer of ``condition``, or its last answer after so many seconds."""
    end = time.monotonic() + seconds
    while True:
        late = time.monotonic() >= end
        if (answer := condition()) or late:
            return answer
        time.sleep(PAUSE_SECONDS)
