"""The events that wait to be written."""

import threading
from collections import deque
from typing import Final

from deviceplugin.apiserver.events import EventDeduplicator
from vgpu.kube.client import ApiClient
from vgpu.kube.connection import ClusterError
from vgpu.kube.objects import EventNote

MOST_EVENTS: Final = 128
"""Maximum number of events that wait; the oldest are dropped."""

_BUSY: Final = frozenset({0, 429, 500, 502, 503, 504})
"""Statuses that are no answer to what was asked."""


class EventQueue:
    """Safe to be used from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: deque[EventNote] = deque(maxlen=MOST_EVENTS)
        self._deduplicator = EventDeduplicator()

    def add(self, event: EventNote) -> None:
        """Have it written, unless the same was written lately."""
        with self._lock:
            if self._deduplicator.is_news(event):
                self._events.append(event)

    def __len__(self) -> int:
        return len(self._events)

    def write_one(self, cluster: ApiClient) -> bool:
        """Write the oldest; whether there was one. Raises ClusterError.

        It stays where the server is busy.
        """
        with self._lock:
            event = self._events.popleft() if self._events else None
        if event is None:
            return False
        try:
            cluster.write_event(event)
        except ClusterError as error:
            if error.status in _BUSY:
                with self._lock:
                    self._events.appendleft(event)
            raise
        return True
