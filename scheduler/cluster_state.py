"""What the API server has shown of nodes and pods, and the reservations beside it. No I/O.

The state has no requests and no decisions: :mod:`scheduler.cache` has those, and the lock.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from scheduler.node_cache import CachedNode, PodReservation
from scheduler.node_claims import Claims
from vgpu.kube.objects import MalformedObject, Node, Pod, holds_devices
from vgpu.placement.dialects import SchedulerScheme
from vgpu.placement.node_view import foreign_promise, scheme_of
from vgpu.placement.result import PlacementReason

MOST_GONE: Final = 50_000
"""Maximum number of pods that are remembered as gone."""

_NOWHERE: Final[AbstractSet[str]] = frozenset()


def _counts_alike(before: Pod, pod: Pod) -> bool:
    """Whether a newer state of a pod changes nothing of what it holds or requests."""
    return (
        before.ref == pod.ref
        and before.node == pod.node
        and before.annotations == pod.annotations
        and before.labels == pod.labels
        and before.containers == pod.containers
        and holds_devices(before) == holds_devices(pod)
        and before.initialized() == pod.initialized()
    )


class ClusterState:
    """The state that the module describes. Not for several threads: its cache locks.

    Attributes:
        nodes: nodes by name, also those of which only a pod is known.
        pods: pods by ``<namespace>/<name>``.
    """

    def __init__(
        self,
        schemes: Sequence[SchedulerScheme],
        clock: Callable[[], float],
        changed: Callable[[str], object],
        settled: Callable[[str], object],
        forget: Callable[[str], object],
    ) -> None:
        """``clock`` returns unix seconds.

        ``changed`` is called with the name of each node that may have room for more pods,
        ``settled`` with the UID of each pod that is bound, gone, or needs no node any more, and
        ``forget`` with the name of each node of which anything has changed.
        """
        self._schemes = schemes
        self._clock = clock
        self._on_change = changed
        self._on_settle = settled
        self._forget_answers = forget
        self.nodes: dict[str, CachedNode] = {}
        self.pods: dict[str, Pod] = {}
        self._promised: dict[str, str] = {}
        self._first_promised: dict[str, float] = {}
        self._reserved: dict[str, set[str]] = {}
        self._unreadable: dict[str, str] = {}
        self._gone: OrderedDict[str, None] = OrderedDict()
        self._unhealthy: Mapping[str, str] = {}

    def cached(self, name: str) -> CachedNode:
        """The node of this name, which is made if nothing is known of it yet."""
        cached = self.nodes.get(name)
        if cached is None:
            cached = self.nodes[name] = CachedNode(name, self._forget_answers)
        return cached

    # ------------------------------------------------------------ events

    def set_node(self, name: str, node: Node | None) -> None:
        """The node as it is now; None if it is gone."""
        cached = self.cached(name)
        if cached.node == node:
            return
        cached.node = node
        cached.scheme = (
            PlacementReason.UNKNOWN_NODE if node is None else scheme_of(node, self._schemes)
        )
        self._set_health(cached)
        self._changed(cached)

    def set_unhealthy(self, texts: Mapping[str, str]) -> None:
        """The texts of the ConfigMaps that list unhealthy GPUs, by the name of the ConfigMap."""
        self._unhealthy = texts
        for cached in self.nodes.values():
            self._set_health(cached)

    def set_malformed(self, key: str, pod: MalformedObject) -> None:
        """A pod that cannot be read."""
        node = pod.node or self._unreadable.get(key, "")
        if node:
            self._unreadable[key] = node
            cached = self.cached(node)
            cached.unreadable[key] = str(pod)
            cached.change()

    def set_pod(self, key: str, pod: Pod | None) -> None:
        """The pod ``<namespace>/<name>`` as it is now; None if it is gone."""
        unreadable = self.nodes.get(self._unreadable.pop(key, ""))
        if unreadable is not None:
            unreadable.unreadable.pop(key, None)
            self._changed(unreadable)
        before = self.pods.get(key)
        if before is not None and pod is not None and _counts_alike(before, pod):
            self.pods[key] = pod
            return
        self.pods.pop(key, None)
        if before is not None:
            self._forget(key, before)
            if pod is None or pod.ref.uid != before.ref.uid:
                self.bury(before.ref.uid)
                self._first_promised.pop(before.ref.uid, None)
        if pod is not None:
            self.pods[key] = pod
            self._remember(key, pod)

    # ------------------------------------------------------------ reservations

    def reserve(self, name: str, reservation: PodReservation) -> None:
        """Reserve GPUs of a node for a pod."""
        cached = self.cached(name)
        uid = reservation.pod.uid
        cached.reservations[uid] = reservation
        self._reserved.setdefault(uid, set()).add(name)
        cached.change()

    def drop(self, uid: str, name: str) -> None:
        """End a pod's reservation on a node, if it has one."""
        if self._unlist(uid, name):
            cached = self.nodes[name]
            del cached.reservations[uid]
            self._changed(cached)

    def settle(self, uid: str) -> None:
        """End all reservations of a pod: the API server shows where it is, or that it is gone."""
        self._on_settle(uid)
        for name in self._reserved.pop(uid, ()):
            cached = self.nodes[name]
            del cached.reservations[uid]
            self._changed(cached)

    def bury(self, uid: str) -> None:
        """The pod is gone for certain: it holds nothing, here or in a claim."""
        self._gone[uid] = None
        if len(self._gone) > MOST_GONE:
            self._gone.popitem(last=False)
        self.settle(uid)

    def unbound(self, before: float) -> list[tuple[str, PodReservation]]:
        """The node and the reservation of those that are older, without a bound pod."""
        older: list[tuple[str, PodReservation]] = []
        for name, cached in self.nodes.items():
            bound = {pod.ref.uid for pod in cached.pods.values()}
            older += (
                (name, reservation)
                for uid, reservation in cached.reservations.items()
                if reservation.since <= before and uid not in bound
            )
        return older

    def set_claims(self, name: str, claims: Claims) -> Claims:
        """Make a node's reservations the claims of its Lease; returns those of living pods."""
        living = {uid: claim for uid, claim in claims.items() if uid not in self._gone}
        if name not in self.nodes and not living:
            return living
        cached = self.cached(name)
        reservations = {
            uid: PodReservation(
                claim.allocations,
                claim.groups,
                pod=claim.pod,
                since=claim.at,
                is_held=claim.is_held,
                priority=claim.priority,
            )
            for uid, claim in living.items()
        }
        if cached.reservations != reservations:
            ended = cached.reservations.keys() - reservations.keys()
            for uid in ended:
                self._unlist(uid, name)
            for uid in reservations:
                self._reserved.setdefault(uid, set()).add(name)
            cached.reservations = reservations
            cached.change()
            if ended:
                self._on_change(name)
        return living

    def reserved_on(self, uid: str) -> AbstractSet[str]:
        """The names of the nodes with a reservation of the pod."""
        return self._reserved.get(uid, _NOWHERE)

    def reserved(self) -> int:
        """Number of reservations."""
        return sum(map(len, self._reserved.values()))

    # ------------------------------------------------------------ parts

    def _set_health(self, cached: CachedNode) -> None:
        scheme = cached.scheme
        unhealthy = None if isinstance(scheme, PlacementReason) else scheme.row.unhealthy_map
        text = self._unhealthy.get(unhealthy.name(cached.name), "") if unhealthy else ""
        if cached.unhealthy != text:
            cached.unhealthy = text
            self._changed(cached)

    def _changed(self, cached: CachedNode) -> None:
        cached.change()
        self._on_change(cached.name)
        if cached.is_empty():
            del self.nodes[cached.name]

    def _forget(self, key: str, pod: Pod) -> None:
        cached = self.nodes.get(pod.node)
        if cached is not None and key in cached.pods:
            del cached.pods[key]
            self._changed(cached)
        promised = self.nodes.get(self._promised.pop(key, ""))
        if promised is not None:
            promised.promises.pop(key, None)
            self._changed(promised)

    def _remember(self, key: str, pod: Pod) -> None:
        uid = pod.ref.uid
        if not holds_devices(pod):
            self.bury(uid)
        elif pod.node:
            cached = self.cached(pod.node)
            cached.pods[key] = pod
            cached.change()
            self.settle(uid)
        elif uid not in self._reserved:
            first = self._first_promised.get(uid, self._clock())
            promise = foreign_promise(pod, self._schemes, first)
            if promise is not None:
                self._first_promised[uid] = first
                self._promised[key] = promise.node
                cached = self.cached(promise.node)
                cached.promises[key] = promise
                cached.change()

    def _unlist(self, uid: str, name: str) -> bool:
        """Remove a node from those with a reservation of the pod; returns whether it was one."""
        names = self._reserved.get(uid, set())
        if name not in names:
            return False
        names.discard(name)
        if not names:
            del self._reserved[uid]
        return True
