"""What the scheduler knows of the cluster: nodes, pods, and its own reservations. No I/O.

A reservation counts from the moment at which a bind decides until the API server shows the bound
pod, shows that the pod is gone, or has surely refused the binding. So no GPU has more shares than
it can hold, whatever the order of requests and events:

    for each GPU: Σ shares of bound pods that are not gone + Σ reservations ≤ the GPU

Every method may be called by any thread; the lock is never held during a request.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import islice
from typing import Final

from scheduler.cluster.cached_node import InspectedNode, pod_key
from scheduler.cluster.cluster_state import ClusterState
from scheduler.cluster.demands import Demanded, DemandShapes, PodDemands
from scheduler.cluster.quota_state import QuotaView
from scheduler.cluster.reservations import (
    Claims,
    HeldShares,
    PodPlacement,
    PodReservation,
    Preemptions,
)
from scheduler.cluster.victims import NodePreemption, choose_victims
from scheduler.filter.pod_filter import FilteredNodes, PodFilter
from scheduler.filter.rejected_pods import RejectedPod
from vgpu.model.names import PodRef
from vgpu.model.objects import MalformedObject, Namespace, Node, Pod, ResourceQuota
from vgpu.placement.candidate import CandidateNode, PodDemand
from vgpu.placement.dialects import SchedulerScheme
from vgpu.placement.node_view import CandidateView, StandingPod
from vgpu.placement.result import (
    Placement,
    PlacementReason,
    PlacementRefusal,
)
from vgpu.placement.unserved import needs_hami, unserved_refusal
from vgpu.schemes.codec import ClaimError

MOST_EXAMINED: Final = 16
"""Maximum number of nodes whose pods of lower priority are examined for one event."""


class SchedulerCache:
    """The cache that the module describes.

    ``clock`` returns unix seconds.
    """

    def __init__(
        self,
        schemes: Sequence[SchedulerScheme],
        clock: Callable[[], float],
        changed: Callable[[str], object] = lambda _: None,
        nominated: Callable[[PodReservation, str], object] = lambda *_: None,
        relieved: Callable[[str], object] = lambda _: None,
        *,
        offers_best: bool = False,
        takes_locks: bool | None = None,
    ) -> None:
        """``changed`` is called with the name of each node that may have room for more pods.

        ``nominated`` is called with what is held for a pod, and the node, once kube-scheduler has
        chosen the node to preempt others there. ``relieved`` is called with each namespace whose
        quota may admit more pods. With ``offers_best`` filter has no other nodes than the best,
        with ``takes_locks`` none whose plugin serves another pod while others fit. If it is
        False, no pod is placed on a node whose plugin needs locks; None is not known.
        """
        self.schemes = tuple(schemes)
        self._unserved = frozenset[str]().union(*(scheme.unserved for scheme in self.schemes))
        self._clock = clock
        self._lock = threading.Lock()
        changed_nodes: set[str] = set()
        self._state = ClusterState(
            self.schemes,
            clock,
            changed,
            self._settled,
            relieved=relieved,
            forget=changed_nodes.add,
            takes_locks=takes_locks is not False,
        )
        by_name = {scheme.row.name: scheme for scheme in self.schemes}
        self._filter = PodFilter(
            by_name,
            self._state,
            changed_nodes,
            offers_best=offers_best,
            avoids_locked=bool(takes_locks),
        )
        self._nodes = self._filter.nodes
        self._nominated = nominated
        self._preempted = Preemptions()
        self._shapes = DemandShapes()
        self._demands = PodDemands(self.schemes)

    # ------------------------------------------------------------ events

    def set_node(self, name: str, node: Node | None) -> None:
        """The node as it is now; None if it is gone."""
        with self._lock:
            self._state.set_node(name, node)

    def is_locked(self, name: str) -> bool:
        """Whether the node has a lock for its device plugin."""
        with self._lock:
            return name in self._state.locked

    def set_unhealthy(self, texts: Mapping[str, str]) -> None:
        """The texts of the ConfigMaps that list unhealthy GPUs, by the name of the ConfigMap."""
        with self._lock:
            self._state.set_unhealthy(texts)

    def set_malformed(self, key: str, pod: MalformedObject) -> None:
        """A pod that cannot be read: what it holds of its node is unknown.

        What it held when it was read last stays counted.
        """
        with self._lock:
            self._state.set_malformed(key, pod)

    def set_pod(self, key: str, pod: Pod | None) -> None:
        """The pod ``<namespace>/<name>`` as it is now; None if it is gone."""
        with self._lock:
            self._state.set_pod(key, pod)
            held = self._hold_freed(pod) if pod is not None and pod.nominated_node else None
        if held is not None:
            self._nominated(*held)

    def set_namespace(self, name: str, namespace: Namespace | MalformedObject | None) -> None:
        """The Namespace as it is now; None if it is gone or declares no quota."""
        with self._lock:
            self._state.set_namespace(name, namespace)

    def set_resource_quota(
        self, namespace: str, name: str, quota: ResourceQuota | MalformedObject | None
    ) -> None:
        """The ResourceQuota as it is now; None if it is gone or limits no shared GPUs."""
        with self._lock:
            self._state.set_resource_quota(namespace, name, quota)

    def set_gpu_admission(self, data: Mapping[str, str] | None) -> None:
        """The data of gpu-admission's ConfigMap; None if there is none."""
        with self._lock:
            self._state.set_gpu_admission(data)

    def end_kept_free(self) -> None:
        """Report the nodes on which something is free that was kept free for a time."""
        with self._lock:
            self._state.end_kept_free()

    # ------------------------------------------------------------ filter and prioritize

    def filter(
        self, scheme: SchedulerScheme, demand: PodDemand, names: Sequence[str]
    ) -> FilteredNodes:
        """The nodes that take the pod; a pod that none takes is remembered as rejected.

        The answer is that of :meth:`PodFilter.filter`.
        """
        now = self._clock()
        with self._lock:
            shape = self._shapes.of(scheme, demand)
            return self._filter.filter(scheme, shape, demand, names, now)

    def scores(self, scheme: SchedulerScheme, demand: PodDemand, names: Sequence[str]) -> list[int]:
        """The score of each node, in the order of the names: that of :meth:`PodFilter.scores`."""
        now = self._clock()
        with self._lock:
            shape = self._shapes.of(scheme, demand)
            return self._filter.scores(shape, demand, names, now)

    # ------------------------------------------------------------ rejected pods

    def take_rejected(self, name: str) -> list[RejectedPod]:
        """Forget and return the rejected pods that fit on a node now."""
        now = self._clock()
        with self._lock:
            return self._filter.take_rejected(name, now)

    def take_relieved(self, namespace: str) -> list[RejectedPod]:
        """Forget and return pods that the quota of their namespace refused, and admits now.

        They fit into the quota together, as far as their requests have the amounts.
        """
        with self._lock:
            return self._filter.take_relieved(namespace)

    def put_back_rejected(self, rejected: RejectedPod) -> None:
        """Remember a rejected pod again."""
        with self._lock:
            self._filter.rejected.add(rejected)

    # ------------------------------------------------------------ preempt

    def preempt(
        self,
        scheme: SchedulerScheme,
        demand: PodDemand,
        name: str,
        chosen: AbstractSet[str],
        spared: AbstractSet[str] = frozenset(),
    ) -> NodePreemption | None:
        """How the node is made to take the pod; None if nothing of lower priority is in its way.

        The arguments are those of :func:`choose_victims`.
        """
        now = self._clock()
        with self._lock:
            cached = self._state.nodes.get(name)
            if cached is None:
                return None

            def place(gone: AbstractSet[str]) -> Placement | None:
                result = cached.as_found_by(demand, gone).place(scheme, demand, now)
                return result if isinstance(result, Placement) else None

            if self._filter.quotas.refusal(demand) is not None:
                return None  # nobody ends for a pod that has no place afterwards
            pods = [self._state.pods.get(key, pod) for key, pod in cached.pods.items()]
            # The end of other pods changes nothing here, and there may be any number of them.
            chosen = chosen & {pod.ref.uid for pod in (*pods, *cached.pods.values())}.union(
                cached.reservations
            )
            return choose_victims(pods, chosen, demand.priority, place, spared)

    def note_preemption(self, pod: PodRef, freed: Mapping[str, HeldShares]) -> None:
        """Remember what preemptions on these nodes would free for a pod."""
        with self._lock:
            self._preempted.add(pod.uid, freed, self._clock())

    def outranked(self, scheme: SchedulerScheme, demand: PodDemand, names: Iterable[str]) -> int:
        """Number of nodes that would take the pod without pods of lower priority.

        At most :data:`MOST_EXAMINED` nodes are examined.
        """
        priority = demand.priority
        with self._lock:
            if not self._state.has_less_important(priority):
                return 0
            lower = (
                (name, {pod.ref.uid for pod in cached.pods.values() if pod.priority < priority})
                for name in names
                if (cached := self._state.nodes.get(name)) is not None
                and cached.least_priority < priority
            )
            examined = list(islice(lower, MOST_EXAMINED))
        return sum(self.preempt(scheme, demand, name, gone) is not None for name, gone in examined)

    # ------------------------------------------------------------ bind

    def reserve(
        self, scheme: SchedulerScheme, demand: PodDemand, name: str
    ) -> PodPlacement | PlacementRefusal:
        """Decide on the GPUs of a pod on a node, and reserve them.

        A pod that has a reservation on the node keeps it. What is held for a pod stays until there
        is a decision.
        """
        now = self._clock()
        uid = demand.pod.uid
        with self._lock:
            shape = self._shapes.of(scheme, demand)
            self._filter.under_way.discard(uid)
            if name not in self._state.nodes:
                return PlacementRefusal.of(PlacementReason.UNKNOWN_NODE)
            cached = self._state.nodes[name]
            reservation = cached.reservations.get(uid)
            if reservation is None or not reservation.is_for(shape):
                if reservation is not None and not reservation.is_held:
                    self._state.drop(uid, name)
                result = self._nodes.place(name, scheme, demand, now)
                if isinstance(result, PlacementRefusal):
                    return result
                over_quota = self._filter.quotas.refusal(demand, result)
                if over_quota is not None:
                    return over_quota
                reservation = PodReservation(
                    result.allocations,
                    demand.wishes.groups,
                    pod=demand.pod,
                    shape=shape,
                    since=now,
                    units=demand.units,
                )
                self._state.reserve(name, reservation)
            view = cached.view(now)
            gpus = view.candidate.gpus if view else ()
            devices = {each: gpu.device for gpu in gpus for each in gpu.device.names}
            return PodPlacement(scheme, name, reservation.allocations, devices)

    def note_bind(self, uid: str, name: str) -> None:
        """A pod is being bound to this node, which has no reservation for it yet."""
        with self._lock:
            self._filter.under_way.set_node(uid, name)

    def note_unbound(self, uid: str) -> None:
        """The bind has failed: the pod comes to no node before it passes filter again."""
        with self._lock:
            self._filter.under_way.discard(uid)

    def demand_of(self, pod: Pod) -> Demanded:
        """What a pod requests, computed once for each version of a pod that an event showed."""
        return self._demands.of(pod)

    def unserved(
        self, pod: Pod, names: Iterable[str]
    ) -> tuple[PlacementRefusal | None, frozenset[str]]:
        """Why we do not serve a pod that requests nothing of ours, and on which of the nodes.

        Nodes that no event has shown are as they were offered; bind asks again.
        """
        requests = pod.requesting(self._unserved)
        if not requests:
            return None, frozenset()
        refusal = unserved_refusal(requests)
        with self._lock:
            known = ((name, self._state.nodes.get(name)) for name in names)
            return refusal, frozenset(
                name
                for name, cached in known
                if cached and cached.node and needs_hami(cached.node, requests)
            )

    def hold(self, pod: Pod) -> None:
        """Reserve what a bound pod has, which no event has shown as bound yet."""
        demand = self.demand_of(pod)
        if isinstance(demand, PlacementRefusal):
            return
        scheme, request = demand
        try:
            claim = scheme.codec.claim(pod)
        except ClaimError:
            return  # its node is refused as soon as the event comes
        with self._lock:
            known = self._state.pods.get(pod_key(pod.ref.namespace, pod.ref.name))
            is_shown = known is not None and known.ref.uid == pod.ref.uid and known.node
            if claim is None and not is_shown:
                return  # its node is refused as soon as the event comes
            self._state.settle(pod.ref.uid)
            if claim is None or is_shown:
                return
            shape = self._shapes.of(scheme, request)
            reservation = PodReservation(
                claim.allocations,
                request.wishes.groups,
                pod=pod.ref,
                shape=shape,
                since=self._clock(),
                units=request.units,
            )
            self._state.reserve(pod.node, reservation)

    def release(self, uid: str, name: str) -> None:
        """End a reservation: the API server has surely not bound the pod to the node."""
        with self._lock:
            self._state.drop(uid, name)

    def bury(self, uid: str) -> None:
        """End all reservations of a pod: it is gone."""
        with self._lock:
            self._state.bury(uid)

    def set_claims(self, name: str, claims: Claims) -> Claims:
        """Make a node's reservations the claims of its Lease; returns those of living pods.

        A pod that an event has shown as gone has no claim any more.
        """
        with self._lock:
            return self._state.set_claims(name, claims)

    # ------------------------------------------------------------ questions

    def pod(self, namespace: str, name: str) -> Pod | None:
        """The pod of this name, as the last event showed it."""
        with self._lock:
            return self._state.pods.get(pod_key(namespace, name))

    def node(self, name: str) -> Node | None:
        """The node of this name, as the last event showed it."""
        with self._lock:
            cached = self._state.nodes.get(name)
            return cached.node if cached else None

    def view(self, name: str) -> CandidateView | None:
        """A node's view; None of a node that is unknown or has no GPUs of one system."""
        with self._lock:
            cached = self._state.nodes.get(name)
            return cached.view(self._clock()) if cached else None

    def explain(
        self, scheme: SchedulerScheme, demand: PodDemand
    ) -> list[tuple[str, CandidateView | None, PlacementRefusal | None]]:
        """Every node with GPUs, by name: its view, and why it refuses the pod, or None.

        A node of another system than the pod's has no view: its pods need not be read.
        """
        now = self._clock()
        with self._lock:
            explained = []
            for name in sorted(self._state.nodes):
                cached = self._state.nodes[name]
                if cached.node is not None and cached.scheme is not PlacementReason.NO_GPUS:
                    result = self._nodes.place(name, scheme, demand, now)
                    refusal = result if isinstance(result, PlacementRefusal) else None
                    view = cached.view(now) if cached.is_of(scheme) else None
                    explained.append((name, view, refusal))
            return explained

    def views(
        self, scheme: SchedulerScheme, names: AbstractSet[str]
    ) -> list[tuple[str, CandidateView | None, PlacementRefusal | None]]:
        """Those of the nodes that have GPUs, by name: the view of each, or why it takes no pod of
        the system at all.
        """
        now = self._clock()
        with self._lock:
            views = []
            for name in sorted(names & self._state.nodes.keys()):
                cached = self._state.nodes[name]
                if cached.node is not None and cached.scheme is not PlacementReason.NO_GPUS:
                    found = cached.candidate(scheme, now)
                    refusal = found if isinstance(found, PlacementRefusal) else None
                    view = cached.view(now) if refusal is None else None
                    views.append((name, view, refusal))
            return views

    def candidate_without(
        self, scheme: SchedulerScheme, demand: PodDemand, name: str, gone: AbstractSet[str]
    ) -> CandidateNode | None:
        """A node as a placement of the pod finds it once the pods of these UIDs are gone.

        None if it takes no pod of the scheme at all.
        """
        now = self._clock()
        with self._lock:
            cached = self._state.nodes.get(name)
            if cached is None:
                return None
            candidate = cached.as_found_by(demand, gone).candidate(scheme, now)
            return None if isinstance(candidate, PlacementRefusal) else candidate

    def quota_of(self, demand: PodDemand) -> QuotaView:
        """The quota of the pod's namespace, and why it refuses the pod, or None."""
        with self._lock:
            quota = self._state.quotas.quota(demand.pod.namespace)
            return self._state.quotas.view(quota, self._filter.quotas.refusal(demand))

    def limited(self) -> list[QuotaView]:
        """The quotas of all namespaces that have one."""
        with self._lock:
            return [self._state.quotas.view(quota) for quota in self._state.quotas.limited()]

    def inspected(self, system: str) -> list[InspectedNode]:
        """The nodes of a sharing system, by name, with the pods that are bound to them."""
        now = self._clock()
        with self._lock:
            nodes = sorted(self._state.nodes.items())
            inspected = (cached.inspected(system, now) for _, cached in nodes)
            return [node for node in inspected if node is not None]

    def standing(self) -> list[tuple[str, StandingPod]]:
        """The pods that stand in the way of others, by node, of nodes that pods have asked for."""
        now = self._clock()
        with self._lock:
            names = sorted(self._state.nodes)
        pods: list[tuple[str, StandingPod]] = []
        for name in names:
            with self._lock:  # one node at a time: filter waits for no other ones
                cached = self._state.nodes.get(name)
                standing = () if cached is None else cached.standing(now)
            pods += ((name, each) for each in standing)
        return pods

    def all_pods(self) -> list[Pod]:
        """All pods that share GPUs."""
        with self._lock:
            return list(self._state.pods.values())

    def rejected(self, uid: str) -> RejectedPod | None:
        """What is remembered of a rejected pod."""
        with self._lock:
            return self._filter.rejected.get(uid)

    def reservations(self, before: float) -> list[tuple[str, PodReservation]]:
        """The node and the reservation of those that are older, without a bound pod.

        ``before`` is in unix seconds.
        """
        with self._lock:
            return self._state.unbound(before)

    def counts(self) -> tuple[int, int, int, int]:
        """Numbers of nodes with GPUs, of pods, of reservations, and of rejected pods."""
        state = self._state
        with self._lock:
            nodes = sum(
                not isinstance(cached.scheme, PlacementReason) for cached in state.nodes.values()
            )
            return nodes, len(state.pods), state.reserved(), len(self._filter.rejected)

    # ------------------------------------------------------------ under the lock

    def _settled(self, uid: str) -> None:
        """The pod is bound or gone: it waits no more."""
        self._filter.under_way.discard(uid)
        self._filter.rejected.discard(uid)
        self._preempted.discard(uid)
        self._demands.forget(uid)

    def _hold_freed(self, pod: Pod) -> tuple[PodReservation, str] | None:
        """Hold what the pod's preemption frees on the node that kube-scheduler has chosen."""
        ref, name, now = pod.ref, pod.nominated_node, self._clock()
        freed = self._preempted.shares(ref.uid, name, now)
        cached = self._state.nodes.get(name)
        if freed is None or cached is None or pod.node:
            return None
        known = cached.reservations.get(ref.uid)
        if known is not None and not known.is_held:
            return None
        held = PodReservation(
            freed.allocations,
            freed.groups,
            pod=ref,
            since=now,
            is_held=True,
            priority=pod.priority,
        )
        self._state.reserve(name, held)
        return held, name
