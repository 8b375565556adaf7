"""SharePods, pods and nodes with their indexes, and our writes before their events come. Pure.

Every change returns what it affects: SharePods by key, and virtual GPUs by name. A SharePod and the
pod that was created for it have one key, ``<namespace>/<name>``, since they have one name.

A write that the API server has answered counts at once (:meth:`SharePodCluster.assume`), and
events of earlier versions do not undo it.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Iterable
from typing import Final, TypeVar

import msgspec

from kubeshare.model import (
    LABELLED,
    ClusterNode,
    ClusterPod,
    ConditionType,
    NodeAmounts,
    SharePod,
    VirtualGpuName,
)
from kubeshare.place_choice import PlacementNode
from kubeshare.placement import VirtualGpu
from kubeshare.steps import TenantView
from kubeshare.virtual_gpu import GpuUser, VirtualGpuState, next_port, taken_ports
from vgpu.model.objects import MalformedObject, holds_devices
from vgpu.schemes.codec import ClaimError
from vgpu.schemes.kubeshare.node import holder, holder_name
from vgpu.schemes.kubeshare.sharepod import AFFINITY, GPUID

MOST_GONE: Final = 10_000
"""Maximum number of objects that are remembered as gone."""

_Object = TypeVar("_Object")


class Affected(msgspec.Struct, frozen=True):
    """What a change affects; ``frees`` is whether it may give room to a SharePod that waits."""

    keys: frozenset[str] = frozenset()
    gpus: frozenset[VirtualGpuName] = frozenset()
    frees: bool = False

    def plus(self, other: "Affected") -> "Affected":
        """What both affect."""
        return Affected(self.keys | other.keys, self.gpus | other.gpus, self.frees or other.frees)


class SharePodCluster:
    """The objects of a cluster. For one thread at a time."""

    def __init__(self) -> None:
        self.share_pods: dict[str, SharePod] = {}
        self.pods: dict[str, ClusterPod] = {}
        self.nodes: dict[str, ClusterNode] = {}
        self.closing: set[VirtualGpuName] = set()
        self._unanswered: set[str] = set()
        self._unread: dict[str, MalformedObject] = {}
        self._tenants: dict[VirtualGpuName, set[str]] = defaultdict(set)
        self._users: dict[VirtualGpuName, set[str]] = defaultdict(set)
        self._holders: dict[VirtualGpuName, set[str]] = defaultdict(set)
        self._of_node: dict[str, set[VirtualGpuName]] = defaultdict(set)
        self._used: dict[str, NodeAmounts] = {}
        self._last_ports: dict[str, int] = {}
        self._gone: OrderedDict[str, None] = OrderedDict()

    # ------------------------------------------------------------ changes

    def set_share_pod(self, key: str, found: SharePod | MalformedObject | None) -> Affected:
        """Replace a SharePod; None if it is gone."""
        before = self.share_pods.get(key)
        if isinstance(found, SharePod):
            if _is_older(found, before):
                return Affected()
            found = _with_binding(found, before)
        self._note_gone(found, before)
        self._unread.pop(key, None)
        self._unanswered.discard(key)
        if isinstance(found, MalformedObject):
            self._unread[key] = found
        after = found if isinstance(found, SharePod) else None
        with_before = self._counted(key)
        _replace(self.share_pods, key, after)
        places = {
            share_pod.place for share_pod in (before, after) if share_pod and share_pod.is_tenant
        }
        for place in filter(None, places):
            self._index(self._tenants, place, key, is_in=_is_on(after, place))
        self._recount(key, with_before)
        return self._affected({key}, filter(None, places), frees=_frees(before, after))

    def set_pod(self, key: str, pod: ClusterPod | None) -> Affected:
        """Replace a pod; None if it is gone."""
        before = self.pods.get(key)
        if pod is not None and _is_older(pod, before):
            return Affected()
        self._note_gone(pod, before)
        with_before = self._counted(key)
        _replace(self.pods, key, pod)
        for index, name_of in ((self._users, _used_gpu), (self._holders, held_gpu)):
            for name in {name_of(each) for each in (before, pod) if each is not None} - {None}:
                if name is not None:
                    is_in = pod is not None and name_of(pod) == name
                    self._index(index, name, key, is_in=is_in)
        self._recount(key, with_before)
        gpus = {
            name
            for each in (before, pod)
            if each is not None
            for name in (_used_gpu(each), held_gpu(each))
            if name is not None
        }
        for name in gpus:
            if not self._holders[name]:
                self.closing.discard(name)
        frees = before is not None and (pod is None or pod.pod.terminal)
        affected = self._affected({key} & self.share_pods.keys(), gpus, frees=frees)
        labelled = None if pod is None else pod.labelled
        if labelled is not None or key + LABELLED in self.share_pods:
            return affected.plus(self.set_share_pod(key + LABELLED, labelled))
        return affected

    def set_node(self, name: str, node: ClusterNode | None) -> Affected:
        """Replace a node; None if it is gone or cannot be read."""
        before = self.nodes.get(name)
        _replace(self.nodes, name, node)
        if before == node:
            return Affected()
        keys = {key for key, share_pod in self.share_pods.items() if share_pod.node == name}
        return self._affected(keys, self._of_node[name], frees=node is not None)

    def set_object(self, key: str, found: SharePod | ClusterPod | None) -> Affected:
        """Replace what a key of :attr:`share_pods` is about; None if it is gone."""
        if isinstance(found, ClusterPod) or (found is None and key.endswith(LABELLED)):
            return self.set_pod(key.removesuffix(LABELLED), found)
        return self.set_share_pod(key, found)

    def assume(self, answer: SharePod | ClusterPod) -> Affected:
        """Count a write that the API server has answered, unless its object is gone already."""
        if answer.ref.uid in self._gone:
            return Affected()
        if isinstance(answer, ClusterPod):
            return self.set_pod(f"{answer.ref.namespace}/{answer.ref.name}", answer)
        self.use_port(answer)
        return self.set_share_pod(answer.key, answer)

    def use_port(self, share_pod: SharePod) -> None:
        """Go on after this port: also if the answer to its write is lost, nobody else gets it."""
        if share_pod.node and share_pod.port:
            known = self.share_pods.get(share_pod.key)
            if known is None or known.port != share_pod.port:
                self._last_ports[share_pod.node] = share_pod.port

    def assume_place(self, share_pod: SharePod) -> None:
        """Count a placement before its write is answered; nothing else is written meanwhile."""
        self.set_share_pod(share_pod.key, share_pod)
        self._unanswered.add(share_pod.key)

    def forget_assumed(self, before: SharePod) -> None:
        """Undo :meth:`assume_place`: the API server has refused the write."""
        if before.key in self._unanswered:
            self.set_share_pod(before.key, before)

    # ------------------------------------------------------------ views

    @property
    def waiting(self) -> list[str]:
        """The keys of the SharePods that need a place, the oldest first."""
        waiting = [item for item in self.share_pods.items() if item[1].needs_place]
        waiting.sort(key=lambda item: (item[1].pod.created_at or 0.0, item[0]))
        return [key for key, _ in waiting]

    def virtual_gpu(self, name: VirtualGpuName) -> VirtualGpuState:
        """A virtual GPU; an empty one if nothing names it."""
        tenants = [self.share_pods[key] for key in self._tenants.get(name, ())]
        tenants.sort(key=lambda tenant: (tenant.pod.created_at or 0.0, tenant.ref.uid))
        holders = sorted(self._holders.get(name, ()), key=lambda key: (key != _home(name), key))
        return VirtualGpuState(
            name,
            self.pods[holders[0]] if holders else None,
            tuple(tenants),
            tuple(self.pods[key] for key in sorted(self._users.get(name, ()))),
            any(_may_use(unread, name) for unread in self._unread.values()),
            name in self.closing,
        )

    def virtual_gpus(self) -> list[VirtualGpuState]:
        """All virtual GPUs that something names."""
        names = sorted(name for names in self._of_node.values() for name in names)
        return [self.virtual_gpu(name) for name in names]

    def tenant_view(
        self, key: str, now: float, *, may_create: bool = True, refusal: str = ""
    ) -> TenantView | None:
        """All that decides about a SharePod; None if there is none of this key."""
        share_pod = self.share_pods.get(key)
        if share_pod is None or key in self._unanswered:
            return None
        place = share_pod.place
        return TenantView(
            share_pod,
            self.pods.get(key),
            None if place is None else self.virtual_gpu(place),
            self.nodes.get(share_pod.node),
            self._next_port(share_pod.node) if place is not None else None,
            now,
            may_create,
            refusal,
        )

    def placement_nodes(self) -> list[PlacementNode]:
        """All nodes with their use, by name."""
        return [self._node_view(node) for _, node in sorted(self.nodes.items())]

    def lost_gpus(self) -> list[VirtualGpu]:
        """The virtual GPUs of nodes that are gone, and those of SharePods that cannot be read."""
        gpus = [
            self.virtual_gpu(name).candidate(0, closed=True)
            for node, names in self._of_node.items()
            if node not in self.nodes
            for name in names
        ]
        for each in self._unread.values():
            marks = each.annotations or {}
            label, gpuid = marks.get(AFFINITY, ""), marks.get(GPUID, "")
            if label and gpuid and each.node != "":
                labels = frozenset({label})
                gpus.append(VirtualGpu(each.node or "", gpuid, 0, 0, labels, closed=True))
        return gpus

    def used(self, node: str) -> NodeAmounts:
        """What the pods and the placed SharePods of a node request."""
        return self._used.get(node, NodeAmounts())

    def is_used_gpuid(self, gpuid: str) -> bool:
        """Whether anything on any node has this GPUID."""
        names = {name.gpuid for names in self._of_node.values() for name in names}
        unread = {(each.annotations or {}).get(GPUID) for each in self._unread.values()}
        return gpuid in names | unread

    def users_of_node(self, node: str) -> list[GpuUser]:
        """All users of the virtual GPUs of a node."""
        return [user for name in self._of_node[node] for user in self.virtual_gpu(name).users]

    def idle_gpus(self, node: str) -> list[VirtualGpuName]:
        """The virtual GPUs of a node that have a holder and no user, by name."""
        return sorted(
            name
            for name in self._of_node[node]
            if self._holders.get(name) and not (self._tenants.get(name) or self._users.get(name))
        )

    # ------------------------------------------------------------ indexes

    def _note_gone(
        self,
        found: SharePod | ClusterPod | MalformedObject | None,
        before: SharePod | ClusterPod | None,
    ) -> None:
        """An answer to a write may come after the event that its object is gone."""
        if found is None and before is not None:
            self._gone[before.ref.uid] = None
            if len(self._gone) > MOST_GONE:
                self._gone.popitem(last=False)
        elif isinstance(found, SharePod | ClusterPod):
            self._gone.pop(found.ref.uid, None)

    def _node_view(self, node: ClusterNode) -> PlacementNode:
        gpus = tuple(self.virtual_gpu(name) for name in sorted(self._of_node[node.name]))
        to_be_held = sum(not _has_gpu(gpu) for gpu in gpus)
        used = self.used(node.name)
        free = node.allocatable.gpus - used.gpus - to_be_held
        return PlacementNode(node, used, gpus, max(0, free))

    def _next_port(self, node: str) -> int | None:
        if node not in self._last_ports:
            self._last_ports[node] = self._newest_port(node)
        return next_port(taken_ports(self.users_of_node(node)), self._last_ports[node])

    def _newest_port(self, node: str) -> int:
        """The port of the SharePod that was bound last, as far as objects still show it."""
        bound = [
            (condition.since, share_pod.port)
            for share_pod in self.share_pods.values()
            if share_pod.node == node and share_pod.port
            if (condition := share_pod.condition(ConditionType.BOUND)) is not None
        ]
        return max(bound, default=("", 0))[1]

    def _index(
        self,
        index: dict[VirtualGpuName, set[str]],
        name: VirtualGpuName,
        key: str,
        *,
        is_in: bool,
    ) -> None:
        if is_in:
            index[name].add(key)
        else:
            index[name].discard(key)
            if not index[name]:
                del index[name]
        indexes = (self._tenants, self._users, self._holders)
        if any(each.get(name) for each in indexes):
            self._of_node[name.node].add(name)
        else:
            self._of_node[name.node].discard(name)

    def _counted(self, key: str) -> tuple[str, NodeAmounts]:
        """What the pod of a key requests of which node; the SharePod where there is no pod yet."""
        pod, share_pod = self.pods.get(key), self.share_pods.get(key)
        if pod is not None:
            is_there = pod.pod.node and not pod.pod.terminal
            return (pod.pod.node, pod.amounts) if is_there else ("", NodeAmounts())
        if share_pod is None or share_pod.is_finished or not share_pod.node:
            return "", NodeAmounts()
        return share_pod.node, share_pod.needs.amounts

    def _recount(self, key: str, before: tuple[str, NodeAmounts]) -> None:
        node, amounts = before
        if node:
            self._used[node] = self.used(node).minus(amounts)
        node, amounts = self._counted(key)
        if node:
            self._used[node] = self.used(node).plus(amounts)

    def _affected(
        self, keys: Iterable[str], gpus: Iterable[VirtualGpuName], *, frees: bool
    ) -> Affected:
        names = frozenset(gpus)
        tenants = {key for name in names for key in self._tenants.get(name, ())}
        return Affected(frozenset(keys) | tenants, names, frees)


def held_gpu(pod: ClusterPod) -> VirtualGpuName | None:
    """The virtual GPU that a holder pod holds; None for any other pod.

    A holder has no owner: a user's pod of a similar name or label is none.
    """
    if pod.pod.owner is not None:
        return None
    try:
        held = holder(pod.pod)
    except ClaimError:
        return None
    return None if held is None else VirtualGpuName(held.node, held.gpuid)


def _used_gpu(pod: ClusterPod) -> VirtualGpuName | None:
    """The virtual GPU that a SharePod's pod uses; None if it uses none any more."""
    gpuid = pod.pod.annotations.get(GPUID, "")
    is_user = pod.share_pod_uid and gpuid and pod.pod.node and pod.request is not None
    return VirtualGpuName(pod.pod.node, gpuid) if is_user and holds_devices(pod.pod) else None


def _has_gpu(gpu: VirtualGpuState) -> bool:
    """Whether its holder counts in what the pods of its node request."""
    return gpu.holder is not None and bool(gpu.holder.pod.node) and not gpu.holder.pod.terminal


def _home(name: VirtualGpuName) -> str:
    return f"kube-system/{holder_name(*name)}"


def _is_on(share_pod: SharePod | None, place: VirtualGpuName) -> bool:
    return share_pod is not None and share_pod.is_tenant and share_pod.place == place


def _may_use(unread: MalformedObject, name: VirtualGpuName) -> bool:
    """Whether a SharePod that cannot be read may be on a virtual GPU."""
    if not unread.may_be_on(name.node):
        return False
    return unread.annotations is None or unread.annotations.get(GPUID) == name.gpuid


def _frees(before: SharePod | None, after: SharePod | None) -> bool:
    if before is None or not before.node:
        return False
    return after is None or after.is_finished or after.place != before.place


def _is_older(found: SharePod | ClusterPod, known: SharePod | ClusterPod | None) -> bool:
    """Whether a version is from before one of the same object that is known already.

    Resource versions are compared as Kubernetes 1.35 defines it, as decimal numbers.
    """
    if known is None or known.ref.uid != found.ref.uid:
        return False
    new, old = found.pod.resource_version, known.pod.resource_version
    return new.isdecimal() and old.isdecimal() and int(new) < int(old)


def _with_binding(found: SharePod, known: SharePod | None) -> SharePod:
    """The version of a pod with labels, with the binding that is known already.

    A binding is never undone. A version without it is from before it, or its user has removed the
    annotations while the pod goes on to use its GPU.
    """
    is_same = known is not None and known.is_pod and known.ref.uid == found.ref.uid
    if known is None or not is_same or not known.bound or found.bound:
        return found
    pod = msgspec.structs.replace(found.pod, node=known.node)
    return msgspec.structs.replace(
        known, pod=pod, conditions=found.conditions, needs=found.needs, copied=found.copied
    )


def _replace(objects: dict[str, _Object], key: str, value: _Object | None) -> None:
    if value is None:
        objects.pop(key, None)
    else:
        objects[key] = value
