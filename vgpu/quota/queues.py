"""The queues of all systems as one tree, and the lines of each; pure.

``vgpu inspect --by queue`` shows these lines, and metrics have the same numbers.
"""

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Final

import msgspec

from vgpu.model.objects import Node, Pod
from vgpu.quota.kai_lines import kai_lines
from vgpu.quota.kai_tree import KaiQueues, kai_nodes
from vgpu.quota.kueue_lines import kueue_lines
from vgpu.quota.kueue_tree import KueueObjects, kueue_tree
from vgpu.quota.queue_line import QueueLine
from vgpu.quota.quota_units import QuotaUnit, quota_unit
from vgpu.quota.resources import Amounts
from vgpu.quota.tree import QuotaLevel, QuotaNode, QuotaTree
from vgpu.quota.volcano_guarantees import Guarantees, guarantees_of
from vgpu.quota.volcano_lines import volcano_lines
from vgpu.quota.volcano_tree import VolcanoObjects, volcano_nodes
from vgpu.schemes.registry import UnitBytes

_NO_TREE: Final = QuotaTree(())


class QueueSystems(msgspec.Struct, frozen=True):
    """What was read of each system that has queues."""

    kueue: KueueObjects = KueueObjects()
    volcano: VolcanoObjects = VolcanoObjects()
    kai: KaiQueues = KaiQueues()

    @property
    def are_read(self) -> bool:
        """Whether some queue was read."""
        return self.kueue.has_queues or self.volcano.has_queues or self.kai.has_queues


class Queues(QueueSystems, frozen=True, dict=True):
    """The queues of all systems.

    Attributes:
        tree: all queues.
        unit_bytes: the size of units of memory, by the name of a sharing system's row.
        is_measured: whether exporters were asked what pods use.
        on_nodes: what all nodes have, by resource; None if not all of them were read.
    """

    tree: QuotaTree = _NO_TREE
    unit_bytes: UnitBytes = {}
    is_measured: bool = False
    on_nodes: Mapping[str, int] | None = None

    @cached_property
    def _guarantees(self) -> Guarantees:
        return guarantees_of(self.tree, self.volcano, self.on_nodes)

    def unit(self, resource: str) -> QuotaUnit:
        """The unit of a resource."""
        return quota_unit(resource, self.kueue.config, self.unit_bytes)

    def lines(self, node: QuotaNode) -> list[QueueLine]:
        """The amounts of a queue by resource and flavor."""
        if node.name.level is QuotaLevel.KAI_QUEUE:
            return kai_lines(self.tree, node, self.kai)
        if node.name.level is QuotaLevel.QUEUE:
            return volcano_lines(
                self.tree,
                node,
                self.volcano,
                self.unit,
                self._guarantees,
                is_measured=self.is_measured,
            )
        return kueue_lines(self.tree, node, self.kueue, self.unit, is_measured=self.is_measured)


def all_queues(
    systems: QueueSystems,
    held: Iterable[tuple[Pod, Amounts]],
    unit_bytes: UnitBytes,
    nodes: Iterable[Node],
    *,
    driver: Mapping[str, Amounts] | None = None,
    on_nodes: Mapping[str, int] | None = None,
) -> Queues:
    """The queues, with what pods hold by the ledger.

    ``nodes`` are those of the cluster that were read. ``driver`` is what pods use by their UID on
    the node; None if nobody was asked. ``on_nodes`` is what all nodes have of each resource, None
    if not all were read.
    """
    kueue, volcano, kai = systems.kueue, systems.volcano, systems.kai
    pods = tuple(held) if systems.are_read else ()  # labels alone name no limit
    of_kueue = kueue_tree(kueue, pods if kueue.has_queues else (), driver)
    of_volcano = volcano_nodes(volcano, pods, driver)
    of_kai = kai_nodes(kai, pods, nodes)
    tree = QuotaTree((*of_kueue.nodes.values(), *of_volcano, *of_kai))
    return Queues(kueue, volcano, kai, tree, unit_bytes, driver is not None, on_nodes)
