"""Which nodes take no new pods, whatever their GPUs, as kube-scheduler decides it. Pure."""

from collections.abc import Iterable, Mapping

import msgspec

from vgpu.model.objects import Node
from vgpu.model.reasons import Explained
from vgpu.model.taints import CORDON, Toleration, untolerated


class ClosedReason(Explained):
    """Why a node takes no new pods."""

    NOT_READY = "not_ready", "the node is not ready"
    CORDONED_NODE = "cordoned_node", "the node is cordoned"
    TAINTED_NODE = "tainted_node", "the node has a taint that the pod does not tolerate"


class ClosedNode(msgspec.Struct, frozen=True):
    """Why a node takes no new pods; ``detail`` is what the reason does not say, such as a taint."""

    reason: ClosedReason
    detail: str = ""

    @property
    def text(self) -> str:
        """The reason with its detail."""
        return self.reason.explanation + (f" ({self.detail})" if self.detail else "")


def closed_to_new_pods(node: Node) -> ClosedNode | None:
    """Why the node takes no new pods; None if it does. Taints keep only some pods away."""
    if not node.ready:
        return ClosedNode(ClosedReason.NOT_READY)
    if node.unschedulable:
        return ClosedNode(ClosedReason.CORDONED_NODE)
    return None


def closed_to(
    tolerations: tuple[Toleration, ...], nodes: Iterable[Node]
) -> Mapping[str, ClosedNode]:
    """The nodes that do not take a pod with these tolerations, by name."""
    passes_cordons = untolerated(tolerations, (CORDON,)) is None
    closed = {}
    for node in nodes:
        why = closed_to_new_pods(node)
        if why is None or (passes_cordons and why.reason is ClosedReason.CORDONED_NODE):
            taint = untolerated(tolerations, node.taints)
            why = None if taint is None else ClosedNode(ClosedReason.TAINTED_NODE, taint.text)
        if why is not None:
            closed[node.name] = why
    return closed
