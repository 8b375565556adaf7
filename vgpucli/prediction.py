"""Predictions on the scheduler's cache: it is filled once, and placements are supposed. No I/O.

What the filled cache answers is the scheduler's answer on the same objects. Leases of nodes are not
read: what is reserved for pods that are being bound just now is free.

A supposed placement is filter, prioritize and the reservation of a bind on the node with the best
score, as kube-scheduler does them. Placements and evictions are taken back.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Self

import msgspec
from msgspec import structs

from scheduler.cache.scheduler_cache import SchedulerCache
from scheduler.cluster.cached_node import pod_key
from scheduler.cluster.demands import Demanded
from scheduler.cluster.reservations import PodPlacement
from scheduler.filter.refusals import RefusedNodes
from vgpu.model.objects import POD_KIND, MalformedObject, Namespace, Node, Pod, ResourceQuota
from vgpu.placement.candidate import PodDemand
from vgpu.placement.dialects import SchedulerScheme
from vgpu.placement.node_offers import AGAIN, NodeOffers
from vgpu.placement.result import PlacementRefusal


class ReadObjects(msgspec.Struct, frozen=True):
    """The objects of a cluster, or those that an answer depends on.

    Attributes:
        as_of: unix seconds of the read.
        nodes, pods: those that are there.
        malformed: unreadable objects of any kind.
        unhealthy: the texts of the lists of unhealthy GPUs, by node.
        namespaces, quotas, gpu_quota: what declares quotas; ``gpu_quota`` is the data of
            gpu-admission's ConfigMap, None if there is none.
    """

    as_of: float
    nodes: Iterable[Node]
    pods: Iterable[Pod]
    malformed: Iterable[MalformedObject] = ()
    unhealthy: Mapping[str, str] = {}
    namespaces: Iterable[Namespace] = ()
    quotas: Iterable[ResourceQuota] = ()
    gpu_quota: Mapping[str, str] | None = None


def filled_cache(schemes: Sequence[SchedulerScheme], read: ReadObjects) -> SchedulerCache:
    """The cache after it has seen all objects, at the time of the read."""
    cache = SchedulerCache(schemes, lambda: read.as_of)
    maps = {scheme.row.unhealthy_map for scheme in schemes if scheme.row.unhealthy_map}
    texts = read.unhealthy.items()
    cache.set_unhealthy({row.name(node): text for row in maps for node, text in texts})
    cache.set_gpu_admission(read.gpu_quota)
    for namespace in read.namespaces:
        cache.set_namespace(namespace.name, namespace)
    for quota in read.quotas:
        cache.set_resource_quota(quota.namespace, quota.name, quota)
    for node in read.nodes:
        cache.set_node(node.name, node)
    for broken in read.malformed:
        if broken.kind == POD_KIND:
            cache.set_malformed(pod_key(broken.ref.namespace, broken.ref.name), broken)
    for pod in read.pods:
        cache.set_pod(pod_key(pod.ref.namespace, pod.ref.name), pod)
    return cache


class SchedulingSimulation:
    """Supposes placements and evictions on some nodes of a cache. Not for several threads.

    Attributes:
        cache: the cache, at the moment with what is supposed.
        names: the nodes that kube-scheduler offers for the wanted pods, as far as other pods do not
            keep them from it.
        offers: which of them it offers for each pod beside the others; None offers all.
    """

    def __init__(
        self, cache: SchedulerCache, names: Sequence[str], offers: NodeOffers | None = None
    ) -> None:
        self.cache = cache
        self.names = names
        self.offers = offers
        self._evicted: list[Pod] = []
        self._placed: list[tuple[str, str]] = []

    def place(self, scheme: SchedulerScheme, demand: PodDemand) -> PodPlacement | RefusedNodes:
        """Reserve GPUs for one pod, or why no node takes it."""
        offers, uid = self.offers, demand.pod.uid
        names = self.names if offers is None else offers.open_to(offers.of_pod(uid))
        filtered = self.cache.filter(scheme, demand, names)
        if not filtered.nodes:
            return filtered.refused
        scores = self.cache.scores(scheme, demand, filtered.nodes)
        name = filtered.nodes[scores.index(max(scores))]
        placed = self.cache.reserve(scheme, demand, name)
        if isinstance(placed, PlacementRefusal):
            return RefusedNodes.of({name: placed})
        self._placed.append((uid, name))
        self._count(uid, name, 1)
        return placed

    def evict(self, pod: Pod) -> None:
        """Count a bound pod no more."""
        self.cache.set_pod(pod_key(pod.ref.namespace, pod.ref.name), None)
        self._count(pod.ref.uid, pod.node, -1)
        self._evicted.append(pod)

    def replacement(self, pod: Pod) -> Demanded:
        """What the pod requests that the owner of an evicted pod creates."""
        ref = structs.replace(pod.ref, uid=f"{pod.ref.uid}{AGAIN}")
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
                self._count(uid, name, -1)
            for pod in self._evicted[evicted:]:
                self.cache.set_pod(pod_key(pod.ref.namespace, pod.ref.name), pod)
                self._count(pod.ref.uid, pod.node, 1)
            del self._evicted[evicted:], self._placed[placed:]

    def _count(self, uid: str, node: str, sign: int) -> None:
        if self.offers is not None:
            self.offers.count(node, self.offers.of_pod(uid), sign)
