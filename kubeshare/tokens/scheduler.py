"""Who of a GPU's tenants gets its token, and for how long. Pure; times are whole microseconds.

:func:`step` takes a state, an event and the time, and returns the next state with the grants that
follow and the time at which it has to be called again.

Mode ``exclusive`` grants a token when its last holder has returned it, by asking again or by its
end. A holder that does neither loses it after its quota and a grace; that is the only case in which
two tenants may run at once, and it is reported. The first in line that is below its request gets
the token, then the one below its limit that has used least.

Mode ``lenient`` has the rules of Gemini ``src/scheduler.cpp``. It grants a token as soon as the
last quota has passed. The first in line gets it whatever its limit if it has no entry in the
window. Time that several tenants have at once counts for each in part. If all are at their limits,
the scheduler waits until the oldest entry leaves the window or an event comes.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from fractions import Fraction
from typing import Final

import msgspec
from msgspec.structs import replace

from kubeshare.gemini_placement import Client, TokenWindow, order, quota
from kubeshare.tokens.spans import Span, Spans
from vgpu.model.units import WHOLE_DEVICE_MILLI


class TokenMode(StrEnum):
    """How strict a token is."""

    EXCLUSIVE = "exclusive"
    LENIENT = "lenient"


class TokenRules(msgspec.Struct, frozen=True):
    """The settings of a daemon; times in microseconds.

    Attributes:
        mode: exclusive or lenient.
        window: quotas and window; the defaults are those of KubeShare's launcher.
        max_quota: maximum quota in mode exclusive.
        max_grace: maximum time after a quota in mode exclusive; a grace is as long as its quota.
    """

    mode: TokenMode = TokenMode.EXCLUSIVE
    window: TokenWindow = TokenWindow(300_000, 20_000, 10_000_000)
    max_quota: int = 1_000_000
    max_grace: int = 1_000_000


DEFAULT_RULES: Final = TokenRules()

NO_SPANS: Final = Spans()


class Tenant(msgspec.Struct, frozen=True, gc=False):
    """A pod that shares a GPU, with its share in thousandths of the GPU's time."""

    name: str
    request_milli: int
    limit_milli: int


class TenantState(msgspec.Struct, frozen=True):
    """What is known of a tenant.

    Attributes:
        tenant: its name and share.
        previous: its last quota.
        burst: its last burst.
        spans: when it had the token, within the window before its last request.
        overrun: the time for which the last token that it has returned or lost counts after its
            quota.
    """

    tenant: Tenant
    previous: int
    burst: int = 0
    spans: Spans = NO_SPANS
    overrun: int = 0


class TokenGrant(msgspec.Struct, frozen=True, gc=False):
    """The token for a tenant, from ``start`` for ``quota`` microseconds."""

    tenant: str
    start: int
    quota: int


class TokenState(msgspec.Struct, frozen=True):
    """The state of one GPU.

    Attributes:
        started: when the scheduler began.
        tenants: by name.
        queue: names of the tenants that wait, in order of arrival.
        holder: the grant that has not ended.
    """

    started: int
    tenants: Mapping[str, TenantState] = {}
    queue: tuple[str, ...] = ()
    holder: TokenGrant | None = None


class Ask(msgspec.Struct, frozen=True, gc=False):
    """A tenant asks for the token, and thereby returns the one it has."""

    tenant: str
    overuse: int
    burst: int


class Withdraw(msgspec.Struct, frozen=True, gc=False):
    """No process of the tenant waits for the token any more."""

    tenant: str


class Leave(msgspec.Struct, frozen=True, gc=False):
    """No process of the tenant is there any more."""

    tenant: str


class Configure(msgspec.Struct, frozen=True):
    """The tenants of the GPU."""

    tenants: tuple[Tenant, ...]


class Tick(msgspec.Struct, frozen=True):
    """Time has passed."""


Event = Ask | Withdraw | Leave | Configure | Tick


class TokenStep(msgspec.Struct, frozen=True):
    """The result of an event.

    Attributes:
        state: the next state.
        grants: the grants that follow; one at most.
        wake_at: when to call again with Tick, if no event comes before; None for never.
        unreturned: the grants that ended although their holders had not returned the token.
    """

    state: TokenState
    grants: tuple[TokenGrant, ...] = ()
    wake_at: int | None = None
    unreturned: tuple[TokenGrant, ...] = ()


def step(state: TokenState, event: Event, now: int, rules: TokenRules = DEFAULT_RULES) -> TokenStep:
    """The next state. An event of a tenant that is not configured changes nothing."""
    state = _apply(state, event, now, rules)
    unreturned: tuple[TokenGrant, ...] = ()
    if state.queue and state.holder is not None and now >= token_end(state.holder, rules):
        if rules.mode is TokenMode.EXCLUSIVE:
            unreturned = (state.holder,)
            state = _counted(state, state.holder.tenant, now, 0)
        state = replace(state, holder=None)
    if not state.queue:
        return TokenStep(state)
    if state.holder is not None:
        return TokenStep(state, wake_at=token_end(state.holder, rules))
    if rules.mode is TokenMode.LENIENT:  # an overuse that is reported later extends none of these
        since = now - rules.window.length
        kept = {
            name: replace(each, spans=each.spans.since(since))
            for name, each in state.tenants.items()
        }
        state = replace(state, tenants=kept)
    name = _next(state, now, rules)
    if name is None:
        return TokenStep(state, (), _eligible_at(state, now, rules), unreturned)
    state, grant = _grant(state, name, now, rules)
    wake_at = token_end(grant, rules) if state.queue else None
    return TokenStep(state, (grant,), wake_at, unreturned)


def token_end(grant: TokenGrant, rules: TokenRules) -> int:
    """When the token may go to another tenant, if its holder does not return it before."""
    grace = min(grant.quota, rules.max_grace) if rules.mode is TokenMode.EXCLUSIVE else 0
    return grant.start + grant.quota + grace


def window_at(state: TokenState, now: int, rules: TokenRules) -> int:
    """The length of the window: not more than the time since the scheduler began."""
    return min(rules.window.length, now - state.started)


def used(tenant: TenantState, now: int, window: int) -> int:
    """The time of a tenant's spans from ``now - window`` on, also their part in the future."""
    return tenant.spans.time_since(now - window)


# ---------------------------------------------------------------- events


def _apply(state: TokenState, event: Event, now: int, rules: TokenRules) -> TokenState:
    match event:
        case Ask(name, overuse, burst) if name in state.tenants:
            if rules.mode is TokenMode.EXCLUSIVE:
                tenant = _counted(state, name, now, overuse).tenants[name]
            else:
                tenant = state.tenants[name]
                tenant = replace(tenant, spans=tenant.spans.ended(now, overuse))
            spans = tenant.spans.since(now - rules.window.length)
            known = replace(tenant, burst=burst, spans=spans)
            return TokenState(
                state.started,
                {**state.tenants, name: known},
                state.queue if name in state.queue else (*state.queue, name),
                _without_holder(state.holder, name),
            )
        case Configure(tenants):
            return _configure(state, tenants, rules)
        case Withdraw(name) | Leave(name) if name in state.tenants:
            state = replace(state, queue=_without(state.queue, name))
            if isinstance(event, Withdraw) or rules.mode is TokenMode.LENIENT:
                return state
            state = _counted(state, name, now, 0)
            return replace(state, holder=_without_holder(state.holder, name))
    return state


def _counted(state: TokenState, name: str, now: int, overuse: int) -> TokenState:
    """A tenant returns its last token, or it is taken from it: the time that counts for it.

    A token with a quota until ``end``, of which an overuse is reported, counts until ::

        now                      if another tenant waits for it: nobody else had this time
        min(now, end + overuse)  otherwise

    Of a token that was taken before, only the overuse that does not count yet is added.
    """
    tenant = state.tenants.get(name)
    if tenant is None or not tenant.spans:
        return state
    before = tenant.spans.total
    if state.holder is not None and state.holder.tenant == name:
        others_wait = any(each != name for each in state.queue)
        spans = tenant.spans.ended(now, overuse, now if others_wait else 0)
        overrun = max(0, spans.total - before)
    else:
        spans = tenant.spans.ended(now, max(0, overuse - tenant.overrun))
        overrun = tenant.overrun + spans.total - before
    known = replace(tenant, spans=spans, overrun=overrun)
    return replace(state, tenants={**state.tenants, name: known})


def _without(queue: tuple[str, ...], name: str) -> tuple[str, ...]:
    """The queue without a tenant, which may not be in it."""
    if name not in queue:
        return queue
    place = queue.index(name)
    return queue[:place] + queue[place + 1 :]


def _without_holder(holder: TokenGrant | None, name: str) -> TokenGrant | None:
    """The grant that has not ended, now that a tenant has returned its token."""
    return None if holder is not None and holder.tenant == name else holder


def _configure(state: TokenState, tenants: Iterable[Tenant], rules: TokenRules) -> TokenState:
    """The same state with other tenants; a token that is held stays with its holder."""
    base = rules.window.base
    known: dict[str, TenantState] = {}
    for tenant in tenants:
        before = state.tenants.get(tenant.name)
        if before is None:
            known[tenant.name] = TenantState(tenant, base)
        elif rules.mode is TokenMode.LENIENT:
            known[tenant.name] = replace(before, tenant=tenant, previous=base)
        else:
            known[tenant.name] = replace(before, tenant=tenant)
    queue = tuple(name for name in state.queue if name in known)
    return replace(state, tenants=known, queue=queue)


# ---------------------------------------------------------------- grants


def _grant(
    state: TokenState, name: str, now: int, rules: TokenRules
) -> tuple[TokenState, TokenGrant]:
    tenant = state.tenants[name]
    limit = tenant.tenant.limit_milli
    if rules.mode is TokenMode.LENIENT:
        length = quota(tenant.burst, tenant.previous, limit, rules.window)
    else:
        most = min(rules.max_quota, limit * rules.window.length // WHOLE_DEVICE_MILLI)
        length = min(quota(tenant.burst, tenant.previous, limit, rules.window), most)
    grant = TokenGrant(name, now, length)
    spans = tenant.spans.added(now, now + length)
    known = replace(tenant, previous=length, spans=spans)
    tenants = {**state.tenants, name: known}
    return TokenState(state.started, tenants, _without(state.queue, name), grant), grant


def _next(state: TokenState, now: int, rules: TokenRules) -> str | None:
    """The tenant that gets the token now; None if all that wait are at their limits."""
    if rules.mode is TokenMode.LENIENT:
        return _next_lenient(state, now, rules)
    window = window_at(state, now, rules)
    best: tuple[int, str] | None = None
    for name in state.queue:
        each = state.tenants[name]
        share, time = each.tenant, used(each, now, window)
        if not _is_below(share.limit_milli, time, window):
            continue
        if _is_below(share.request_milli, time, window):
            return name
        if best is None or time < best[0]:
            best = time, name
    return best[1] if best else None


def _is_below(milli: int, time: int, window: int) -> bool:
    """Whether a time is less than so many thousandths of a window; no time is less than any."""
    return milli > 0 and (time == 0 or time * WHOLE_DEVICE_MILLI < milli * window)


def _eligible_at(state: TokenState, now: int, rules: TokenRules) -> int | None:
    """When the first of those that wait is below its limit, if no event comes before."""
    if rules.mode is TokenMode.LENIENT:
        spans = [each.spans for each in state.tenants.values()]
        oldest = min((span for each in spans for span in _recent(each, now, rules)), default=None)
        return None if oldest is None else oldest[1] + rules.window.length + 1
    times = (_below_limit_at(state, state.tenants[name], now, rules) for name in state.queue)
    return min((time for time in times if time is not None), default=None)


def _below_limit_at(
    state: TokenState, tenant: TenantState, now: int, rules: TokenRules
) -> int | None:
    """The first time at which a tenant is below its limit; None for a limit of 0."""
    limit, whole = tenant.tenant.limit_milli, rules.window.length
    if limit == 0:
        return None
    window = window_at(state, now, rules)
    time = used(tenant, now, window)
    grown = state.started + time * WHOLE_DEVICE_MILLI // limit + 1
    if grown <= state.started + whole:  # the window still grows
        return grown
    allowed = limit * whole - 1  # in thousandths of a microsecond
    over = time - allowed // WHOLE_DEVICE_MILLI
    since = max(now, state.started + whole) - whole
    for start, end in tenant.spans:
        length = end - max(start, since)
        if length <= 0:
            continue
        if over <= length:
            return max(start, since) + over + whole
        over -= length
    return now


# ---------------------------------------------------------------- Gemini's rules


def _recent(spans: Spans, now: int, rules: TokenRules) -> list[Span]:
    since = now - rules.window.length
    return [span for span in spans if span[1] >= since]


def _next_lenient(state: TokenState, now: int, rules: TokenRules) -> str | None:
    first = state.queue[0]
    if not _recent(state.tenants[first].spans, now, rules):
        return first
    window = window_at(state, now, rules)
    shared = _shared_times(state.tenants, now - window)
    clients = [
        Client(name, share.request_milli, share.limit_milli, shared.get(name, 0))
        for name in state.queue
        for share in (state.tenants[name].tenant,)
    ]
    chosen = order(clients, replace(rules.window, length=window))
    return chosen[0].name if chosen else None


def _shared_times(tenants: Mapping[str, TenantState], since: int) -> dict[str, Fraction]:
    """The time of each tenant's spans; what k tenants have at once counts for each as 1/k."""
    edges = sorted(
        edge
        for name, tenant in tenants.items()
        for start, end in tenant.spans
        if end > max(start, since)
        for edge in ((max(start, since), True, name), (end, False, name))
    )
    times: dict[str, dict[int, int]] = {}
    running: set[str] = set()
    before = since
    for edge, begins, name in edges:
        if edge > before:
            for each in running:
                parts = times.setdefault(each, {})
                parts[len(running)] = parts.get(len(running), 0) + edge - before
            before = edge
        if begins:
            running.add(name)
        else:
            running.discard(name)
    return {
        name: sum((Fraction(time, k) for k, time in parts.items()), Fraction())
        for name, parts in times.items()
    }
