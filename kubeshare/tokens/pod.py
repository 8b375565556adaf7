"""The token and the memory of one pod, which all its processes share. Pure: no I/O.

A process whose burst fits into what is left of the pod's quota is answered at once. Any other one
waits for the next token of the pod, and so does every process that asks meanwhile. Gemini's pod
manager (``src/pod-manager.cpp``) does the same, but for one thing: it takes the longest overuse and
burst of all connections that ever asked, of which Gemini 1.1 leaves thousands. Here they are those
of the process that asks first.

A process asks what is left, allocates, and reports what it has allocated, which is booked; it also
reports what it is about to free. A process that ends closes its connections,
and what they have booked is released.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import Generic, TypeVar

from kubeshare.tokens.frames import QuotaTimes
from kubeshare.tokens.scheduler import Ask, TokenGrant, Withdraw
from kubeshare.tokens.takeover_record import PodTokenRecord

Key = TypeVar("Key", bound=Hashable)


# ---------------------------------------------------------------- memory


class MemoryBook(Generic[Key]):
    """Bytes by connection; their sum is never above the limit at the moment of a booking.

    Gemini 1.1 opens a connection for each message, so that another one frees than has booked, and
    which ones are of one process does not show. What a connection frees beyond its own bytes counts
    there with a minus: all connections of a process close at its end, and what is left then is what
    the other processes have, whoever has booked as many bytes as another one. Bookings of a size
    that are all freed are forgotten.

    Attributes:
        unattributed: bytes whose connection was closed before its process ended.
    """

    def __init__(self) -> None:
        self._shares: dict[Key, int] = {}
        self._sum = 0
        self.unattributed = 0

    def __contains__(self, connection: Key) -> bool:
        """Whether a connection has bytes, or has freed those of another one."""
        return connection in self._shares

    @property
    def booked(self) -> int:
        """The bytes of all together."""
        return max(0, self._sum + self.unattributed)

    def book(self, connection: Key, size: int, limit: int) -> bool:
        """Whether ``size`` bytes more are within ``limit``; they are booked if so."""
        if self.booked + size > limit:
            return False
        self._add(connection, size)
        return True

    def free(self, connection: Key, size: int) -> None:
        """Release ``size`` bytes; what nobody has booked is not released."""
        size = min(size, self.booked)
        own = min(size, max(0, self._shares.get(connection, 0)))
        self._add(connection, -own)
        rest = size - own
        if not rest:
            return
        if rest <= self.unattributed and rest not in self._shares.values():
            self.unattributed -= rest
        else:
            self._add(connection, -rest)
            self._settle(rest)

    def close(self, connection: Key) -> None:
        """Release all that a connection has booked."""
        self._sum -= self._shares.pop(connection, 0)

    def detach(self, connection: Key) -> None:
        """Keep what a connection has booked, which is closed before its process ends."""
        share = self._shares.pop(connection, 0)
        self._sum -= share
        self.unattributed += share

    def clear(self) -> None:
        """No process is left."""
        self._shares.clear()
        self._sum = self.unattributed = 0

    def record(self, numbers: Mapping[Key, int]) -> dict[int, int]:
        """The bytes by number of the connection, the oldest first."""
        return {numbers[key]: size for key, size in self._shares.items()}

    def restore(self, record: Mapping[int, int], unattributed: int, keys: Sequence[Key]) -> None:
        """Take over what another daemon has booked."""
        self._shares = {keys[number]: size for number, size in record.items()}
        self._sum = sum(self._shares.values())
        self.unattributed = unattributed

    def _add(self, key: Key, size: int) -> None:
        share = self._shares.pop(key, 0) + size
        self._sum += size
        if share:
            self._shares[key] = share

    def _settle(self, size: int) -> None:
        """Forget the bookings of a size if as many were freed."""
        booked = [key for key, share in self._shares.items() if share == size]
        freed = [key for key, share in self._shares.items() if share == -size]
        if len(booked) == len(freed):
            for key in (*booked, *freed):
                del self._shares[key]


# ---------------------------------------------------------------- the token


class PodToken(Generic[Key]):
    """The connections of one tenant that wait, and its token; times in microseconds."""

    __slots__ = ("_begin", "_end", "_tenant", "_waiting")

    def __init__(self, tenant: str) -> None:
        self._tenant = tenant
        self._begin: int | None = None
        self._end = 0
        self._waiting: dict[Key, int] = {}  # with the numbers of their messages

    def __contains__(self, connection: Key) -> bool:
        """Whether a connection waits for the next token."""
        return connection in self._waiting

    @property
    def is_waiting(self) -> bool:
        """Whether a process waits for the next token."""
        return bool(self._waiting)

    def ask(self, connection: Key, id_: int, times: QuotaTimes, now: int) -> int | Ask | None:
        """A quota to answer at once, or what the scheduler has to know; None to wait as well."""
        left = self._end - now
        if not self._waiting and left > 0 and times.burst <= left:
            return left
        is_first = not self._waiting
        self._waiting[connection] = id_
        return Ask(self._tenant, self._overuse(times, now), times.burst) if is_first else None

    def _overuse(self, times: QuotaTimes, now: int) -> int:
        """For how long kernels ran after the end of the last quota.

        A hook that does not send it sends its longest pause and its longest burst. Its kernels ran
        for all of ``now - end`` but at most one pause, and not longer than one burst:
        ``max(0, now - end - idle) <= overuse`` and ``overuse <= burst``. The lower bound counts.
        """
        if times.overuse is not None:
            return times.overuse
        if self._begin is None:
            return 0
        return max(0, min(times.burst, now - self._end - times.idle))

    def grant(self, grant: TokenGrant) -> Mapping[Key, int]:
        """The connections that get the quota as answer, with the numbers of their messages."""
        self._begin, self._end = grant.start, grant.start + grant.quota
        answered, self._waiting = self._waiting, {}
        return answered

    def returned(self, now: int, overuse: int) -> int:
        """The pod has returned its token; for how long it had it, 0 if it had none."""
        begin, self._begin = self._begin, None
        end, self._end = self._end, min(self._end, now)
        return 0 if begin is None else min(now, end + overuse) - begin

    def close(self, connection: Key) -> Withdraw | None:
        """A connection has closed; returns what the scheduler has to know."""
        waited = self._waiting.pop(connection, None) is not None
        return Withdraw(self._tenant) if waited and not self._waiting else None

    def record(self, numbers: Mapping[Key, int]) -> PodTokenRecord:
        """Its state, with the numbers of the connections."""
        waiting = {numbers[key]: id_ for key, id_ in self._waiting.items()}
        return PodTokenRecord(self._begin, self._end, waiting)

    def restore(self, record: PodTokenRecord, keys: Sequence[Key]) -> None:
        """Take over the state that another daemon had."""
        self._begin, self._end = record.begin, record.end
        self._waiting = {keys[number]: id_ for number, id_ in record.waiting.items()}
