"""Writes that a pod does not need to run: on a thread of their own, with a maximum of tries.

They are what is held for a nominated pod, and HAMi's label of a bound one.
"""

import logging
import threading
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from vgpu.apiserver.work_queue import WorkQueue

log = logging.getLogger(__name__)

TRIES: Final = 5
"""Maximum number of attempts of one write."""

_Item = TypeVar("_Item")


class QueueWorker(Generic[_Item]):
    """Works on a queue, from :meth:`start` to :meth:`stop`. Any thread may add to it."""

    def __init__(self, name: str, write: Callable[[_Item], bool]) -> None:
        """``write`` returns whether nothing is left to do."""
        self._write = write
        self._queue = WorkQueue[_Item]()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def add(self, item: _Item) -> None:
        """Write this; never waits."""
        self._queue.add(item)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, without waiting for a request that is under way."""
        self._queue.shut_down()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            is_done = False
            try:
                is_done = self._write(item)
            except Exception:
                log.exception("a write failed on a defect")
            if is_done or self._queue.failures(item) >= TRIES:
                self._queue.forget(item)
            else:
                self._queue.add_rate_limited(item)
            self._queue.done(item)
