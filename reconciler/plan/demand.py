"""What namespaces and queues wait for, and what of their quotas they hold, for metrics; pure."""

from typing import Final

from reconciler.cluster_index import ClusterIndex
from reconciler.model import Coverage, NamespaceDemand, Scope
from reconciler.rules.quotas import quota_holders, used_by
from vgpu.inventory.pod_usage import requested_amounts
from vgpu.model.objects import Namespace, Pod, holds_devices
from vgpu.quota.check import Overrun
from vgpu.quota.queue_amounts import QueueNumbers, queue_numbers
from vgpu.quota.queues import QueueSystems, all_queues
from vgpu.quota.resources import CORES, GPUS, MEMORY, Amounts, plus
from vgpu.quota.whole_gpus import with_whole_gpus
from vgpu.schemes.registry import registry

_NONE: Final[Amounts] = {GPUS: 0, MEMORY: 0, CORES: 0}

LONGEST_TEAM: Final = 63
"""Maximum length of a team, which is that of a label's value; an annotation may be longer."""


def namespace_demands(cluster_index: ClusterIndex, team_key: str) -> tuple[NamespaceDemand, ...]:
    """The namespaces with pods that share GPUs, or with a quota, by name.

    None of them if not all pods were seen: a sum of some of them would look like a team that needs
    less than it does.
    """
    snapshot = cluster_index.snapshot
    if snapshot.scope is not Scope.CLUSTER or not cluster_index.has(Coverage.PODS):
        return ()
    waiting: dict[str, list[Amounts]] = {}
    for pod in (*snapshot.pods, *snapshot.share_pods):
        of_namespace = waiting.setdefault(pod.ref.namespace, [])
        if not pod.node and (requested := _waits_for(pod, cluster_index)):
            of_namespace.append(requested)
    holders = quota_holders(cluster_index, snapshot.quotas)
    known = {namespace.name: namespace for namespace in snapshot.quota_namespaces}
    demands = []
    for name in sorted(waiting.keys() | snapshot.quotas.keys()):
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


def queues_of(cluster_index: ClusterIndex) -> QueueNumbers:
    """The numbers of the queues; none if not all pods were seen, as above."""
    snapshot = cluster_index.snapshot
    if not cluster_index.has(Coverage.PODS):
        return QueueNumbers()
    held = with_whole_gpus(snapshot.held, snapshot.pods, snapshot.nodes)
    systems = QueueSystems(snapshot.kueue, snapshot.volcano, snapshot.kai)
    on_nodes = None
    if cluster_index.has(Coverage.NODES):
        on_nodes = plus(*(node.allocatable for node in snapshot.nodes))
    queues = all_queues(systems, held, snapshot.unit_bytes, snapshot.nodes, on_nodes=on_nodes)
    return queue_numbers(queues) if queues.are_read else QueueNumbers()


def team_of(namespace: Namespace | None, key: str) -> str:
    """The team that the Namespace names, by its label or else by an annotation that is kept."""
    if namespace is None:
        return ""
    return (namespace.labels.get(key) or namespace.annotations.get(key, ""))[:LONGEST_TEAM]


def _waits_for(pod: Pod, cluster_index: ClusterIndex) -> Amounts:
    """What a pod or SharePod without a node requests; nothing if GPUs are reserved for it."""
    if not holds_devices(pod) or registry().keeps_for_others(pod) or cluster_index.claims(pod):
        return {}
    requested = requested_amounts(pod, cluster_index.codecs)
    return requested if any(requested.values()) else {}
