"""The wait of the sampler's thread for its next sample, and of scrapes for a late one.

:mod:`exporter.rhythm` plans the time of the next sample; scrapes bring it forward or put it off.
"""

import threading
import time
from collections.abc import Callable

from exporter.rhythm import SamplePlan


class SampleTimer:
    """Any thread may call each method; one thread calls :meth:`wait`."""

    def __init__(
        self,
        interval: float,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        changed: threading.Condition | None = None,
    ) -> None:
        """``interval`` is the time between two samples without a rhythm, in seconds.

        ``monotonic`` returns seconds that never go back, and ``changed.wait`` waits in them.
        """
        self._plan = SamplePlan(interval)
        self._monotonic = monotonic
        self._changed = changed or threading.Condition()
        self._ended = False
        self._taken = 0

    def scraped(self) -> None:
        """Note a scrape of now."""
        with self._changed:
            if self._plan.scraped(self._monotonic()):
                self._changed.notify_all()

    def wait_for_page(self, is_stuck: Callable[[], bool]) -> None:
        """Wait for the page of a sample that is late or under way, if that is worth a moment.

        It returns at once while ``is_stuck``: then the sample waits for a driver that hangs.
        """
        with self._changed:
            taken = self._taken
            while taken == self._taken and not self._ended and not is_stuck():
                seconds = self._plan.patience(self._monotonic())
                if seconds <= 0:
                    return
                self._changed.wait(seconds)

    def begin(self) -> float:
        """Note that a sample begins now; returns the time."""
        with self._changed:
            self._plan.begins()
            return self._monotonic()

    def sampled(self, begun: float) -> None:
        """Note a sample that began then and has ended now: its page can be had."""
        with self._changed:
            self._plan.sampled(begun, self._monotonic())
            self._taken += 1
            self._changed.notify_all()

    def wait(self) -> None:
        """Wait for the time of the next sample, or for :meth:`end`."""
        with self._changed:
            while not self._ended and (seconds := self._plan.due - self._monotonic()) > 0:
                self._changed.wait(seconds)  # and look again: it may be due later now

    def end(self) -> None:
        """End the wait under way, and all later ones at once."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
