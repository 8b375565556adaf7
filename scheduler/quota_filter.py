"""Which pods, and which nodes for a pod, the quotas of namespaces refuse. No I/O."""

from collections.abc import Sequence

from scheduler.cluster.cluster_state import ClusterState
from scheduler.cluster.demands import DemandShape
from scheduler.node_answers import PlacedUsages
from scheduler.node_filter import NodeFilter
from vgpu.model.objects import Node
from vgpu.placement.candidate import PodDemand
from vgpu.placement.dialects import SchedulerScheme
from vgpu.placement.result import Placement, PlacementRefusal
from vgpu.quota.check import QuotaRefusal, check_node
from vgpu.quota.usage import PodUsage, usage_of_requests


class QuotaFilter:
    """The refusals that the module describes. Not for several threads: the cache locks."""

    def __init__(self, state: ClusterState, nodes: NodeFilter) -> None:
        self._state = state
        self._nodes = nodes
        self._placed = PlacedUsages()
        nodes.forget_also(self._placed)

    def needs_placement(self, demand: PodDemand) -> bool:
        """Whether the quota of the pod's namespace depends on the GPUs that the pod gets."""
        return self._state.quotas.quota(demand.pod.namespace).needs_placement or any(
            request.memory_bytes is None for request in demand.requests
        )

    def refusal(
        self, demand: PodDemand, placement: Placement | None = None
    ) -> PlacementRefusal | None:
        """Why the quota of the pod's namespace refuses the pod; None if it does not.

        Without a placement the pod counts what is known of it before: a lower bound.
        """
        quotas = self._state.quotas
        if not quotas.quota(demand.pod.namespace):
            return None
        if placement is not None:
            return self._refusal_on(demand, *self._usage(demand, placement))
        usage = usage_of_requests(dict(demand.units), demand.requests, "")
        return _refusal(quotas.check(demand.pod, usage, is_placed=False))

    def within(
        self,
        names: Sequence[str],
        scheme: SchedulerScheme,
        shape: DemandShape,
        demand: PodDemand,
        now: float,
    ) -> tuple[list[str], dict[str, PlacementRefusal]]:
        """Those of the nodes on which the pod is within its quota, and why the others are not.

        Nodes on which the pod counts alike have one refusal: the quota is compared once for them.
        """
        self._nodes.forget_changed(now)
        known = self._placed.of((shape.number, demand.units))
        own = self._state.reserved_on(demand.pod.uid)
        refusals: dict[int, PlacementRefusal | None] = {}
        within: list[str] = []
        over: dict[str, PlacementRefusal] = {}
        for name in dict.fromkeys(names):  # each is placed once, however often it was sent
            placed = known.get(name)
            if placed is None or name in own:
                result = self._nodes.place(name, scheme, demand, now)
                if isinstance(result, PlacementRefusal):
                    over[name] = result
                    continue
                placed = self._placed.shared(*self._usage(demand, result))
                if self._state.nodes[name].is_alike_for(demand):
                    known[name] = placed
            if placed.number not in refusals:
                refusals[placed.number] = self._refusal_on(demand, placed.usage, placed.node)
            refusal = refusals[placed.number]
            if refusal is None:
                within.append(name)
            else:
                over[name] = refusal
        return within, over

    # ------------------------------------------------------------ parts

    def _usage(self, demand: PodDemand, placement: Placement) -> tuple[PodUsage, Node | None]:
        """What a placed pod counts for its quota, and its node."""
        usage = self._state.usage_on(placement.node, dict(demand.units), placement.allocations)
        return usage, self._state.nodes[placement.node].node

    def _refusal_on(
        self, demand: PodDemand, usage: PodUsage, node: Node | None
    ) -> PlacementRefusal | None:
        """Why the quota of the pod's namespace refuses the pod with this usage on a node."""
        quotas = self._state.quotas
        return _refusal(
            quotas.check(demand.pod, usage, is_placed=True)
            or check_node(quotas.quota(demand.pod.namespace), usage, node)
        )


def _refusal(refusal: QuotaRefusal | None) -> PlacementRefusal | None:
    return None if refusal is None else PlacementRefusal(refusal.reason, refusal.detail)
