"""The order of a plan: of the findings of one object, and of all actions. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from reconciler.cluster_index import ClusterIndex
from reconciler.model import Entry, Evict, Finding, ObjectRef
from reconciler.reasons import Effect, Rule
from reconciler.reconciler_state import ReconcilerState

_ORDER: Final[Mapping[Rule, int]] = {rule: number for number, rule in enumerate(Rule)}
_EFFECTS: Final[Mapping[Effect, int]] = {effect: number for number, effect in enumerate(Effect)}


def precedence(finding: Finding) -> tuple[int, bytes]:
    """The order of one object's findings: by rule; the rest only makes it deterministic."""
    return _ORDER[finding.rule], msgspec.json.encode(finding, order="deterministic")


def urgency(
    entry: Entry, state: ReconcilerState, now: float
) -> tuple[float, int, float, int, int, ObjectRef]:
    """The order of actions: recovery first, then the oldest; what has failed before comes last.

    Otherwise a few pods that the API server never evicts would use up the limits in every cycle.
    """
    finding = entry.finding
    failed = state.failed.get(finding.key, 0.0)
    since = state.since(finding, now)
    rule = _ORDER[finding.rule]
    return failed, _EFFECTS[finding.effect], since, rule, finding.place, finding.object_ref


def is_ended(entry: Entry, cluster_index: ClusterIndex) -> bool:
    """Whether the action evicts a pod that can never run again, which disrupts no workload."""
    pod = cluster_index.pod_of(entry.finding.object_ref)
    return isinstance(entry.finding.action, Evict) and pod is not None and pod.terminal


def in_turns(
    entries: Iterable[Entry], cluster_index: ClusterIndex, state: ReconcilerState
) -> Iterator[Entry]:
    """Pods that have ended come last, the namespaces in turns: they may be thousands.

    Otherwise one tenant's pods, or pods whose eviction has failed before, would use up the limit
    and the time of all others.
    """
    turns: Counter[str] = Counter()
    ended: list[tuple[float, int, Entry]] = []
    for entry in entries:
        if is_ended(entry, cluster_index):
            namespace = entry.finding.object_ref.namespace
            failed = state.failed.get(entry.finding.key, 0.0)
            ended.append((failed, turns[namespace], entry))
            turns[namespace] += 1
        else:
            yield entry
    yield from (entry for *_, entry in sorted(ended, key=lambda turn: turn[:2]))


def place(entry: Entry) -> tuple[int, ObjectRef]:
    """The order of skipped and report-only entries: by rule, then by object."""
    return _ORDER[entry.finding.rule], entry.finding.object_ref
