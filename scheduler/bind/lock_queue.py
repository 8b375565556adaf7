"""Binds that wait for the locks of nodes: one behind the other for each node, woken by its events.

the first bind of a node alone reads and locks it; the others wait for their turn
a bind waits until its time is over, its client has left, or the program ends
number of binds that wait <= MOST_WAITING: the other requests are for filter
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

MOST_WAITING: Final = 192
"""Maximum number of binds that wait; a further one does not wait."""

AGAIN_SECONDS: Final = 1.0
"""Interval between two tries of the first bind of a node without an event, in seconds: the pod that
has the lock may be gone, or run."""

LOOK_SECONDS: Final = 0.5
"""Interval between two looks whether a client has left, in seconds."""


class Patience:
    """How long one bind waits, whatever it waits for."""

    def __init__(self, seconds: float, client_left: Callable[[], bool]) -> None:
        self._until = time.monotonic() + seconds
        self._client_left = client_left

    def left(self) -> float:
        """The seconds that are left; 0 also if nobody waits for the bind's answer."""
        return 0.0 if self._client_left() else max(0.0, self._until - time.monotonic())


class Turn:
    """A bind's place in the queue of a node."""

    def __init__(self, queue: "LockQueue", patience: Patience) -> None:
        self._queue = queue
        self.patience = patience
        self.changed = threading.Condition(queue.lock)
        """Of all waiting binds an event wakes the first one of its node alone."""
        self.seen = 0
        """Number of events about the node since it was the bind's turn."""

    def wait_for_event(self, seen: int) -> bool:
        """Wait for an event after so many, for :data:`AGAIN_SECONDS` at most; returns whether the
        bind may try again.
        """
        again = time.monotonic() + AGAIN_SECONDS
        return self._queue.wait(self, lambda: self.seen != seen or time.monotonic() >= again)


class LockQueue:
    """The queues of all nodes. Any thread may call every method.

    Attributes:
        seconds: maximum time for which a bind waits.
        lock: for the attributes of turns.
        waiting: number of binds that wait.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.waiting = 0
        self.lock = threading.RLock()
        self._turns: dict[str, deque[Turn]] = {}
        self._is_closed = False

    def note_event(self, node: str) -> None:
        """The watch has shown a node again."""
        with self.lock:
            if node in self._turns:
                first = self._turns[node][0]
                first.seen += 1
                first.changed.notify()

    def close(self) -> None:
        """End all waits."""
        with self.lock:
            self._is_closed = True
            for turns in self._turns.values():
                for turn in turns:
                    turn.changed.notify()

    def patience(self, client_left: Callable[[], bool] = lambda: False) -> Patience:
        """That of a bind which begins now; ``client_left`` is whether nobody waits for it."""
        return Patience(self.seconds, client_left)

    @contextmanager
    def turn(self, node: str, patience: Patience) -> Iterator[Turn | None]:
        """The bind's turn while the block lasts; None if it did not come in time."""
        turn = Turn(self, patience)
        with self.lock:
            turns = self._turns.setdefault(node, deque())
            turns.append(turn)
        try:
            yield turn if self.wait(turn, lambda: turns[0] is turn) else None
        finally:
            with self.lock:
                turns.remove(turn)
                if turns:
                    turns[0].changed.notify()
                else:
                    del self._turns[node]

    def wait(self, turn: Turn, is_so: Callable[[], bool]) -> bool:
        """Wait until something is so; returns whether it is."""
        with self.lock:
            if is_so() or self.waiting >= MOST_WAITING:
                return is_so()
            self.waiting += 1
            try:
                while not (is_so() or self._is_closed) and (left := turn.patience.left()):
                    turn.changed.wait(min(LOOK_SECONDS, left))
                return is_so()
            finally:
                self.waiting -= 1
