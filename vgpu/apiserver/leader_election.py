"""Leader election: of several candidates the holder of a Lease acts, as in client-go.

No clock is compared with another. The holder renews the Lease every two seconds, and stops acting
ten seconds after it *sent* the last successful write, whatever hangs meanwhile. The others take the
Lease only fifteen seconds after they *saw* its last change, each by its own clock; a write names
the version that it replaces. So two never lead at once while no clock is more than half as fast
again as another. A candidate that stops in good order releases the Lease at once.

:class:`Election` decides without I/O: it yields its requests to the API server, and is sent the
answers. :class:`LeaderElector` makes the requests, on a thread of its own.
"""

import logging
import random
import threading
import time
import uuid
from collections.abc import Callable, Generator
from http import HTTPStatus
from typing import Final, Protocol

import msgspec

from vgpu.apiserver.connection import ClusterError
from vgpu.model.objects import Lease
from vgpu.model.reasons import SourceError

log = logging.getLogger(__name__)

LEASE_SECONDS: Final = 15
"""Minimum time without a renewal after which others take the Lease, in seconds."""

RENEW_SECONDS: Final = 10.0
"""Maximum time that the holder acts after its last renewal, in seconds."""

RETRY_SECONDS: Final = 2.0
"""Interval between two renewals, and between two reads of another's Lease, in seconds."""

JITTER: Final = 0.2
"""Maximum part by which an interval is longer or shorter."""

RELEASE_SECONDS: Final = 5.0
"""Maximum time that the end of a program waits for the release of the Lease, in seconds."""

Step = Generator[Lease | None, Lease | None, None]
"""Yields a Lease to write, or None to read it; is sent the new Lease, None if there is none, or has
the error thrown into it."""


class Leases(Protocol):
    """The API server. Both methods raise ClusterError and SourceError."""

    def lease(self, namespace: str, name: str) -> Lease | None:
        """A Lease, None if there is none of that name."""
        ...

    def write_lease(self, lease: Lease) -> Lease:
        """Replace the version that it names, or create it; returns the new Lease."""
        ...


class Election:
    """The knowledge and decisions of one candidate. No I/O."""

    def __init__(
        self,
        namespace: str,
        name: str,
        identity: str,
        *,
        monotonic: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        """``namespace`` and ``name`` are the Lease's.

        ``identity`` must be unique, even among earlier processes.

        ``monotonic`` returns seconds that never go back; ``clock`` unix seconds, for people.
        """
        self.identity = identity
        self.holder = ""
        self.rival = ""
        self._place = Lease(namespace, name)
        self._monotonic = monotonic
        self._clock = clock
        self._ours: Lease | None = None
        self._seen: Lease | None = None
        self._seen_at = 0.0
        self._until = float("-inf")

    def leads(self) -> bool:
        """Whether the candidate may act at this moment."""
        return self._monotonic() < self._until

    def step(self) -> Step:
        """Renew the Lease, or take it if it is free. Does not catch the errors thrown into it."""
        if self._ours is not None:
            try:
                yield from self._write(self._ours)
            except ClusterError as error:
                if error.status not in _CONFLICTING:
                    raise
            else:
                return
        lease = yield None
        self._observe(lease)
        if lease is None or lease.holder in ("", self.identity) or self._expired():
            yield from self._write(lease or self._place)

    def release(self) -> Step:
        """Release the Lease if it is ours; from now on the candidate does not lead.

        The Lease is read if it has another version than the one that was written last: the answer
        to a renewal may have been lost.
        """
        self._until = float("-inf")
        ours, self._ours = self._ours, None
        if ours is None:
            return
        try:
            yield self._released(ours)
        except ClusterError as error:
            if error.status not in _CONFLICTING:
                raise
            lease = yield None
            if lease is not None and lease.holder == self.identity:
                yield self._released(lease)

    def _released(self, lease: Lease) -> Lease:
        now = self._clock()
        return msgspec.structs.replace(lease, holder="", duration_seconds=1, renewed_at=now)

    def _observe(self, lease: Lease | None) -> None:
        """Note the Lease that was read, and when it last changed."""
        known, self.holder = self.holder, "" if lease is None else lease.holder
        if self.holder in ("", self.identity):
            self.rival = ""
        elif self.holder == known and lease != self._seen:
            self.rival = self.holder
        if lease != self._seen:  # its version differs even where a clock stands still
            self._seen_at = self._monotonic()  # after the answer, so not before the change
        self._seen = lease
        if self.holder != self.identity:
            self._ours = None
            self._until = float("-inf")

    def _expired(self) -> bool:
        """Whether the Lease has not changed for the holder's duration and for ``LEASE_SECONDS``."""
        asked = self._seen.duration_seconds if self._seen else 0
        return self._monotonic() - self._seen_at > max(asked, LEASE_SECONDS)

    def _write(self, before: Lease) -> Step:
        again = before.holder == self.identity
        changes_hands = bool(before.resource_version) and not again
        now = self._clock()
        sent_at = self._monotonic()
        written = yield msgspec.structs.replace(
            before,
            holder=self.identity,
            duration_seconds=LEASE_SECONDS,
            acquired_at=before.acquired_at if again else now,
            renewed_at=now,
            transitions=before.transitions + changes_hands,
        )
        self._ours = written
        self._observe(written)
        self._until = sent_at + RENEW_SECONDS


_CONFLICTING: Final = frozenset({HTTPStatus.CONFLICT, HTTPStatus.NOT_FOUND})


class LeaderElector:
    """One candidate, from :meth:`start` to :meth:`stop`. Any thread may use it."""

    def __init__(
        self,
        leases: Leases,
        namespace: str,
        name: str,
        identity: str,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        clock: Callable[[], float] = time.time,
        pause: Callable[[float], object] | None = None,
    ) -> None:
        """``namespace`` and ``name`` are the Lease's.

        ``identity`` is this process's name for people; it is made unique here.
        ``pause`` waits the seconds that it gets, or less when the elector is stopped.
        """
        self._leases = leases
        unique = f"{identity}_{uuid.uuid4().hex[:8]}"
        self._election = Election(namespace, name, unique, monotonic=monotonic, clock=clock)
        self._named = f"{namespace}/{name}"
        self._namespace, self._name = namespace, name
        self._stopped = threading.Event()
        self._pause = pause or self._stopped.wait
        self._thread = threading.Thread(target=self._run, name="leader", daemon=True)
        self._led = False
        self._failure = ""

    @property
    def identity(self) -> str:
        """Our name in the Lease."""
        return self._election.identity

    @property
    def holder(self) -> str:
        """The holder of the Lease when it was last read, "" if there was none."""
        return self._election.holder

    @property
    def rival(self) -> str:
        """The other holder, once it has renewed the Lease since we read it first; else ""."""
        return self._election.rival

    def start(self) -> None:
        """Become a candidate."""
        self._thread.start()

    def leads(self) -> bool:
        """Whether we may act at this moment; False as soon as we stop or cannot renew."""
        return not self._stopped.is_set() and self._election.leads()

    def stop(self) -> None:
        """Stop leading and release the Lease; call this when no action is under way any more.

        Waits RELEASE_SECONDS at most: a request that hangs is abandoned, and the Lease expires.
        """
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join(RELEASE_SECONDS)
            if self._thread.is_alive():
                log.warning(
                    "leader election did not end in time; the Lease expires by itself",
                    extra={"lease": self._named},
                )

    # ------------------------------------------------------------ the thread's side

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._ask(self._election.step())
            self._log()
            self._pause(RETRY_SECONDS * random.uniform(1 - JITTER, 1 + JITTER))  # noqa: S311
        self._ask(self._election.release())

    def _ask(self, step: Step) -> None:
        """Make the election's requests to the API server; never raises."""
        failure = ""
        try:
            self._converse(step)
        except (ClusterError, SourceError) as error:
            failure = str(error)
        except Exception:
            log.exception("leader election failed: unexpected error", extra={"lease": self._named})
        if failure and failure != self._failure:
            log.warning("leader election failed", extra={"lease": self._named, "err": failure})
        self._failure = failure

    def _converse(self, step: Step) -> None:
        try:
            wanted = next(step)
            while True:
                try:
                    answer = self._request(wanted)
                except (ClusterError, SourceError) as error:
                    wanted = step.throw(error)
                else:
                    wanted = step.send(answer)
        except StopIteration:
            return

    def _request(self, wanted: Lease | None) -> Lease | None:
        if wanted is None:
            return self._leases.lease(self._namespace, self._name)
        return self._leases.write_lease(wanted)

    def _log(self) -> None:
        led, self._led = self._led, self.leads()
        if self._led and not led:
            log.info("leadership gained", extra={"lease": self._named, "holder": self.identity})
        elif led and not self._led:
            log.warning("leadership lost", extra={"lease": self._named, "holder": self.holder})
