"""One kind of object at the API server, followed by a list and a watch on a thread of its own.

The server sends one list, then only changes. Only the thread asks the server;
:meth:`Informer.state` returns what the informer has, with the time since the server last showed
that this is up to date. A broken watch continues from the last received version, with full-jitter
back-off. If the server does not have that version any more, all objects are listed again, and
nothing is forgotten before the new list is complete. An unreadable object is known by its key, and
the other objects stay readable.
"""

import logging
import math
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Generic, Protocol, TypeVar

import msgspec

from vgpu.apiserver.backoff import LONGEST_SECONDS, backoff_seconds
from vgpu.kube.documents import EventType, Expired, WatchEvent
from vgpu.model.objects import MalformedObject
from vgpu.model.reasons import Reason, SourceError

log = logging.getLogger(__name__)

STALE_SECONDS: Final = 180.0
"""Maximum age of the server's last event, in seconds: it sends a bookmark about every minute."""

ABSENT_PAUSE_SECONDS: Final = 60.0
"""Interval between two lists of a kind that the server does not have, in seconds."""

IN_THE_WAY: Final = frozenset(
    {Reason.UNREACHABLE, Reason.RATE_LIMITED, Reason.TIMEOUT, Reason.FORBIDDEN}
)
"""Failures in which the server was not reached, so that the watch's version stays valid."""

_Object = TypeVar("_Object")


class ListWatcher(Protocol[_Object]):
    """The API server, for all objects of one kind. Both methods raise SourceError, or Expired."""

    def list(self) -> tuple[Sequence[_Object | MalformedObject], str]:
        """The objects, and the resource version to watch from.

        The version is "" where the server does not have the kind, so that there is nothing to
        watch.
        """
        ...

    def watch(
        self, version: str, opened: Callable[[], object] = lambda: None
    ) -> Iterator[WatchEvent[_Object]]:
        """The events from ``version`` on, until the server ends the watch.

        ``opened`` is called when the server has accepted the watch, before the first event.
        """
        ...


class InformerHealth(msgspec.Struct, frozen=True, kw_only=True):
    """Whether an informer is up to date at one moment.

    Attributes:
        silent: seconds since the server's last event; None before the first list.
        failure: why the server does not answer now, if it does not.
        synced: whether the first list is complete, and the last event is not stale.
    """

    silent: float | None = None
    failure: SourceError | None = None
    synced: bool = False


class InformerState(InformerHealth, Generic[_Object], frozen=True, kw_only=True):
    """What an informer has at one moment.

    Attributes:
        objects: the kept objects, by key; the same mapping while nothing changes.
        malformed: the unreadable objects.
    """

    objects: Mapping[str, _Object]
    malformed: tuple[MalformedObject, ...] = ()


class Informer(Generic[_Object]):
    """Follows one kind from :meth:`start` on. Any thread may use it."""

    def __init__(
        self,
        api: ListWatcher[_Object],
        object_name: str,
        *,
        key: Callable[[_Object | MalformedObject], str],
        keep: Callable[[_Object], bool] = lambda _: True,
        changed: Callable[[], object] = lambda: None,
        enqueue: Callable[[str], object] = lambda _: None,
        stale_seconds: float = STALE_SECONDS,
        longest_pause: float = LONGEST_SECONDS,
        list_after: float = math.inf,
        pause: Callable[[float], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``object_name`` is the source that errors name.

        ``key`` identifies an object; objects that ``keep`` refuses are dropped. ``changed`` is
        called on the informer's thread after every change and failure, to wake up waiting threads;
        ``enqueue`` with the key of each object that has changed or is gone, and after a list with
        all keys, since earlier changes are unknown. It is a work queue's ``add``. ``longest_pause``
        is the maximum interval between two tries, in seconds. A watch that fails after more than
        ``list_after`` seconds of silence is followed by a list. ``pause`` waits the seconds that it
        gets, or less when the informer is closed; ``clock`` returns seconds that never go back.
        """
        self._api = api
        self._object_name = object_name
        self._key = key
        self._keep = keep
        self._changed = changed
        self._enqueue = enqueue
        self._stale_seconds = stale_seconds
        self._longest_pause = longest_pause
        self._list_after = list_after
        self._stop = threading.Event()
        self._pause = pause or self._stop.wait
        self._clock = clock
        self._lock = threading.Lock()
        self._tried = threading.Event()
        self._objects: dict[str, _Object] = {}
        self._malformed: dict[str, MalformedObject] = {}
        self._snapshot: Mapping[str, _Object] | None = None
        self._heard_at: float | None = None
        self._failure: SourceError | None = None
        self._is_back = False
        self._version = ""
        self._attempts = 0
        self._thread = threading.Thread(target=self._follow, name="api-watch", daemon=True)

    def start(self) -> bool:
        """Begin to follow; returns whether it had not begun before."""
        with self._lock:
            begun = self._thread.ident is not None
            if not begun:
                self._thread.start()
        return not begun

    def wait(self, seconds: float) -> bool:
        """Wait until the first list has come, or has failed; returns whether it did so in time."""
        return self._tried.wait(seconds)

    def health(self) -> InformerHealth:
        """Whether the state is up to date; costs the same however many objects there are."""
        with self._lock:
            return self._health()

    @property
    def silent(self) -> float | None:
        """Seconds since the server's last event; None before the first list."""
        heard_at = self._heard_at
        return None if heard_at is None else self._clock() - heard_at

    def state(self) -> InformerState[_Object]:
        """The current state. Never asks the server; copies the objects only after a change."""
        with self._lock:
            if self._snapshot is None:
                self._snapshot = self._objects.copy()
            health = self._health()
            return InformerState(
                objects=self._snapshot,
                silent=health.silent,
                failure=health.failure,
                synced=health.synced,
                malformed=tuple(self._malformed.values()),
            )

    def _health(self) -> InformerHealth:
        silent = self.silent
        synced = silent is not None and silent <= self._stale_seconds
        return InformerHealth(silent=silent, failure=self._failure, synced=synced)

    def get(self, key: str) -> _Object | MalformedObject | None:
        """The object of a key, readable or not; None if there is none that is kept."""
        with self._lock:
            return self._objects.get(key) or self._malformed.get(key)

    def close(self) -> None:
        """Stop following, without waiting for a read that is under way."""
        self._stop.set()

    # ------------------------------------------------------------ the thread's side

    def _follow(self) -> None:
        while not self._stop.is_set():
            try:
                self._version = self._version or self._list()
                if self._version:
                    self._watch()
                else:
                    self._pause(ABSENT_PAUSE_SECONDS)
            except SourceError as error:
                self._fail(error)
            except Exception:
                log.exception("watch failed: unexpected error", extra={"object": self._object_name})
                self._fail(SourceError(Reason.INTERNAL, self._object_name))
            if self._attempts:
                jitter = random.random()  # noqa: S311
                self._pause(backoff_seconds(self._attempts, jitter, longest=self._longest_pause))

    def _list(self) -> str:
        objects, version = self._api.list()
        kept: dict[str, _Object] = {}
        malformed: dict[str, MalformedObject] = {}
        for object_ in objects:
            if isinstance(object_, MalformedObject):
                malformed[self._key(object_)] = object_
            elif self._keep(object_):
                kept[self._key(object_)] = object_
        keys = self._objects.keys() | self._malformed.keys() | kept.keys() | malformed.keys()
        for key, broken in malformed.items():
            self._log(key, broken)
        with self._lock:
            self._objects, self._malformed = kept, malformed
            self._snapshot = None
            self._note()
        if not version:
            self._attempts = 0
        self._tried.set()
        for key in sorted(keys):
            self._enqueue(key)
        self._changed()
        return version

    def _watch(self) -> None:
        """One watch, to its end."""
        silent = True
        for event in self._api.watch(self._version, self._opened):
            silent = False
            self._version = event.resource_version or self._version
            self._hear(event)
            if self._stop.is_set():
                return
        # The server ends every watch after some minutes. A watch without any event must not be
        # opened again forever, and not from that version: if etcd was restored from a backup, the
        # version is in the future, and the server would wait for it.
        self._attempts += 1
        if silent:
            self._version = ""

    def _hear(self, event: WatchEvent[_Object]) -> None:
        about = event.object
        with self._lock:
            changed = about is not None and self._take(event.type, about)
            if changed:
                self._snapshot = None
            self._attempts = 0
            self._note()
        if about is not None and changed:
            self._enqueue(self._key(about))
            self._changed()

    def _take(self, type_: EventType, about: _Object | MalformedObject) -> bool:
        """Apply the event; returns whether it changes anything."""
        key = self._key(about)
        known = key in self._objects or key in self._malformed
        if isinstance(about, MalformedObject) and type_ is not EventType.DELETED:
            self._log(key, about)
        self._malformed.pop(key, None)
        if isinstance(about, MalformedObject):
            self._objects.pop(key, None)
            if type_ is not EventType.DELETED:
                self._malformed[key] = about
            return True
        if type_ is EventType.DELETED or not self._keep(about):
            self._objects.pop(key, None)
            return known
        self._objects[key] = about
        return True

    def _log(self, key: str, broken: MalformedObject) -> None:
        """Log an object that cannot be read, once for each thing that is wrong with it."""
        known = self._malformed.get(key)
        if known is None or (known.ref.uid, known.detail) != (broken.ref.uid, broken.detail):
            fields = {"object": broken.title, "reason": broken.detail}
            log.warning("object cannot be read", extra=fields)

    def _opened(self) -> None:
        """The server has accepted the watch, which ends a failure; that is no event."""
        with self._lock:
            if self._failure is None:
                return
            self._end_failure()
            self._is_back = True
        self._changed()

    def _end_failure(self) -> None:
        if self._failure is not None:
            log.info("API server answers again", extra={"object": self._object_name})
        self._failure = None

    def _note(self) -> None:
        """Note that the server has answered, which ends an earlier failure."""
        self._end_failure()
        self._heard_at, self._is_back = self._clock(), False

    def _fail(self, error: SourceError) -> None:
        if isinstance(error, Expired) and (self._is_back or self._failure is not None):
            self._attempts = (
                0  # the first answer after an outage: the server is back, and a list is due
            )
        self._attempts += 1
        heard_at = self._heard_at
        outage = 0.0 if heard_at is None else self._clock() - heard_at
        if error.reason not in IN_THE_WAY or outage > self._list_after:
            self._version = ""
        with self._lock:
            if not isinstance(error, Expired):  # a list will repair that
                self._failure = error
        self._tried.set()  # a thread that waits for the first list need not wait any longer
        self._changed()
