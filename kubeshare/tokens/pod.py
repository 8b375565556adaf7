"""The token of one pod, which all its processes share. Pure: no I/O.

A process whose burst fits into what is left of the pod's quota is answered at once. Any other one
waits for the next token of the pod, and so does every process that asks meanwhile. Gemini's pod
manager (``src/pod-manager.cpp``) does the same, but for one thing: it takes the longest overuse and
burst of all connections that ever asked, of which Gemini 1.1 leaves thousands. Here they are those
of the process that asks first.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import Generic, TypeVar

from kubeshare.tokens.handover_record import PodTokenRecord
from kubeshare.tokens.scheduler import Ask, TokenGrant, Withdraw

Key = TypeVar("Key", bound=Hashable)


class PodToken(Generic[Key]):
    """The connections of one tenant that wait, and its token; times in microseconds."""

    __slots__ = ("_begin", "_end", "_tenant", "_waiting")

    def __init__(self, tenant: str) -> None:
        self._tenant = tenant
        self._begin: int | None = None
        self._end = 0
        self._waiting: dict[Key, int] = {}  # with the numbers of their messages

    @property
    def is_waiting(self) -> bool:
        """Whether a process waits for the next token."""
        return bool(self._waiting)

    def ask(
        self, connection: Key, id_: int, overuse: int, burst: int, now: int
    ) -> int | Ask | None:
        """A quota to answer at once, or what the scheduler has to know; None to wait as well."""
        left = self._end - now
        if not self._waiting and left > 0 and burst <= left:
            return left
        is_first = not self._waiting
        self._waiting[connection] = id_
        return Ask(self._tenant, overuse, burst) if is_first else None

    def grant(self, grant: TokenGrant) -> Mapping[Key, int]:
        """The connections that get the quota as answer, with the numbers of their messages."""
        self._begin, self._end = grant.start, grant.start + grant.quota
        answered, self._waiting = self._waiting, {}
        return answered

    def returned(self, now: int, overuse: int) -> int:
        """The pod has returned its token; for how long it had it, 0 if it had none."""
        begin, self._begin = self._begin, None
        return 0 if begin is None else min(now, self._end + overuse) - begin

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
