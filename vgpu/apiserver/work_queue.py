"""Keys of objects that a controller has to process, as client-go's work queue keeps them.

    waiting   = keys for ``get`` to return, each once, in the order in which they came
    working   = keys that ``get`` returned, and that are not done
    dirty     = keys that were added while they were worked on: they wait again when they are done
    delayed   = keys with the time at which they begin to wait

    waiting ∩ working = ∅,  dirty ⊆ working: no key is worked on twice at a time, none is lost.

:class:`KeyQueue` is pure: time is an argument, in seconds that never go back. :class:`WorkQueue` is
the same queue for several threads, which add keys and process them:

    queue = WorkQueue[str]()
    informer = Informer(..., enqueue=queue.add)
    while (key := queue.get()) is not None:
        try:
            reconcile(key)
        except ClusterError:
            queue.add_rate_limited(key)
        else:
            queue.forget(key)
        finally:
            queue.done(key)
"""

import heapq
import itertools
import random
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from vgpu.apiserver.backoff import ItemBackoff

_Key = TypeVar("_Key", bound=Hashable)


class KeyQueue(Generic[_Key]):
    """The queue that the module describes."""

    def __init__(self, backoff: ItemBackoff) -> None:
        """``backoff`` decides when ``get`` returns a key that failed again."""
        self._backoff = backoff
        self._waiting: OrderedDict[_Key, None] = OrderedDict()
        self._working: set[_Key] = set()
        self._dirty: set[_Key] = set()
        self._delayed: dict[_Key, float] = {}
        self._schedule: list[tuple[float, int, _Key]] = []
        self._order = itertools.count()
        self._shut_down = False

    def __len__(self) -> int:
        """Number of keys that wait, without delayed ones."""
        return len(self._waiting)

    @property
    def is_shut_down(self) -> bool:
        """Whether no more keys are accepted."""
        return self._shut_down

    @property
    def is_drained(self) -> bool:
        """Whether no more keys are accepted, none waits, and none is worked on."""
        return self._shut_down and not (self._waiting or self._working)

    def add(self, key: _Key) -> None:
        """Let ``get`` return the key once more, only once if it already waits or is worked on."""
        if self._shut_down:
            return
        if key in self._working:
            self._dirty.add(key)
        else:
            self._waiting.setdefault(key)

    def add_after(self, key: _Key, seconds: float, now: float) -> None:
        """Add the key after ``seconds``; of several such times the earliest counts."""
        if self._shut_down:
            return
        if seconds <= 0:
            self.add(key)
            return
        due = now + seconds
        if due < self._delayed.get(key, float("inf")):
            self._delayed[key] = due
            heapq.heappush(self._schedule, (due, next(self._order), key))

    def add_rate_limited(self, key: _Key, now: float) -> None:
        """Add a key that failed, with a longer delay each time until it is forgotten."""
        if not self._shut_down:
            self.add_after(key, self._backoff.add(key, now) - now, now)

    def forget(self, key: _Key) -> None:
        """Reset the failures of a key that succeeded; :meth:`done` is still needed."""
        self._backoff.forget(key)

    def failures(self, key: _Key) -> int:
        """Number of failures of the key since it was forgotten."""
        return self._backoff.failures(key)

    def get(self, now: float) -> _Key | None:
        """The next key to work on, until :meth:`done`; None if none waits now."""
        self._ripen(now)
        if not self._waiting:
            return None
        key, _ = self._waiting.popitem(last=False)
        self._working.add(key)
        return key

    def done(self, key: _Key) -> None:
        """End the work on the key, which waits again if it was added meanwhile."""
        self._working.discard(key)
        if key in self._dirty:
            self._dirty.discard(key)
            self._waiting.setdefault(key)

    def next_at(self) -> float | None:
        """When the next delayed key begins to wait; None if there is none."""
        while self._schedule and self._is_outdated(self._schedule[0]):
            heapq.heappop(self._schedule)
        return self._schedule[0][0] if self._schedule else None

    def shut_down(self) -> None:
        """Accept no more keys. ``get`` still returns waiting keys; delayed keys are dropped."""
        self._shut_down = True
        self._delayed.clear()
        self._schedule.clear()

    def _ripen(self, now: float) -> None:
        while (due := self.next_at()) is not None and due <= now:
            _, _, key = heapq.heappop(self._schedule)
            del self._delayed[key]
            self.add(key)

    def _is_outdated(self, entry: tuple[float, int, _Key]) -> bool:
        """Whether the key has an earlier time by now, or already waits."""
        due, _, key = entry
        return self._delayed.get(key) != due


class WorkQueue(Generic[_Key]):
    """The queue that the module describes. Any thread may call every method."""

    def __init__(
        self,
        backoff: ItemBackoff | None = None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """``monotonic`` returns seconds that never go back."""
        self._keys = KeyQueue[_Key](backoff or ItemBackoff(random.random))
        self._monotonic = monotonic
        self._changed = threading.Condition()

    def __len__(self) -> int:
        """Number of keys that wait, without delayed ones."""
        with self._changed:
            return len(self._keys)

    def add(self, key: _Key) -> None:
        """Let ``get`` return the key once more, only once if it already waits or is worked on."""
        with self._changed:
            self._keys.add(key)
            self._changed.notify_all()

    def add_after(self, key: _Key, seconds: float) -> None:
        """Add the key after ``seconds``; of several such times the earliest counts."""
        with self._changed:
            self._keys.add_after(key, seconds, self._monotonic())
            self._changed.notify_all()

    def add_rate_limited(self, key: _Key) -> None:
        """Add a key that failed, with a longer delay each time until it is forgotten."""
        with self._changed:
            self._keys.add_rate_limited(key, self._monotonic())
            self._changed.notify_all()

    def forget(self, key: _Key) -> None:
        """Reset the failures of a key that succeeded; :meth:`done` is still needed."""
        with self._changed:
            self._keys.forget(key)

    def failures(self, key: _Key) -> int:
        """Number of failures of the key since it was forgotten."""
        with self._changed:
            return self._keys.failures(key)

    def get(self) -> _Key | None:
        """The next key to work on, until :meth:`done`. Waits for a key; None once the queue is
        shut down and no key waits.
        """
        with self._changed:
            while (key := self._keys.get(self._monotonic())) is None:
                if self._keys.is_shut_down:
                    return None
                due = self._keys.next_at()
                self._changed.wait(None if due is None else max(0.0, due - self._monotonic()))
            return key

    def done(self, key: _Key) -> None:
        """End the work on the key, which waits again if it was added meanwhile."""
        with self._changed:
            self._keys.done(key)
            self._changed.notify_all()

    def shut_down(self) -> None:
        """Accept no more keys. ``get`` still returns waiting keys; delayed keys are dropped."""
        with self._changed:
            self._keys.shut_down()
            self._changed.notify_all()

    def wait_drained(self, seconds: float) -> bool:
        """Wait for the end of all work after :meth:`shut_down`; returns whether it came in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self._keys.is_drained, seconds)
