"""The nodes of NVIDIA's own device plugin, which ``vgpu inspect`` lists by resource. Pure."""

from collections.abc import Iterable, Iterator

import msgspec

from vgpu.kube.closed_nodes import closed_to_new_pods
from vgpu.model.objects import Node
from vgpucli.inspect.document import InventoryDocument, NodeDocument, NvidiaDocument


class NvidiaSum(msgspec.Struct, frozen=True, rename="camel"):
    """Units of one resource of NVIDIA's own plugin on all nodes with GPUs of one model."""

    resource: str
    model: str
    nodes: int
    allocatable: int
    held: int


class NvidiaHolding(msgspec.Struct, frozen=True, rename="camel"):
    """Units of a resource of NVIDIA's own plugin that a container of a pod has."""

    node: str
    resource: str
    container: str
    number: int


def other_nodes(inspect: InventoryDocument, nodes: Iterable[Node]) -> Iterator[NodeDocument]:
    """The nodes with NVIDIA's resources and no shared GPUs, as documents without devices."""
    names = {each.node for each in inspect.nvidia} - {each.name for each in inspect.nodes}
    for node in sorted(nodes, key=lambda each: each.name):
        if node.name not in names:
            continue
        closed = closed_to_new_pods(node)
        reason, detail = ("", "") if closed is None else (closed.reason.value, closed.detail)
        flags = node.ready, node.unschedulable
        yield NodeDocument(
            node.name, True, *flags, [], [], [], True, [], reason, detail, 0, 0, 0, 0, [], []
        )


def nvidia_sums(nvidia: Iterable[NvidiaDocument]) -> tuple[NvidiaSum, ...]:
    """The units by resource and model."""
    groups: dict[tuple[str, str], list[NvidiaDocument]] = {}
    for each in nvidia:
        if each.node:
            groups.setdefault((each.resource, each.model), []).append(each)
    return tuple(
        NvidiaSum(
            *key,
            len({each.node for each in members}),
            sum(each.allocatable for each in members),
            sum(each.held for each in members),
        )
        for key, members in sorted(groups.items())
    )


def holdings_of(
    nvidia: Iterable[NvidiaDocument], namespace: str, name: str
) -> tuple[NvidiaHolding, ...]:
    """What a pod has; a pod that is not bound has nothing."""
    return tuple(
        NvidiaHolding(each.node, each.resource, holder.container, holder.number)
        for each in nvidia
        if each.node
        for holder in each.holders
        if (holder.pod.namespace, holder.pod.name) == (namespace, name)
    )
