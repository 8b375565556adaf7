"""Which nodes take no new pods, whatever their GPUs, as kube-scheduler decides it. Pure.

A node is closed to a pod by the first of :data:`NODE_CHECKS` that finds something. The checks are
those of kube-scheduler's plugins NodeUnschedulable, TaintToleration, NodeAffinity and
NodeResourcesFit (Kubernetes, ``pkg/scheduler/framework/plugins``). A node that is not ready takes
no pod here: its kubelet would not start it, and kube-scheduler knows it by taints only.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

import msgspec
from msgspec import structs

from vgpu.kube.node_selector import has_labels, matches_a_term
from vgpu.kube.quantities import is_extended
from vgpu.kube.scheduling_objects import (
    CPU,
    MEMORY,
    PODS_RESOURCE,
    PlacedPod,
    SchedulingNode,
    SchedulingPod,
)
from vgpu.model.objects import Node
from vgpu.model.reasons import Explained
from vgpu.model.taints import CORDON, Toleration, untolerated
from vgpu.model.units import rounded_size
from vgpu.schemes.registry import registry


class ClosedReason(Explained):
    """Why a node takes no new pods."""

    NOT_READY = "not_ready", "the node is not ready"
    CORDONED_NODE = "cordoned_node", "the node is cordoned"
    TAINTED_NODE = "tainted_node", "the node has a taint that the pod does not tolerate"
    NODE_SELECTOR = "node_selector", "the node does not have the labels of the pod's nodeSelector"
    NODE_AFFINITY = "node_affinity", "the node does not match the pod's required node affinity"
    TOO_MANY_PODS = "too_many_pods", "the node has as many pods as its kubelet takes"
    INSUFFICIENT_CPU = "insufficient_cpu", "the node has too little free CPU for the pod"
    INSUFFICIENT_MEMORY = "insufficient_memory", "the node has too little free memory for the pod"
    NOTHING_ALLOCATABLE = (
        "nothing_allocatable",
        "the node has GPUs of a sharing system, and none of them is allocatable",
    )
    INSUFFICIENT_RESOURCE = (
        "insufficient_resource",
        "the node has too few free units of a resource that the pod requests",
    )


class ClosedNode(msgspec.Struct, frozen=True):
    """Why a node takes no new pods; ``detail`` is what the reason does not say, such as a taint."""

    reason: ClosedReason
    detail: str = ""

    @property
    def text(self) -> str:
        """The reason with its detail."""
        return self.reason.explanation + (f" ({self.detail})" if self.detail else "")


# ---------------------------------------------------------------- what is free


def none_allocatable(node: Node) -> tuple[str, ...]:
    """The resources of GPUs that the node has, and of which its kubelet can allocate nothing.

    So it is while no device plugin serves the resource, or while all of its devices are unhealthy.
    Every command asks this function.
    """
    return tuple(
        name
        for name, units in sorted(node.capacity.items())
        if units and not node.allocatable.get(name, units)
    )


def with_all_allocatable(node: Node) -> Node:
    """The node as if its device plugins served all: its GPUs have the health that is declared.

    Where nothing is allocatable, the GPUs of some systems count as unhealthy.
    """
    gone = none_allocatable(node)
    if not gone:
        return node
    allocatable = {**node.allocatable, **{name: node.capacity[name] for name in gone}}
    return structs.replace(node, allocatable=allocatable)


class FreeResources:
    """What is free of the resources of nodes while pods come and go. Not for several threads.

        free(n, r) = allocatable(n, r) - Σ requests(p, r), over the pods p that count on n

    Of an extended resource that a node does not report it has none, but for those of the sharing
    systems, whose schedulers count some that no node reports. Another resource that it does not
    report is not judged.
    """

    def __init__(
        self, nodes: Iterable[SchedulingNode] = (), placed: Iterable[PlacedPod] = ()
    ) -> None:
        """``placed`` are the pods that count at first."""
        self._nodes = {each.node.name: each for each in nodes}
        self._used: dict[str, Counter[str]] = {}
        for pod in placed:
            if pod.node:
                self.take(pod.node, pod.requests)

    def take(self, node: str, requests: Mapping[str, int], sign: int = 1) -> None:
        """Count a pod with these requests on the node; with ``sign`` -1 no more."""
        used = self._used.setdefault(node, Counter())
        used[PODS_RESOURCE] += sign
        for name, amount in requests.items():
            used[name] += sign * amount

    def of(self, node: str, name: str) -> int | None:
        """What is free of a resource; None if that is not judged."""
        known = self._nodes.get(node)
        if known is None or not known.allocatable:
            return None
        total = known.allocatable.get(name)
        if total is None:
            if not is_extended(name):
                return None
            if name in registry().resource_names and name not in known.node.capacity:
                return None
            total = 0
        used = self._used.get(node)
        return total - used[name] if used else total

    def room(self, node: str, requests: Mapping[str, int]) -> int | None:
        """The number of pods with these requests that the node takes; None without a bound."""
        bounds = (
            max(0, free) // amount
            for name, amount in ((PODS_RESOURCE, 1), *requests.items())
            if amount and (free := self.of(node, name)) is not None
        )
        return min(bounds, default=None)

    def shortage(
        self,
        node: str,
        requests: Mapping[str, int],
        unjudged: Collection[str] = (),
        beside: int = 0,
    ) -> ClosedNode | None:
        """The first resource of which one more pod has too little; None if it has enough.

        ``beside`` are as many further pods with these requests.
        """
        for name, amount in ((PODS_RESOURCE, 1), *sorted(requests.items(), key=_order)):
            free = None if name in unjudged else self.of(node, name)
            if free is not None and amount * (beside + 1) > free:
                return self._short(node, name, amount, free - amount * beside)
        return None

    def _short(self, node: str, name: str, amount: int, free: int) -> ClosedNode:
        known = self._nodes[node]
        total, capacity = known.allocatable.get(name, 0), known.node.capacity.get(name, 0)
        if name == PODS_RESOURCE:
            return ClosedNode(ClosedReason.TOO_MANY_PODS, f"{total - free} of {total}")
        if not total and capacity:
            detail = f"0 of {capacity} {name} allocatable"
            return ClosedNode(ClosedReason.NOTHING_ALLOCATABLE, detail)
        reason = _OF_RESOURCE.get(name, ClosedReason.INSUFFICIENT_RESOURCE)
        shown = [amount_text(name, each) for each in (amount, max(0, free), total)]
        named = f" of {name}" if reason is ClosedReason.INSUFFICIENT_RESOURCE else ""
        return ClosedNode(reason, f"{shown[0]}{named} requested, {shown[1]} of {shown[2]} free")


_OF_RESOURCE: Final = {
    CPU: ClosedReason.INSUFFICIENT_CPU,
    MEMORY: ClosedReason.INSUFFICIENT_MEMORY,
}


def _order(request: tuple[str, int]) -> tuple[bool, bool, str]:
    """Kubernetes' own resources come first, as in kube-scheduler's messages."""
    name = request[0]
    return is_extended(name), name != CPU, name


def amount_text(name: str, amount: int) -> str:
    """An amount of a resource for people."""
    if name == CPU:
        return f"{amount / 1000:g}"
    if name == MEMORY or name.startswith(("ephemeral-storage", "hugepages-")):
        return rounded_size(amount)
    return str(amount)


# ---------------------------------------------------------------- the checks

NO_POD: Final = SchedulingPod()
"""A pod that requests nothing and tolerates no taint."""


class _Question(msgspec.Struct, frozen=True):
    """A pod and a node; ``free`` is None if the resources are not judged."""

    pod: SchedulingPod
    node: SchedulingNode
    free: FreeResources | None = None
    unjudged: Collection[str] = ()


def _not_ready(asked: _Question) -> ClosedNode | None:
    return None if asked.node.node.ready else ClosedNode(ClosedReason.NOT_READY)


def _cordoned(asked: _Question) -> ClosedNode | None:
    if not asked.node.node.unschedulable or untolerated(asked.pod.tolerations, (CORDON,)) is None:
        return None
    return ClosedNode(ClosedReason.CORDONED_NODE)


def _tainted(asked: _Question) -> ClosedNode | None:
    taint = untolerated(asked.pod.tolerations, asked.node.node.taints)
    return None if taint is None else ClosedNode(ClosedReason.TAINTED_NODE, taint.text)


def _selector(asked: _Question) -> ClosedNode | None:
    selector, labels = asked.pod.node_selector, asked.node.labels
    if has_labels(selector, labels):
        return None
    missing = (f"{key}={text}" for key, text in selector.items() if labels.get(key) != text)
    return ClosedNode(ClosedReason.NODE_SELECTOR, ", ".join(missing))


def _affinity(asked: _Question) -> ClosedNode | None:
    terms = asked.pod.node_terms
    if terms is None or matches_a_term(terms, asked.node.labels, asked.node.node.name):
        return None
    return ClosedNode(ClosedReason.NODE_AFFINITY)


def _unallocatable(asked: _Question) -> ClosedNode | None:
    """No requested unit that the node has is allocatable, so that no device plugin serves it."""
    node = asked.node.node
    gone = [name for name in none_allocatable(node) if asked.pod.requests.get(name)]
    if not gone:
        return None
    detail = f"0 of {node.capacity[gone[0]]} {gone[0]} allocatable"
    return ClosedNode(ClosedReason.NOTHING_ALLOCATABLE, detail)


def _resources(asked: _Question) -> ClosedNode | None:
    if asked.free is None:
        return None
    return asked.free.shortage(asked.node.node.name, asked.pod.requests, asked.unjudged)


NODE_CHECKS: Final[tuple[Callable[[_Question], ClosedNode | None], ...]] = (
    _not_ready,
    _cordoned,
    _tainted,
    _unallocatable,
    _selector,
    _affinity,
    _resources,
)
"""The checks, in their order."""

_OF_KEPT: Final = NODE_CHECKS[:4]
"""The checks that need nothing but what every program keeps of a node and a pod."""


def closed_to_new_pods(node: Node) -> ClosedNode | None:
    """Why the node takes no new pods; None if it does. Taints keep only some pods away."""
    asked = _Question(NO_POD, SchedulingNode(node))
    return _not_ready(asked) or _cordoned(asked)


def closed_to(
    tolerations: tuple[Toleration, ...],
    nodes: Iterable[Node],
    requests: Mapping[str, int] | None = None,
) -> Mapping[str, ClosedNode]:
    """The nodes that do not take a pod with these tolerations, by name.

    ``requests`` are units of GPUs' resources: a node that has them and can allocate none is closed.
    """
    pod = SchedulingPod(requests or {}, tolerations=tolerations)
    closed = {}
    for node in nodes:
        asked = _Question(pod, SchedulingNode(node))
        why = next(filter(None, (check(asked) for check in _OF_KEPT)), None)
        if why is not None:
            closed[node.name] = why
    return closed


def closed_to_pod(
    pod: SchedulingPod,
    node: SchedulingNode,
    free: FreeResources | None = None,
    unjudged: Collection[str] = (),
) -> ClosedNode | None:
    """Why the node does not take one more such pod; None if it does.

    ``unjudged`` are resources that are not compared.
    """
    asked = _Question(pod, node, free, unjudged)
    for check in NODE_CHECKS:
        why = check(asked)
        if why is not None:
            return why
    return None
