"""Binds that wait for the locks of nodes: one behind the other for each node, woken by its events.

the first bind of a node alone reads and locks it; the others wait for their turn
the bind behind one that has locked the node reads nothing before an event without a lock
a bind waits until its time is over, its client has left, or the program ends
number of binds that wait <= MOST_WAITING: the other requests are for filter
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from vgpu.model.objects import Node

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

    def __init__(self, queue: "LockQueue", line: "_Line", patience: Patience) -> None:
        self._queue = queue
        self._line = line
        self.patience = patience
        self.changed = threading.Condition(queue.lock)
        """Of all waiting binds an event wakes the first one of its node alone."""

    @property
    def seen(self) -> int:
        """Number of events that showed the node without a lock."""
        return self._line.seen

    @property
    def locked_after(self) -> int | None:
        """:attr:`seen` when the bind before began to lock the node; None if it is not known to be
        locked.
        """
        return self._line.locked_after

    def note_locked(self, seen: int) -> None:
        """The bind has locked the node, with what it knew after so many events."""
        with self._queue.lock:
            self._line.locked_after = seen

    def take_free(self) -> Node | None:
        """The node as the last event showed it without a lock, once."""
        with self._queue.lock:
            free, self._line.free = self._line.free, None
            self._line.locked_after = None
            return free

    def wait_for_event(self, seen: int) -> bool:
        """Wait for an event after so many, for :data:`AGAIN_SECONDS` at most; returns whether the
        bind may try again.
        """
        again = time.monotonic() + AGAIN_SECONDS
        return self._queue.wait(self, lambda: self.seen != seen or time.monotonic() >= again)


class _Line:
    """The turns of a node, and what its events have shown while there were any."""

    def __init__(self) -> None:
        self.turns: deque[Turn] = deque()
        self.seen = 0
        self.free: Node | None = None
        self.locked_after: int | None = None


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
        self._lines: dict[str, _Line] = {}
        self._is_closed = False

    def note_free(self, name: str, node: Node | None) -> None:
        """The watch has shown a node without a lock; None if nothing else is known of it."""
        with self.lock:
            line = self._lines.get(name)
            if line is not None:
                line.seen += 1
                line.free = node
                line.turns[0].changed.notify()

    def close(self) -> None:
        """End all waits."""
        with self.lock:
            self._is_closed = True
            for line in self._lines.values():
                for turn in line.turns:
                    turn.changed.notify()

    def patience(self, client_left: Callable[[], bool] = lambda: False) -> Patience:
        """That of a bind which begins now; ``client_left`` is whether nobody waits for it."""
        return Patience(self.seconds, client_left)

    @contextmanager
    def turn(self, node: str, patience: Patience) -> Iterator[Turn | None]:
        """The bind's turn while the block lasts; None if it did not come in time."""
        with self.lock:
            line = self._lines.setdefault(node, _Line())
            turn = Turn(self, line, patience)
            line.turns.append(turn)
        try:
            yield turn if self.wait(turn, lambda: line.turns[0] is turn) else None
        finally:
            with self.lock:
                line.turns.remove(turn)
                if line.turns:
                    line.turns[0].changed.notify()
                else:
                    del self._lines[node]

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
