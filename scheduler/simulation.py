"""Placements and evictions on a scheduler's cache, as kube-scheduler does them, to be taken back.

A placement is filter, prioritize and the reservation of a bind on the node with the best score. So
the answer is that of the extender on the same objects. No I/O.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Self

from msgspec import structs

from scheduler.cache import SchedulerCache
from scheduler.cluster.cached_node import pod_key
from scheduler.cluster.demands import Demanded
from scheduler.cluster.reservations import PodPlacement
from scheduler.filter.refusals import RefusedNodes
from vgpu.model.objects import Pod
from vgpu.placement.candidate import PodDemand
from vgpu.placement.dialects import SchedulerScheme
from vgpu.placement.result import PlacementRefusal


class SchedulingSimulation:
    """The simulation that the module describes, on some nodes of a cache. Not for several threads.

    Attributes:
        cache: the cache, at the moment with what is supposed.
        names: the nodes that kube-scheduler offers.
    """

    def __init__(self, cache: SchedulerCache, names: Sequence[str]) -> None:
        self.cache = cache
        self.names = names
        self._evicted: list[Pod] = []
        self._placed: list[tuple[str, str]] = []

    def place(self, scheme: SchedulerScheme, demand: PodDemand) -> PodPlacement | RefusedNodes:
        """Reserve GPUs for one pod, or why no node takes it."""
        filtered = self.cache.filter(scheme, demand, self.names)
        if not filtered.nodes:
            return filtered.refused
        scores = self.cache.scores(scheme, demand, filtered.nodes)
        name = filtered.nodes[scores.index(max(scores))]
        placed = self.cache.reserve(scheme, demand, name)
        if isinstance(placed, PlacementRefusal):
            return RefusedNodes.of({name: placed})
        self._placed.append((demand.pod.uid, name))
        return placed

    def evict(self, pod: Pod) -> None:
        """Count a bound pod no more."""
        self.cache.set_pod(pod_key(pod.ref.namespace, pod.ref.name), None)
        self._evicted.append(pod)

    def replacement(self, pod: Pod) -> Demanded:
        """What the pod requests that the owner of an evicted pod creates."""
        ref = structs.replace(pod.ref, uid=f"{pod.ref.uid}-again")
        return self.cache.demand_of(structs.replace(pod, ref=ref, node="", nominated_node=""))

    @contextmanager
    def supposing(self) -> Iterator[Self]:
        """Takes back at the end what was placed and evicted in the context."""
        evicted, placed = len(self._evicted), len(self._placed)
        try:
            yield self
        finally:
            for uid, name in reversed(self._placed[placed:]):
                self.cache.release(uid, name)
            for pod in self._evicted[evicted:]:
                self.cache.set_pod(pod_key(pod.ref.namespace, pod.ref.name), pod)
            del self._evicted[evicted:], self._placed[placed:]
