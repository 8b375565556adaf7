"""The wait of the sampler's thread for its next sample.

:mod:`exporter.rhythm` plans the time of the next sample; scrapes bring it forward or put it off.
"""

import threading
import time
from collections.abc import Callable

from exporter.rhythm import SamplePlan


class SampleTimer:
    """Any thread may call each method; one thread waits."""

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

    def scraped(self) -> None:
        """Note a scrape of now."""
        with self._changed:
            if self._plan.scraped(self._monotonic()):
                self._changed.notify()

    def sampled(self, begun: float) -> None:
        """Note a sample that began then and has ended now."""
        with self._changed:
            self._plan.sampled(begun, self._monotonic())

    def wait(self) -> None:
        """Wait for the time of the next sample, or for :meth:`end`."""
        with self._changed:
            while not self._ended and (seconds := self._plan.due - self._monotonic()) > 0:
                self._changed.wait(seconds)  # and look again: it may be due later now

    def end(self) -> None:
        """End the wait under way, and all later ones at once."""
        with self._changed:
            self._ended = True
            self._changed.notify()
