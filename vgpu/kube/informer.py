"""One kind of object at the API server, followed by a list and a watch on a thread of its own.

The list costs the server once, the watch then what changes. The thread alone talks to the server;
:meth:`Informer.state` only hands out what it has, with how long ago the server last showed that
this is up to date. A broken watch goes on from the last version that was heard, with full-jitter
back-off. Where the server does not know that version any more, all is listed anew, and nothing is
forgotten before the new list is complete. An object that cannot be read is known to be there, by
its key, and costs the others nothing.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Generic, Protocol, TypeVar

import msgspec

from vgpu.kube.documents import EventType, Expired, WatchEvent
from vgpu.kube.objects import MalformedObject
from vgpu.reasons import Reason, SourceError

log = logging.getLogger(__name__)

STALE_SECONDS: Final = 180.0
"""What the server last said counts so long: it sends a bookmark about every minute."""

FIRST_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 60.0
ABSENT_PAUSE_SECONDS: Final = 60.0
"""So often a kind that the server does not have is asked for again."""

IN_THE_WAY: Final = frozenset(
    {Reason.UNREACHABLE, Reason.RATE_LIMITED, Reason.TIMEOUT, Reason.FORBIDDEN}
)
"""These keep us from the server, and say nothing against the version to go on from."""

_Object = TypeVar("_Object")


class ListWatcher(Protocol[_Object]):
    """The API server, asked for all objects of one kind. Both raise SourceError, or Expired."""

    def list(self) -> tuple[Sequence[_Object | MalformedObject], str]:
        """The objects, and the resource version to watch from.

        The version is "" where the server does not have the kind, so that there is nothing to
        watch.
        """
        ...

    def watch(self, version: str) -> Iterator[WatchEvent[_Object]]:
        """What happens from ``version`` on, until the server ends it."""
        ...


class InformerState(msgspec.Struct, Generic[_Object], frozen=True):
    """What a mirror has at one moment.

    Attributes:
        objects: those that are kept, by their key; the same mapping as long as nothing changes.
        silent: seconds since the server last said something; None before the first list.
        failure: why it is not heard now, if it is not.
        synced: whether the first list is complete, and the server was heard lately.
        malformed: those that are there and cannot be read.
    """

    objects: Mapping[str, _Object]
    silent: float | None = None
    failure: SourceError | None = None
    synced: bool = False
    malformed: tuple[MalformedObject, ...] = ()


class Informer(Generic[_Object]):
    """Follows one kind from :meth:`start` on. Safe to be asked from any thread."""

    def __init__(
        self,
        api: ListWatcher[_Object],
        subject: str,
        *,
        key: Callable[[_Object | MalformedObject], str],
        keep: Callable[[_Object], bool] = lambda _: True,
        changed: Callable[[], object] = lambda: None,
        stale_seconds: float = STALE_SECONDS,
        pause: Callable[[float], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``subject`` is what failures are said of.

        ``key`` tells objects apart; of those that ``keep`` does not want none is kept. ``changed``
        is called on the mirror's thread after every change and failure, to wake up who waits.
        ``pause`` waits so many seconds, and less when the mirror is closed; ``clock`` tells seconds
        that never go back.
        """
        self._api = api
        self._subject = subject
        self._key = key
        self._keep = keep
        self._changed = changed
        self._stale_seconds = stale_seconds
        self._stop = threading.Event()
        self._pause = pause or self._stop.wait
        self._clock = clock
        self._lock = threading.Lock()
        self._tried = threading.Event()
        self._objects: dict[str, _Object] = {}
        self._malformed: dict[str, MalformedObject] = {}
        self._handed_out: Mapping[str, _Object] | None = None
        self._heard: float | None = None
        self._failure: SourceError | None = None
        self._version = ""
        self._attempts = 0
        self._thread = threading.Thread(target=self._follow, name="api-watch", daemon=True)

    def start(self) -> bool:
        """Begin to follow; whether it had not begun before."""
        with self._lock:
            begun = self._thread.ident is not None
            if not begun:
                self._thread.start()
        return not begun

    def wait(self, seconds: float) -> bool:
        """Wait until the first list has come, or has failed; whether it did so in time."""
        return self._tried.wait(seconds)

    def state(self) -> InformerState[_Object]:
        """What it has now. Never asks the server; costs a copy after a change, else nothing."""
        with self._lock:
            if self._handed_out is None:
                self._handed_out = self._objects.copy()
            silent = None if self._heard is None else self._clock() - self._heard
            synced = silent is not None and silent <= self._stale_seconds
            malformed = tuple(self._malformed.values())
            return InformerState(self._handed_out, silent, self._failure, synced, malformed)

    def close(self) -> None:
        """Follow no longer; a read under way is left to itself."""
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
                log.exception("following the API server failed on a defect")
                self._fail(SourceError(Reason.INTERNAL, self._subject))
            if self._attempts:
                self._pause(pause_seconds(self._attempts, random.random()))  # noqa: S311  # jitter

    def _list(self) -> str:
        objects, version = self._api.list()
        kept: dict[str, _Object] = {}
        malformed: dict[str, MalformedObject] = {}
        for each in objects:
            if isinstance(each, MalformedObject):
                malformed[self._key(each)] = each
            elif self._keep(each):
                kept[self._key(each)] = each
        with self._lock:
            self._objects, self._malformed = kept, malformed
            self._handed_out = None
            self._note()
        if not version:
            self._attempts = 0
        self._tried.set()
        self._changed()
        return version

    def _watch(self) -> None:
        """One watch, to its end."""
        silent = True
        for event in self._api.watch(self._version):
            silent = False
            self._version = event.resource_version or self._version
            self._hear(event)
            if self._stop.is_set():
                return
        # The server ends every watch after some minutes. One that never said a word must not be
        # opened again without end, and not from that version: where etcd was set back to a backup,
        # it lies in a future that the server would wait for.
        self._attempts += 1
        if silent:
            self._version = ""

    def _hear(self, event: WatchEvent[_Object]) -> None:
        about = event.object
        with self._lock:
            changed = about is not None and self._take(event.type, about)
            if changed:
                self._handed_out = None
            self._attempts = 0
            self._note()
        if changed:
            self._changed()

    def _take(self, type_: EventType, about: _Object | MalformedObject) -> bool:
        """Whether it makes a difference."""
        key = self._key(about)
        known = key in self._objects or key in self._malformed
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

    def _note(self) -> None:
        """The server has answered: what failed before is over."""
        if self._failure is not None:
            log.info("%s: the API server answers again", self._subject)
        self._heard, self._failure = self._clock(), None

    def _fail(self, error: SourceError) -> None:
        if isinstance(error, Expired) and self._failure is not None:
            self._attempts = 0  # the first word after an outage: it is back, and a list is due
        self._attempts += 1
        if error.reason not in IN_THE_WAY:
            self._version = ""
        with self._lock:
            if not isinstance(error, Expired):  # a list will mend that
                self._failure = error
        self._tried.set()  # who waits for the first list need not wait any longer
        self._changed()


def pause_seconds(attempts: int, luck: float) -> float:
    """How long to wait after so many failures in a row; ``luck`` is uniform in 0..1.

    Full jitter: so that the clients of a cluster do not come back all at once.
    """
    doublings = min(attempts - 1, 16)
    return luck * min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * (1 << doublings))
