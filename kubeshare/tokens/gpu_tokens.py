"""The tenants of one GPU: who waits, what they have booked, and what they are answered. No I/O.

The scheduler decides in :mod:`kubeshare.tokens.scheduler`; here its grants become answers to
connections, and events are counted.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, Generic, Self, TypeVar

import msgspec

from kubeshare.tenant_identity import TenantEntry
from kubeshare.tokens.frames import (
    LimitRequest,
    MalformedMessage,
    QuotaRequest,
    Request,
    limit_response,
    opens_a_connection_for_each_message,
    quota_response,
    times,
    update_response,
)
from kubeshare.tokens.pod import MemoryBook, PodToken
from kubeshare.tokens.scheduler import (
    Configure,
    Event,
    Leave,
    Tenant,
    Tick,
    TokenGrant,
    TokenMode,
    TokenRules,
    TokenState,
    step,
    used,
    window_at,
)
from kubeshare.tokens.takeover_record import GpuRecord, HeldRecord, PodRecord, TenantCounts

Key = TypeVar("Key", bound=Hashable)

NEVER: Final = 1 << 62
"""A time that never comes, in microseconds."""

HOLD: Final = 8_000_000
"""Maximum time for which a memory message waits for its tenant's share or address, in microseconds.
Gemini's hook sends it again after 10 s, and is then out of step."""


MAX_CONNECTIONS: Final = 512
"""Maximum number of connections of a tenant: one for each process, and those that Gemini 1.1 opens
for each message and does not close."""

MAX_OTHER_CONNECTIONS: Final = 64
"""Maximum number of connections through a tenant's port from other addresses."""

KEPT_CONNECTIONS: Final = 16
"""Number of a tenant's newest connections that are not closed for newer ones. A thread of Gemini
1.1 asks through the newest one of its process, also if another thread has opened it."""

MOST_REPLACED: Final = 2
"""Maximum number of a tenant's connections that are closed for a newer one: a tenant with too many
has fewer with each."""

MANY_MESSAGES: Final = 16
"""An id that shows Gemini 1.0, if the connection began with 0. In a process of 1.1 as many threads
would have begun at once: each connects, and all send through the newest connection."""

UNKNOWN_ID: Final = -1
"""The first id of a connection that has sent it to an older daemon, which kept none."""


class TokenTenantView(msgspec.Struct, frozen=True):
    """What the page of metrics shows of a tenant; times in microseconds, memory in bytes.

    ``quota`` is the length of its last token, or that of its first one; None without a share.
    ``opened`` is the number of connections that it has ever opened, ``unattributed`` the part of
    what is booked whose connection was closed.
    ``held_time`` is the time from the grants of its tokens to their returns, and until now.
    """

    entry: TenantEntry
    held: bool
    waiting: bool
    window_share: float
    booked: int
    connections: int
    quota: int | None
    counts: TenantCounts
    opened: int = 0
    unattributed: int = 0
    held_time: int = 0


class _PodState(Generic[Key]):
    """A pod with its connections."""

    __slots__ = (
        "asked_at",
        "book",
        "closes_none",
        "connections",
        "counts",
        "entry",
        "first_ids",
        "is_listed",
        "names",
        "opened",
        "token",
    )

    def __init__(self, entry: TenantEntry) -> None:
        self.configure(entry)
        self.token = PodToken[Key](entry.name)
        self.book = MemoryBook[Key]()
        self.connections: dict[Key, str] = {}  # with their addresses
        self.first_ids: dict[Key, int] = {}  # of the first message of each
        self.closes_none = False  # a hook of it opens a connection for each message
        self.is_listed = True
        self.opened = 0
        self.asked_at = 0
        self.counts = TenantCounts()

    def configure(self, entry: TenantEntry) -> None:
        """Take what the files have of it."""
        self.entry = entry
        self.names = {entry.key.encode(), entry.name.encode()} - {b""}

    def may_speak(self, key: Key) -> bool:
        """Whether a connection comes from the pod, as far as its addresses are known."""
        known = self.entry.addresses
        return not known or self.connections[key] in known

    @property
    def is_there(self) -> bool:
        """Whether one of its processes is; one that waits for a token has come from its address."""
        return self.token.is_waiting or any(map(self.may_speak, self.connections))


Answer = tuple[Key, bytes, bool]
"""A connection, the response to it, and whether that is a token."""


class GpuTokens(Generic[Key]):
    """The pods of one GPU; ``Key`` identifies a connection. For one thread.

    Times are microseconds. ``wake_at`` is when :meth:`tick` has to be called; NEVER is never.
    ``max_connections`` is the maximum number of connections of each tenant, ``max_others`` that of
    others through its port.
    """

    def __init__(self, rules: TokenRules, now: int) -> None:
        self._rules = rules
        self._state = TokenState(now)
        self._pods: dict[str, _PodState[Key]] = {}
        self._pod_of: dict[Key, _PodState[Key]] = {}
        self._token_at: int | None = None
        self._held: dict[Key, tuple[int, _PodState[Key], Request]] = {}
        self.wake_at = NEVER
        self.max_connections, self.max_others = MAX_CONNECTIONS, MAX_OTHER_CONNECTIONS

    def configure(self, entries: Iterable[TenantEntry], now: int) -> list[Answer[Key]]:
        """Take the tenants of the files; a pod that is gone from them stays until it has closed."""
        wanted = {entry.name: entry for entry in entries}
        for name, entry in wanted.items():
            pod = self._pods.get(name)
            if pod is None:
                self._pods[name] = _PodState(entry)
            else:
                pod.configure(entry)
        for name, pod in [*self._pods.items()]:
            pod.is_listed = name in wanted
            self._forget_if_gone(name)
        tenants = tuple(
            Tenant(name, pod.entry.share.request_milli, pod.entry.share.limit_milli)
            for name, pod in self._pods.items()
            if pod.entry.share is not None
        )
        answers = self._step(Configure(tenants), now)
        for key, (_, pod, request) in [*self._held.items()]:
            if not self._is_held(pod, pod.may_speak(key), request):
                del self._held[key]
                answers += self._respond(pod, key, request, now)
        return answers + self._refuse_held(now)

    def record(self, numbers: Mapping[Key, int]) -> GpuRecord:
        """Its state, for another daemon; ``numbers`` are those of the connections."""
        pods = tuple(
            PodRecord(
                pod.entry,
                pod.is_listed,
                {numbers[key]: address for key, address in pod.connections.items()},
                pod.token.record(numbers),
                pod.book.record(numbers),
                pod.opened,
                pod.asked_at,
                pod.counts,
                {numbers[key]: id_ for key, id_ in pod.first_ids.items()},
                pod.book.unattributed,
            )
            for pod in self._pods.values()
        )
        held = {
            numbers[key]: HeldRecord(since, pod.entry.name, request)
            for key, (since, pod, request) in self._held.items()
        }
        return GpuRecord(self._state, self._token_at, pods, held)

    @classmethod
    def restored(cls, record: GpuRecord, rules: TokenRules, keys: Sequence[Key]) -> Self:
        """The state that another daemon had; ``keys`` are its connections by their numbers.

        Raises IndexError and KeyError for a record that contradicts itself.
        """
        gpu = cls(rules, 0)
        gpu._state, gpu._token_at = record.state, record.token_at  # its own
        for each in record.pods:
            pod = gpu._pods[each.entry.name] = _PodState(each.entry)
            pod.is_listed = each.is_listed
            pod.connections = {keys[number]: it for number, it in each.connections.items()}
            if each.first_ids is None:
                pod.first_ids = dict.fromkeys(pod.connections, UNKNOWN_ID)
            else:
                pod.first_ids = {keys[number]: id_ for number, id_ in each.first_ids.items()}
            own_ids = [id_ for key, id_ in pod.first_ids.items() if pod.may_speak(key)]
            pod.closes_none = any(map(opens_a_connection_for_each_message, own_ids))
            gpu._pod_of |= dict.fromkeys(pod.connections, pod)
            pod.token.restore(each.token, keys)
            pod.book.restore(each.booked, each.unattributed, keys)
            pod.opened, pod.asked_at, pod.counts = each.opened, each.asked_at, each.counts
        for number, held in record.held.items():
            gpu._held[keys[number]] = held.since, gpu._pods[held.pod], held.request
        gpu._set_wake_at()
        return gpu

    def limit_connections(self, each: int) -> None:
        """Have each tenant and others through its port have so many at most together."""
        self.max_others = min(MAX_OTHER_CONNECTIONS, each // 8)
        self.max_connections = min(MAX_CONNECTIONS, each - self.max_others)

    @property
    def is_empty(self) -> bool:
        """Whether it has no pods."""
        return not self._pods

    def connect(self, entry: TenantEntry, key: Key, address: str) -> list[Key]:
        """A connection has come through a tenant's port; returns those that have to be closed.

        That is the new one, or older ones that no process uses any more; none if there are not too
        many. Others than the tenant have their own maximum: they cannot use up the tenant's.
        """
        pod = self._pod_of[key] = self._pods[entry.name]
        pod.connections[key] = address
        if pod.may_speak(key):
            pod.opened += 1
            if len(pod.connections) <= self.max_connections:
                return []
            own, surplus = self._own(pod)
            if surplus <= 0:
                return []
            return self._replaced(pod, own, min(surplus, MOST_REPLACED)) or [key]
        others = sum(not pod.may_speak(each) for each in pod.connections)
        return [key] if others > self.max_others else []

    def surplus(self) -> list[Key]:
        """Connections of tenants with more than they may have, which no process uses any more."""
        surplus = []
        for pod in self._pods.values():
            own, number = self._own(pod)
            if number > 0:
                surplus += self._replaced(pod, own, number)
        return surplus

    def _own(self, pod: _PodState[Key]) -> tuple[list[Key], int]:
        """A pod's own connections, and how many more these are than it may have; also below 0."""
        own = [*filter(pod.may_speak, pod.connections)]
        return own, len(own) - self._most(pod, own)

    def _most(self, pod: _PodState[Key], own: Iterable[Key]) -> int:
        """How many connections of its own a pod may have now.

        An older daemon had a higher maximum, and what it hands over does not show which version the
        hook has. The first message of Gemini 1.1 does: until then its connections are not closed
        for newer ones, and so newer ones have to be accepted beside them.
        """
        if pod.closes_none:
            return self.max_connections
        unknown = sum(pod.first_ids.get(key) == UNKNOWN_ID for key in own)
        return max(self.max_connections, unknown + KEPT_CONNECTIONS if unknown else 0)

    def _replaced(self, pod: _PodState[Key], own: Sequence[Key], number: int) -> list[Key]:
        """Up to so many connections that make room for newer ones, the oldest ones of each kind.

        1. Gemini 1.1 opened it for a message, which is answered, and it has booked nothing.
        2. Nothing has come through it, in a pod with Gemini 1.1: another thread has opened a newer
           one before the message was sent.
        3. Like 1., but with a booking, which stays until the pod has no connection.
        """
        done: list[Key] = []
        silent: list[Key] = []
        booked: list[Key] = []
        kept = min(KEPT_CONNECTIONS, self.max_connections // 2 + 1)
        for key in islice(own, max(0, len(own) - kept)):
            if key not in pod.first_ids:
                silent += [key] if pod.closes_none else []
            elif self._is_done(pod, key):
                (booked if key in pod.book else done).append(key)
                if len(done) == number:
                    break
        replaced = [*done, *silent, *booked][:number]
        for key in replaced:
            pod.book.detach(key)
        pod.counts.replaced += len(replaced)
        return replaced

    def closes_none(self, key: Key) -> bool:
        """Whether the hook of a connection's pod opens a connection for each message."""
        return self._pod_of[key].closes_none

    def is_kept(self, key: Key, id_: int) -> bool:
        """Whether Gemini 1.0 keeps a connection for the life of its process; not if unsure.

        ``id_`` is that of a message which is not the first one.
        """
        pod = self._pod_of[key]
        if opens_a_connection_for_each_message(pod.first_ids.get(key, 0)):
            return False
        return id_ >= MANY_MESSAGES or not pod.closes_none

    def _is_done(self, pod: _PodState[Key], key: Key) -> bool:
        """Whether Gemini 1.1 has opened a connection for a message, which is answered."""
        first_id = pod.first_ids[key]
        is_newer = opens_a_connection_for_each_message(first_id)
        is_newer |= first_id == UNKNOWN_ID and pod.closes_none
        return is_newer and key not in pod.token and key not in self._held

    def disconnect(self, key: Key, now: int) -> list[Answer[Key]]:
        """A connection has closed: what it has booked is released."""
        pod = self._pod_of.pop(key)
        del pod.connections[key]
        pod.first_ids.pop(key, None)
        self._held.pop(key, None)
        pod.book.close(key)
        withdraw = pod.token.close(key)
        if not pod.is_there:
            pod.book.clear()
            pod.closes_none = False
            name = pod.entry.name
            pod.counts.used += pod.token.returned(now, 0)
            self._forget_if_gone(name)
            return self._step(Leave(name), now)
        return self._step(withdraw, now) if withdraw is not None else []

    def malformed(self, key: Key, kind: MalformedMessage) -> None:
        """Count a message that is wrong."""
        self._pod_of[key].counts.count_malformed(kind)

    def repeated(self, key: Key) -> None:
        """Count a message that has come before: its process has waited for 10 s."""
        self._pod_of[key].counts.repeated += 1

    def request(self, key: Key, request: Request, now: int) -> list[Answer[Key]]:
        """A message has come; returns the answers that can be sent now, also to others."""
        pod = self._pod_of[key]
        if pod.first_ids.setdefault(key, request.id) == UNKNOWN_ID:
            pod.first_ids[key] = 0  # it has carried an older message, as those of Gemini 1.0 do
        pod.counts.count_message(request)
        may_speak = pod.may_speak(key)
        if request.name not in pod.names:
            pod.counts.other_names += 1
        if not may_speak:
            pod.counts.other_addresses += 1
        if pod.entry.share is None:
            pod.counts.unknown += 1
        if self._is_held(pod, may_speak, request):
            self._held[key] = now, pod, request
            self._set_wake_at()
            return []
        return self._respond(pod, key, request, now)

    def _is_held(self, pod: _PodState[Key], may_speak: bool, request: Request) -> bool:
        """Whether a message waits for its tenant's share or address.

        A pod that was created again may speak from its new address before the files have it.
        """
        if may_speak and pod.entry.share is not None:
            return False
        is_token = isinstance(request, QuotaRequest) and self._rules.mode is TokenMode.LENIENT
        return not may_speak or not is_token

    def _respond(
        self, pod: _PodState[Key], key: Key, request: Request, now: int
    ) -> list[Answer[Key]]:
        """Only for a connection that may speak."""
        pod.closes_none |= opens_a_connection_for_each_message(pod.first_ids.get(key, 0))
        share = pod.entry.share
        if isinstance(request, QuotaRequest):
            return self._ask(pod, key, request, now)
        limit = share.memory_bytes if share is not None else 0
        if isinstance(request, LimitRequest):
            return [(key, limit_response(request.id, pod.book.booked, limit), False)]
        accepted = True
        if request.allocates:
            accepted = pod.book.book(key, request.bytes, limit)
            pod.counts.refused += not accepted
        else:
            pod.book.free(key, request.bytes)
        return [(key, update_response(request.id, accepted=accepted), False)]

    def end(self, now: int) -> list[Answer[Key]]:
        """The daemon ends, and no other one takes over: every process that waits is answered.

        Each pod of them gets a token of the minimum length, whoever has the GPU's token: a process
        takes the end of its connection for an answer, which has no quota, or any. Memory is
        refused.
        """
        least = self._rules.window.least
        answers: list[Answer[Key]] = []
        for key, (_, pod, request) in [*self._held.items()]:
            if not isinstance(request, QuotaRequest):
                continue
            del self._held[key]
            if pod.may_speak(key):
                answers.append((key, quota_response(request.id, least), True))
        for name, pod in self._pods.items():
            for key, id_ in pod.token.grant(TokenGrant(name, now, least)).items():
                answers.append((key, quota_response(id_, least), True))
        return answers + self._refuse_held(NEVER)

    def tick(self, now: int) -> list[Answer[Key]]:
        """Time has passed."""
        return self._step(Tick(), now) + self._refuse_held(now)

    def views(self, now: int) -> Iterator[TokenTenantView]:
        """The pods."""
        window = window_at(self._state, now, self._rules)
        holder = self._state.holder
        for name, pod in self._pods.items():
            known = self._state.tenants.get(name)
            time = used(known, now, window) if known is not None else 0
            held_since = holder.start if holder is not None and holder.tenant == name else None
            yield TokenTenantView(
                pod.entry,
                held_since is not None,
                pod.token.is_waiting,
                min(time / window, 1.0) if window else 0.0,
                pod.book.booked,
                len(pod.connections),
                known.previous if known is not None else None,
                pod.counts.copy(),
                pod.opened,
                pod.book.unattributed,
                pod.counts.held + (0 if held_since is None else now - held_since),
            )

    # ------------------------------------------------------------ token

    def _ask(
        self, pod: _PodState[Key], key: Key, request: QuotaRequest, now: int
    ) -> list[Answer[Key]]:
        if pod.entry.share is None:  # lenient only
            return [(key, quota_response(request.id, self._rules.window.least), True)]
        is_swapped = opens_a_connection_for_each_message(pod.first_ids.get(key, 0))
        claimed, kind = times(request, self._rules.window.length, is_swapped=is_swapped)
        if kind is not None:
            pod.counts.count_malformed(kind)
        answer = pod.token.ask(key, request.id, claimed, now)
        if isinstance(answer, int):
            return [(key, quota_response(request.id, answer), False)]
        if answer is None:
            return []
        pod.asked_at = now
        pod.counts.overused += answer.overuse
        pod.counts.used += pod.token.returned(now, answer.overuse)
        return self._step(answer, now)

    def _step(self, event: Event, now: int) -> list[Answer[Key]]:
        result = step(self._state, event, now, self._rules)
        self._count_held(result.state.holder, now)
        self._state, self._token_at = result.state, result.wake_at
        self._set_wake_at()
        for grant in result.unreturned:
            if grant.tenant in self._pods:
                self._pods[grant.tenant].counts.unreturned += 1
        answers: list[Answer[Key]] = []
        for grant in result.grants:
            pod = self._pods[grant.tenant]
            pod.counts.grants += 1
            pod.counts.granted += grant.quota
            pod.counts.waits.add(now - pod.asked_at)
            for key, id_ in pod.token.grant(grant).items():
                answers.append((key, quota_response(id_, grant.quota), True))
        return answers

    def _count_held(self, holder: TokenGrant | None, now: int) -> None:
        """The token that is held so far has come back or was taken, unless it is still the same."""
        ended = self._state.holder
        if ended is None or (holder is not None and holder.start == ended.start):
            return
        pod = self._pods.get(ended.tenant)
        if pod is not None:
            pod.counts.held += now - ended.start

    # ------------------------------------------------------------ messages that wait for the files

    def _refuse_held(self, now: int) -> list[Answer[Key]]:
        """Refuse memory to those that the files do not name; the token has no time limit."""
        answers: list[Answer[Key]] = []
        for key, (since, _, request) in [*self._held.items()]:
            if isinstance(request, QuotaRequest) or now < since + HOLD:
                continue
            del self._held[key]
            is_limit = isinstance(request, LimitRequest)
            refusal = update_response(request.id, accepted=False)
            answers.append((key, limit_response(request.id, 0, 0) if is_limit else refusal, False))
        self._set_wake_at()
        return answers

    def _set_wake_at(self) -> None:
        self.wake_at = NEVER if self._token_at is None else self._token_at
        for since, _, request in self._held.values():
            if not isinstance(request, QuotaRequest):
                self.wake_at = min(self.wake_at, since + HOLD)

    def _forget_if_gone(self, name: str) -> None:
        """Forget a pod that is in no file, once it has no connection."""
        pod = self._pods[name]
        if not pod.is_listed and not pod.connections:
            del self._pods[name]
