"""What is known about one pod or one node, as values, and the answers of nodes by reason. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from reconciler.model import Finding
from vgpu.inventory import NodeView
from vgpu.kube.closed_nodes import ClosedNode, ClosedReason
from vgpu.ledger import Conflict, Holding, Ledger
from vgpu.ledger.from_api import Reading
from vgpu.model.folding import folded_texts
from vgpu.model.names import Scheme
from vgpu.model.objects import Node, Pod, ResourceQuota
from vgpu.placement.candidate import PodDemand
from vgpu.placement.cluster_views import ViewedNode
from vgpu.placement.dialects import SchedulerScheme
from vgpu.placement.node_view import CandidateView
from vgpu.placement.result import EXCLUDING, PlacementReason, PlacementRefusal
from vgpu.quota.limits import NamespaceQuota
from vgpu.quota.queue_answer import QueueAnswer
from vgpu.quota.resources import Amounts
from vgpu.schemes.codec import NodeLock
from vgpu.schemes.other_schedulers import Recognised
from vgpu.schemes.registry import UnitBytes
from vgpucli.explain.installation import InstallationError
from vgpucli.explain.kai_objects import KaiObjects
from vgpucli.explain.model import GpuGroup, NodeGroup, StepReason
from vgpucli.explain.pod_claims import KnownClaim
from vgpucli.explain.pod_group import GroupOfPod
from vgpucli.missing_resources import MissingResource

NodeAnswer = tuple[str, CandidateView | None, PlacementRefusal | None]
"""A node with GPUs, its view, and why its GPUs refuse the pod; None if it has room for it."""


class InTheWay(msgspec.Struct, frozen=True):
    """What may keep a pod from GPUs that are free by the allocation records.

    Of ``foreign`` and ``unallocatable`` a node that takes no new pods is one with room only if
    there is no other.

    Attributes:
        locks: locks of nodes with room, by the name of the node.
        full_locked: locks of nodes without room.
        findings: the reconciler's findings about these nodes, and about pods in the way.
        unlocked: names of nodes with GPUs of the pod's system that have no lock.
        foreign: pods that are bound elsewhere and reserve GPUs of nodes with room, as sentences.
        missing: requested resources that no node advertises.
        uncounted: requested resources that the scheduler of the pod's system alone counts.
        schedulers: the schedulers that have placed pods of the pod's system, each with a pod.
        is_of_other_system: whether the pod's schedulerName is known as another system's.
        webhook: why the webhook of the sharing system skips the pod; "" if nothing shows it.
        webhook_remarks: what else there is to know of this webhook, as sentences.
        taints: keys of the taints of nodes with GPUs of the pod's system.
        installation: errors of the components of the pod's sharing system.
        on_unknown_gpus: pods on nodes with room whose shares of GPUs are not read.
        group: the PodGroup of a pod that waits; None if it has none.
        unallocatable: units of the GPU's resource that nodes with room have and cannot allocate,
            as sentences.
    """

    locks: tuple[tuple[str, NodeLock], ...] = ()
    full_locked: tuple[tuple[str, NodeLock], ...] = ()
    findings: tuple[Finding, ...] = ()
    unlocked: frozenset[str] = frozenset()
    foreign: tuple[str, ...] = ()
    missing: tuple[MissingResource, ...] = ()
    uncounted: frozenset[str] = frozenset()
    schedulers: Mapping[str, str] = {}
    is_of_other_system: bool = False
    webhook: str = ""
    webhook_remarks: tuple[str, ...] = ()
    taints: frozenset[str] = frozenset()
    unallocatable: tuple[str, ...] = ()
    on_unknown_gpus: tuple[str, ...] = ()
    installation: tuple[InstallationError, ...] = ()
    group: GroupOfPod | None = None


class KnownPod(msgspec.Struct, frozen=True):
    """What is known about one pod.

    Attributes:
        pod: the pod, joined with its SharePod.
        now: unix seconds of the data.
        demanded: the pod's sharing system and demand, or why the scheduler refuses it everywhere.
        reading: its claims and requests in every sharing system.
        node: the node that it is bound or reserved to; None if it is on none, or unknown.
        ledger: the ledger of that node.
        findings: the reconciler's findings about the pod.
        nearby: findings about its ResourceQuotas, and about devices that it holds.
        quota: the quota of its namespace; None if the scheduler does not place the pod.
        used: what bound pods of the namespace use of it, by the model of the GPUs.
        over_quota: why the quota refuses the pod everywhere; None if it does not.
        answers: of the nodes with GPUs, if the pod is not bound.
        closed: the nodes that do not take the pod, whatever their GPUs, by name.
        nodes_read: whether the nodes were read; without one in a dump nothing is known about them.
        units_free: names of the nodes whose advertised resources suffice for the pod, also of those
            that are closed.
        shares_cores: whether cores are shared by the pod's sharing system.
        observed: units of each resource of NVIDIA's own plugin that the pod requests; empty of a
            pod of another system.
        other: the other GPU scheduler that the pod belongs to, whose shares are not read.
        in_the_way: what may keep the pod from GPUs that are free.
        refusing: why the device plugin of a node would refuse the pod, though units are free, by
            the name of the node.
        node_gone: whether the pod is bound to a node that does not exist.
        quotas_read: whether the Namespace of the pod and its ResourceQuotas were read.
        units: what the nodes have of the observed resources, as sentences.
        none_allocatable: whether no node that has these resources can allocate a unit of them.
        by_claims: whether its GPUs, if it has any, come from ResourceClaims alone.
        claims: the ResourceClaims of the pod.
        free_devices: what drivers of ResourceClaims have free, as sentences, of such a pod.
        supplied: units of extended resources that it requests and only ResourceClaims supply.
        declared: the ResourceQuotas of its namespace with entries about GPUs.
        conflicts: conflicts of the ledger about the pod and the devices that it holds, of which
            the reconciler has no finding.
        unit_bytes: bytes of one unit of memory, by the name of the registry's row.
        queue: why Kueue has not admitted a pod that waits for it; None if it does not wait, or if
            nothing is known of its queue.
        kai: what KAI Scheduler has written about a pod that it has to place; None of another pod.
        tenants: the living pods of the groups of a reservation pod.
    """

    pod: Pod
    now: float
    demanded: tuple[SchedulerScheme, PodDemand] | PlacementRefusal
    reading: Reading = Reading()
    node: Node | None = None
    ledger: Ledger | None = None
    findings: tuple[Finding, ...] = ()
    nearby: tuple[Finding, ...] = ()
    quota: NamespaceQuota | None = None
    used: Mapping[str, Amounts] = {}
    over_quota: PlacementRefusal | None = None
    answers: tuple[NodeAnswer, ...] = ()
    closed: Mapping[str, ClosedNode] = {}
    nodes_read: bool = True
    units_free: frozenset[str] = frozenset()
    shares_cores: bool = True
    observed: Mapping[str, int] = {}
    other: Recognised | None = None
    in_the_way: InTheWay = InTheWay()
    refusing: Mapping[str, str] = {}
    node_gone: bool = False
    quotas_read: bool = False
    units: tuple[str, ...] = ()
    none_allocatable: bool = False
    by_claims: bool = False
    claims: tuple[KnownClaim, ...] = ()
    free_devices: tuple[str, ...] = ()
    supplied: Mapping[str, int] = {}
    declared: tuple[ResourceQuota, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    unit_bytes: UnitBytes = {}
    queue: QueueAnswer | None = None
    kai: KaiObjects | None = None
    tenants: tuple[str, ...] = ()


class KnownNode(msgspec.Struct, frozen=True):
    """What is known about one node.

    Attributes:
        node: the node.
        now: unix seconds of the data.
        schemes: the sharing systems with GPUs on it.
        view: the node as the scheduler sees it; None if it has no GPUs of a single system that
            the scheduler places for.
        reason: why the scheduler has no view of it.
        ledger: its ledger.
        findings: the reconciler's findings about the node, its devices and its folders.
        pods: the pods that hold or have reserved devices on it.
        resources: what it advertises of the sharing systems' resources.
        observed: what it advertises of the resources of NVIDIA's own plugin.
        claiming: its pods that claim GPUs and request none, and those with reservations that the
            reconciler reports, each with the cause.
        locks: its locks.
        systems: the names of the rows of its sharing systems.
        published: the number of devices in its ResourceSlices of GPUs, by driver.
        errors: the errors that vgpu doctor finds for the node alone.
        pods_read: whether the pods were read; without one in a dump nobody knows who holds
            GPUs.
        of_nvidia: what pods of NVIDIA's own plugin hold of GPUs that another system has registered.
        of_other_systems: the system of each GPU that is not of the first of these, by its name.
    """

    node: Node
    now: float
    schemes: tuple[Scheme, ...]
    view: CandidateView | None
    reason: PlacementReason | None
    ledger: Ledger
    findings: tuple[Finding, ...] = ()
    pods: tuple[Pod, ...] = ()
    resources: Mapping[str, int] = {}
    observed: Mapping[str, int] = {}
    claiming: tuple[tuple[str, StepReason], ...] = ()
    locks: tuple[NodeLock, ...] = ()
    systems: tuple[str, ...] = ()
    published: Mapping[str, int] = {}
    errors: tuple[StepReason, ...] = ()
    pods_read: bool = True
    of_nvidia: tuple[Holding, ...] = ()
    of_other_systems: Mapping[str, str] = {}

    @property
    def shown(self) -> NodeView:
        """The node as ``vgpu inspect`` shows it: what is free, kept free and maybe held."""
        placement = ViewedNode(self.reason or PlacementReason.NO_GPUS, self.view)
        return NodeView(
            self.node,
            self.schemes,
            self.ledger,
            placement=placement,
            in_use=placement.in_use,
            systems=self.systems,
            of_other_systems=self.of_other_systems,
            of_nvidia=self.of_nvidia,
        )


_ORDER = {reason: number for number, reason in enumerate((*ClosedReason, *PlacementReason))}


def node_groups(
    answers: Iterable[NodeAnswer], closed: Mapping[str, ClosedNode]
) -> tuple[NodeGroup, ...]:
    """The nodes that take the pod, then the others, the largest group first.

    Nodes that the pod's annotations exclude, and those without a GPU of its system, come last.

    A node that has no room is in the group of this reason, also if it is ``closed``.
    """
    by_reason: dict[PlacementReason | ClosedReason | None, list[NodeAnswer]] = {}
    for answer in answers:
        name, _, refusal = answer
        if refusal is not None:
            by_reason.setdefault(refusal.cause, []).append(answer)
        else:
            why = closed.get(name)
            by_reason.setdefault(None if why is None else why.reason, []).append(answer)
    groups = []
    for reason, members in by_reason.items():
        gpus: Counter[PlacementReason | None] = Counter()
        details: list[str] = []
        free = []
        for name, view, refusal in members:
            if refusal is None:
                details += filter(None, [closed[name].detail] if name in closed else ())
                continue
            if view is not None and view.standing_reason is reason:
                standing = ((each.pod.name, each.text) for each in view.standing)
                details.append("; ".join(folded_texts(standing)))
            elif view is not None and view.detail and view.reason is reason:
                details.append(view.detail)
            elif not refusal.skipped and refusal.message not in ("", refusal.reason.explanation):
                details.append(refusal.message)
            gpus.update(why for _, why in refusal.skipped)
            if refusal.free_bytes is not None:
                free.append(refusal.free_bytes)
        groups.append(
            NodeGroup(
                reason,
                tuple(name for name, _, _ in members),
                tuple(GpuGroup(why, number) for why, number in gpus.most_common()),
                max(free, default=None),
                details[0] if details else "",
            )
        )
    return tuple(
        sorted(
            groups,
            key=lambda group: (
                group.reason is not None,
                group.reason is PlacementReason.NO_GPUS,
                group.reason in EXCLUDING,
                -len(group.names),
                0 if group.reason is None else _ORDER[group.reason],
            ),
        )
    )
