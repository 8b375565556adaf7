"""The quotas of all namespaces of a cluster, from its objects; pure."""

from collections.abc import Iterable, Mapping

from vgpu.model.objects import Namespace, Node, ResourceQuota
from vgpu.quota.declared import declarations, gpu_admission_quota
from vgpu.quota.limits import NamespaceQuota, resolve
from vgpu.schemes.gaia.node import CORE


def has_gpu_admission(nodes: Iterable[Node]) -> bool:
    """Whether gpu-manager shares GPUs of the cluster, so that gpu-admission's quota counts."""
    return any(node.capacity.get(CORE) for node in nodes)


def cluster_quotas(
    namespaces: Iterable[Namespace],
    quotas: Iterable[ResourceQuota],
    gpu_quota: Mapping[str, str] | None,
    also: Iterable[str] = (),
) -> dict[str, NamespaceQuota]:
    """The quota of each namespace that has one, by name.

    ``gpu_quota`` is the data of gpu-admission's ConfigMap, None if there is none. ``also`` are
    names of namespaces with pods: a ConfigMap that cannot be read is about them, too.
    """
    by_name = {namespace.name: namespace for namespace in namespaces}
    by_namespace: dict[str, list[ResourceQuota]] = {}
    for quota in quotas:
        by_namespace.setdefault(quota.namespace, []).append(quota)
    gpu_admission = gpu_admission_quota(gpu_quota)
    names = {*by_name, *by_namespace, *gpu_admission.entries, *also}
    resolved = (
        resolve(
            name,
            declarations(name, by_namespace.get(name, ()), by_name.get(name), gpu_admission),
        )
        for name in sorted(names)
    )
    return {quota.namespace: quota for quota in resolved if quota}
