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
from itertools import compress
from operator import not_
from typing import Final, cast

import msgspec

from scheduler.cluster_state import ClusterState
from scheduler.gpushare_inspect import InspectedNode
from scheduler.node_answers import UNKNOWN, NodeAnswer, NodeAnswers, PlacedUsages, ShapeKey
from scheduler.node_cache import CachedNode, PodPlacement, PodReservation, pod_key
from scheduler.node_claims import Claims
from scheduler.pod_demands import Demanded, PodDemands
from scheduler.preempted import HeldShares, Preemptions
from scheduler.refused_nodes import RefusedNodes
from scheduler.rejected import RejectedPod, RejectedPods
from scheduler.shapes import DemandShape, DemandShapes
from scheduler.under_way import PodsUnderWay, UnderWay
from scheduler.victims import NodePreemption, choose_victims
from vgpu.kube.objects import MalformedObject, Namespace, Node, Pod, ResourceQuota
from vgpu.model import PodRef
from vgpu.placement.candidate import PodDemand
from vgpu.placement.dialects import SchedulerScheme
from vgpu.placement.node_view import CandidateView
from vgpu.placement.result import (
    OF_QUOTA,
    Placement,
    PlacementReason,
    PlacementRefusal,
    PlacementResult,
)
from vgpu.quota.check import check_node
from vgpu.quota.limits import NamespaceQuota
from vgpu.quota.resources import Amounts
from vgpu.quota.usage import PodUsage, usage_of_requests
from vgpu.schemes.codec import ClaimError

MOST_WOKEN: Final = 16
"""Maximum number of pods of one demand that one change of a node wakes."""

MOST_ASKED: Final = 32
"""Maximum number of nodes that are asked whether they take a pod beside pods under way."""

MOST_EXAMINED: Final = 16
"""Maximum number of nodes whose pods of lower priority are examined for one event."""


class AnsweredNode(msgspec.Struct, frozen=True):
    """All that the answers of a node depend on, beside the demand."""

    node: Node | None
    scheme: SchedulerScheme | PlacementReason
    view: CandidateView | None

    def is_like(self, other: "AnsweredNode") -> bool:
        """Whether the answers are the same; a node that has changed is another object."""
        return self.node is other.node and self.scheme is other.scheme and self.view == other.view


class FilteredNodes(msgspec.Struct, frozen=True):
    """The nodes that take a pod, and why the others do not."""

    nodes: tuple[str, ...]
    refused: RefusedNodes


class QuotaView(msgspec.Struct, frozen=True):
    """The quota of a namespace with what its pods use, by the model of the GPUs.

    ``refusal`` is why the quota refuses a certain pod, None if it does not.
    """

    quota: NamespaceQuota
    used: Mapping[str, Amounts]
    refusal: PlacementRefusal | None = None


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
    ) -> None:
        """``changed`` is called with the name of each node that may have room for more pods.

        ``nominated`` is called with what is held for a pod, and the node, once kube-scheduler has
        chosen the node to preempt others there. ``relieved`` is called with each namespace whose
        quota may admit more pods.
        """
        self.schemes = tuple(schemes)
        self._clock = clock
        self._rejected = RejectedPods()
        self._lock = threading.Lock()
        self._under_way = PodsUnderWay()
        self._nominated = nominated
        self._preempted = Preemptions()
        self._shapes = DemandShapes()
        self._demands = PodDemands(self.schemes)
        self._known = NodeAnswers()
        self._placed = PlacedUsages()
        self._changed_nodes: set[str] = set()
        self._answered: dict[str, AnsweredNode] = {}
        self._by_name = {scheme.row.name: scheme for scheme in self.schemes}
        self._state = ClusterState(
            self.schemes,
            clock,
            changed,
            self._settled,
            relieved=relieved,
            forget=self._changed_nodes.add,
        )

    # ------------------------------------------------------------ events

    def set_node(self, name: str, node: Node | None) -> None:
        """The node as it is now; None if it is gone."""
        with self._lock:
            self._state.set_node(name, node)

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

    def pod(self, namespace: str, name: str) -> Pod | None:
        """The pod of this name, as the last event showed it."""
        with self._lock:
            return self._state.pods.get(pod_key(namespace, name))

    def node(self, name: str) -> Node | None:
        """The node of this name, as the last event showed it."""
        with self._lock:
            cached = self._state.nodes.get(name)
            return cached.node if cached else None

    # ------------------------------------------------------------ filter and prioritize

    def filter(
        self, scheme: SchedulerScheme, demand: PodDemand, names: Sequence[str]
    ) -> FilteredNodes:
        """The nodes that take the pod; a pod that none takes is remembered as rejected.

        A pod that does not fit into the quota of its namespace is refused by every node. The quota
        counts bound pods and reservations; pods under way are counted by :meth:`reserve`.
        Pods that passed filter and are not bound yet are counted on every node that they may be
        bound to, where that leaves a node: else the first of them to be bound has it.
        """
        now = self._clock()
        uid = demand.pod.uid
        with self._lock:
            shape = self._shapes.of(scheme, demand)
            quota = self._state.quotas.quota(demand.pod.namespace)
            over_quota = self._over_quota(demand) if quota else None
            if over_quota is not None:
                refused = RefusedNodes.alike(names, over_quota)
                self._reject(shape, demand, refused, now)
                return FilteredNodes((), refused)
            fitting, refused = self._sorted(names, shape, demand, now)
            if quota and self._needs_placement(demand):
                fitting, over = self._within_quota(fitting, shape, demand, now)
                refused = refused.and_also(over)
            kept = self._kept_for_others(fitting, shape, demand, now)
            chosen = fitting
            if kept:
                chosen = [name for name in fitting if name not in kept] or fitting
            if chosen is not fitting:
                refused = refused.and_also(dict.fromkeys(kept, _TAKEN))
            if chosen:
                self._under_way.add(uid, UnderWay(shape, demand, frozenset(chosen), now))
                self._rejected.discard(uid)
            else:
                self._reject(shape, demand, refused, now)
        return FilteredNodes(tuple(chosen), refused)

    def scores(self, scheme: SchedulerScheme, demand: PodDemand, names: Sequence[str]) -> list[int]:
        """The score of each node, in the order of the names."""
        now = self._clock()
        with self._lock:
            shape = self._shapes.of(scheme, demand)
            answers = self._answers(names, shape, demand, now)
            return [answer.score for answer in answers]

    def explain(
        self, scheme: SchedulerScheme, demand: PodDemand
    ) -> list[tuple[str, CandidateView | None, PlacementRefusal | None]]:
        """Every node with GPUs, by name: its view, and why it refuses the pod, or None."""
        now = self._clock()
        with self._lock:
            explained = []
            for name in sorted(self._state.nodes):
                cached = self._state.nodes[name]
                if cached.node is not None and cached.scheme is not PlacementReason.NO_GPUS:
                    result = self._place(name, scheme, demand, now)
                    refusal = result if isinstance(result, PlacementRefusal) else None
                    explained.append((name, cached.view(now), refusal))
            return explained

    def quota_of(self, demand: PodDemand) -> QuotaView:
        """The quota of the pod's namespace, and why it refuses the pod, or None."""
        namespace = demand.pod.namespace
        with self._lock:
            quotas = self._state.quotas
            used = {model: dict(amounts) for model, amounts in quotas.used(namespace).items()}
            return QuotaView(quotas.quota(namespace), used, self._over_quota(demand))

    def limited(self) -> list[QuotaView]:
        """The quotas of all namespaces that have one."""
        with self._lock:
            quotas = self._state.quotas
            return [
                QuotaView(
                    quota,
                    {each: dict(amounts) for each, amounts in quotas.used(quota.namespace).items()},
                )
                for quota in quotas.limited()
            ]

    def inspected(self, system: str) -> list[InspectedNode]:
        """The nodes of a sharing system, by name, with the pods that are bound to them."""
        with self._lock:
            nodes = []
            for name in sorted(self._state.nodes):
                cached = self._state.nodes[name]
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
            cached = self._state.nodes.get(name)
            return cached.view(self._clock()) if cached else None

    # ------------------------------------------------------------ rejected pods

    def take_rejected(self, name: str) -> list[RejectedPod]:
        """Forget and return the rejected pods that fit on a node now."""
        now = self._clock()

        def fitting(shape: DemandShape, demand: PodDemand, most: int) -> int:
            if self._over_quota(demand) is not None:
                return 0
            found = self._found_by(demand, name)
            scheme = self._by_name[shape.scheme]
            return 0 if found is None else found.count(scheme, demand, now, min(most, MOST_WOKEN))

        with self._lock:
            return self._rejected.take(name, fitting)

    def take_relieved(self, namespace: str) -> list[RejectedPod]:
        """Forget and return pods that the quota of their namespace refused, and admits now.

        They fit into the quota together, as far as their requests have the amounts.
        """
        with self._lock, self._state.quotas.supposing() as suppose:

            def passes(demand: PodDemand) -> bool:
                if self._over_quota(demand) is not None:
                    return False
                suppose(demand.pod, usage_of_requests(dict(demand.units), demand.requests, ""))
                return True

            return self._rejected.take_over_quota(namespace, passes, MOST_WOKEN)

    def put_back_rejected(self, rejected: RejectedPod) -> None:
        """Remember a rejected pod again."""
        with self._lock:
            self._rejected.add(rejected)

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

            if self._over_quota(demand) is not None:
                return None  # nobody ends for a pod that has no place afterwards
            pods = [self._state.pods.get(key, pod) for key, pod in cached.pods.items()]
            return choose_victims(pods, chosen, demand.priority, place, spared)

    def note_preemption(self, pod: PodRef, freed: Mapping[str, HeldShares]) -> None:
        """Remember what preemptions on these nodes would free for a pod."""
        with self._lock:
            self._preempted.add(pod.uid, freed, self._clock())

    def outranked(self, scheme: SchedulerScheme, demand: PodDemand, names: Iterable[str]) -> int:
        """Number of nodes that would take the pod without pods of lower priority.

        At most :data:`MOST_EXAMINED` nodes are examined.
        """
        taken = 0
        with self._lock:
            lower = [
                (name, {each.ref.uid for each in pods if each.priority < demand.priority})
                for name in names
                if (cached := self._state.nodes.get(name)) is not None
                and (pods := cached.pods.values())
                and cached.least_priority < demand.priority
            ]
        for name, gone in lower[:MOST_EXAMINED]:
            taken += self.preempt(scheme, demand, name, gone) is not None
        return taken

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
            if name not in self._state.nodes:
                return PlacementRefusal.of(PlacementReason.UNKNOWN_NODE)
            cached = self._state.nodes[name]
            reservation = cached.reservations.get(uid)
            if reservation is None or not reservation.is_for(shape):
                if reservation is not None:
                    self._state.drop(uid, name)
                result = self._place(name, scheme, demand, now)
                if isinstance(result, PlacementRefusal):
                    return result
                over_quota = self._over_quota(demand, result)
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

    def demand_of(self, pod: Pod) -> Demanded:
        """What a pod requests, computed once for each version of a pod that an event showed."""
        return self._demands.of(pod)

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

    def reservations(self, before: float) -> list[tuple[str, PodReservation]]:
        """The node and the reservation of those that are older, without a bound pod.

        ``before`` is in unix seconds.
        """
        with self._lock:
            return self._state.unbound(before)

    def set_claims(self, name: str, claims: Claims) -> Claims:
        """Make a node's reservations the claims of its Lease; returns those of living pods.

        A pod that an event has shown as gone has no claim any more.
        """
        with self._lock:
            return self._state.set_claims(name, claims)

    def counts(self) -> tuple[int, int, int, int]:
        """Numbers of nodes with GPUs, of pods, of reservations, and of rejected pods."""
        state = self._state
        with self._lock:
            nodes = sum(
                not isinstance(cached.scheme, PlacementReason) for cached in state.nodes.values()
            )
            return nodes, len(state.pods), state.reserved(), len(self._rejected)

    # ------------------------------------------------------------ under the lock

    def _settled(self, uid: str) -> None:
        """The pod is bound or gone: it waits no more."""
        self._under_way.discard(uid)
        self._rejected.discard(uid)
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

    def _reject(
        self,
        shape: DemandShape,
        demand: PodDemand,
        refused: RefusedNodes,
        now: float,
    ) -> None:
        namespace = demand.pod.namespace
        limited = namespace if self._state.quotas.quota(namespace) else ""
        over_quota = bool(limited) and any(each.reason in OF_QUOTA for each in refused.distinct())
        self._rejected.reject(
            demand, shape, refused.names, now, limited=limited, over_quota=over_quota
        )

    def _needs_placement(self, demand: PodDemand) -> bool:
        """Whether the quota of the pod's namespace depends on the GPUs that the pod gets."""
        return self._state.quotas.quota(demand.pod.namespace).needs_placement or any(
            request.memory_bytes is None for request in demand.requests
        )

    def _over_quota(
        self, demand: PodDemand, placement: Placement | None = None
    ) -> PlacementRefusal | None:
        """Why the quota of the pod's namespace refuses the pod; None if it does not.

        Without a placement the pod counts what is known of it before: a lower bound.
        """
        quotas = self._state.quotas
        if not quotas.quota(demand.pod.namespace):
            return None
        if placement is not None:
            return self._refused_on(demand, *self._usage(demand, placement))
        usage = usage_of_requests(dict(demand.units), demand.requests, "")
        refusal = quotas.check(demand.pod, usage, is_placed=False)
        return PlacementRefusal(refusal.reason, refusal.detail) if refusal is not None else None

    def _usage(self, demand: PodDemand, placement: Placement) -> tuple[PodUsage, Node | None]:
        """What a placed pod counts for its quota, and its node."""
        usage = self._state.usage_on(placement.node, dict(demand.units), placement.allocations)
        return usage, self._state.nodes[placement.node].node

    def _refused_on(
        self, demand: PodDemand, usage: PodUsage, node: Node | None
    ) -> PlacementRefusal | None:
        """Why the quota of the pod's namespace refuses the pod with this usage on a node."""
        quotas = self._state.quotas
        refusal = quotas.check(demand.pod, usage, is_placed=True) or check_node(
            quotas.quota(demand.pod.namespace), usage, node
        )
        return PlacementRefusal(refusal.reason, refusal.detail) if refusal is not None else None

    def _within_quota(
        self, names: Sequence[str], shape: DemandShape, demand: PodDemand, now: float
    ) -> tuple[list[str], dict[str, PlacementRefusal]]:
        """Those of the nodes on which the pod is within its quota, and why the others are not.

        Nodes on which the pod counts alike have one refusal: the quota is compared once for them.
        """
        self._forget_changed(now)
        known = self._placed.of((shape.number, demand.units))
        own = self._state.reserved_on(demand.pod.uid)
        scheme = self._by_name[shape.scheme]
        refusals: dict[int, PlacementRefusal | None] = {}
        within: list[str] = []
        over: dict[str, PlacementRefusal] = {}
        for name in names:
            placed = known.get(name)
            if placed is None or name in own:
                result = self._place(name, scheme, demand, now)
                if isinstance(result, PlacementRefusal):
                    over[name] = result
                    continue
                placed = self._placed.shared(*self._usage(demand, result))
                if self._state.nodes[name].is_alike_for(demand):
                    known[name] = placed
            if placed.number not in refusals:
                refusals[placed.number] = self._refused_on(demand, placed.usage, placed.node)
            refusal = refusals[placed.number]
            if refusal is None:
                within.append(name)
            else:
                over[name] = refusal
        return within, over

    def _forget_changed(self, now: float) -> None:
        """Forget the answers of nodes that a pod finds in another state than when they answered.

        Most changes of a node are none: a reservation becomes a bound pod.
        """
        while self._changed_nodes:
            name = self._changed_nodes.pop()
            cached = self._state.nodes.get(name)
            before = self._answered.pop(name, None)
            if cached is not None:
                answered = AnsweredNode(cached.node, cached.scheme, cached.view(now))
                self._answered[name] = answered
                if before is not None and before.is_like(answered):
                    continue
            self._known.forget(name)
            self._placed.forget(name)

    def _found_by(self, demand: PodDemand, name: str) -> CachedNode | None:
        """The node as the pod finds it; None if nothing is known of it."""
        cached = self._state.nodes.get(name)
        return None if cached is None else cached.as_found_by(demand)

    def _place(
        self, name: str, scheme: SchedulerScheme, demand: PodDemand, now: float
    ) -> PlacementResult:
        found = self._found_by(demand, name)
        return _UNKNOWN if found is None else found.place(scheme, demand, now)

    def _answers(
        self,
        names: Sequence[str],
        shape: DemandShape,
        demand: PodDemand,
        now: float,
        before: Sequence[UnderWay] = (),
    ) -> list[NodeAnswer]:
        """Whether each node takes the demand after those of ``before``, and its score.

        What a node answers is the same for all pods of a shape, unless something is kept on it for
        a pod: then it is asked each time.
        """
        self._forget_changed(now)
        known = self._known.of(_key(shape, before))
        nodes, own = self._state.nodes, self._state.reserved_on(demand.pod.uid)
        demands = [pod.demand for pod in before]
        scheme = self._by_name[shape.scheme]

        def ask(name: str) -> NodeAnswer:
            cached = nodes.get(name)
            if cached is None:
                return UNKNOWN
            found = cached.as_found_by(demand)
            answer = self._known.shared(found.answer(scheme, demand, now, demands))
            if cached.is_alike_for(demand):
                known[cached.name] = answer
            return answer

        get = known.get if not own else {**known, **dict.fromkeys(own)}.get
        answers = list(map(get, names))
        for _ in range(answers.count(None)):  # few nodes have changed since the last pod
            number = answers.index(None)
            answers[number] = ask(names[number])
        return cast("list[NodeAnswer]", answers)

    def _sorted(
        self, names: Sequence[str], shape: DemandShape, demand: PodDemand, now: float
    ) -> tuple[Sequence[str], RefusedNodes]:
        """The nodes that take the demand, and why the others do not."""
        answers = self._answers(names, shape, demand, now)
        distinct = set(answers)
        refusing = {answer for answer in distinct if answer.refusal is not None}
        if len(refusing) == len(distinct):  # a pod that fits nowhere, again and again
            return (), RefusedNodes(names, answers)
        if not refusing:
            return names, RefusedNodes()
        refuses = list(map(refusing.__contains__, answers))
        refused = RefusedNodes(list(compress(names, refuses)), list(compress(answers, refuses)))
        return list(compress(names, map(not_, refuses))), refused

    def _kept_for_others(
        self, names: Sequence[str], shape: DemandShape, demand: PodDemand, now: float
    ) -> set[str]:
        """Those of the nodes that do not take the pod beside pods that passed filter before it.

        Only the best nodes are asked: pods go there first, and a bind decides for itself.
        """
        newest = self._under_way.newest(demand.pod.uid, now)
        if not newest:
            return set()
        answers = self._answers(names, shape, demand, now)
        scores = {name: answer.score for name, answer in zip(names, answers, strict=True)}
        best = sorted(names, key=scores.__getitem__, reverse=True)[:MOST_ASKED]

        alike: dict[tuple[bool, ...], list[str]] = {}
        for name in best:
            alike.setdefault(tuple(name in pod.nodes for pod in newest), []).append(name)
        kept: set[str] = set()
        for may_come, group in alike.items():
            before = list(compress(newest, may_come))
            answers = self._answers(group, shape, demand, now, before)
            kept.update(
                name
                for name, answer in zip(group, answers, strict=True)
                if answer.refusal is not None
            )
        return kept


def _key(shape: DemandShape, before: Sequence[UnderWay] = ()) -> ShapeKey:
    return (*(pod.shape.number for pod in before), shape.number)


_UNKNOWN: Final = PlacementRefusal.of(PlacementReason.UNKNOWN_NODE)
_TAKEN: Final = PlacementRefusal.of(PlacementReason.UNDER_WAY)
