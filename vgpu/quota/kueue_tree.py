"""Kueue's queues as a tree of quotas, with what pods hold and what waits in each; pure."""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from vgpu.kube.kept_keys import JOB_SET_NAME, WORKLOAD
from vgpu.kube.kueue_kinds import (
    GROUP,
    ClusterQueue,
    Cohort,
    LocalQueue,
    PodSet,
    QueuedWorkload,
    ResourceFlavor,
)
from vgpu.kube.quantities import is_extended
from vgpu.model.objects import Pod
from vgpu.quota.kueue_config import KueueConfig
from vgpu.quota.quota_units import quota_unit
from vgpu.quota.resources import MEMORY, UNKNOWN_MEMORY, Amounts, plus
from vgpu.quota.tree import QuotaLevel, QuotaName, QuotaNode, QuotaTree

CLUSTER_QUEUE_LABEL: Final = "kueue.x-k8s.io/cluster-queue-name"
LOCAL_QUEUE_LABEL: Final = "kueue.x-k8s.io/local-queue-name"
"""Labels of a pod with the queues that have admitted it, since Kueue 0.17."""

QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
"""The label of a pod or a job with its LocalQueue, by its user."""


PODS: Final = "pods"
"""The resource that each pod has one of, where a ClusterQueue has a quota of it (``assignFlavors``
in ``pkg/scheduler/flavorassigner``)."""


class KueueObjects(msgspec.Struct, frozen=True):
    """What was read of Kueue.

    Attributes:
        notes: what is unknown, for people.
        is_read: whether ClusterQueues were read: without them no limit is known.
        unread: the names of the kinds of which not all objects were read; of these nothing is known
            to be absent.
        namespace: the only namespace of which LocalQueues or Workloads were read; "" is all.
        places: places in their ClusterQueues by Kueue's visibility API, from 1, of workloads by
            namespace and name.
    """

    cluster_queues: tuple[ClusterQueue, ...] = ()
    local_queues: tuple[LocalQueue, ...] = ()
    cohorts: tuple[Cohort, ...] = ()
    flavors: tuple[ResourceFlavor, ...] = ()
    workloads: tuple[QueuedWorkload, ...] = ()
    config: KueueConfig = KueueConfig(problem="the configuration of Kueue was not read")
    notes: tuple[str, ...] = ()
    is_read: bool = False
    unread: frozenset[str] = frozenset()
    namespace: str = ""
    places: Mapping[tuple[str, str], int] = {}

    @property
    def has_queues(self) -> bool:
        """Whether some queue was read."""
        return bool(self.cluster_queues or self.local_queues)

    def requested(self, workload: QueuedWorkload, *, counts_pods: bool = False) -> dict[str, int]:
        """What a workload requests by resource, as Kueue counts it."""
        requests = (self.requests(each, workload) for each in workload.pod_sets)
        pods = sum(each.count for each in workload.pod_sets) if counts_pods else 0
        return plus(*requests) | ({PODS: pods} if counts_pods else {})

    def requests(self, pod_set: PodSet, workload: QueuedWorkload) -> dict[str, int]:
        """What a pod set of the workload requests, without the number of its pods.

        What it had requested when Kueue last looked at it is Kueue's own word; else it is computed
        from the pods by the configuration.
        """
        if any(workload.considered.values()):
            return dict(workload.considered.get(pod_set.name, {}))
        counted = self.config.counted(pod_set.requests())
        return {name: amount * pod_set.count for name, amount in counted.items()}

    def order(self, cluster_queue: str) -> tuple[QueuedWorkload, ...]:
        """The workloads that wait for a ClusterQueue, the first in line first.

        By priority, then by age in seconds, then by UID, as Kueue orders them. Those of a stopped
        LocalQueue and those that are set aside after an eviction are in no line
        (``pkg/cache/queue/cluster_queue.go`` and ``manager.go``).
        """
        queues = {
            (each.namespace, each.name)
            for each in self.local_queues
            if each.cluster_queue == cluster_queue and not stop_text(each.stop_policy)
        }
        return tuple(
            sorted(
                (
                    each
                    for each in self.workloads
                    if each.waits
                    and not each.is_set_aside
                    and (each.namespace, each.queue) in queues
                ),
                key=lambda each: (-each.priority, _queued_at(each), each.uid),
            )
        )


def stop_text(policy: str) -> str:
    """The ``stopPolicy`` of a queue, for people; "" if it stops nothing."""
    return f"stopPolicy {policy}" if policy not in ("", "None") else ""


def counts_pods(queue: ClusterQueue) -> bool:
    """Whether every pod counts in the queue, whatever it requests."""
    return any(key.resource == PODS for key in queue.quotas)


def _queued_at(workload: QueuedWorkload) -> float:
    evicted = workload.conditions.get("Evicted")
    if evicted is not None and evicted.is_true and evicted.reason in _REQUEUED_LATER:
        return evicted.since or 0.0
    return workload.created_at or 0.0


_REQUEUED_LATER: Final = ("PodsReadyTimeout", "AdmissionCheck")
"""Reasons of an eviction after which a workload stands in line as if it were new."""


class QueuedPod(msgspec.Struct, frozen=True):
    """A pod with the queue and the workload that it is of; ``local_queue`` is None if unknown."""

    local_queue: QuotaName | None = None
    cluster_queue: str = ""
    workload: QueuedWorkload | None = None


def waits_for_kueue(pod: Pod) -> bool:
    """Whether a gate of Kueue keeps every scheduler from the pod."""
    return any(gate.startswith(f"{GROUP}/") for gate in pod.gates)


class PodsInQueues:
    """Finds the queue of a pod: by its workload, else by Kueue's labels, else by its user's.

    A workload is that of the pod or of its owner, by UID; else, where another object lies between
    them, such as a Job of a JobSet, that of Kueue's annotation or of the JobSet's label.
    """

    def __init__(self, kueue: KueueObjects) -> None:
        self._workloads: dict[str, QueuedWorkload] = {}
        for each in sorted(kueue.workloads, key=lambda each: each.has_finished, reverse=True):
            self._workloads |= dict.fromkeys(each.owners, each)
        self._by_name = {(each.namespace, each.name): each for each in kueue.workloads}
        self._by_owner = {(each.namespace, each.owner): each for each in kueue.workloads}
        self._targets = {
            (each.namespace, each.name): each.cluster_queue for each in kueue.local_queues
        }

    def of(self, pod: Pod) -> QueuedPod | None:
        """The queue of the pod; None if it is in none."""
        workload = self._workloads.get(pod.ref.uid)
        if workload is None and pod.owner is not None:
            workload = self._workloads.get(pod.owner.uid)
        if workload is None:
            workload = self._named(pod)
        labels = pod.labels
        queue = labels.get(LOCAL_QUEUE_LABEL) or labels.get(QUEUE_LABEL, "")
        admitted_by = labels.get(CLUSTER_QUEUE_LABEL, "")
        if workload is not None:
            queue, admitted_by = workload.queue or queue, workload.admitted_by or admitted_by
        if not (queue or admitted_by):
            return None
        namespace = pod.ref.namespace
        target = admitted_by or self._targets.get((namespace, queue), "")
        name = local_queue_name(namespace, queue) if queue else None
        return QueuedPod(name, target, workload)

    def _named(self, pod: Pod) -> QueuedWorkload | None:
        namespace = pod.ref.namespace
        named = self._by_name.get((namespace, pod.annotations.get(WORKLOAD, "")))
        job_set = pod.labels.get(JOB_SET_NAME, "")
        return named or self._by_owner.get((namespace, f"JobSet {job_set}"))


def local_queue_name(namespace: str, name: str) -> QuotaName:
    """The node of a LocalQueue."""
    return QuotaName(QuotaLevel.LOCAL_QUEUE, f"{namespace}/{name}")


def cluster_queue_name(name: str) -> QuotaName:
    """The node of a ClusterQueue."""
    return QuotaName(QuotaLevel.CLUSTER_QUEUE, name)


def kueue_tree(
    kueue: KueueObjects,
    held: Iterable[tuple[Pod, Amounts]] = (),
    driver: Mapping[str, Amounts] | None = None,
) -> QuotaTree:
    """The tree of all queues.

    ``held`` is what pods hold by the ledger, ``driver`` what pods use by their UID on the node,
    None if nobody was asked. What a pod of no queue holds is in no node.
    """
    pods, flavors = PodsInQueues(kueue), _Flavors(kueue.config)
    own_held: dict[QuotaName, dict[str, list[Amounts]]] = {}
    own_driver: dict[QuotaName, dict[str, list[Amounts]]] = {}
    above = {
        local_queue_name(each.namespace, each.queue): cluster_queue_name(each.admitted_by)
        for each in kueue.workloads
        if each.admitted_by
    }
    for pod, amounts in held:
        found = pods.of(pod)
        if found is None:
            continue
        name = _node_of(found)
        if found.cluster_queue and name.level is QuotaLevel.LOCAL_QUEUE:
            above[name] = cluster_queue_name(found.cluster_queue)
        for flavor, part in flavors.split(found.workload, amounts).items():
            own_held.setdefault(name, {}).setdefault(flavor, []).append(part)
        used = None if driver is None else driver.get(pod.kubelet_uid)
        if used is not None:
            for flavor, part in flavors.split(found.workload, used).items():
                own_driver.setdefault(name, {}).setdefault(flavor, []).append(part)
    waiting: dict[QuotaName, list[Amounts]] = {}
    counting = {each.name for each in kueue.cluster_queues if counts_pods(each)}
    of_pods = {
        local_queue_name(each.namespace, each.name)
        for each in kueue.local_queues
        if each.cluster_queue in counting
    }
    for workload in kueue.workloads:
        if workload.waits:
            name = local_queue_name(workload.namespace, workload.queue)
            requested = kueue.requested(workload, counts_pods=name in of_pods)
            waiting.setdefault(name, []).append(requested)
    return QuotaTree(
        QuotaNode(
            node.name,
            node.parent,
            node.declared,
            node.used,
            node.borrowed,
            {flavor: plus(*each) for flavor, each in own_held.get(node.name, {}).items()},
            None
            if node.name not in own_driver
            else {flavor: plus(*each) for flavor, each in own_driver[node.name].items()},
            plus(*waiting.get(node.name, ())),
            len(waiting.get(node.name, ())),
        )
        for node in _nodes(kueue, {*own_held, *waiting}, above)
    )


class _Flavors:
    """Finds the flavor of an amount that the pods of a workload hold.

    A workload has a flavor for each resource group: that of the resource that stands for the
    amount, else that of its other resources of GPUs; "" where there are several.
    """

    def __init__(self, config: KueueConfig) -> None:
        self._config = config
        self._amounts: dict[str, str] = {}
        self._known: dict[tuple[int, str], str] = {}

    def split(self, workload: QueuedWorkload | None, amounts: Amounts) -> dict[str, dict[str, int]]:
        """The amounts by flavor; a flavor without an amount is that of nothing."""
        parts: dict[str, dict[str, int]] = {}
        for resource, amount in amounts.items():
            cell = id(workload), resource
            if cell not in self._known:
                self._known[cell] = self._of(workload, resource)
            parts.setdefault(self._known[cell], {})[resource] = amount
        return parts

    def _of(self, workload: QueuedWorkload | None, resource: str) -> str:
        resource = MEMORY if resource == UNKNOWN_MEMORY else resource
        reserved = () if workload is None else workload.reserved
        flavors: set[str] = set()
        for stands_for in (
            lambda name: self._amount(name) == resource,
            lambda name: bool(self._amount(name)),
            is_extended,
            bool,
        ):
            flavors = flavors or {key.flavor for key in reserved if stands_for(key.resource)}
        return flavors.pop() if len(flavors) == 1 else ""

    def _amount(self, name: str) -> str:
        """The ledger's amount of a resource; its unit does not matter."""
        if name not in self._amounts:
            self._amounts[name] = quota_unit(name, self._config, {}).amount
        return self._amounts[name]


def _node_of(pod: QueuedPod) -> QuotaName:
    return pod.local_queue or cluster_queue_name(pod.cluster_queue)


def _nodes(
    kueue: KueueObjects, named: Iterable[QuotaName], above: Mapping[QuotaName, QuotaName]
) -> Iterable[QuotaNode]:
    """The declared nodes, and those that are only named: cohorts by queues, queues by pods.

    ``above`` are the ClusterQueues that have admitted workloads of a LocalQueue.
    """
    cohorts = {each.name: each for each in kueue.cohorts}
    names = {each.cohort for each in kueue.cluster_queues}
    names |= {each.parent for each in kueue.cohorts}
    for name in sorted({*cohorts, *names} - {""}):
        cohort = cohorts.get(name, Cohort(name))
        parent = QuotaName(QuotaLevel.COHORT, cohort.parent) if cohort.parent else None
        yield QuotaNode(QuotaName(QuotaLevel.COHORT, name), parent, cohort.quotas)
    for queue in kueue.cluster_queues:
        parent = QuotaName(QuotaLevel.COHORT, queue.cohort) if queue.cohort else None
        yield QuotaNode(
            cluster_queue_name(queue.name),
            parent,
            queue.quotas,
            {key: each.total for key, each in queue.reserved.items()},
            {key: each.borrowed for key, each in queue.reserved.items()},
        )
    for local in kueue.local_queues:
        yield QuotaNode(
            local_queue_name(local.namespace, local.name),
            cluster_queue_name(local.cluster_queue),
            used={key: each.total for key, each in local.reserved.items()},
        )
    known = {cluster_queue_name(each.name) for each in kueue.cluster_queues}
    known |= {local_queue_name(each.namespace, each.name) for each in kueue.local_queues}
    for unknown in sorted(set(named) - known):
        yield QuotaNode(unknown, above.get(unknown))
