"""Kubernetes Events, recorded by any thread and written by one, which alone waits for the server.

Events are news for people, not the record: events that find no room or no time are dropped.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from vgpu.apiserver.connection import ClusterError
from vgpu.kube.events import EventDeduplicator, EventNote
from vgpu.model.reasons import SourceError

log = logging.getLogger(__name__)

_STEP_SECONDS: Final = 0.1


class EventRecorder:
    """The events to write, in order. Any thread may call every method."""

    def __init__(
        self, limit: int, *, repeat_seconds: float = 0.0, keeps_newest: bool = False
    ) -> None:
        """At most ``limit`` events wait; beyond that the newest are dropped, or the oldest.

        The same event of the same object is not recorded again for ``repeat_seconds``.
        """
        self._limit = limit
        self._keeps_newest = keeps_newest
        self._deduplicator = EventDeduplicator(repeat_seconds)
        self._waiting: deque[EventNote] = deque()
        self._changed = threading.Condition()
        self._finishing = False
        self._dropped = 0

    def __len__(self) -> int:
        """Number of events that wait."""
        return len(self._waiting)

    def record(self, *notes: EventNote) -> None:
        """Queue these events, without repeated ones; never waits."""
        with self._changed:
            for note in notes:
                if not self._deduplicator.is_news(note):
                    continue
                if len(self._waiting) >= self._limit:
                    self._dropped += 1
                    if not self._keeps_newest:
                        continue
                    self._waiting.popleft()
                self._waiting.append(note)
            self._changed.notify_all()

    def take(self) -> EventNote | None:
        """The next event to write, None if there is none."""
        with self._changed:
            return self._waiting.popleft() if self._waiting else None

    def put_back(self, note: EventNote) -> None:
        """Queue an event that could not be written before all others."""
        with self._changed:
            if len(self._waiting) >= self._limit:
                self._dropped += 1
                self._waiting.pop()
            self._waiting.appendleft(note)

    def wait(self) -> EventNote | None:
        """The next event to write as soon as there is one, None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._finishing)
            return self._waiting.popleft() if self._waiting else None

    def finish(self) -> None:
        """Let :meth:`wait` return the waiting events, then None."""
        with self._changed:
            self._finishing = True
            self._changed.notify_all()

    def clear(self) -> int:
        """Drop all waiting events; returns the number of events dropped since the start."""
        with self._changed:
            self._dropped += len(self._waiting)
            self._waiting.clear()
            return self._dropped


class EventWriter:
    """Writes a recorder's events on a thread of its own, which begins with the first event."""

    def __init__(self, recorder: EventRecorder, write: Callable[[EventNote], None]) -> None:
        """``write`` sends one event, and may raise ClusterError and SourceError."""
        self._recorder = recorder
        self._write = write
        self._thread: threading.Thread | None = None
        self._failure = ""

    def record(self, *notes: EventNote) -> None:
        """Queue these events; never waits. For one thread."""
        self._recorder.record(*notes)
        if notes and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="events", daemon=True)
            self._thread.start()

    def finish(self, seconds: float, stopping: Callable[[], bool]) -> None:
        """Wait up to ``seconds`` for the rest, or until ``stopping``; then drop what is left."""
        self._recorder.finish()
        until = time.monotonic() + seconds
        thread = self._thread
        while thread is not None and thread.is_alive():
            if stopping() or time.monotonic() >= until:
                break
            thread.join(_STEP_SECONDS)
        if dropped := self._recorder.clear():
            log.warning("events dropped: no time to write them", extra={"events": dropped})

    def _run(self) -> None:
        while (note := self._recorder.wait()) is not None:
            try:
                self._write(note)
            except (ClusterError, SourceError) as error:
                if str(error) != self._failure:
                    log.warning("event not written", extra={**_fields(note), "err": error})
                self._failure = str(error)
            except Exception:
                log.exception("event not written: unexpected error", extra=_fields(note))


def _fields(note: EventNote) -> dict[str, str]:
    """The event in a line of the log."""
    name = f"{note.namespace}/{note.name}" if note.namespace else note.name
    return {"object": f"{note.kind} {name}", "reason": note.reason}
