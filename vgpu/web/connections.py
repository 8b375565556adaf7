"""The open connections: their maximum, and the one that is closed to make room for another."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterable
from typing import Final

from vgpu.web.connection import ClientConnection, ConnectionWait

log = logging.getLogger(__name__)

MAX_CONNECTIONS: Final = 128
"""Maximum number of open connections."""

MAX_PER_ADDRESS: Final = 16
"""Maximum number of open connections from one address: Prometheus needs one."""

STALLED_SECONDS: Final = 1.0
"""Time without progress after which a response counts as not taken, in seconds."""

_ENDING_SECONDS: Final = 0.2
"""Maximum time to wait for the end of a closed connection's thread, in seconds."""
_LOG_SECONDS: Final = 60.0
"""Minimum time between two log lines about closed connections, in seconds."""


class Connections:
    """The connections that are served, each by a thread. Safe to use from any thread.

    A connection that waits for its client can be closed to make room; one whose request is being
    handled cannot.
    """

    def __init__(self, most: int, most_per_address: int) -> None:
        self._most = most
        self._most_per_address = most_per_address
        self._threads: dict[ClientConnection, threading.Thread] = {}
        self._lock = threading.Lock()
        self._closed = 0
        self._log_at = 0.0

    def __len__(self) -> int:
        return len(self._threads)

    def all(self) -> list[tuple[ClientConnection, threading.Thread]]:
        """The present connections, with their threads."""
        with self._lock:
            return list(self._threads.items())

    def add(self, connection: ClientConnection, thread: threading.Thread) -> bool:
        """Take a new connection; False if there is no place for it.

        For an address with its maximum of connections, one of these makes room.
        """
        present = [other for other, _ in self.all()]
        peers = [other for other in present if other.peer == connection.peer]
        crowd = peers if len(peers) >= self._most_per_address else present
        full = crowd is peers or len(present) >= self._most
        if full and not self._close_first(crowd, connection.peer):
            return False
        with self._lock:
            self._threads[connection] = thread
        return True

    def remove(self, connection: ClientConnection) -> None:
        """Forget a connection that has ended."""
        with self._lock:
            self._threads.pop(connection, None)

    def make_room(self) -> bool:
        """Close one connection, if one can be closed."""
        return self._close_first([connection for connection, _ in self.all()], "")

    def _close_first(self, present: Iterable[ClientConnection], peer: str) -> bool:
        victim = first_to_go(present, time.monotonic())
        if victim is None:
            return False
        with self._lock:
            thread = self._threads.get(victim)
        victim.drop()
        if thread is not None:
            thread.join(_ENDING_SECONDS)
        self._note(victim.peer, peer)
        return True

    def _note(self, closed: str, peer: str) -> None:
        """Log that connections are closed, without a line for each."""
        self._closed += 1
        now = time.monotonic()
        if now >= self._log_at:
            log.warning(
                "connections closed to make room for new ones",
                extra={"closed": self._closed, "last_closed": closed, "last_new": peer},
            )
            self._log_at = now + _LOG_SECONDS


def first_to_go(present: Iterable[ClientConnection], now: float) -> ClientConnection | None:
    """The connection that makes room; None if each one's request is being handled.

    First goes a client that has not taken a response for ``STALLED_SECONDS``. Then, of the clients
    that are to send a request and those that are to take a response, the larger group loses the one
    with the longest wait, those that have begun to take a response last: a flood of one kind does
    not hit an ordinary client of the other. A connection whose client has acted does not wait any
    more, even if its thread has not run since.
    """
    waiting = [
        (wait, connection) for connection in present if (wait := connection.waiting) is not None
    ]
    sizes = Counter(wait.for_request for wait, _ in waiting)

    def rank(item: tuple[ConnectionWait, ClientConnection]) -> tuple[bool, int, bool, float]:
        wait = item[0]
        stalled = not wait.for_request and now - wait.since >= STALLED_SECONDS
        return not stalled, -sizes[wait.for_request], wait.moves, wait.since

    ranked = sorted(waiting, key=rank)
    return next((connection for _, connection in ranked if not connection.client_acted()), None)
