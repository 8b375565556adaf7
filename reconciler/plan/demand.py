"""What namespaces wait for, and how much of their quotas they hold, for metrics; pure."""

from collections.abc import Iterator

from reconciler.cluster_index import ClusterIndex
from reconciler.model import Coverage, NamespaceDemand, Scope
from reconciler.rules.quota_holders import quota_holders, used_by
from vgpu.inventory.pod_usage import requested_amounts
from vgpu.kube.objects import Namespace, Pod, holds_devices
from vgpu.quota.check import Overrun
from vgpu.quota.resources import CORES, GPUS, MEMORY, Amounts, plus
from vgpu.schemes.registry import registry

_NONE = {GPUS: 0, MEMORY: 0, CORES: 0}


def namespace_demands(cluster_index: ClusterIndex, team_key: str) -> tuple[NamespaceDemand, ...]:
    """The namespaces with pods that share GPUs, or with a quota, by name.

    None of them if not all pods were seen: a sum of some of them would look like a team that needs
    less than it does.
    """
    snapshot = cluster_index.snapshot
    if snapshot.scope is not Scope.CLUSTER or not cluster_index.has(Coverage.PODS):
        return ()
    waiting: dict[str, list[Amounts]] = {}
    for pod, requested in _waiting(cluster_index):
        waiting.setdefault(pod.ref.namespace, []).append(requested)
    holders = quota_holders(cluster_index, snapshot.quotas)
    known = {namespace.name: namespace for namespace in snapshot.quota_namespaces}
    names = {pod.ref.namespace for pod in (*snapshot.pods, *snapshot.share_pods)}
    demands = []
    for name in sorted(names | snapshot.quotas.keys()):
        quota = snapshot.quotas.get(name)
        used = used_by(holders.get(name, ()))
        requests = waiting.get(name, [])
        total = plus(_NONE, *requests)
        demands.append(
            NamespaceDemand(
                name,
                team_of(known.get(name), team_key),
                len(requests),
                {resource: total[resource] for resource in _NONE},
                tuple(Overrun(each, each.of(used)) for each in quota.limits) if quota else (),
                len(quota.unreadable) if quota else 0,
            )
        )
    return tuple(demands)


def team_of(namespace: Namespace | None, key: str) -> str:
    """The team that the Namespace names, by its label or else by an annotation that is kept."""
    if namespace is None:
        return ""
    return namespace.labels.get(key) or namespace.annotations.get(key, "")


def _waiting(cluster_index: ClusterIndex) -> Iterator[tuple[Pod, Amounts]]:
    """The pods and SharePods that no node has or is reserved for, with what they request."""
    snapshot = cluster_index.snapshot
    for pod in (*snapshot.pods, *snapshot.share_pods):
        if pod.node or not holds_devices(pod) or registry().keeps_for_others(pod):
            continue
        requested = requested_amounts(pod, cluster_index.codecs)
        if any(requested.values()) and not cluster_index.claims(pod):
            yield pod, requested
