"""The scheduler's own cache, filled once from objects that were read.

Commands that predict the scheduler ask this cache, so that their answers are the scheduler's.
"""

from collections.abc import Sequence

from scheduler.cache import SchedulerCache
from scheduler.node_cache import pod_key
from vgpu.commands.inspect_read import Read
from vgpu.inventory import Units
from vgpu.inventory.unit_check import doubt_notes, doubts_of
from vgpu.kube.objects import POD_KIND
from vgpu.placement.dialects import PlacementPolicies, SchedulerScheme, scheduler_schemes
from vgpu.schemes.registry import registry


def schemes_in_units(
    read: Read, units: Units, policies: PlacementPolicies
) -> tuple[tuple[SchedulerScheme, ...], tuple[str, ...]]:
    """The sharing systems in these units, and notes about the units."""
    nodes = read.objects.nodes
    unit_bytes, notes = registry().assumed_units(units.by_row, nodes)
    doubts = doubts_of(nodes, {}, registry().rows, unit_bytes)
    return scheduler_schemes(unit_bytes, policies), (*notes, *doubt_notes(doubts))


def filled_cache(read: Read, schemes: Sequence[SchedulerScheme]) -> SchedulerCache:
    """The cache after it has seen all objects, at the time of the read.

    Leases of nodes are not read: what is reserved for pods that are being bound just now is free.
    """
    cache = SchedulerCache(schemes, lambda: read.as_of)
    cache.set_unhealthy(_unhealthy(read, schemes))
    cache.set_gpu_admission(read.gpu_quota)
    for namespace in read.namespaces:
        cache.set_namespace(namespace.name, namespace)
    for quota in read.quotas:
        cache.set_resource_quota(quota.namespace, quota.name, quota)
    for node in read.objects.nodes:
        cache.set_node(node.name, node)
    for pod in read.objects.pods:
        cache.set_pod(pod_key(pod.ref.namespace, pod.ref.name), pod)
    for broken in read.objects.malformed:
        if broken.kind == POD_KIND:
            cache.set_malformed(pod_key(broken.ref.namespace, broken.ref.name), broken)
    return cache


def _unhealthy(read: Read, schemes: Sequence[SchedulerScheme]) -> dict[str, str]:
    """The lists of unhealthy GPUs, by the name of their ConfigMap."""
    return {
        scheme.row.unhealthy_map.name(node): text
        for scheme in schemes
        if scheme.row.unhealthy_map
        for node, text in read.objects.unhealthy.items()
    }
