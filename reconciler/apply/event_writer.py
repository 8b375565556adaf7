"""Kubernetes Events written beside the actions: a slow API server holds up none of them.

One thread writes them in order. They are news for people, not the record: what cannot be written
in time is dropped, and that is said.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from vgpu.kube.connection import ClusterError
from vgpu.kube.objects import EventNote
from vgpu.reasons import SourceError

log = logging.getLogger(__name__)

MOST: Final = 2000
"""Events that wait to be written; a cycle with full limits says about 600."""

_STEP_SECONDS: Final = 0.1


class EventWriter:
    """Writes the events of one plan. One thread says them."""

    def __init__(self, write: Callable[[EventNote], None]) -> None:
        """``write`` sends one, and may raise ClusterError and SourceError."""
        self._write = write
        self._waiting: deque[EventNote] = deque()
        self._news = threading.Condition()
        self._thread: threading.Thread | None = None
        self._finishing = False
        self._dropped = 0
        self._complaint = ""

    def say(self, notes: Iterable[EventNote]) -> None:
        """Have them written some time; never waits."""
        with self._news:
            for note in notes:
                if len(self._waiting) >= MOST:
                    self._dropped += 1
                else:
                    self._waiting.append(note)
            self._news.notify()
            if self._waiting and self._thread is None:
                self._thread = threading.Thread(target=self._run, name="events", daemon=True)
                self._thread.start()

    def finish(self, seconds: float, stopping: Callable[[], bool]) -> None:
        """Wait for the rest for so long, or until ``stopping``; what is left then is dropped."""
        with self._news:
            self._finishing = True
            self._news.notify()
        until = time.monotonic() + seconds
        thread = self._thread
        while thread is not None and thread.is_alive():
            if stopping() or time.monotonic() >= until:
                break
            thread.join(_STEP_SECONDS)
        with self._news:
            dropped = self._dropped + len(self._waiting)
            self._waiting.clear()
        if dropped:
            log.warning("%d events were not written: there was no time", dropped)

    def _run(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._waiting or self._finishing)
                if not self._waiting:
                    return
                note = self._waiting.popleft()
            try:
                self._write(note)
            except (ClusterError, SourceError) as error:
                if str(error) != self._complaint:
                    log.warning("an event could not be written: %s", error)
                self._complaint = str(error)
            except Exception:
                log.exception("an event failed on a defect: %s", note.reason)
