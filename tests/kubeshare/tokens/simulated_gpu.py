"""Tenants on a simulated GPU, on a virtual clock: what they do with the tokens that they get."""

import heapq
import itertools
import math
from bisect import bisect_right
from dataclasses import dataclass, field

from kubeshare.tokens.scheduler import (
    DEFAULT_RULES,
    Ask,
    Configure,
    Leave,
    Tenant,
    Tick,
    TokenState,
    step,
)


@dataclass
class Behaviour:
    """A tenant; times in microseconds.

    Attributes:
        request, limit: in thousandths.
        kernel: how long a kernel runs; a kernel that has begun is never stopped.
        think: the pause between a token and the next request.
        lies: reports no overuse, and a burst of a whole window.
        returns: of so many tokens it returns all but the last; None returns all.
        leaves_after: it is gone after so many tokens; None stays.
    """

    request: int
    limit: int
    kernel: int = 10_000
    think: int = 0
    lies: bool = False
    returns: int | None = None
    leaves_after: int | None = None


@dataclass
class Record:
    """What became of a tenant."""

    behaviour: Behaviour
    grants: list = field(default_factory=list)
    runs: list = field(default_factory=list)  # begin, end of the kernels of a token
    waits: list = field(default_factory=list)  # asked, granted
    returns: list = field(default_factory=list)  # when it asked or left, overuse, do others wait
    taken: dict = field(default_factory=dict)  # start of a token that was taken -> end that counts
    asked: int | None = None

    def spans(self):
        """The time for which each token counts.

        That of its quota, until the tenant returns it; then that of its quota and its overuse, or
        all until its return, if others waited. What was taken counts until then at least, if
        another one had waited for it; one that asks later finds the token free.
        """
        for grant, returned in zip(self.grants, self.returned(), strict=True):
            time, overuse, others_wait = returned or (math.inf, 0, False)
            taken = self.taken.get(grant.start)
            end = min(time, grant.start + grant.quota + overuse)
            if taken is not None:
                end = max(end, taken)
            elif others_wait:
                end = time
            yield grant.start, end

    def returned(self):
        """When each token was returned, by a request or an end; None if it was not."""
        times = [time for time, *_ in self.returns]
        for grant in self.grants:
            later = bisect_right(times, grant.start)
            yield self.returns[later] if later < len(times) else None


class SimulatedGpu:
    """Runs until a time; ``handover`` is the time between two tokens."""

    def __init__(self, behaviours, rules=DEFAULT_RULES, handover=0):
        self.rules, self.handover, self.now = rules, handover, 0
        self.tenants = {f"t{number}": Record(each) for number, each in enumerate(behaviours)}
        self.unreturned = []
        self.idle_since = None
        self._order = itertools.count()
        self._events = []
        shares = tuple(
            Tenant(name, each.behaviour.request, each.behaviour.limit)
            for name, each in self.tenants.items()
        )
        self._result = step(TokenState(0), Configure(shares), 0, rules)
        for name in self.tenants:
            self._at(0, name, Ask(name, 0, 0))

    def run(self, until):
        while True:
            wake_at = self._result.wake_at
            time = self._events[0][0] if self._events else None
            if wake_at is not None and (time is None or wake_at < time):
                assert wake_at > self.now, "the scheduler asks to be called at once"
                time, name, event = wake_at, None, Tick()
            elif time is not None and time <= until:
                time, _, name, event = heapq.heappop(self._events)
            if time is None or time > until:
                break
            self.now = time
            if isinstance(event, Ask):
                self.tenants[name].asked = time
            if isinstance(event, Ask | Leave):
                others = any(
                    each.asked is not None for other, each in self.tenants.items() if other != name
                )
                self.tenants[name].returns.append((time, getattr(event, "overuse", 0), others))
            if isinstance(event, Configure):
                for each in event.tenants:
                    behaviour = self.tenants[each.name].behaviour
                    behaviour.request, behaviour.limit = each.request_milli, each.limit_milli
            self._step(event)
        self.now = until

    def reload(self, time, shares):
        """Other shares from then on."""
        tenants = [Tenant(name, *share) for name, share in zip(self.tenants, shares, strict=True)]
        self._at(time, "", Configure(tuple(tenants)))

    def share(self, name, window, until=None):
        """The part of the ``window`` before a time for which a tenant's kernels ran."""
        until = self.now if until is None else until
        since = until - window
        runs = self.tenants[name].runs
        return sum(max(0, min(end, until) - max(begin, since)) for begin, end in runs) / window

    def _step(self, event):
        self._result = result = step(self._result.state, event, self.now, self.rules)
        self.unreturned += result.unreturned
        for grant in result.unreturned:
            waited = any(
                each.asked is not None and each.asked < self.now
                for name, each in self.tenants.items()
                if name != grant.tenant
            )
            until = self.now if waited else grant.start + grant.quota
            self.tenants[grant.tenant].taken[grant.start] = until
        for grant in result.grants:
            self._granted(self.tenants[grant.tenant], grant)

    def _granted(self, tenant, grant):
        name, behaviour = grant.tenant, tenant.behaviour
        begin = self.now + self.handover
        # As Gemini's hook: a kernel is launched if its end is expected within the quota, and
        # the first one in any case.
        kernels = max(1, (grant.start + grant.quota - begin) // behaviour.kernel)
        end = begin + kernels * behaviour.kernel
        tenant.grants.append(grant)
        tenant.waits.append((tenant.asked, self.now))
        tenant.asked = None
        tenant.runs.append((begin, end))
        count = len(tenant.grants)
        if count == behaviour.returns:
            return
        if count == behaviour.leaves_after:
            self._at(end, name, Leave(name))
            return
        overuse = max(0, end - grant.start - grant.quota)
        ask = Ask(name, overuse, behaviour.kernel)
        if behaviour.lies:
            ask = Ask(name, 0, self.rules.window.length)
        self._at(end + behaviour.think + self.handover, name, ask)

    def _at(self, time, name, event):
        heapq.heappush(self._events, (time, next(self._order), name, event))
