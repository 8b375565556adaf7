"""What the scheduler knows of the cluster: nodes, pods, and its own reservations. No I/O.

A reservation counts from the moment at which a bind decides until the API server shows the bound
pod, shows that the pod is gone, or has surely refused the binding. So no GPU has more shares than
it can hold, whatever the order of requests and events:

    for each GPU: Σ shares of bound pods that are not gone + Σ reservations ≤ the GPU

Every method may be called by any thread; the lock is never held during a request.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from scheduler.gpushare_inspect import InspectedNode
from scheduler.node_cache import (
    CachedNode,
    PodPlacement,
    PodReservation,
    ScoredPlacement,
)
from scheduler.node_claims import Claims
from scheduler.rejected import RejectedPod, RejectedPods
from scheduler.shapes import DemandShape, DemandShapes
from scheduler.under_way import PodsUnderWay, UnderWay
from vgpu.kube.objects import MalformedObject, Node, Pod, holds_devices
from vgpu.model import PodRef
from vgpu.placement.candidate import PodDemand
from vgpu.placement.dialects import SchedulerScheme, demand_of
from vgpu.placement.node_view import CandidateView, foreign_promise, scheme_of
from vgpu.placement.result import Placement, PlacementReason, PlacementRefusal
from vgpu.schemes.codec import ClaimError

MOST_GONE: Final = 50_000
"""Maximum number of pods that are remembered as gone."""

MOST_WOKEN: Final = 16
"""Maximum number of pods of one demand that one change of a node wakes."""


class FilteredNodes(msgspec.Struct, frozen=True):
    """The nodes that take a pod, and why the others do not."""

    nodes: tuple[str, ...]
    refused: Mapping[str, PlacementRefusal]


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


class SchedulerCache:
    """The cache that the module describes.

    ``clock`` returns unix seconds.
    """

    def __init__(
        self,
        schemes: Sequence[SchedulerScheme],
        clock: Callable[[], float],
        changed: Callable[[str], object] = lambda _: None,
    ) -> None:
        """``changed`` is called with the name of each node that may have room for more pods."""
        self.schemes = tuple(schemes)
        self._clock = clock
        self._on_change = changed
        self._rejected = RejectedPods()
        self._lock = threading.Lock()
        self._nodes: dict[str, CachedNode] = {}
        self._pods: dict[str, Pod] = {}
        self._promised: dict[str, str] = {}
        self._first_promised: dict[str, float] = {}
        self._reserved: dict[str, set[str]] = {}
        self._under_way = PodsUnderWay()
        self._unreadable: dict[str, str] = {}
        self._shapes = DemandShapes()
        self._gone: OrderedDict[str, None] = OrderedDict()
        self._unhealthy: Mapping[str, str] = {}

    # ------------------------------------------------------------ events

    def set_node(self, name: str, node: Node | None) -> None:
        """The node as it is now; None if it is gone."""
        with self._lock:
            cached = self._cached(name)
            if cached.node == node:
                return
            cached.node = node
            cached.scheme = (
                PlacementReason.UNKNOWN_NODE if node is None else scheme_of(node, self.schemes)
            )
            self._set_health(cached)
            self._changed(cached)

    def set_unhealthy(self, texts: Mapping[str, str]) -> None:
        """The texts of the ConfigMaps that list unhealthy GPUs, by the name of the ConfigMap."""
        with self._lock:
            self._unhealthy = texts
            for cached in self._nodes.values():
                self._set_health(cached)

    def set_malformed(self, key: str, pod: MalformedObject) -> None:
        """A pod that cannot be read: what it holds of its node is unknown.

        What it held when it was read last stays counted.
        """
        with self._lock:
            node = pod.node or self._unreadable.get(key, "")
            if node:
                self._unreadable[key] = node
                cached = self._cached(node)
                cached.unreadable[key] = str(pod)
                cached.change()

    def set_pod(self, key: str, pod: Pod | None) -> None:
        """The pod ``<namespace>/<name>`` as it is now; None if it is gone."""
        with self._lock:
            unreadable = self._nodes.get(self._unreadable.pop(key, ""))
            if unreadable is not None:
                unreadable.unreadable.pop(key, None)
                self._changed(unreadable)
            before = self._pods.get(key)
            if before is not None and pod is not None and _counts_alike(before, pod):
                self._pods[key] = pod
                return
            self._pods.pop(key, None)
            if before is not None:
                self._forget(key, before)
                if pod is None or pod.ref.uid != before.ref.uid:
                    self._rejected.discard(before.ref.uid)
                    self._bury(before.ref.uid)
                    self._first_promised.pop(before.ref.uid, None)
            if pod is not None:
                self._pods[key] = pod
                self._remember(key, pod)

    def pod(self, namespace: str, name: str) -> Pod | None:
        """The pod of this name, as the last event showed it."""
        with self._lock:
            return self._pods.get(f"{namespace}/{name}")

    def node(self, name: str) -> Node | None:
        """The node of this name, as the last event showed it."""
        with self._lock:
            cached = self._nodes.get(name)
            return cached.node if cached else None

    # ------------------------------------------------------------ filter and prioritize

    def filter(
        self, scheme: SchedulerScheme, demand: PodDemand, names: Iterable[str], priority: int = 0
    ) -> FilteredNodes:
        """The nodes that take the pod; a pod that none takes is remembered as rejected.

        Pods that passed filter and are not bound yet are counted on every node that they may be
        bound to, where that leaves a node: else the first of them to be bound has it.
        """
        now = self._clock()
        uid = demand.pod.uid
        fitting: list[str] = []
        refused: dict[str, PlacementRefusal] = {}
        nodes = self._nodes
        with self._lock:
            shape = self._shapes.of(scheme, demand)
            key = (shape.number,)
            for name in names:
                cached = nodes.get(name)
                placement = None
                if cached is not None and uid not in cached.reservations and not cached.promises:
                    placement = cached.known(key, now)
                if placement is None:
                    placement = self._place(name, shape, demand, now)
                if isinstance(placement.result, PlacementRefusal):
                    refused[name] = placement.result
                else:
                    fitting.append(name)
            chosen = self._beside_those_under_way(fitting, shape, demand, now) or fitting
            left_out = set(fitting) - set(chosen)
            refused |= dict.fromkeys(left_out, _TAKEN)
            if chosen:
                self._under_way.add(uid, UnderWay(shape, demand, frozenset(chosen), now))
                self._rejected.discard(uid)
            else:
                self._rejected.add(
                    RejectedPod(demand.pod, shape, demand, frozenset(refused), priority, now)
                )
        return FilteredNodes(tuple(chosen), refused)

    def scores(
        self, scheme: SchedulerScheme, demand: PodDemand, names: Iterable[str]
    ) -> list[tuple[str, int]]:
        """The score of each node."""
        now = self._clock()
        with self._lock:
            shape = self._shapes.of(scheme, demand)
            return [(name, self._place(name, shape, demand, now).score) for name in names]

    def explain(
        self, scheme: SchedulerScheme, demand: PodDemand
    ) -> list[tuple[str, CandidateView | None, PlacementRefusal | None]]:
        """Every node with GPUs, by name: its view, and why it refuses the pod, or None."""
        now = self._clock()
        with self._lock:
            shape = self._shapes.of(scheme, demand)
            explained = []
            for name in sorted(self._nodes):
                cached = self._nodes[name]
                if cached.node is not None and cached.scheme is not PlacementReason.NO_GPUS:
                    result = self._place(name, shape, demand, now).result
                    refusal = result if isinstance(result, PlacementRefusal) else None
                    explained.append((name, cached.view(now), refusal))
            return explained

    def inspected(self, system: str) -> list[InspectedNode]:
        """The nodes of a sharing system, by name, with the pods that are bound to them."""
        with self._lock:
            nodes = []
            for name in sorted(self._nodes):
                cached = self._nodes[name]
                scheme = cached.scheme
                view = cached.view(self._clock())
                if isinstance(scheme, PlacementReason) or scheme.row.name != system or not view:
                    continue
                pods = tuple(sorted(cached.pods.values(), key=lambda pod: pod.ref))
                gpus = view.candidate.gpus
                nodes.append(InspectedNode(name, gpus, pods, scheme.codec, scheme.unit_bytes))
            return nodes

    def rejected(self, uid: str) -> RejectedPod | None:
        """What is remembered of a rejected pod."""
        with self._lock:
            return self._rejected.get(uid)

    def view(self, name: str) -> CandidateView | None:
        """A node's view; None of a node that is unknown or has no GPUs of one system."""
        with self._lock:
            cached = self._nodes.get(name)
            return cached.view(self._clock()) if cached else None

    # ------------------------------------------------------------ rejected pods

    def take_rejected(self, name: str) -> list[RejectedPod]:
        """Forget and return the rejected pods that fit on a node now."""
        now = self._clock()

        def fitting(shape: DemandShape, demand: PodDemand, most: int) -> int:
            before: list[tuple[DemandShape, PodDemand]] = []
            while len(before) < min(most, MOST_WOKEN):
                result = self._place(name, shape, demand, now, *before).result
                if isinstance(result, PlacementRefusal):
                    break
                before.append((shape, demand))
            return len(before)

        with self._lock:
            return self._rejected.take(name, fitting)

    def put_back_rejected(self, rejected: RejectedPod) -> None:
        """Remember a rejected pod again."""
        with self._lock:
            self._rejected.add(rejected)

    # ------------------------------------------------------------ bind

    def reserve(
        self, scheme: SchedulerScheme, demand: PodDemand, name: str
    ) -> PodPlacement | PlacementRefusal:
        """Decide on the GPUs of a pod on a node, and reserve them.

        A pod that has a reservation on the node keeps it.
        """
        now = self._clock()
        uid = demand.pod.uid
        with self._lock:
            shape = self._shapes.of(scheme, demand)
            self._under_way.discard(uid)
            if name not in self._nodes:
                return _refused(PlacementReason.UNKNOWN_NODE)
            cached = self._nodes[name]
            reservation = cached.reservations.get(uid)
            if reservation is None or not reservation.is_for(shape):
                if reservation is not None:
                    self._drop(uid, name)
                result = self._place(name, shape, demand, now).result
                if isinstance(result, PlacementRefusal):
                    return result
                reservation = PodReservation(
                    result.allocations, demand.wishes.group, pod=demand.pod, shape=shape, since=now
                )
                self._reserve(cached, uid, reservation)
            view = cached.view(now)
            gpus = view.candidate.gpus if view else ()
            devices = {each: gpu.device for gpu in gpus for each in gpu.device.names}
            return PodPlacement(scheme, name, reservation.allocations, devices)

    def hold(self, pod: Pod) -> None:
        """Reserve what a bound pod has, which no event has shown as bound yet."""
        demand = demand_of(pod, self.schemes)
        if isinstance(demand, PlacementRefusal):
            return
        scheme, request = demand
        try:
            claim = scheme.codec.claim(pod)
        except ClaimError:
            return  # its node is refused as soon as the event comes
        with self._lock:
            known = self._pods.get(f"{pod.ref.namespace}/{pod.ref.name}")
            is_shown = known is not None and known.ref.uid == pod.ref.uid and known.node
            if claim is None and not is_shown:
                return  # its node is refused as soon as the event comes
            self._settle(pod.ref.uid)
            if claim is None or is_shown:
                return
            shape = self._shapes.of(scheme, request)
            reservation = PodReservation(
                claim.allocations,
                request.wishes.group,
                pod=pod.ref,
                shape=shape,
                since=self._clock(),
            )
            self._reserve(self._cached(pod.node), pod.ref.uid, reservation)

    def release(self, uid: str, name: str) -> None:
        """End a reservation: the API server has surely not bound the pod to the node."""
        with self._lock:
            self._drop(uid, name)

    def bury(self, uid: str) -> None:
        """End all reservations of a pod: it is gone."""
        with self._lock:
            self._bury(uid)

    def reservations(self, before: float) -> list[tuple[PodRef, str, float]]:
        """The pod, the node and the time of reservations that are older, without a bound pod.

        Times are unix seconds.
        """
        older: list[tuple[PodRef, str, float]] = []
        with self._lock:
            for name, cached in self._nodes.items():
                bound = {pod.ref.uid for pod in cached.pods.values()}
                older += (
                    (reservation.pod, name, reservation.since)
                    for uid, reservation in cached.reservations.items()
                    if reservation.since <= before and uid not in bound
                )
        return older

    def set_claims(self, name: str, claims: Claims) -> Claims:
        """Make a node's reservations the claims of its Lease; returns those of living pods.

        A pod that an event has shown as gone has no claim any more.
        """
        with self._lock:
            living = {uid: claim for uid, claim in claims.items() if uid not in self._gone}
            if name not in self._nodes and not living:
                return living
            cached = self._cached(name)
            reservations = {
                uid: PodReservation(claim.allocations, claim.group, pod=claim.pod, since=claim.at)
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

    def counts(self) -> tuple[int, int, int, int]:
        """Numbers of nodes with GPUs, of pods, of reservations, and of rejected pods."""
        with self._lock:
            nodes = sum(
                not isinstance(cached.scheme, PlacementReason) for cached in self._nodes.values()
            )
            reserved = sum(len(names) for names in self._reserved.values())
            return nodes, len(self._pods), reserved, len(self._rejected)

    # ------------------------------------------------------------ under the lock

    def _cached(self, name: str) -> CachedNode:
        cached = self._nodes.get(name)
        if cached is None:
            cached = self._nodes[name] = CachedNode(name)
        return cached

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
            del self._nodes[cached.name]

    def _forget(self, key: str, pod: Pod) -> None:
        cached = self._nodes.get(pod.node)
        if cached is not None and key in cached.pods:
            del cached.pods[key]
            self._changed(cached)
        promised = self._nodes.get(self._promised.pop(key, ""))
        if promised is not None:
            promised.promises.pop(key, None)
            self._changed(promised)

    def _remember(self, key: str, pod: Pod) -> None:
        uid = pod.ref.uid
        if not holds_devices(pod):
            self._bury(uid)
        elif pod.node:
            cached = self._cached(pod.node)
            cached.pods[key] = pod
            cached.change()
            self._settle(uid)
        elif uid not in self._reserved:
            first = self._first_promised.get(uid, self._clock())
            promise = foreign_promise(pod, self.schemes, first)
            if promise is not None:
                self._first_promised[uid] = first
                self._promised[key] = promise.node
                cached = self._cached(promise.node)
                cached.promises[key] = promise
                cached.change()

    def _bury(self, uid: str) -> None:
        """The pod is gone for certain: it holds nothing, here or in a claim."""
        self._gone[uid] = None
        if len(self._gone) > MOST_GONE:
            self._gone.popitem(last=False)
        self._settle(uid)

    def _settle(self, uid: str) -> None:
        """The API server shows where the pod is, or that it is gone."""
        self._under_way.discard(uid)
        self._rejected.discard(uid)
        for name in self._reserved.pop(uid, ()):
            cached = self._nodes[name]
            del cached.reservations[uid]
            self._changed(cached)

    def _reserve(self, cached: CachedNode, uid: str, reservation: PodReservation) -> None:
        cached.reservations[uid] = reservation
        self._reserved.setdefault(uid, set()).add(cached.name)
        cached.change()

    def _drop(self, uid: str, name: str) -> None:
        if self._unlist(uid, name):
            cached = self._nodes[name]
            del cached.reservations[uid]
            self._changed(cached)

    def _unlist(self, uid: str, name: str) -> bool:
        """Remove a node from those with a reservation of the pod; returns whether it was one."""
        names = self._reserved.get(uid, set())
        if name not in names:
            return False
        names.discard(name)
        if not names:
            del self._reserved[uid]
        return True

    def _place(
        self,
        name: str,
        shape: DemandShape,
        demand: PodDemand,
        now: float,
        *before: tuple[DemandShape, PodDemand],
    ) -> ScoredPlacement:
        cached = self._nodes.get(name)
        if cached is None:
            return _UNKNOWN
        if demand.pod.uid in cached.reservations or cached.promises:
            cached = cached.without(demand.pod)
        return cached.place(shape, demand, now, *before)

    def _beside_those_under_way(
        self, names: Sequence[str], shape: DemandShape, demand: PodDemand, now: float
    ) -> list[str]:
        """The nodes that take the pod beside those that passed filter shortly before it."""
        newest = self._under_way.newest(demand.pod.uid, now)
        if not newest:
            return list(names)
        fitting = []
        for name in names:
            before = [(pod.shape, pod.demand) for pod in newest if name in pod.nodes]
            placement = self._place(name, shape, demand, now, *before)
            if isinstance(placement.result, Placement):
                fitting.append(name)
        return fitting


def _refused(reason: PlacementReason) -> PlacementRefusal:
    return PlacementRefusal(reason, reason.explanation)


_UNKNOWN: Final = ScoredPlacement(_refused(PlacementReason.UNKNOWN_NODE))
_TAKEN: Final = _refused(PlacementReason.UNDER_WAY)
