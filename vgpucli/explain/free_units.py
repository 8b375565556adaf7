"""Units of extended resources that nodes have free beside what bound pods request. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from vgpu.kube.closed_nodes import none_allocatable
from vgpu.model.objects import Node, Pod
from vgpu.placement.candidate import PodDemand

MOST_LISTED: Final = 5
"""Maximum number of nodes whose units are listed."""


def observed_units(
    observed: Mapping[str, int], nodes: Iterable[Node], pods: Iterable[Pod]
) -> tuple[frozenset[str], tuple[str, ...]]:
    """The nodes with enough free units, and what nodes have of each resource, as sentences.

    ``observed`` are units that kube-scheduler alone counts. Nodes that can allocate less than they
    have come first.
    """
    used: dict[str, Counter[str]] = {}
    for pod in pods:
        if pod.node and not pod.terminal:
            used.setdefault(pod.node, Counter()).update(pod.requested_units())
    rows: list[tuple[int, str, str]] = []
    free = set()
    for node in nodes:
        held = used.get(node.name, Counter())
        for resource in observed:
            capacity = node.capacity.get(resource, 0)
            allocatable = node.allocatable.get(resource, 0)
            if capacity or allocatable:
                text = (
                    f"{node.name}: {allocatable} of {capacity} {resource} allocatable,"
                    f" bound pods request {held[resource]}"
                )
                rows.append((allocatable - capacity, node.name, text))
        if all(
            node.allocatable.get(resource, 0) - held[resource] >= units
            for resource, units in observed.items()
        ):
            free.add(node.name)
    return frozenset(free), tuple(text for _, _, text in sorted(rows)[:MOST_LISTED])


def nothing_allocatable(observed: Iterable[str], nodes: Iterable[Node]) -> bool:
    """Whether nodes have units of these resources, and none of them can allocate one."""
    names = frozenset(observed)
    having = [
        names.intersection(node.advertised).issubset(none_allocatable(node))
        for node in nodes
        if any(node.capacity.get(name) or node.allocatable.get(name) for name in names)
    ]
    return bool(having) and all(having)


def nodes_with_units(
    demand: PodDemand, nodes: Iterable[Node], pods: Iterable[Pod]
) -> frozenset[str]:
    """The nodes whose advertised resources suffice for the pod beside the bound ones."""
    by_name = {node.name: node for node in nodes}
    used: dict[str, Counter[str]] = {name: Counter() for name in by_name}
    for pod in pods:
        if pod.node in by_name and not pod.terminal and pod.ref.uid != demand.pod.uid:
            used[pod.node].update(pod.requested_units())
    return frozenset(
        name
        for name, node in by_name.items()
        if all(
            used[name][resource] + units <= node.allocatable[resource]
            for resource, units in demand.units
            if resource in node.allocatable
        )
    )


def unallocatable(nodes: Iterable[Node], demand: PodDemand) -> Iterator[str]:
    """The requested units that the nodes have and cannot allocate, as sentences."""
    for node in nodes:
        for name, _ in demand.units:
            allocatable, capacity = node.allocatable.get(name, 0), node.capacity.get(name, 0)
            if allocatable < capacity:
                yield f"{node.name}: {allocatable} of {capacity} {name} allocatable"
