"""Which queues, findings and remarks are shown where namespaces are named. Pure."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from vgpu.model.objects import Pod
from vgpu.quota.kai_tree import kai_queue_name
from vgpu.quota.kueue_tree import (
    KueueObjects,
    PodsInQueues,
    cluster_queue_name,
    local_queue_name,
)
from vgpu.quota.queue_findings import FoundInQueues
from vgpu.quota.queues import Queues
from vgpu.quota.tree import QuotaLevel, QuotaName
from vgpu.quota.volcano_tree import PodsOfQueues, queue_name


class SelectedQueues(msgspec.Struct, frozen=True):
    """The queues on the paths of those that the namespaces use; all without namespaces.

    ``flavors`` and ``resources`` are those of which the queues have quotas.
    """

    namespaces: tuple[str, ...] = ()
    names: frozenset[QuotaName] = frozenset()
    flavors: frozenset[str] = frozenset()
    resources: frozenset[str] = frozenset()

    def has(self, name: QuotaName) -> bool:
        """Whether the queue is shown."""
        return not self.namespaces or name in self.names

    def remarks(self, remarks: Iterable[str], name_of: Callable[[str], QuotaName]) -> Iterator[str]:
        """Of remarks that begin with a Queue those about queues that are shown.

        ``name_of`` makes the name of a node from that of a Queue.
        """
        return (each for each in remarks if self.has(name_of(each.split()[1].rstrip(":"))))

    def has_finding(self, finding: FoundInQueues) -> bool:
        """Whether a finding is shown: by the namespace of its object, or by what queues have."""
        kind, _, name = finding.about.rpartition(" ")
        if not self.namespaces:
            return True
        if kind == QuotaLevel.QUEUE:
            return self.has(queue_name(name))
        if kind == "ResourceFlavor":
            return name in self.flavors
        if not kind:
            return name in self.resources
        if kind == "ConfigMap":
            return any(
                each.level not in (QuotaLevel.QUEUE, QuotaLevel.KAI_QUEUE) for each in self.names
            )
        return name.partition("/")[0] in self.namespaces


def selected_queues(
    queues: Queues, pods: Iterable[Pod], namespaces: Sequence[str]
) -> SelectedQueues:
    """The queues that the namespaces have, or that their PodGroups and pods are in."""
    if not namespaces:
        return SelectedQueues()
    tree, kueue, volcano = queues.tree, queues.kueue, queues.volcano
    own = {
        name
        for name in tree.nodes
        if name.level is QuotaLevel.LOCAL_QUEUE and name.name.partition("/")[0] in namespaces
    }
    own |= {queue_name(each.queue_name) for each in volcano.groups if each.namespace in namespaces}
    own |= {
        kai_queue_name(each.queue) for each in queues.kai.groups if each.namespace in namespaces
    }
    in_kueue, in_volcano = PodsInQueues(kueue), PodsOfQueues(volcano)
    for pod in pods:
        if pod.ref.namespace in namespaces:
            queued = in_kueue.of(pod)
            if queued is not None:
                own.add(queued.local_queue or cluster_queue_name(queued.cluster_queue))
            own.add(queue_name(in_volcano.of(pod)))
    names = {node.name for name in own & tree.nodes.keys() for node in tree.path(name)}
    keys = {key for name in names for key in tree.resources(name)}
    return SelectedQueues(
        (*namespaces,),
        frozenset(names),
        frozenset(key.flavor for key in keys),
        frozenset(key.resource for key in keys),
    )


def wholly_read(kueue: KueueObjects, pods: Sequence[Pod]) -> frozenset[str]:
    """The ClusterQueues of which nothing shows that some LocalQueues were not read.

    Objects of one namespace are mostly a list of that namespace, and a workload or a running pod
    may name a LocalQueue that is not there.
    """
    spaces = {each.namespace for each in kueue.local_queues}
    spaces |= {each.namespace for each in kueue.workloads}
    spaces |= {each.ref.namespace for each in pods}
    if kueue.namespace or len(spaces) <= 1:
        return frozenset()
    known = {local_queue_name(each.namespace, each.name) for each in kueue.local_queues}
    partly = {
        each.admitted_by
        for each in kueue.workloads
        if not each.has_finished and local_queue_name(each.namespace, each.queue) not in known
    }
    in_queues = PodsInQueues(kueue)
    for pod in pods:
        queued = in_queues.of(pod) if pod.phase == "Running" else None
        if queued is not None and queued.local_queue and queued.local_queue not in known:
            if not queued.cluster_queue:
                return frozenset()  # it may be of any
            partly.add(queued.cluster_queue)
    return frozenset(each.cluster_queue for each in kueue.local_queues) - partly
