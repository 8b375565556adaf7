"""A tree of quotas, as queueing systems such as Kueue have them; pure.

Queues are leaves, and what groups them is above them. Of one resource a node has, by the rules of
Kueue (v0.17.0, ``pkg/cache/scheduler/resource_node.go``); a system that lends nothing, or all, has
a part of these rules:

    quota(n)  = nominal(n) + Σ over children c: quota(c) - kept(c)
    kept(n)   = max(0, quota(n) - lending limit(n)), 0 without one: nobody else can take it
    drawn(n)  = used(n) of a queue, else Σ over children c: max(0, drawn(c) - kept(c))
    limit(n)  = min over the nodes a from n up to the root:
                    Σ kept(b) of the nodes b below a + quota(a) + borrowing limit(a)
                of those with a borrowing limit, and of the root, which can borrow nothing
    free(n)   = the same minimum of what is left: Σ max(0, kept(b) - drawn(b)) of the nodes below a,
                + quota(a) + borrowing limit(a) - drawn(a)

The queues of Volcano and KAI Scheduler have ceilings, which neither add up nor lend: what the
system counts for a queue is compared with the ceiling of this queue, and of each queue above it.

    limit(n)  = min over the nodes a from n up to the root: ceiling(a)
    free(n)   = min over the same nodes: ceiling(a) - used(a)

A queue's *used* is what its system counts, and is never summed. Where the system counts nothing for
a node, only *drawn* is known, which is computed as the system does. *Held* is what the ledger
shows: it sums over the tree exactly, since each pod is of one queue.

    held(n) = own held(n) + Σ over children c: held(c)
"""

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Final

import msgspec

from vgpu.model.declared_quota import DeclaredQuota, QuotaCeiling, QuotaResource
from vgpu.quota.resources import Amounts, plus


class QuotaLevel(StrEnum):
    """The kind of object that a node of the tree is; the name is the kind's, with the
    API group where another system has the kind, too.
    """

    COHORT = "Cohort"
    CLUSTER_QUEUE = "ClusterQueue"
    LOCAL_QUEUE = "LocalQueue"
    QUEUE = "Queue"
    KAI_QUEUE = "Queue.scheduling.run.ai"

    @property
    def kind(self) -> str:
        """The kind: of KAI Scheduler's Queues without their API group."""
        return self.value.partition(".")[0]

    @property
    def system(self) -> str:
        """The system that has such objects, for people."""
        return _SYSTEMS.get(self, "Kueue")


_SYSTEMS: Final = {QuotaLevel.QUEUE: "Volcano", QuotaLevel.KAI_QUEUE: "KAI Scheduler"}


class QuotaName(msgspec.Struct, frozen=True, order=True):
    """The object that a node of the tree is; that of a namespace as ``<namespace>/<name>``."""

    level: QuotaLevel
    name: str

    @property
    def text(self) -> str:
        """Kind and name, for people."""
        return f"{self.level.kind} {self.name}"


class QuotaNode(msgspec.Struct, frozen=True):
    """One node of the tree. Amounts are in the unit of their resource, but for ``held``.

    Attributes:
        name: the object.
        parent: the object above it; None of a root.
        declared: its quotas; a resource that is missing has the quota of its parent alone.
        ceilings: its limits, of a queue of Volcano or KAI Scheduler.
        requested: what its system counts as requested, with what is used of it.
        used: what its system counts; missing where the system counts nothing.
        borrowed: what of it is more than the nominal quota, by the system.
        held: what its own pods hold by the ledger, in the ledger's units: bytes, thousandths of a
            GPU's cores, GPUs (:mod:`vgpu.quota.resources`); by flavor, "" is unknown.
        driver: what its own pods use by the driver, in the same units; None is not measured.
        waiting: what its own workloads without quota request, by resource.
        waiting_workloads: the number of these.
    """

    name: QuotaName
    parent: QuotaName | None = None
    declared: Mapping[QuotaResource, DeclaredQuota] = {}
    used: Mapping[QuotaResource, int] = {}
    borrowed: Mapping[QuotaResource, int] = {}
    held: Mapping[str, Amounts] = {}
    driver: Mapping[str, Amounts] | None = None
    waiting: Amounts = {}
    waiting_workloads: int = 0
    ceilings: Mapping[QuotaResource, QuotaCeiling] = {}
    requested: Mapping[QuotaResource, int] = {}


class LevelCapacity(msgspec.Struct, frozen=True):
    """What one level of a path allows the leaf: ``limit`` in all, ``free`` beside what is used."""

    name: QuotaName
    limit: int
    free: int


_WITHOUT_SUMS: Final = frozenset({QuotaLevel.LOCAL_QUEUE, QuotaLevel.QUEUE, QuotaLevel.KAI_QUEUE})


class QuotaTree:
    """The nodes by name. What a node refers to and is not there does not limit it.

    A node whose parents are a cycle has no parent: Kueue, too, takes such cohorts for inactive.
    """

    def __init__(self, nodes: Iterable[QuotaNode]) -> None:
        self.nodes: Final[Mapping[QuotaName, QuotaNode]] = {node.name: node for node in nodes}
        self._children: dict[QuotaName, list[QuotaNode]] = {}
        self._in_cycle = self._cyclic()
        for node in self.nodes.values():
            parent = self.parent(node.name)
            if parent is not None:
                self._children.setdefault(parent.name, []).append(node)
        self._quotas: dict[tuple[QuotaName, QuotaResource], int] = {}
        self._drawn: dict[tuple[QuotaName, QuotaResource], int] = {}

    def parent(self, name: QuotaName) -> QuotaNode | None:
        """The node above it."""
        above = self.nodes[name].parent
        return None if above is None or name in self._in_cycle else self.nodes.get(above)

    def children(self, name: QuotaName) -> tuple[QuotaNode, ...]:
        """The nodes below it, by name."""
        return tuple(sorted(self._children.get(name, ()), key=lambda node: node.name))

    def path(self, name: QuotaName) -> Iterator[QuotaNode]:
        """The node, and those above it up to the root."""
        node: QuotaNode | None = self.nodes.get(name)
        while node is not None:
            yield node
            node = self.parent(node.name)

    def below(self, name: QuotaName) -> Iterator[QuotaNode]:
        """The node and all below it."""
        return self._upwards(name)

    def roots(self) -> tuple[QuotaNode, ...]:
        """The nodes without a parent, by name."""
        return tuple(
            node
            for node in sorted(self.nodes.values(), key=lambda node: node.name)
            if self.parent(node.name) is None
        )

    def resources(self, name: QuotaName) -> tuple[QuotaResource, ...]:
        """The resources that the node, one above it, or one below it has a quota of."""
        found = {key for node in self.path(name) for key in (*node.declared, *node.ceilings)}
        for node in self._upwards(name):
            found.update(node.declared, node.ceilings, node.used, node.requested)
        return tuple(sorted(found))

    # ------------------------------------------------------------ the formulas of the module

    def quota(self, name: QuotaName, key: QuotaResource) -> int:
        """The node's own quota and what its children bring."""
        cell = name, key
        if cell not in self._quotas:
            for node in self._upwards(name):
                declared = node.declared.get(key)
                self._quotas[node.name, key] = (declared.nominal if declared else 0) + sum(
                    self._quotas[child.name, key] - self.kept(child.name, key)
                    for child in self._children.get(node.name, ())
                )
        return self._quotas[cell]

    def kept(self, name: QuotaName, key: QuotaResource) -> int:
        """What of its quota nobody else can take."""
        declared = self.nodes[name].declared.get(key)
        if declared is None or declared.lending_limit is None:
            return 0
        return max(0, self.quota(name, key) - declared.lending_limit)

    def drawn(self, name: QuotaName, key: QuotaResource) -> int:
        """What counts against its quota: used of a queue, else what its children take of it."""
        cell = name, key
        if cell not in self._drawn:
            for node in self._upwards(name):
                self._drawn[node.name, key] = node.used.get(key, 0) + (
                    0
                    if node.name.level is not QuotaLevel.COHORT
                    else sum(
                        max(0, self._drawn[child.name, key] - self.kept(child.name, key))
                        for child in self._children.get(node.name, ())
                    )
                )
        return self._drawn[cell]

    def levels(self, name: QuotaName, key: QuotaResource) -> tuple[LevelCapacity, ...]:
        """What each level of the path that has a limit allows the node, from the node up."""
        kept = left = 0
        found = []
        for node in self.path(name):
            ceiling = node.ceilings.get(key)
            if ceiling is not None and ceiling.most is not None:
                room = ceiling.most - node.used.get(key, 0)
                found.append(LevelCapacity(node.name, ceiling.most, room))
            if self._has_no_quota(node):
                continue
            quota, drawn = self.quota(node.name, key), self.drawn(node.name, key)
            declared = node.declared.get(key)
            most = None if declared is None else declared.borrowing_limit
            if self.parent(node.name) is None:
                most = 0
            if most is not None:
                capacity = LevelCapacity(
                    node.name, kept + quota + most, left + quota + most - drawn
                )
                found.append(capacity)
            own_kept = self.kept(node.name, key)
            kept += own_kept
            left += max(0, own_kept - drawn)
        return tuple(found)

    def limit(self, name: QuotaName, key: QuotaResource) -> int | None:
        """The most that the node can have if nobody else has anything; None without a limit."""
        return min((level.limit for level in self.levels(name, key)), default=None)

    def free(self, name: QuotaName, key: QuotaResource) -> int | None:
        """What the node can take now without taking it from others; None without a limit."""
        return min((level.free for level in self.levels(name, key)), default=None)

    def lent(self, name: QuotaName, key: QuotaResource) -> int | None:
        """The part of its unused quota that others have taken, at least; None of a root.

        Unused quotas are one pool: whose quota a borrower has is nowhere written. What is unused
        here and not free there any more is certainly taken.
        """
        parent = self.parent(name)
        if parent is None or self._has_no_quota(self.nodes[name]):
            return None
        kept = self.kept(name, key)
        unused = self.quota(name, key) - kept - max(0, self.drawn(name, key) - kept)
        pool = self.quota(parent.name, key) - self.drawn(parent.name, key)
        return max(0, unused - max(0, pool))

    def held(self, name: QuotaName, flavor: str) -> Amounts:
        """What the pods of the node and of all below it hold, in the ledger's units."""
        return plus(*(node.held.get(flavor, {}) for node in self._upwards(name)))

    def driver(self, name: QuotaName, flavor: str) -> Amounts | None:
        """What these pods use by the driver; None if none of them is measured."""
        measured = [node.driver for node in self._upwards(name) if node.driver is not None]
        return plus(*(each.get(flavor, {}) for each in measured)) if measured else None

    def waiting(self, name: QuotaName) -> Amounts:
        """What the workloads without quota of the node and of all below it request."""
        return plus(*(node.waiting for node in self._upwards(name)))

    def waiting_workloads(self, name: QuotaName) -> int:
        """The number of these workloads."""
        return sum(node.waiting_workloads for node in self._upwards(name))

    def flavors_held(self, name: QuotaName) -> frozenset[str]:
        """The flavors of which pods of the node or below it hold something; "" is unknown."""
        return frozenset(flavor for node in self._upwards(name) for flavor in node.held)

    def walk(self) -> Iterator[tuple[int, QuotaNode]]:
        """All nodes with their depth; a node follows what is above it."""
        stack = [(0, node) for node in reversed(self.roots())]
        while stack:
            depth, node = stack.pop()
            yield depth, node
            stack += [(depth + 1, child) for child in reversed(self.children(node.name))]

    def _has_no_quota(self, node: QuotaNode) -> bool:
        """Whether nothing is declared that adds up: its quota is its parent's, or a ceiling."""
        return node.name.level in _WITHOUT_SUMS

    def _upwards(self, name: QuotaName) -> Iterator[QuotaNode]:
        """The node and all below it, children before their parents."""
        order = [self.nodes[name]]
        for node in order:
            order += self._children.get(node.name, ())
        return reversed(order)

    def _cyclic(self) -> frozenset[QuotaName]:
        """The nodes whose parents lead back to themselves."""
        return frozenset(name for name in self.nodes if self._leads_back(name))

    def _leads_back(self, name: QuotaName) -> bool:
        seen: set[QuotaName] = set()
        above = self.nodes[name].parent
        while above is not None and above in self.nodes and above not in seen:
            if above == name:
                return True
            seen.add(above)
            above = self.nodes[above].parent
        return False
