"""ResourceClaims whose containers use more memory of a device together than was consumed. Pure.

Several containers, also of several pods, may use one ResourceClaim. Each of them may stay below
what the ResourceClaim consumes of its device while they are over it together.
"""

from collections.abc import Iterator, Sequence

from reconciler.model import Finding, ObjectKind, ObjectRef
from reconciler.policy import Policy
from reconciler.reasons import Cause, Rule
from reconciler.rules.evidence_text import at_most, of_holding
from reconciler.rules.running_devices import TRUSTED
from vgpu.ledger import Holding, Ledger
from vgpu.ledger.entries import ResourceClaimShare
from vgpu.ledger.usage import Usage, is_over
from vgpu.model.units import exact_size

_Users = list[tuple[Holding, int]]
"""The containers that use a share of a device, each with its use in bytes."""


def more_than_consumed(ledger: Ledger, usage: Sequence[Usage], policy: Policy) -> Iterator[Finding]:
    """One finding for each share of a device that a ResourceClaim has; what is unknown counts as 0.

    A container that has more of the device than this share is left out: its use may be the rest's.
    One container alone is compared with what it holds (:mod:`reconciler.rules.over_limit`).
    """
    used = {(one.pod_uid, one.container, one.device): one.used_bytes or 0 for one in usage}
    for entry in ledger.devices:
        shares: dict[ResourceClaimShare, _Users] = {}
        for holding in entry.holdings:
            if (
                len(holding.resource_claim_shares) == 1
                and {holding.source, holding.sized_by} <= TRUSTED
            ):
                place = holding.pod.uid, holding.container, entry.device.name
                users = shares.setdefault(holding.resource_claim_shares[0], [])
                users.append((holding, used.get(place, 0)))
        for share, users in shares.items():
            total = sum(amount for _, amount in users)
            if len(users) > 1 and share.memory_bytes and is_over(total, share.memory_bytes):
                yield _finding(ledger.node, entry.device.name, share, users, policy)


def _finding(
    node: str, device: str, share: ResourceClaimShare, users: _Users, policy: Policy
) -> Finding:
    of_device, consumed = share.resource_claim_device, share.memory_bytes or 0
    namespace = users[0][0].pod.namespace
    total = sum(amount for _, amount in users)
    each = [
        f"{of_holding(holding, device)}, and uses {exact_size(amount)}" for holding, amount in users
    ]
    sums = (
        f"node {node} on {device}: {len(users)} containers use {exact_size(total)} of"
        f" {exact_size(consumed)}, {total * 100 // consumed} %"
    )
    return Finding(
        rule=Rule.OVER_LIMIT,
        cause=Cause.MORE_THAN_CONSUMED,
        object_ref=ObjectRef(
            ObjectKind.RESOURCE_CLAIM,
            namespace,
            of_device.resource_claim,
            of_device.resource_claim_uid,
            node=node,
        ),
        evidence=(
            sums,
            *at_most(each),
        ),
        grace=policy.ages.over_limit,
        part=f"{device}/{of_device.share_id}",
    )
