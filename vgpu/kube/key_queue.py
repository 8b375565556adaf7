"""Keys of objects that a controller has to look at, as client-go's work queue keeps them; pure.

    waiting   = keys that are to be handed out, each once, in the order in which they came
    working   = keys that were handed out, and are not done
    dirty     = keys that were added while they were worked on: they wait again when they are done
    delayed   = keys with the time from which on they wait

    waiting ∩ working = ∅,  dirty ⊆ working: no key is worked on twice at a time, none is lost.

Time is an argument, in seconds that never go back. :mod:`vgpu.kube.work_queue` is the same for
several threads.
"""

import heapq
import itertools
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

from vgpu.kube.backoff import ItemBackoff

_Key = TypeVar("_Key", bound=Hashable)


class KeyQueue(Generic[_Key]):
    """See the module."""

    def __init__(self, backoff: ItemBackoff) -> None:
        """``backoff`` says when a key that failed is handed out again."""
        self._backoff = backoff
        self._waiting: OrderedDict[_Key, None] = OrderedDict()
        self._working: set[_Key] = set()
        self._dirty: set[_Key] = set()
        self._delayed: dict[_Key, float] = {}
        self._schedule: list[tuple[float, int, _Key]] = []
        self._order = itertools.count()
        self._shut_down = False

    def __len__(self) -> int:
        """How many keys wait; those that are delayed are not counted."""
        return len(self._waiting)

    @property
    def is_shut_down(self) -> bool:
        """Whether no more keys are taken."""
        return self._shut_down

    @property
    def is_drained(self) -> bool:
        """Whether no more keys are taken, none waits, and none is worked on."""
        return self._shut_down and not (self._waiting or self._working)

    def add(self, key: _Key) -> None:
        """Have the key handed out once more: once, too, if it waits already or is worked on."""
        if self._shut_down:
            return
        if key in self._working:
            self._dirty.add(key)
        else:
            self._waiting.setdefault(key)

    def add_after(self, key: _Key, seconds: float, now: float) -> None:
        """Add the key so many seconds later; of several such times the earliest counts."""
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
        """Add a key that failed: later each time, until it is forgotten."""
        if not self._shut_down:
            self.add_after(key, self._backoff.add(key, now) - now, now)

    def forget(self, key: _Key) -> None:
        """The key went well: its next failure counts as the first. It is still to be done."""
        self._backoff.forget(key)

    def failures(self, key: _Key) -> int:
        """How often the key has failed since it was forgotten."""
        return self._backoff.failures(key)

    def get(self, now: float) -> _Key | None:
        """The next key to work on, until :meth:`done`; None if there is none at this moment."""
        self._ripen(now)
        if not self._waiting:
            return None
        key, _ = self._waiting.popitem(last=False)
        self._working.add(key)
        return key

    def done(self, key: _Key) -> None:
        """The key is worked on no more; it waits again if it was added meanwhile."""
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
        """Take no more keys. Those that wait are still handed out; those delayed are dropped."""
        self._shut_down = True
        self._delayed.clear()
        self._schedule.clear()

    def _ripen(self, now: float) -> None:
        while (due := self.next_at()) is not None and due <= now:
            _, _, key = heapq.heappop(self._schedule)
            del self._delayed[key]
            self.add(key)

    def _is_outdated(self, entry: tuple[float, int, _Key]) -> bool:
        """Whether the key has an earlier time by now, or waits already."""
        due, _, key = entry
        return self._delayed.get(key) != due
