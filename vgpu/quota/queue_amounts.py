"""The amounts of each queue as numbers for metrics, by resource and flavor; pure.

They are those that ``vgpu inspect --by queue`` shows. An amount that is unknown, or that the system
does not have for the queue, is missing: 0 is never written in its place. So is an amount for which
something was assumed.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from vgpu.kube.kai_groups import KAI_GROUPS
from vgpu.kube.kueue_kinds import WORKLOADS
from vgpu.kube.volcano_kinds import POD_GROUPS
from vgpu.model.declared_quota import QuotaResource
from vgpu.quota.queue_line import AmountKind
from vgpu.quota.queues import Queues
from vgpu.quota.tree import QuotaLevel, QuotaName

MOST_QUEUES: Final = 1000
"""Maximum number of queues with series."""


class QueueAmounts(msgspec.Struct, frozen=True, gc=False):
    """The amounts of one resource and flavor of a queue; ``flavor`` "" is any, or unknown."""

    queue: QuotaName
    resource: QuotaResource
    amounts: Mapping[AmountKind, int]


class QueueNumbers(msgspec.Struct, frozen=True):
    """The numbers of all queues.

    Attributes:
        amounts: of at most ``MOST_QUEUES`` queues, those first that are above others.
        waiting_workloads: the number of workloads without quota, of the same queues; without those
            of a system whose workloads were not read.
        left_out: the number of the other queues.
        is_read: whether queues were read at all.
    """

    amounts: tuple[QueueAmounts, ...] = ()
    waiting_workloads: Mapping[QuotaName, int] = {}
    left_out: int = 0
    is_read: bool = False


def queue_numbers(queues: Queues, most: int = MOST_QUEUES) -> QueueNumbers:
    """The numbers of the queues in the tree, of ``most`` of them."""
    by_depth = sorted((depth, node.name) for depth, node in queues.tree.walk())
    names = [name for _, name in by_depth[:most]]
    found = []
    for name in names:
        for line in queues.lines(queues.tree.nodes[name]):
            known = {
                kind: each.value
                for kind, each in line.amounts.items()
                if each.value is not None and not each.is_assumed
            }
            if known:
                found.append(QueueAmounts(name, line.resource, known))
    return QueueNumbers(
        tuple(found),
        {name: queues.tree.waiting_workloads(name) for name in names if _are_counted(queues, name)},
        len(by_depth) - len(names),
        is_read=queues.are_read,
    )


def _are_counted(queues: Queues, name: QuotaName) -> bool:
    """Whether the workloads of the queue's system were read."""
    if name.level is QuotaLevel.KAI_QUEUE:
        return KAI_GROUPS.name not in queues.kai.unread
    if name.level is QuotaLevel.QUEUE:
        return POD_GROUPS.name not in queues.volcano.unread
    return WORKLOADS.name not in queues.kueue.unread
