"""What queues and schedulers of gangs have about a pod: Kueue, Volcano and KAI Scheduler."""

from collections.abc import Mapping

from msgspec import structs

from vgpu.inventory.pod_usage import pod_accounts
from vgpu.kube.volcano_kinds import POD_GROUPS
from vgpu.model.objects import Pod
from vgpu.quota.kueue_config import KueueConfig
from vgpu.quota.kueue_tree import PodsInQueues, waits_for_kueue
from vgpu.quota.queue_answer import QueueAnswer
from vgpu.quota.quota_units import quota_unit
from vgpu.quota.volcano_answer import holders_texts
from vgpu.quota.volcano_tree import (
    PodsOfQueues,
    VolcanoObjects,
    group_of,
    queue_name,
    requested_once,
    volcano_tree,
)
from vgpu.schemes.nvidia.resources import GPU
from vgpucli.explain.kai_objects import KaiObjects, is_of_kai
from vgpucli.explain.known_cluster import KnownCluster
from vgpucli.explain.pod_group import GroupOfPod


def kueue_of(cluster: KnownCluster, pod: Pod) -> QueueAnswer | None:
    """Why Kueue has not admitted a pod that waits for it."""
    if not waits_for_kueue(pod):
        return None
    found = PodsInQueues(cluster.read.kueue).of(pod)
    workload = None if found is None else found.workload
    return None if workload is None else cluster.queue_answer(workload)


def kai_of(cluster: KnownCluster, pod: Pod) -> KaiObjects | None:
    """What KAI Scheduler has written about a pod that it has to place."""
    read = cluster.read.kai
    if read is None or pod.node or pod.terminal or not is_of_kai(pod):
        return None
    nodes = cluster.nodes.values()
    without = frozenset(each.name for each in nodes if not each.capacity.get(GPU))
    return structs.replace(read(pod.ref), without_gpus=without)


def pod_group_of(cluster: KnownCluster, pod: Pod) -> GroupOfPod | None:
    """The PodGroup of a pod that waits to be placed."""
    name = group_of(pod)
    if not name or pod.node or pod.terminal or pod.gated:
        return None
    full_name = f"{pod.ref.namespace}/{name}"
    read = cluster.read.volcano
    if read is None:
        return GroupOfPod(full_name, annotated=PodsOfQueues(VolcanoObjects()).of(pod))
    volcano = read(pod.ref.namespace, name)
    pods = PodsOfQueues(volcano)
    once = None
    if cluster.read.pods_read and POD_GROUPS.name not in volcano.unread:
        once = requested_once(volcano, cluster.all_pods)
    group = GroupOfPod(
        full_name,
        pods.group(pod),
        volcano,
        _requests_of(cluster, pod),
        once,
        annotated=pods.of(pod),
    )
    if not group.shortages:
        return group
    first = group.shortages[0]
    held = _held_in(cluster, volcano, first.queue, first.resource)
    return structs.replace(group, holders=tuple(holders_texts(first, held)))


def _held_in(
    cluster: KnownCluster, volcano: VolcanoObjects, queue: str, resource: str
) -> Mapping[str, int]:
    """What the PodGroups of a queue, and of those below it, hold of a resource, by name."""
    of_queues = PodsOfQueues(volcano)
    tree = volcano_tree(volcano)
    below = {node.name.name for node in tree.below(queue_name(queue))}
    own = [pod for pod in cluster.all_pods if pod.node and of_queues.of(pod) in below]
    unit = quota_unit(resource, KueueConfig(), cluster.schemes.unit_bytes)
    nodes = [cluster.nodes[name] for name in {pod.node for pod in own} if name in cluster.nodes]
    ledgers = {node.name: cluster.ledger(node.name) for node in nodes} if unit.amount else {}
    accounts = pod_accounts(nodes, ledgers, own, cluster.schemes.codecs) if unit.amount else []
    held: dict[str, int] = {}
    amounts = [(each.pod, unit.of_ledger(each.held) or 0) for each in accounts if each.phase]
    if not unit.amount:
        amounts = [
            (pod, _requests_of(cluster, pod).get(resource, 0)) for pod in own if not pod.terminal
        ]
    for pod, amount in amounts:
        who = f"PodGroup {pod.ref.namespace}/{group_of(pod)}"
        if not group_of(pod):
            who = f"Pod {pod.ref.namespace}/{pod.ref.name}"
        held[who] = held.get(who, 0) + amount
    return held


def _requests_of(cluster: KnownCluster, pod: Pod) -> Mapping[str, int]:
    """All that the pod requests; of a pod that was read alone its extended resources."""
    placed = cluster.read.scheduling.placed
    own = (each.requests for each in placed if each.uid == pod.ref.uid)
    return next(own, pod.requested_units())
