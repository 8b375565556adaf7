"""The objects of a cluster that an explanation needs, and how the rarer ones are read. Values."""

from collections.abc import Callable, Mapping

import msgspec

from reconciler.model import ObjectKind
from vgpu.inventory import Objects
from vgpu.kube.scheduling_objects import SchedulingObjects
from vgpu.model.objects import Namespace, Pod, ResourceQuota
from vgpu.quota.kueue_tree import KueueObjects
from vgpu.quota.volcano_tree import VolcanoObjects
from vgpucli.doctor.facts import ClusterFacts
from vgpucli.explain.kai_objects import ReadKai
from vgpucli.explain.webhooks import ReadWebhooks

Installation = Callable[[], ClusterFacts | None]
"""Reads how the sharing systems are installed; None if that cannot be read."""


ReadVolcano = Callable[[str, str], VolcanoObjects]
"""Reads Volcano's objects, for the PodGroup of this namespace and name."""


class ClusterObjects(msgspec.Struct, frozen=True):
    """The objects of a cluster, or those that an explanation needs.

    Attributes:
        objects: nodes, pods, SharePods, lists of unhealthy GPUs, unreadable objects.
        as_of: unix seconds of the read.
        namespaces, resource_quotas, gpu_quota: what declares quotas.
        lock_owners: pods that locks of nodes name, None for one that does not exist; those that
            were not asked for are missing.
        quotas_read: whether the API server was asked for these, and answered.
        is_dump: whether a file was read, so that ages are estimated from status times.
        notes: what is missing.
        pods_read: whether the pods were read: a dump without one shows nothing about them.
        claims_read: whether the ResourceClaims were read.
        scheduling: what kube-scheduler reads of all nodes and pods, if these were read.
        installation: reads the components of the sharing systems; None if nothing has them.
        volcano: reads Volcano's PodGroups and queues; None if nothing has them.
        webhooks: reads the webhooks and the labels of a pod; None if nothing has them.
        kueue: Kueue's objects, if these were read.
        kai: reads what KAI Scheduler has written about a pod; None if nothing has it.
    """

    objects: Objects
    as_of: float
    namespaces: tuple[Namespace, ...] = ()
    resource_quotas: tuple[ResourceQuota, ...] = ()
    gpu_quota: Mapping[str, str] | None = None
    lock_owners: Mapping[tuple[str, str], Pod | None] = {}
    is_dump: bool = False
    notes: tuple[str, ...] = ()
    quotas_read: bool = False
    pods_read: bool = True
    claims_read: bool = False
    scheduling: SchedulingObjects = SchedulingObjects()
    installation: Installation | None = None
    volcano: ReadVolcano | None = None
    webhooks: ReadWebhooks | None = None
    kueue: KueueObjects = KueueObjects()
    kai: ReadKai | None = None

    @property
    def nodes_read(self) -> bool:
        """Whether the nodes were read; an API server without a node has none."""
        kinds = {each.kind for each in self.objects.malformed}
        return bool(self.objects.nodes) or not self.is_dump or ObjectKind.NODE in kinds
