"""What the guarantees of other Queues of Volcano leave to a queue; pure.

A guarantee is kept back from all other queues, whether it is used or not (volcano-sh/volcano
ed72c7c8, ``buildQueueAttrs`` and ``checkHierarchicalQueue`` of ``plugins/capacity/capacity.go``;
``plugins/proportion/proportion.go`` has the first rule, too). Without hierarchy

    left(q) = max(0, Σ over nodes: allocatable - Σ over all queues: guarantee) + guarantee(q)

and with it, below a queue p that has a limit (the root has none but its capability)

    left(q) = max(0, real(p) - Σ over children c of p: guarantee(c)) + guarantee(q)
    real(q) = min(left(q), capability(q), or else that of p)
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import Final

import msgspec

from vgpu.kube.volcano_kinds import QUEUES
from vgpu.model.declared_quota import QuotaResource
from vgpu.quota.tree import QuotaLevel, QuotaNode, QuotaTree
from vgpu.quota.volcano_tree import VolcanoObjects

_MOST_LEVELS: Final = 64


class Guarantees(msgspec.Struct, frozen=True):
    """The sums that the rules need.

    Attributes:
        sums: what all queues are guaranteed, by resource.
        on_nodes: what the nodes have, by resource; None if not all nodes were read.
        are_read: whether all queues were read.
    """

    sums: Mapping[str, int] = {}
    on_nodes: Mapping[str, int] | None = None
    are_read: bool = True


class LeftByOthers(msgspec.Struct, frozen=True):
    """What others leave to a queue; ``amount`` is None if it cannot be computed, by ``source``."""

    amount: int | None
    source: str


def guarantees_of(
    tree: QuotaTree, volcano: VolcanoObjects, on_nodes: Mapping[str, int] | None
) -> Guarantees:
    """The sums of all queues of the tree."""
    sums: dict[str, int] = {}
    for node in tree.nodes.values():
        if node.name.level is QuotaLevel.QUEUE:
            for key, ceiling in node.ceilings.items():
                sums[key.resource] = sums.get(key.resource, 0) + (ceiling.guaranteed or 0)
    return Guarantees(sums, on_nodes, QUEUES.name not in volcano.unread)


def left_by_others(
    tree: QuotaTree,
    node: QuotaNode,
    volcano: VolcanoObjects,
    resource: str,
    guarantees: Guarantees,
) -> LeftByOthers | None:
    """What the guarantees of others leave to a queue; None if there are none that count."""
    key = QuotaResource("", resource)
    others = guarantees.sums.get(resource, 0) - _guaranteed(node, key)
    if others <= 0:
        return None
    if volcano.scheduler.plugins is None:
        return LeftByOthers(None, "guarantees of other queues may lower it: plugins unknown")
    if not guarantees.are_read:
        return LeftByOthers(None, "guarantees of other queues may lower it: some were not read")
    if volcano.scheduler.is_hierarchical:
        return _left_below(tree, node, key)
    has = None if guarantees.on_nodes is None else guarantees.on_nodes.get(resource)
    if has is None:
        what = f"guarantees of other queues ({others}) may lower it"
        return LeftByOthers(None, f"{what}: what the nodes have was not read")
    left = max(0, has - guarantees.sums[resource]) + _guaranteed(node, key)
    return LeftByOthers(left, f"computed: {has} on the nodes, without {others} of other queues")


def _guaranteed(node: QuotaNode, key: QuotaResource) -> int:
    ceiling = node.ceilings.get(key)
    return 0 if ceiling is None else ceiling.guaranteed or 0


def _left_below(tree: QuotaTree, node: QuotaNode, key: QuotaResource) -> LeftByOthers | None:
    """The least of the path, where a queue above has a limit of its own."""
    path = [*tree.path(node.name)][::-1][:_MOST_LEVELS]
    real = capability = _most(path[0], key)
    found: LeftByOthers | None = None
    for parent, child in pairwise(path):
        capability = own if (own := _most(child, key)) is not None else capability
        if real is None:
            real = capability
            continue
        kept = sum(_guaranteed(each, key) for each in tree.children(parent.name))
        left = max(0, real - kept) + _guaranteed(child, key)
        if kept > _guaranteed(child, key) and (
            found is None or found.amount is None or left < found.amount
        ):
            found = LeftByOthers(
                left,
                f"computed: {real} of {parent.name.text}, without what others below it are"
                " guaranteed",
            )
        real = left if capability is None else min(left, capability)
    return found


def _most(node: QuotaNode, key: QuotaResource) -> int | None:
    ceiling = node.ceilings.get(key)
    return None if ceiling is None else ceiling.most
