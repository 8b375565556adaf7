"""The ledgers of a whole cluster; a node that did not change is not merged again.

Most nodes and pods are the same from one observation to the next. The cache keeps each node's
inputs, and its ledger only where something is wrong: rules ask for nothing else, and 5,000 nodes
take a few megabytes. Pure, with a state.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec import structs

from vgpu.inventory import NodeDoubt, doubts_of, sizes_by_scheme
from vgpu.inventory.pod_usage import pod_accounts
from vgpu.ledger import Ledger
from vgpu.ledger.cluster import home, node_ledger
from vgpu.ledger.from_api import read_pod
from vgpu.ledger.from_resource_claims import (
    NO_RESOURCE_CLAIMS,
    ClusterResourceClaims,
    NodeResourceClaims,
    node_resource_claims,
)
from vgpu.model.names import ContainerKind
from vgpu.model.objects import Node, Pod, holds_devices
from vgpu.quota.resources import Amounts
from vgpu.schemes.codec import SchemeCodec
from vgpu.schemes.kai.groups import Place
from vgpu.schemes.registry import UnitBytes, registry


class _Page(msgspec.Struct, frozen=True, gc=False):
    """One node: its ledger's inputs, and the ledger, None if nothing is wrong on the node.

    ``doubts`` are what contradicts the units of memory in force. ``held`` is what pods hold, where
    that is kept.
    """

    node: Node
    pods: tuple[Pod, ...]
    unhealthy: str
    resource_claims: NodeResourceClaims
    ledger: Ledger | None
    doubts: tuple[NodeDoubt, ...]
    held: tuple[tuple[Pod, Amounts], ...] = ()
    doubted_groups: frozenset[Place] = frozenset()


_Settings = tuple[tuple[SchemeCodec, ...], UnitBytes, tuple[bool, bool]]
"""What all ledgers depend on."""


class LedgerCache:
    """Keeps a cluster's allocation records. One thread calls ``ledgers``."""

    def __init__(self, *, keeps_held: bool = False) -> None:
        """Nothing is known yet. ``keeps_held``: keep what each pod holds, too."""
        self._keeps_held = keeps_held
        self._settings: _Settings = ((), {}, (False, False))
        self._pages: dict[str, _Page] = {}

    @property
    def doubts(self) -> tuple[NodeDoubt, ...]:
        """What contradicts the units of memory in force, on the nodes of the last ledgers."""
        return tuple(doubt for page in self._pages.values() for doubt in page.doubts)

    @property
    def held(self) -> tuple[tuple[Pod, Amounts], ...]:
        """What pods hold by the last ledgers; nothing if that is not kept."""
        return tuple(each for page in self._pages.values() for each in page.held)

    def ledgers(
        self,
        nodes: Iterable[Node],
        pods: Iterable[Pod],
        codecs: Sequence[SchemeCodec],
        unhealthy: Mapping[str, str] | None = None,
        unit_bytes: UnitBytes | None = None,
        *,
        resource_claims: ClusterResourceClaims | None = None,
        lists_all: bool = False,
        doubted_groups: frozenset[Place] = frozenset(),
    ) -> dict[str, Ledger]:
        """The ledgers in which something is wrong, by node; arguments as of
        :func:`vgpu.ledger.cluster.cluster`. ``unit_bytes`` are the units in force.
        """
        all_pods = tuple(pods)
        lists_reservations = lists_all or any(map(registry().is_reservation, all_pods))
        resource_claims_of_nodes = node_resource_claims(
            resource_claims or ClusterResourceClaims(), all_pods
        )
        codecs_now, units = tuple(codecs), unit_bytes or {}
        settings = codecs_now, units, (lists_all, lists_reservations)
        if settings != self._settings:
            self._settings, self._pages = settings, {}
        unhealthy_by_node = unhealthy or {}
        at_home = _at_home(all_pods, codecs_now)
        known = {node.name: node for node in nodes}
        doubted_at: dict[str, set[Place]] = {}
        for place in doubted_groups:
            doubted_at.setdefault(place[0], set()).add(place)
        before, self._pages = self._pages, {}
        for name in (
            *known,
            *sorted((at_home.keys() | resource_claims_of_nodes.keys()) - known.keys()),
        ):
            node = known.get(name) or Node(name)
            pods_here, text = tuple(at_home.get(name, ())), unhealthy_by_node.get(name, "")
            own_resource_claims = resource_claims_of_nodes.get(name, NO_RESOURCE_CLAIMS)
            doubted = frozenset(doubted_at.get(name, ()))
            cached = before.get(name)
            if cached is not None and cached.doubted_groups != doubted:
                cached = None
            if cached is None or not _same(cached, node, pods_here, text, own_resource_claims):
                ledger = node_ledger(
                    node,
                    pods_here,
                    codecs_now,
                    text,
                    own_resource_claims,
                    lists_reservations=lists_reservations,
                    lists_tenants=lists_all,
                    doubted_groups=doubted,
                )
                sizes = {name: sizes_by_scheme(ledger.holdings)}
                doubts = doubts_of([node], sizes, registry().rows, units)
                kept = ledger if is_notable(ledger, pods_here) else None
                held = self._held(node, pods_here, ledger) if self._keeps_held else ()
                cached = _Page(
                    node, pods_here, text, own_resource_claims, kept, doubts, held, doubted
                )
            self._pages[name] = cached
        return {
            name: cached.ledger for name, cached in self._pages.items() if cached.ledger is not None
        }

    def _held(
        self, node: Node, pods: tuple[Pod, ...], ledger: Ledger
    ) -> tuple[tuple[Pod, Amounts], ...]:
        accounts = pod_accounts([node], {node.name: ledger}, pods, self._settings[0])
        return tuple((each.pod, each.held) for each in accounts if each.phase is not None)


def _asks_before_it_runs(pod: Pod) -> bool:
    """Whether only init containers request GPUs: the ledger has no container that waits for one."""
    kinds = {each.kind for each in pod.containers if any(each.limits.values())}
    return kinds == {ContainerKind.INIT} and not pod.initialized()


def is_notable(ledger: Ledger, pods: Iterable[Pod]) -> bool:
    """Whether a rule could find something in the ledger of these pods.

    A pod that waits on its node without a GPU keeps others off GPUs, whether it runs or not.
    """
    is_wrong = ledger.conflicts or ledger.malformed or ledger.waiting
    return bool(is_wrong) or any(map(_asks_before_it_runs, pods))


def _at_home(pods: Iterable[Pod], codecs: Sequence[SchemeCodec]) -> dict[str, list[Pod]]:
    """The pods that hold devices, by the node that they are bound to or reserved on."""
    by_node: dict[str, list[Pod]] = {}
    for pod in pods:
        if holds_devices(pod) or registry().is_reservation(pod):
            where = pod.node or home(pod, read_pod(pod, codecs))
            if where:
                by_node.setdefault(where, []).append(pod)
    return by_node


def _same(
    page: _Page,
    node: Node,
    pods: tuple[Pod, ...],
    unhealthy: str,
    resource_claims: NodeResourceClaims,
) -> bool:
    """Whether the ledger would be the same. Objects that did not change are identical."""
    if page.pods != pods or page.unhealthy != unhealthy or page.resource_claims != resource_claims:
        return False
    return page.node is node or _lasting(page.node) == _lasting(node)


def _lasting(node: Node) -> Node:
    """The parts of a node that can describe its GPUs: these change rarely."""
    passing = registry().passing_keys
    annotations = {key: text for key, text in node.annotations.items() if key not in passing}
    return structs.replace(node, resource_version="", annotations=annotations)
