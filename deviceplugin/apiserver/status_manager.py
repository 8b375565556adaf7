"""Writes the desired state to the API server: annotations of pods and node, locks, events. One
thread.

Only schedulers wait for these writes: containers are bound without them. A write is computed from
what the API server shows, so that a crash loses nothing, and it carries the version that was seen,
so that it overwrites nothing of others. A target that fails is tried again later, after all that
have not failed: a round has an order, which a work queue would not keep.
"""

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from deviceplugin.apiserver.desired_state import DesiredState
from deviceplugin.apiserver.object_writers import (
    NODE_SECONDS,
    NodeWriter,
    PodWriter,
    UnhealthyWriter,
    WriteContext,
)
from deviceplugin.apiserver.writes import (
    AGAIN_SECONDS,
    DroppedError,
    DueTime,
    EventReason,
    OwnWrites,
    Write,
    WriteKey,
    WriteResult,
    WriteTarget,
    note,
)
from deviceplugin.failpoints import Failpoint, noop
from deviceplugin.scheme_adapter import SchemeAdapter
from vgpu.apiserver.backoff import ItemBackoff
from vgpu.apiserver.client import ApiClient
from vgpu.apiserver.event_recorder import EventRecorder
from vgpu.kube.errors import ClusterError
from vgpu.model.names import PodRef
from vgpu.model.objects import Node, Pod
from vgpu.model.reasons import SourceError

log = logging.getLogger(__name__)

PATIENCE_SECONDS: Final = 5.0
"""Maximum time to wait at the end for a request under way, in seconds."""

_MOVED_ON: Final = frozenset({409, 422})
"""HTTP statuses Conflict, and Invalid if a UID or a ``test`` operation did not match."""

_GONE: Final = 404

_BUSY: Final = frozenset({0, 429, 500, 502, 503, 504})
"""HTTP statuses that are no answer to the request."""

MOST_EVENTS: Final = 128
"""Maximum number of events that wait; the oldest are dropped."""


class StatusManager:
    """:meth:`wake`, :meth:`say` and :meth:`counts` are for any thread."""

    def __init__(
        self,
        cluster: ApiClient,
        adapter: SchemeAdapter,
        desired: Callable[[], DesiredState | None],
        failpoint: Failpoint = noop,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """``desired`` returns the desired state, None while it is not known.

        ``clock`` returns unix seconds, ``monotonic`` seconds that never go back.
        """
        self._clock = clock
        self._monotonic = monotonic
        self._stopping = threading.Event()
        self._awake = threading.Event()
        self._events = EventRecorder(MOST_EVENTS, repeat_seconds=AGAIN_SECONDS, keeps_newest=True)
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()  # changed under the lock
        # Only the status manager's thread uses the attributes below.
        self._backoff = ItemBackoff(random.random)
        self._due = DueTime()
        self._context = WriteContext(
            cluster, adapter, desired, failpoint, clock, monotonic, OwnWrites(), self._due
        )
        self._pods = PodWriter(self._context)
        self._node = NodeWriter(self._context)
        self._unhealthy = UnhealthyWriter(self._context, self._node)
        self._thread = threading.Thread(target=self._work, name="status-manager", daemon=True)

    # ------------------------------------------------------------ any thread's side

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def stop(self) -> None:
        """Stop writing; the rest is written after the next start."""
        self._stopping.set()
        self._awake.set()
        self._thread.join(PATIENCE_SECONDS)

    def wake(self) -> None:
        """Something may have to be written."""
        self._awake.set()

    def record_event(self, about: Pod | PodRef | Node, reason: EventReason, message: str) -> None:
        """Write a warning event, unless an equal one was written lately."""
        self._events.record(note(about, reason, message, self._clock()))
        self._awake.set()

    def counts(self) -> Mapping[tuple[str, str], int]:
        """Number of writes by :class:`WriteTarget` and :class:`WriteResult`."""
        with self._lock:
            return dict(self._counts)

    # ------------------------------------------------------------ the thread's side

    def _work(self) -> None:
        while not self._stopping.is_set():
            try:
                seconds = self.round()
            except Exception:
                log.exception("unexpected error while writing to the API server")
                seconds = NODE_SECONDS
            self._awake.wait(seconds)
            self._awake.clear()

    def round(self) -> float:
        """Write all that is due; returns the seconds after which a write may be due again."""
        self._due.seconds = self._monotonic() + NODE_SECONDS
        desired = self._context.desired()
        writes = self._writes(desired) if desired else []
        self._backoff.prune({write.key for write in writes})
        for write in sorted(writes, key=lambda write: self._backoff.failures(write.key)):
            if self._stopping.is_set() or not self._tried(write):
                break
        return max(0.0, self._due.seconds - self._monotonic())

    def _writes(self, desired: DesiredState) -> list[Write]:
        """All possible writes; first those that schedulers wait for."""
        version = desired.node.resource_version if desired.node else ""
        pods = [
            Write(
                WriteKey(WriteTarget.POD, uid),
                desired.pods[uid].resource_version,
                partial(self._write_pod, desired, uid),
            )
            for uid in self._pods.pending(desired)
        ]
        return [
            *pods,
            Write(WriteKey(WriteTarget.LOCK), version, self._node.release_lock),
            Write(WriteKey(WriteTarget.NODE), version, self._node.write_annotations),
            Write(WriteKey(WriteTarget.CAPACITY), "", self._node.write_capacity),
            Write(WriteKey(WriteTarget.UNHEALTHY), "", self._unhealthy.write),
            Write(WriteKey(WriteTarget.EVENT), "", self._write_event),
        ]

    def _write_pod(self, desired: DesiredState, uid: str) -> bool:
        if not self._pods.write(desired, uid):
            return False
        if self._backoff.failures(WriteKey(WriteTarget.POD, uid)):
            self._due.no_later_than(0.0)  # the pod's lock, which was looked at before
        return True

    def _write_event(self) -> bool:
        event = self._events.take()
        if len(self._events):
            self._due.no_later_than(0.0)  # the next lock
        if event is None:
            return False
        try:
            self._context.cluster.write_event(event)
        except ClusterError as error:
            if error.status in _BUSY:
                self._events.put_back(event)
            raise
        return True

    def _tried(self, write: Write) -> bool:
        """Write it, if it may be tried now; returns whether the server can be reached."""
        key, now = write.key, self._monotonic()
        until = self._backoff.until(key, write.version)
        if until > now:
            self._due.no_later_than(until)
            return True
        try:
            if write.write():
                self._count(key.target, WriteResult.WRITTEN)
        except ClusterError as error:
            self._failed(write, error, error.status)
            return error.status != 0
        except (SourceError, DroppedError) as error:
            self._failed(write, error, None)
        except Exception:
            log.exception("unexpected error while writing to the API server", extra=key.fields())
            self._count(key.target, WriteResult.FAILED)
            self._backoff.add(key, now, write.version)
        else:
            self._backoff.forget(key)
        return True

    def _failed(self, write: Write, error: Exception, status: int | None) -> None:
        result = WriteResult.FAILED
        if status in _MOVED_ON:
            result = WriteResult.MOVED_ON
        elif status == _GONE:
            result = WriteResult.GONE  # the watch will show that
        moved_on = result is not WriteResult.FAILED
        self._count(write.key.target, result)
        until = self._backoff.add(write.key, self._monotonic(), write.version, moved_on=moved_on)
        self._due.no_later_than(until)
        level = logging.INFO if moved_on else logging.WARNING
        fields = {**write.key.fields(), "reason": str(error)}
        log.log(level, "not written to the API server", extra=fields)

    def _count(self, target: WriteTarget, result: WriteResult) -> None:
        with self._lock:
            self._counts[target.value, result.value] += 1
