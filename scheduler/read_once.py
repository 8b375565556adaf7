"""The scheduler's cache, filled once from objects that were read: for predictions and explanations.

What it answers is the scheduler's answer on the same objects. Leases of nodes are not read: what is
reserved for pods that are being bound just now is free.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from scheduler.cache import SchedulerCache
from scheduler.cluster.cached_node import pod_key
from vgpu.model.objects import POD_KIND, MalformedObject, Namespace, Node, Pod, ResourceQuota
from vgpu.placement.dialects import SchedulerScheme


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
