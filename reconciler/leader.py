"""Who of several reconcilers acts: the one that holds a Lease, as client-go's elections do it.

Nobody's clock is compared with another's. The holder writes the Lease anew every two seconds, and
stops acting ten seconds after it *sent* the last write that succeeded, whatever hangs meanwhile.
The others take the Lease only fifteen seconds after they *saw* it change for the last time, each
by its own clock; a write names the version that it replaces. So two never lead at once while no
clock runs half as fast again as another. Who stops politely gives the Lease back at once.

:class:`Election` decides and does nothing: it says what it would ask the API server, and is told
the answers. :class:`Leader` asks for it, on a thread of its own.
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

from vgpu.kube.connection import ClusterError
from vgpu.kube.objects import Lease
from vgpu.reasons import SourceError

log = logging.getLogger(__name__)

LEASE: Final = "vgpu-reconciler"
LEASE_SECONDS: Final = 15
RENEW_SECONDS: Final = 10.0
RETRY_SECONDS: Final = 2.0
JITTER: Final = 0.2
"""Pauses are by up to this part longer or shorter."""

RELEASE_SECONDS: Final = 5.0
"""So long the end of a program waits for the Lease to be given back."""

Step = Generator[Lease | None, Lease | None, None]
"""Yields a Lease to write or None to read it; is sent the Lease as it then is, None if there is
none, or has the error thrown into it."""


class Leases(Protocol):
    """The API server. Both raise ClusterError and SourceError."""

    def lease(self, namespace: str, name: str) -> Lease | None:
        """A Lease, None if there is none of that name."""
        ...

    def write_lease(self, lease: Lease) -> Lease:
        """Replace the version that it names, or create it; the Lease as it then is."""
        ...


class Election:
    """What one candidate knows and decides. No I/O."""

    def __init__(
        self,
        namespace: str,
        identity: str,
        *,
        name: str = LEASE,
        monotonic: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        """``identity`` must be nobody else's, not even an earlier process's.

        ``monotonic`` tells seconds that never go back; ``clock`` unix seconds, for people to read.
        """
        self.identity = identity
        self.holder = ""
        self._place = Lease(namespace, name)
        self._monotonic = monotonic
        self._clock = clock
        self._ours: Lease | None = None
        self._seen: Lease | None = None
        self._seen_at = 0.0
        self._until = float("-inf")

    def leads(self) -> bool:
        """Whether it may act at this moment."""
        return self._monotonic() < self._until

    def step(self) -> Step:
        """Renew the Lease, or take it if it is free. Does not catch the errors thrown into it."""
        if self._ours is not None:
            try:
                yield from self._write(self._ours)
            except ClusterError as error:
                if error.status not in _SOMEBODY_WROTE:
                    raise
            else:
                return
        found = yield None
        self._observe(found)
        if found is None or not found.holder or found.holder == self.identity or self._expired():
            yield from self._write(found or self._place)

    def release(self) -> Step:
        """Give the Lease back if it is ours; from now on it does not lead."""
        self._until = float("-inf")
        if self._ours is not None:
            ours, self._ours = self._ours, None
            now = self._clock()
            yield msgspec.structs.replace(ours, holder="", duration_seconds=1, renewed_at=now)

    def _observe(self, found: Lease | None) -> None:
        """Take note of what was read, and of when it was other than before."""
        self.holder = "" if found is None else found.holder
        if found != self._seen:  # its version differs even where a clock stands still
            self._seen_at = self._monotonic()  # after the answer: not before it was so
        self._seen = found
        if self.holder != self.identity:
            self._ours = None
            self._until = float("-inf")

    def _expired(self) -> bool:
        """Whether its holder has not been heard of for as long as it asked for, and as we do."""
        told = self._seen.duration_seconds if self._seen else 0
        return self._monotonic() - self._seen_at > max(told, LEASE_SECONDS)

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


_SOMEBODY_WROTE: Final = frozenset({HTTPStatus.CONFLICT, HTTPStatus.NOT_FOUND})


class Leader:
    """One candidate, from :meth:`start` to :meth:`stop`. Safe to be asked from any thread."""

    def __init__(
        self,
        leases: Leases,
        namespace: str,
        identity: str,
        *,
        name: str = LEASE,
        monotonic: Callable[[], float] = time.monotonic,
        clock: Callable[[], float] = time.time,
        pause: Callable[[float], object] | None = None,
    ) -> None:
        """``identity`` is what people know this process by; it is made unique here.

        ``pause`` waits so many seconds, and less when it is stopped.
        """
        self._leases = leases
        unique = f"{identity}_{uuid.uuid4().hex[:8]}"
        self._election = Election(namespace, unique, name=name, monotonic=monotonic, clock=clock)
        self._named = f"Lease {namespace}/{name}"
        self._namespace, self._name = namespace, name
        self._stopped = threading.Event()
        self._pause = pause or self._stopped.wait
        self._thread = threading.Thread(target=self._run, name="leader", daemon=True)
        self._led = False
        self._failure = ""

    @property
    def identity(self) -> str:
        """What the Lease calls us."""
        return self._election.identity

    @property
    def holder(self) -> str:
        """Who held the Lease when it was last read, "" if nobody."""
        return self._election.holder

    def start(self) -> None:
        """Become a candidate."""
        self._thread.start()

    def leads(self) -> bool:
        """Whether we may act at this moment; false at once when we stop or cannot renew."""
        return not self._stopped.is_set() and self._election.leads()

    def stop(self) -> None:
        """Lead no longer, and give the Lease back; call it when nothing is being done any more.

        Waits some seconds at most: what hangs is left behind, and the Lease expires by itself.
        """
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join(RELEASE_SECONDS)

    # ------------------------------------------------------------ the thread's side

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._ask(self._election.step())
            self._tell()
            self._pause(RETRY_SECONDS * random.uniform(1 - JITTER, 1 + JITTER))  # noqa: S311
        self._ask(self._election.release())

    def _ask(self, step: Step) -> None:
        """Ask the API server what the election wants to know; never raises."""
        failure = ""
        try:
            self._converse(step)
        except (ClusterError, SourceError) as error:
            failure = str(error)
        except Exception:
            log.exception("%s: the election failed on a defect", self._named)
        if failure and failure != self._failure:
            log.warning("%s: %s", self._named, failure)
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

    def _tell(self) -> None:
        led, self._led = self._led, self.leads()
        if self._led and not led:
            log.info("%s: %s leads now", self._named, self.identity)
        elif led and not self._led:
            log.warning("%s: we lead no longer; it is held by %s", self._named, self.holder)
