"""A :class:`~vgpu.apiserver.key_queue.KeyQueue` for several threads, which add keys and process
them.

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

from vgpu.apiserver.backoff import ItemBackoff
from vgpu.apiserver.key_queue import KeyQueue

_Key = TypeVar("_Key", bound=Hashable)


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
