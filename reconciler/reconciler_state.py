"""The state kept from one cycle to the next: when findings were first seen, what was tried.

A cache: losing it only restarts all ages. It is bounded, and drops at once a finding that is not
found any more, so that only findings of every cycle grow old. Pure.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from reconciler.model import ActionResult, Finding
from reconciler.policy import Backoff
from reconciler.reasons import ActionOutcome

MOST: Final = 1500
"""Maximum entries of each kind: all fit in a ConfigMap's 1 MiB, even with long node names."""

VERSION: Final = 1

_NOT_TRIED: Final = frozenset(
    {ActionOutcome.DRY_RUN, ActionOutcome.NOT_LEADER, ActionOutcome.OUT_OF_TIME}
)
_NOBODY_EVICTED: Final = _NOT_TRIED | {ActionOutcome.GONE, ActionOutcome.CHANGED}


class Attempt(msgspec.Struct, frozen=True, array_like=True):
    """Consecutive evictions of one owner's pods on one node, and the time of the last one."""

    count: int
    last: float


class ReconcilerState(msgspec.Struct, frozen=True):
    """The state from earlier cycles; times are unix seconds by our clock.

    Attributes:
        version: of this format.
        seen: key of a finding, or of the condition of several findings -> since when it was found
            in every cycle.
        failed: key of a finding -> when its action last failed.
        attempts: ``<owner uid>@<node>`` -> evictions.
    """

    version: int = VERSION
    seen: Mapping[str, float] = {}
    failed: Mapping[str, float] = {}
    attempts: Mapping[str, Attempt] = {}

    def first_seen(self, finding: Finding, now: float) -> float:
        """When we first saw the finding; not later than now, even if the clock was set back."""
        return min(self.seen.get(finding.age_key, now), now)

    def since(self, finding: Finding, now: float) -> float:
        """Since when the finding holds; the earlier of our clock's time and its own."""
        seen = self.first_seen(finding, now)
        return seen if finding.since is None else min(seen, finding.since)

    def pause(self, key: str, now: float, backoff: Backoff) -> float:
        """Seconds for which an owner's pods on a node are still skipped; 0 or less if not."""
        attempt = self.attempts.get(key)
        if attempt is None:
            return 0.0
        doublings = min(attempt.count - 1, 30)
        length = min(backoff.longest, backoff.first * (1 << doublings))
        return length - max(0.0, now - attempt.last)


def attempt_key(owner_uid: str, node: str) -> str:
    """The key of an owner's pods on a node."""
    return f"{owner_uid}@{node}"


def remember(state: ReconcilerState, findings: Iterable[Finding], now: float) -> ReconcilerState:
    """The state with the findings that have an action now, and without those not found any more.

    Of too many, the newest are dropped, first those that have a time of their own; and those of
    the namespace with the most, or one tenant's findings would keep all others from growing old.
    """
    by_key = {finding.key: finding for finding in findings if finding.action is not None}
    aged = {finding.age_key: finding for finding in by_key.values()}
    seen = {key: state.first_seen(finding, now) for key, finding in aged.items()}
    if len(seen) > MOST:
        kept = sorted(seen, key=lambda key: (aged[key].since is not None, seen[key], key))
        seen = {key: seen[key] for key in _fair(kept, aged)[:MOST]}
    failed = {
        key: min(failed_at, now)
        for key, failed_at in state.failed.items()
        if key in by_key and by_key[key].age_key in seen
    }
    return msgspec.structs.replace(state, seen=seen, failed=failed)


def _fair(keys: Iterable[str], findings: Mapping[str, Finding]) -> list[str]:
    """The first key of each namespace, then the second of each, and so on."""
    places: Counter[str] = Counter()
    turns = {}
    for key in keys:
        namespace = findings[key].object_ref.namespace
        turns[key] = places[namespace]
        places[namespace] += 1
    return sorted(turns, key=turns.__getitem__)


def learn(
    state: ReconcilerState, results: Iterable[ActionResult], now: float, backoff: Backoff
) -> ReconcilerState:
    """The state with these results, and without the evictions long past; attempts count, too."""
    failed = dict(state.failed)
    attempts = {
        key: Attempt(attempt.count, min(attempt.last, now))  # our clock may have been ahead
        for key, attempt in state.attempts.items()
        if now - attempt.last < 2 * backoff.longest
    }
    for result in results:
        finding = result.entry.finding
        if result.outcome is ActionOutcome.DONE:
            failed.pop(finding.key, None)
        elif result.outcome not in _NOT_TRIED:
            failed[finding.key] = now
        if finding.replaces and result.entry.owner and result.outcome not in _NOBODY_EVICTED:
            key = attempt_key(result.entry.owner, finding.object_ref.node)
            before = attempts.get(key, Attempt(0, now))
            attempts[key] = Attempt(before.count + 1, now)
    if len(attempts) > MOST:
        newest = sorted(attempts, key=lambda key: (-attempts[key].last, key))
        attempts = {key: attempts[key] for key in newest[:MOST]}
    if len(failed) > MOST:
        failed = dict(sorted(failed.items(), key=lambda item: (-item[1], item[0]))[:MOST])
    return msgspec.structs.replace(state, failed=failed, attempts=attempts)


def encode(state: ReconcilerState) -> str:
    """The state as text, for the ConfigMap."""
    return msgspec.json.encode(state, order="deterministic").decode()


def decode(text: str) -> ReconcilerState:
    """The state from text; an empty state if unreadable or of another version."""
    try:
        state = msgspec.json.decode(text, type=ReconcilerState)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return ReconcilerState()
    kinds = (state.seen, state.failed, state.attempts)
    sound = all(attempt.count > 0 for attempt in state.attempts.values())
    fits = all(len(kind) <= MOST for kind in kinds)
    return state if state.version == VERSION and fits and sound else ReconcilerState()
