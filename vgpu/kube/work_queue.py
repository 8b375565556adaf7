"""A :class:`~vgpu.kube.key_queue.KeyQueue` for several threads: who adds keys, and who works.

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

import random
import threading
import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from vgpu.kube.backoff import ItemBackoff
from vgpu.kube.key_queue import KeyQueue

_Key = TypeVar("_Key", bound=Hashable)


class WorkQueue(Generic[_Key]):
    """See the module. Every method is for any thread."""

    def __init__(
        self,
        backoff: ItemBackoff | None = None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """``monotonic`` tells seconds that never go back."""
        self._keys = KeyQueue[_Key](backoff or ItemBackoff(random.random))
        self._monotonic = monotonic
        self._changed = threading.Condition()

    def __len__(self) -> int:
        """How many keys wait; those that are delayed are not counted."""
        with self._changed:
            return len(self._keys)

    def add(self, key: _Key) -> None:
        """Have the key handed out once more: once, too, if it waits already or is worked on."""
        with self._changed:
            self._keys.add(key)
            self._changed.notify_all()

    def add_after(self, key: _Key, seconds: float) -> None:
        """Add the key so many seconds later; of several such times the earliest counts."""
        with self._changed:
            self._keys.add_after(key, seconds, self._monotonic())
            self._changed.notify_all()

    def add_rate_limited(self, key: _Key) -> None:
        """Add a key that failed: later each time, until it is forgotten."""
        with self._changed:
            self._keys.add_rate_limited(key, self._monotonic())
            self._changed.notify_all()

    def forget(self, key: _Key) -> None:
        """The key went well: its next failure counts as the first. It is still to be done."""
        with self._changed:
            self._keys.forget(key)

    def failures(self, key: _Key) -> int:
        """How often the key has failed since it was forgotten."""
        with self._changed:
            return self._keys.failures(key)

    def get(self) -> _Key | None:
        """The next key to work on, until :meth:`done`. Waits for one; None once the queue is shut
        down and nothing waits any more.
        """
        with self._changed:
            while (key := self._keys.get(self._monotonic())) is None:
                if self._keys.is_shut_down:
                    return None
                due = self._keys.next_at()
                self._changed.wait(None if due is None else max(0.0, due - self._monotonic()))
            return key

    def done(self, key: _Key) -> None:
        """The key is worked on no more; it waits again if it was added meanwhile."""
        with self._changed:
            self._keys.done(key)
            self._changed.notify_all()

    def shut_down(self) -> None:
        """Take no more keys. Those that wait are still handed out; those delayed are dropped."""
        with self._changed:
            self._keys.shut_down()
            self._changed.notify_all()

    def wait_drained(self, seconds: float) -> bool:
        """Wait at most so long for the end of all work after :meth:`shut_down`; whether it came."""
        with self._changed:
            return self._changed.wait_for(lambda: self._keys.is_drained, seconds)
