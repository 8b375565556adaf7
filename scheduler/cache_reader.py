"""What pages, metrics and explanations ask of the scheduler's cache, and change nothing of it."""

import threading
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet

import msgspec

from scheduler.cluster.cached_node import pod_key
from scheduler.cluster.cluster_state import ClusterState
from scheduler.cluster.reservations import PodReservation
from scheduler.filter.pod_filter import PodFilter
from scheduler.filter.rejected_pods import RejectedPod
from scheduler.gpushare_inspect import InspectedNode
from vgpu.model.objects import Node, Pod
from vgpu.placement.candidate import CandidateNode, PodDemand
from vgpu.placement.dialects import SchedulerScheme
from vgpu.placement.node_view import CandidateView, StandingPod
from vgpu.placement.result import PlacementReason, PlacementRefusal
from vgpu.quota.limits import NamespaceQuota
from vgpu.quota.resources import Amounts


class QuotaView(msgspec.Struct, frozen=True):
    """The quota of a namespace with what its pods use, by the model of the GPUs.

    ``refusal`` is why the quota refuses a certain pod, None if it does not.
    """

    quota: NamespaceQuota
    used: Mapping[str, Amounts]
    refusal: PlacementRefusal | None = None


class CacheReader:
    """The questions that the module describes. Every method may be called by any thread."""

    def __init__(
        self,
        schemes: Sequence[SchedulerScheme],
        clock: Callable[[], float],
        *,
        changed: Callable[[str], object],
        settled: Callable[[str], object],
        relieved: Callable[[str], object],
    ) -> None:
        """The arguments are those of :class:`ClusterState`."""
        self.schemes = tuple(schemes)
        self._clock = clock
        self._lock = threading.Lock()
        changed_nodes: set[str] = set()
        self._state = ClusterState(
            self.schemes,
            clock,
            changed,
            settled,
            relieved=relieved,
            forget=changed_nodes.add,
        )
        by_name = {scheme.row.name: scheme for scheme in self.schemes}
        self._filter = PodFilter(by_name, self._state, changed_nodes)
        self._nodes = self._filter.nodes

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
        namespace = demand.pod.namespace
        with self._lock:
            quotas = self._state.quotas
            used = {model: dict(amounts) for model, amounts in quotas.used(namespace).items()}
            return QuotaView(quotas.quota(namespace), used, self._filter.quotas.refusal(demand))

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
            for _, cached in sorted(self._state.nodes.items()):
                node, scheme = cached.node, cached.scheme
                if node is None or isinstance(scheme, PlacementReason) or scheme.row.name != system:
                    continue
                view = cached.view(self._clock())
                is_readable = view is not None and view.is_readable
                nodes.append(
                    InspectedNode(
                        node,
                        view.held_gpus if view is not None else (),
                        tuple(sorted(cached.pods.values(), key=lambda pod: pod.ref)),
                        scheme.codec,
                        scheme.unit_bytes,
                        is_readable=is_readable,
                    )
                )
            return nodes

    def standing(self) -> list[tuple[str, StandingPod]]:
        """The pods that stand in the way of others, by node, of nodes that pods have asked for."""
        now = self._clock()
        with self._lock:
            names = sorted(self._state.nodes)
        found: list[tuple[str, StandingPod]] = []
        for name in names:
            with self._lock:  # one node at a time: filter waits for no other ones
                cached = self._state.nodes.get(name)
                standing = () if cached is None else cached.standing(now)
            found += ((name, each) for each in standing)
        return found

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
