"""The events of rejected pods: one for each pod and text, and not more than one a minute."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from vgpu.apiserver.event_recorder import EventRecorder, EventWriter
from vgpu.kube.events import EventNote, NoteType, event_note
from vgpu.model.names import PodRef

COMPONENT: Final = "vgpu-scheduler"

NOT_PLACED: Final = "VgpuNotPlaced"
"""The reason of the events."""

INTERVAL_SECONDS: Final = 60.0
"""Minimum time between two texts of one pod, and so between two events, in seconds."""

MOST_WAITING: Final = 1000
"""Maximum number of events that wait to be written."""

MOST_REMEMBERED: Final = 20_000
"""Maximum number of pods whose last event is remembered."""


class RejectionEvents:
    """Writes the events on a thread of its own. Any thread may call :meth:`rejected`."""

    def __init__(
        self, write: Callable[[EventNote], None], clock: Callable[[], float] = time.time
    ) -> None:
        """``clock`` returns unix seconds."""
        self._clock = clock
        self._writer = EventWriter(EventRecorder(MOST_WAITING), write)
        self._lock = threading.Lock()
        self._last: OrderedDict[str, tuple[str, float]] = OrderedDict()

    def rejected(self, pod: PodRef, explain: Callable[[], str]) -> None:
        """Report why no node takes a pod, unless that was reported last; never waits.

        ``explain`` is called once in :data:`INTERVAL_SECONDS` for each pod, however often
        kube-scheduler tries it.
        """
        now = self._clock()
        with self._lock:
            last_text, at = self._last.get(pod.uid, ("", 0.0))
        if now - at < INTERVAL_SECONDS:
            return
        text = explain()
        with self._lock:
            self._last[pod.uid] = text, now
            self._last.move_to_end(pod.uid)
            if len(self._last) > MOST_REMEMBERED:
                self._last.popitem(last=False)
            if text == last_text:
                return
            self._writer.record(
                event_note(pod, NOT_PLACED, text, now, component=COMPONENT, type_=NoteType.WARNING)
            )

    def finish(self, seconds: float) -> None:
        """Write what waits, for at most so long."""
        self._writer.finish(seconds, lambda: False)
