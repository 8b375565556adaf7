"""The table of the rules: the function, the scopes, and the parts that must be seen in full.

A rule is a pure function of a cluster index and a policy. It reports a problem, its repair and its
age; the plan decides which objects may be changed, and how often.
"""

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from reconciler.cluster_index import ClusterIndex
from reconciler.model import Coverage, Finding, Scope
from reconciler.policy import Policy
from reconciler.reasons import Rule
from reconciler.rules.conflicts import (
    double_booked,
    lost_device,
    malformed_object,
    running_without_device,
    unowned_process,
)
from reconciler.rules.drift import gpu_drift, recover
from reconciler.rules.kai import kai
from reconciler.rules.kubeshare import kubeshare
from reconciler.rules.leftovers import leftover_claim, orphan_shim_dir, resource_claim
from reconciler.rules.memory_overuse import over_limit
from reconciler.rules.quotas import over_quota, quota_drift, quota_mark
from reconciler.rules.rejected_pods import (
    no_gpu_matched,
    over_promised,
    prestart_failed,
    refused,
    terminated,
)
from reconciler.rules.scheduler_marks import (
    assumed_expired,
    assumed_unbound,
    stale_handshake,
    stale_lock,
)
from reconciler.rules.unused_shares import held_for_nothing, idle_holder, stuck_terminating

BOTH: Final = frozenset(Scope)
CLUSTER: Final = frozenset({Scope.CLUSTER})
NODE: Final = frozenset({Scope.NODE})


class RuleEntry(msgspec.Struct, frozen=True):
    """One rule; ``needs`` are the parts that must have been seen in full for it to act."""

    rule: Rule
    find: Callable[[ClusterIndex, Policy], Iterator[Finding]]
    scopes: frozenset[Scope] = CLUSTER
    needs: frozenset[Coverage] = frozenset({Coverage.PODS})


_PODS_AND_NODES: Final = frozenset({Coverage.PODS, Coverage.NODES})
_LEDGER: Final = frozenset({Coverage.PODS, Coverage.LEDGER})
_USAGE: Final = _LEDGER | {Coverage.USAGE}

RULES: Final = (
    RuleEntry(Rule.REFUSED, refused),
    RuleEntry(Rule.TERMINATED, terminated),
    RuleEntry(Rule.OVER_PROMISED, over_promised, needs=_PODS_AND_NODES),
    RuleEntry(Rule.PRESTART_FAILED, prestart_failed, needs=_PODS_AND_NODES),
    RuleEntry(Rule.NO_GPU_MATCHED, no_gpu_matched, needs=_PODS_AND_NODES),
    RuleEntry(Rule.ASSUMED_EXPIRED, assumed_expired, needs=_PODS_AND_NODES),
    RuleEntry(Rule.ASSUMED_UNBOUND, assumed_unbound),
    RuleEntry(Rule.STALE_LOCK, stale_lock, needs=_PODS_AND_NODES),
    RuleEntry(Rule.STALE_HANDSHAKE, stale_handshake, needs=_PODS_AND_NODES),
    RuleEntry(Rule.LEFTOVER_CLAIM, leftover_claim),
    RuleEntry(Rule.GPU_DRIFT, gpu_drift, NODE, _LEDGER),
    RuleEntry(Rule.RECOVER, recover, BOTH),
    RuleEntry(Rule.DOUBLE_BOOKED, double_booked, BOTH),
    RuleEntry(Rule.RUNNING_WITHOUT_DEVICE, running_without_device, BOTH),
    RuleEntry(Rule.LOST_DEVICE, lost_device, BOTH),
    RuleEntry(Rule.UNOWNED_PROCESS, unowned_process, NODE, _LEDGER),
    RuleEntry(Rule.OVER_LIMIT, over_limit, NODE, _USAGE),
    RuleEntry(
        Rule.ORPHAN_SHIM_DIR, orphan_shim_dir, NODE, frozenset({Coverage.PODS, Coverage.FOLDERS})
    ),
    RuleEntry(Rule.KUBESHARE, kubeshare, needs=frozenset({Coverage.PODS, Coverage.SHARE_PODS})),
    RuleEntry(Rule.STUCK_TERMINATING, stuck_terminating),
    RuleEntry(Rule.HELD_FOR_NOTHING, held_for_nothing),
    RuleEntry(Rule.IDLE_HOLDER, idle_holder, NODE),
    RuleEntry(Rule.OVER_QUOTA, over_quota, needs=_PODS_AND_NODES | {Coverage.QUOTAS}),
    RuleEntry(Rule.QUOTA_MARK, quota_mark, needs=_PODS_AND_NODES | {Coverage.QUOTAS}),
    RuleEntry(Rule.QUOTA_DRIFT, quota_drift, needs=_PODS_AND_NODES | {Coverage.QUOTAS}),
    RuleEntry(Rule.RESOURCE_CLAIM, resource_claim, BOTH),
    RuleEntry(Rule.KAI, kai, BOTH),
    RuleEntry(Rule.MALFORMED_OBJECT, malformed_object, needs=frozenset()),
)
"""In the order of :class:`Rule`."""
