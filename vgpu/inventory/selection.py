"""Inventories put together from what was read, and parts of them for people. Pure."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from msgspec.structs import replace

from vgpu.inventory.free import available_bytes
from vgpu.inventory.model import Inventory, NodeView
from vgpu.kube.kept_keys import shares_gpus
from vgpu.ledger import Conflict
from vgpu.ledger.from_resource_claims import ClusterResourceClaims
from vgpu.model.names import PodRef
from vgpu.model.objects import Pod
from vgpu.model.resource_claims import ResourceClaim, ResourceSlice


def with_resource_claims(
    pods: Iterable[Pod],
    resource_claims: Iterable[ResourceClaim] = (),
    slices: Iterable[ResourceSlice] = (),
) -> tuple[tuple[Pod, ...], ClusterResourceClaims]:
    """The pods that share GPUs, and the ResourceClaims with the pods that only use these."""
    sharing: list[Pod] = []
    resource_claim_pods: list[Pod] = []
    for pod in pods:
        (sharing if shares_gpus(pod) else resource_claim_pods).append(pod)
    return tuple(sharing), ClusterResourceClaims(
        tuple(resource_claims), tuple(slices), tuple(resource_claim_pods)
    )


ChoosesPod = Callable[[PodRef], bool]


def only_pods(whole: Inventory, chooses: ChoosesPod) -> Inventory:
    """The pods that are chosen, with their GPUs and nodes; sums of GPUs are those of all pods."""
    views = (_of_pods(view, chooses) for view in whole.nodes)
    return replace(
        whole,
        nodes=tuple(view for view in views if view.ledger.devices or view.ledger.unplaced),
        pending=tuple(pending for pending in whole.pending if chooses(pending.pod)),
        nvidia=tuple(
            replace(devices, holders=own)
            for devices in whole.nvidia
            if (own := tuple(each for each in devices.holders if chooses(each.pod)))
        ),
        others=tuple(other for other in whole.others if chooses(other.pod)),
    )


def _of_pods(view: NodeView, chooses: ChoosesPod) -> NodeView:
    ledger = view.ledger
    entries = (
        replace(entry, holdings=tuple(own for own in entry.holdings if chooses(own.pod)))
        for entry in ledger.devices
    )
    return replace(
        view,
        ledger=replace(
            ledger,
            devices=tuple(entry for entry in entries if entry.holdings),
            unplaced=tuple(holding for holding in ledger.unplaced if chooses(holding.pod)),
            conflicts=tuple(wrong for wrong in ledger.conflicts if _is_of(wrong, chooses)),
        ),
    )


def _is_of(conflict: Conflict, chooses: ChoosesPod) -> bool:
    pods = [statement.pod for statement in conflict.statements]
    return any(map(chooses, [conflict.pod] if conflict.pod is not None else pods))


def _held(view: NodeView) -> int:
    return sum(entry.held.memory_bytes for entry in view.ledger.devices)


SORTS: Final[Mapping[str, Callable[[NodeView], Any]]] = {
    "name": lambda view: view.node.name,
    "free": lambda view: (-available_bytes(view), view.node.name),
    "held": lambda view: (-_held(view), view.node.name),
    "conflicts": lambda view: (-len(view.ledger.conflicts), view.node.name),
}
"""The orders of nodes, by their names; amounts from the largest to the smallest."""


def in_order(whole: Inventory, sort: str) -> Inventory:
    """The same with its nodes in this order of :data:`SORTS`."""
    return replace(whole, nodes=tuple(sorted(whole.nodes, key=SORTS[sort])))
