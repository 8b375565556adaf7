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
        max_grace: maximum time after a quota in mode exclusive.
    """

    mode: TokenMode = TokenMode.EXCLUSIVE
    window: TokenWindow = TokenWindow(300_000, 20_000, 10_000_000)
    max_quota: int = 1_000_000
    max_grace: int = 1_000_000


DEFAULT_RULES: Final = TokenRules()

LIMIT_PARTS: Final = 10
"""Minimum number of tokens in which a tenant at its limit gets its part of a window, if each may be
that short, and needs not be shorter than a short one. With fewer, it would wait longer for each;
with more, it would ask more often."""

GRACE_PARTS: Final = 8
"""A grace is the quota divided by this, for messages on their way, and twice the time by which the
longest burst is longer than the quota, because the next one may be longer. A process launches a
burst only if it fits into what is left of the quota, or with a new token (Gemini v1.0
``src/hook.cpp:457``)::

    end of a burst  <=  start + max(quota, length of the burst)
"""

SHORT_PARTS: Final = 6
"""A short quota is that of ``--quota`` divided by this. The tenant for which it is short waits half
of it on average."""

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
        rest: what was left of its last quota when it returned it.
        asked_at: when it asked last; None if no process of it is there.
        credit: the time that it might have used at ``credit_at`` and has not, in thousandths of
            microseconds; it grows by its limit. Negative: it used more than its limit.
    """

    tenant: Tenant
    previous: int
    burst: int = 0
    spans: Spans = NO_SPANS
    overrun: int = 0
    rest: int = 0
    asked_at: int | None = None
    credit: int = 0
    credit_at: int = 0


class TokenGrant(msgspec.Struct, frozen=True, gc=False):
    """The token for a tenant, from ``start`` for ``quota`` microseconds, and then for ``grace``.

    A grace of None is as long as the quota.
    """

    tenant: str
    start: int
    quota: int
    grace: int | None = None


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
    waited_for = _waited_for(state, now, rules)
    state = _apply(state, event, now, waited_for, rules)
    unreturned: tuple[TokenGrant, ...] = ()
    if state.queue and state.holder is not None and now >= token_end(state.holder, rules):
        if rules.mode is TokenMode.EXCLUSIVE:
            unreturned = (state.holder,)
            state = _with_counted(state, state.holder.tenant, now, waited_for, rules)
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
    if rules.mode is TokenMode.LENIENT:
        return grant.start + grant.quota
    grace = grant.quota if grant.grace is None else grant.grace
    return grant.start + grant.quota + min(grace, rules.max_grace)


def window_at(state: TokenState, now: int, rules: TokenRules) -> int:
    """The length of the window: not more than the time since the scheduler began."""
    return min(rules.window.length, now - state.started)


def longest_quota(tenant: TenantState, now: int, rules: TokenRules) -> int:
    """The longest quota by which a tenant keeps its limit in each window.

    The largest ``q`` such that the window that ends with the quota and the overrun that follows it
    has room for both::

        used(since = now + q + o - window)  +  q + o  <  limit * window

    ``o`` is the overrun of the tenant's last token. The left side never decreases with ``q``, so
    that each window that ends before keeps the limit, too. So for any window that began after the
    daemon, with ``o'`` for the overrun of the last token in it::

        used(window)  <  limit * window  +  max(0, o' - o)

    Of an ``o`` that would never leave room for its shortest quota, what leaves room counts.
    """
    length = rules.window.length
    if tenant.tenant.limit_milli >= WHOLE_DEVICE_MILLI:
        return length
    most = _most(tenant, rules)
    overrun = _reserve(tenant, most - _least(tenant, rules))
    since = now - length
    room = most - used(tenant, now, length)
    time = 0
    for start, end in tenant.spans:
        if end <= since:
            continue
        gap = max(0, start - since)
        if room < gap or time > rules.max_quota + overrun:
            break
        room -= gap
        time += end - since
        since = end
    return time + room - overrun


def _reserve(tenant: TenantState, most: int) -> int:
    """The overrun of a tenant's next token, by that of its last one."""
    return max(0, min(tenant.overrun, most))


def _most(tenant: TenantState, rules: TokenRules) -> int:
    """The longest time in a window that is below a tenant's limit."""
    return (tenant.tenant.limit_milli * rules.window.length - 1) // WHOLE_DEVICE_MILLI


def used(tenant: TenantState, now: int, window: int) -> int:
    """The time of a tenant's spans from ``now - window`` on, also their part in the future."""
    return tenant.spans.time_since(now - window)


# ---------------------------------------------------------------- events


def _apply(
    state: TokenState, event: Event, now: int, waited_for: int, rules: TokenRules
) -> TokenState:
    match event:
        case Ask(name, overuse, burst) if name in state.tenants:
            tenant = state.tenants[name]
            if rules.mode is TokenMode.EXCLUSIVE:
                tenant = _counted(state, tenant, now, rules, waited_for=waited_for, overuse=overuse)
                spans = tenant.spans
            else:
                spans = tenant.spans.ended(now, overuse)
            spans = spans.since(now - rules.window.length)
            known = replace(tenant, burst=burst, spans=spans, asked_at=now)
            return TokenState(
                state.started,
                {**state.tenants, name: known},
                state.queue if name in state.queue else (*state.queue, name),
                _without_holder(state.holder, name),
            )
        case Configure(tenants):
            return _configure(state, tenants, now, rules)
        case Withdraw(name) | Leave(name) if name in state.tenants:
            state = replace(state, queue=_without(state.queue, name))
            if isinstance(event, Withdraw) or rules.mode is TokenMode.LENIENT:
                return state
            left = _counted(state, state.tenants[name], now, rules, waited_for=waited_for)
            tenants_left = {**state.tenants, name: replace(left, asked_at=None)}
            holder = _without_holder(state.holder, name)
            return replace(state, tenants=tenants_left, holder=holder)
    return state


def _waited_for(state: TokenState, now: int, rules: TokenRules) -> int:
    """The time until which others have waited for the token that is held; 0 if nobody waits.

    Not later than its end: who waits then takes it, and who asks later finds it free.
    """
    if state.holder is None or not state.queue:
        return 0
    return min(now, token_end(state.holder, rules))


def _counted(
    state: TokenState,
    tenant: TenantState,
    now: int,
    rules: TokenRules,
    *,
    waited_for: int,
    overuse: int = 0,
) -> TenantState:
    """A tenant returns its last token, or it is taken from it: the time that counts for it.

    A token with a quota until ``end``, of which an overuse is reported, counts until ::

        max(min(now, end + overuse), waited_for)

    Others have waited until ``waited_for``, and nobody else had this time. A pod that is idle while
    nobody waits pays for no more than its quota, whenever another one asks. Of a token that was
    taken before, only the overuse that does not count yet is added.
    """
    if not tenant.spans:
        return tenant
    name, before, rest = tenant.tenant.name, tenant.spans.total, tenant.rest
    if state.holder is not None and state.holder.tenant == name:
        spans = tenant.spans.ended(now, overuse, waited_for)
        overrun, rest = max(0, spans.total - before), max(0, before - spans.total)
    else:
        spans = tenant.spans.ended(now, max(0, overuse - tenant.overrun))
        overrun = tenant.overrun + spans.total - before
    credit = _credit(tenant, now, rules) - (spans.total - before) * WHOLE_DEVICE_MILLI
    return replace(tenant, spans=spans, overrun=overrun, rest=rest, credit=credit, credit_at=now)


def _with_counted(
    state: TokenState, name: str, now: int, waited_for: int, rules: TokenRules
) -> TokenState:
    """The state, in which the token that is taken from a tenant counts."""
    tenant = state.tenants.get(name)
    if tenant is None:
        return state
    counted = _counted(state, tenant, now, rules, waited_for=waited_for)
    return replace(state, tenants={**state.tenants, name: counted})


def _credit(tenant: TenantState, now: int, rules: TokenRules) -> int:
    """What a tenant may use now; not more than its limit of a window."""
    limit = tenant.tenant.limit_milli
    grown = tenant.credit + limit * (now - tenant.credit_at)
    return min(grown, limit * rules.window.length)


def _without(queue: tuple[str, ...], name: str) -> tuple[str, ...]:
    """The queue without a tenant, which may not be in it."""
    if name not in queue:
        return queue
    place = queue.index(name)
    return queue[:place] + queue[place + 1 :]


def _without_holder(holder: TokenGrant | None, name: str) -> TokenGrant | None:
    """The grant that has not ended, now that a tenant has returned its token."""
    return None if holder is not None and holder.tenant == name else holder


def _configure(
    state: TokenState, tenants: Iterable[Tenant], now: int, rules: TokenRules
) -> TokenState:
    """The same state with other tenants; a token that is held stays with its holder.

    A tenant that is new, or has another limit, has the credit of the last window.
    """
    base, window = rules.window.base, window_at(state, now, rules)
    known: dict[str, TenantState] = {}
    for tenant in tenants:
        before = state.tenants.get(tenant.name, TenantState(tenant, base))
        if rules.mode is TokenMode.LENIENT:
            known[tenant.name] = replace(before, tenant=tenant, previous=base)
        elif tenant.name in state.tenants and before.tenant.limit_milli == tenant.limit_milli:
            known[tenant.name] = replace(before, tenant=tenant)
        else:
            time = used(before, now, window)
            credit = tenant.limit_milli * window - time * WHOLE_DEVICE_MILLI
            known[tenant.name] = replace(before, tenant=tenant, credit=credit, credit_at=now)
    queue = tuple(name for name in state.queue if name in known)
    return replace(state, tenants=known, queue=queue)


# ---------------------------------------------------------------- grants


def _grant(
    state: TokenState, name: str, now: int, rules: TokenRules
) -> tuple[TokenState, TokenGrant]:
    tenant = state.tenants[name]
    grace: int | None = None
    if rules.mode is TokenMode.LENIENT:
        length = quota(tenant.burst, tenant.previous, tenant.tenant.limit_milli, rules.window)
    else:
        wanted = _wanted(state, tenant, now, rules)
        length = min(wanted, longest_quota(tenant, now, rules))
        longer = max(0, tenant.burst - length)
        grace = 2 * longer + length // GRACE_PARTS if tenant.burst else length
    grant = TokenGrant(name, now, length, grace)
    spans = tenant.spans.added(now, now + length)
    credit = _credit(tenant, now, rules) - length * WHOLE_DEVICE_MILLI
    known = replace(tenant, previous=length, spans=spans, credit=credit, credit_at=now)
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
        if not _is_below_limit(each, time, now, rules):
            continue
        if _is_below(share.request_milli, time, window):
            return name
        if best is None or time < best[0]:
            best = time, name
    return best[1] if best else None


def _is_below_limit(tenant: TenantState, time: int, now: int, rules: TokenRules) -> bool:
    """Whether a tenant may have a token now; ``time`` is what it used of the window.

    It has to have a credit, and its shortest quota has to keep the limit in each window.
    """
    limit = tenant.tenant.limit_milli
    if limit >= WHOLE_DEVICE_MILLI:
        return True
    if not _has_credit(_credit(tenant, now, rules), time) or limit <= 0:
        return False
    least, most = _least(tenant, rules), _most(tenant, rules)
    length = least + _reserve(tenant, most - least)
    return used(tenant, now, rules.window.length - length) + length <= most


def _has_credit(credit: int, time: int) -> bool:
    """Whether a tenant may use more; one that used nothing may begin without a credit."""
    return credit > 0 or credit == time == 0


def _wanted(state: TokenState, tenant: TenantState, now: int, rules: TokenRules) -> int:
    """The quota of a tenant's next token, but for its limit.

    It is short while another tenant that asks from time to time misses a larger part of its
    request::

        missing(other) > 0  and  missing(other) > missing(tenant)
        missing(x) = 1 - used(x) / (request(x) * window)

    The hook returns a token as soon as its longest burst does not fit into what is left (Gemini
    v1.0 ``src/hook.cpp:457``). So what was left of the last quota comes on top, up to as much
    again: otherwise a process with a long burst would ask for a token for each kernel.
    """
    length, short = _plain(tenant, rules), _short(rules)
    short += min(tenant.rest, short)
    if length <= short:
        return length
    window = window_at(state, now, rules)
    mine, request = _missing(tenant, now, window), tenant.tenant.request_milli
    for name, other in state.tenants.items():
        if name == tenant.tenant.name or other.asked_at is None:
            continue
        if name in state.queue or now - other.asked_at <= rules.window.length:
            missing = _missing(other, now, window)
            part = mine * other.tenant.request_milli
            if missing > 0 and (mine <= 0 or missing * request > part):
                return short
    return length


def _missing(tenant: TenantState, now: int, window: int) -> int:
    """What a tenant misses of its request, in thousandths of microseconds; negative for more."""
    return tenant.tenant.request_milli * window - used(tenant, now, window) * WHOLE_DEVICE_MILLI


def _plain(tenant: TenantState, rules: TokenRules) -> int:
    """The quota of a tenant's next token, but for its limit and for the other tenants."""
    length = quota(tenant.burst, tenant.previous, WHOLE_DEVICE_MILLI, rules.window)
    return min(length, rules.max_quota)


def _short(rules: TokenRules) -> int:
    return max(rules.window.base // SHORT_PARTS, rules.window.least)


def _least(tenant: TenantState, rules: TokenRules) -> int:
    """The shortest quota that a tenant at its limit gets; it waits until there is room for it."""
    most = _most(tenant, rules)
    part = min(most // LIMIT_PARTS, _short(rules))
    return min(_plain(tenant, rules), max(part, rules.window.least), most)


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
    """The first time at which a tenant may have a token; None for a limit of 0.

    That is when it has a credit, and not before the first ``t`` with
    ``used(since = t + q + o - window) + q + o < limit * window``, for its shortest quota ``q`` and
    its overrun ``o``, as in :func:`longest_quota`.
    """
    limit = tenant.tenant.limit_milli
    if limit <= 0:
        return None
    credit = _credit(tenant, now, rules)
    is_paid = _has_credit(credit, used(tenant, now, window_at(state, now, rules)))
    paid_at = now if is_paid else now + -credit // limit + 1
    least, most = _least(tenant, rules), _most(tenant, rules)
    length = least + _reserve(tenant, most - least)
    over = tenant.spans.total - (most - length)
    for start, end in tenant.spans if over > 0 else ():
        if over <= end - start:
            return max(paid_at, start + over + rules.window.length - length)
        over -= end - start
    return paid_at


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
