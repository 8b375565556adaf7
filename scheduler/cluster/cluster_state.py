"""What the API server has shown of nodes and pods, and the reservations beside it. No I/O.

The state has no requests and no decisions: the scheduler's cache has those, and the lock.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from msgspec import structs

from scheduler.cluster.cached_node import CachedNode, pod_key
from scheduler.cluster.quota_state import QuotaState
from scheduler.cluster.reservations import Claims, PodReservation
from vgpu.model.allocation import Allocation, Device, effective_shares
from vgpu.model.names import PodRef
from vgpu.model.objects import (
    MalformedObject,
    Namespace,
    Node,
    Pod,
    ResourceQuota,
    holds_devices,
)
from vgpu.placement.dialects import SchedulerScheme
from vgpu.placement.node_view import foreign_reservation, is_of_other_plugin, scheme_of
from vgpu.placement.result import PlacementReason
from vgpu.quota.usage import PodUsage, counted_usage, node_model, usage_of_shares
from vgpu.schemes.codec import ClaimError
from vgpu.schemes.counted_claims import counted_claim
from vgpu.schemes.pod_requests import Basis

_NO_DEVICES: Final[Mapping[str, Device]] = {}

MOST_GONE: Final = 50_000
"""Maximum number of pods that are remembered as gone."""

_NOWHERE: Final[AbstractSet[str]] = frozenset()


def _counts_alike(before: Pod, pod: Pod) -> bool:
    """Whether a newer state of a pod changes nothing of what it holds or requests."""
    return (
        before.ref == pod.ref
        and before.node == pod.node
        and before.annotations == pod.annotations
        and before.labels == pod.labels
        and before.containers == pod.containers
        and holds_devices(before) == holds_devices(pod)
        and before.initialized() == pod.initialized()
        and before.gated == pod.gated
    )


def _shows_alike(before: Node | None, node: Node | None) -> bool:
    """Whether a newer state of a node has nothing new of what is read of nodes."""
    if before is None or node is None:
        return before is node
    return structs.replace(node, resource_version=before.resource_version) == before


class ClusterState:
    """The state that the module describes. Not for several threads: its cache locks.

    Attributes:
        nodes: nodes by name, also those of which only a pod is known.
        locked: the names of nodes with locks.
        pods: pods by ``<namespace>/<name>``.
        quotas: the quotas of namespaces, and what their pods use of them.
    """

    def __init__(
        self,
        schemes: Sequence[SchedulerScheme],
        clock: Callable[[], float],
        changed: Callable[[str], object],
        settled: Callable[[str], object],
        *,
        relieved: Callable[[str], object] = lambda _: None,
        forget: Callable[[str], object] = lambda _: None,
        takes_locks: bool = True,
    ) -> None:
        """``clock`` returns unix seconds.

        ``changed`` is called with the name of each node that may have room for more pods,
        ``settled`` with the UID of each pod that is bound, gone, or needs no node any more,
        ``relieved`` with each namespace whose quota may admit more pods, and ``forget`` with the
        name of each node of which anything has changed.
        """
        self._schemes = schemes
        self._clock = clock
        self._on_change = changed
        self._on_settle = settled
        self._forget_answers = forget
        self._takes_locks = takes_locks
        self.nodes: dict[str, CachedNode] = {}
        self.locked: set[str] = set()
        self.pods: dict[str, Pod] = {}
        self.quotas = QuotaState(relieved)
        self._devices: dict[str, tuple[Node, Mapping[str, Device]]] = {}
        self._foreign_nodes: dict[str, str] = {}
        """The node that another scheduler's reservation names, by ``<namespace>/<name>``."""
        self._seen: dict[str, float] = {}
        """When pods were first seen as bound, by UID, if the API server has no earlier time."""
        self._reserved: dict[str, set[str]] = {}
        self._unreadable: dict[str, str] = {}
        self._gone: OrderedDict[str, None] = OrderedDict()
        self._unhealthy: Mapping[str, str] = {}
        self._priorities: Counter[int] = Counter()

    def has_less_important(self, priority: int) -> bool:
        """Whether a pod of a lower priority holds GPUs of any node."""
        return any(each < priority and pods for each, pods in self._priorities.items())

    def cached(self, name: str) -> CachedNode:
        """The node of this name, which is made if nothing is known of it yet."""
        cached = self.nodes.get(name)
        if cached is None:
            cached = self.nodes[name] = CachedNode(name, self._forget_answers, self._seen)
        return cached

    # ------------------------------------------------------------ events

    def set_node(self, name: str, node: Node | None) -> None:
        """The node as it is now; None if it is gone.

        A kubelet writes the status of its node every few minutes: that changes nothing here.
        """
        cached = self.cached(name)
        if _shows_alike(cached.node, node):
            return
        before, cached.node = cached.node, node
        cached.scheme = (
            PlacementReason.UNKNOWN_NODE if node is None else scheme_of(node, self._schemes)
        )
        if node is None or isinstance(cached.scheme, PlacementReason):
            cached.locks, cached.lacks_lock = (), False
        else:
            codec = cached.scheme.codec
            cached.locks = codec.locks(node)
            cached.lacks_lock = not self._takes_locks and codec.needs_lock(node)
        (self.locked.add if cached.locks else self.locked.discard)(name)
        cached.unhealthy = self._unhealthy_text(cached)
        self._changed(cached)
        self._recount_node(cached, before)

    def set_unhealthy(self, texts: Mapping[str, str]) -> None:
        """The texts of the ConfigMaps that list unhealthy GPUs, by the name of the ConfigMap."""
        self._unhealthy = texts
        for cached in self.nodes.values():
            text = self._unhealthy_text(cached)
            if cached.unhealthy != text:
                cached.unhealthy = text
                self._changed(cached)

    def set_malformed(self, key: str, pod: MalformedObject) -> None:
        """A pod that cannot be read."""
        node = pod.node or self._unreadable.get(key, "")
        if node:
            self._unreadable[key] = node
            cached = self.cached(node)
            cached.unreadable[key] = str(pod)
            cached.change()

    def set_pod(self, key: str, pod: Pod | None) -> None:
        """The pod ``<namespace>/<name>`` as it is now; None if it is gone."""
        unreadable = self.nodes.get(self._unreadable.pop(key, ""))
        if unreadable is not None:
            unreadable.unreadable.pop(key, None)
            self._changed(unreadable)
        before = self.pods.get(key)
        if before is not None and pod is not None and _counts_alike(before, pod):
            self.pods[key] = pod
            return
        self.pods.pop(key, None)
        if before is not None:
            self._forget(key, before)
            if pod is None or pod.ref.uid != before.ref.uid:
                self.bury(before.ref.uid)
                self._count(before.ref)
        if pod is not None:
            self.pods[key] = pod
            self._remember(key, pod)
            self._count(pod.ref)

    # ------------------------------------------------------------ quotas

    def set_namespace(self, name: str, namespace: Namespace | MalformedObject | None) -> None:
        """The Namespace as it is now; None if it is gone or declares no quota."""
        self.quotas.set_namespace(name, namespace)
        self._recount(name)

    def set_resource_quota(
        self, namespace: str, name: str, quota: ResourceQuota | MalformedObject | None
    ) -> None:
        """The ResourceQuota as it is now; None if it is gone or limits no shared GPUs."""
        self.quotas.set_resource_quota(namespace, name, quota)
        self._recount(namespace)

    def set_gpu_admission(self, data: Mapping[str, str] | None) -> None:
        """The data of gpu-admission's ConfigMap; None if there is none."""
        self.quotas.set_gpu_admission(data)
        refs = [pod.ref for pod in self.pods.values()]
        refs += (ref for cached in self.nodes.values() for ref in _pods(cached.reservations))
        for namespace in {ref.namespace for ref in refs}:
            self._recount(namespace)

    def usage_on(
        self,
        name: str,
        units: Mapping[str, int],
        allocations: Sequence[Allocation],
    ) -> PodUsage:
        """What a pod with these allocations on a node counts for the quota of its namespace."""
        cached = self.nodes.get(name)
        return usage_of_shares(
            units,
            effective_shares(allocations),
            self._devices_of(cached),
            node_model(cached.node if cached else None),
        )

    # ------------------------------------------------------------ reservations

    def reserve(self, name: str, reservation: PodReservation) -> None:
        """Reserve GPUs of a node for a pod."""
        cached = self.cached(name)
        uid = reservation.pod.uid
        cached.reservations[uid] = reservation
        self._reserved.setdefault(uid, set()).add(name)
        cached.change()
        self._count(reservation.pod)

    def drop(self, uid: str, name: str) -> None:
        """End a pod's reservation on a node, if it has one."""
        if self._unlist(uid, name):
            cached = self.nodes[name]
            ref = cached.reservations.pop(uid).pod
            self._changed(cached)
            self._count(ref)

    def settle(self, uid: str) -> None:
        """End all reservations of a pod: the API server shows where it is, or that it is gone."""
        self._on_settle(uid)
        for name in self._reserved.pop(uid, ()):
            cached = self.nodes[name]
            ref = cached.reservations.pop(uid).pod
            self._changed(cached)
            self._count(ref)

    def bury(self, uid: str) -> None:
        """The pod is gone for certain: it holds nothing, here or in a claim."""
        self._seen.pop(uid, None)
        self._gone[uid] = None
        if len(self._gone) > MOST_GONE:
            self._gone.popitem(last=False)
        self.settle(uid)

    def unbound(self, before: float) -> list[tuple[str, PodReservation]]:
        """The node and the reservation of those that are older, without a bound pod."""
        older: list[tuple[str, PodReservation]] = []
        for name in {name for names in self._reserved.values() for name in names}:
            cached = self.nodes[name]
            bound = {pod.ref.uid for pod in cached.pods.values()}
            older += (
                (name, reservation)
                for uid, reservation in cached.reservations.items()
                if reservation.since <= before and uid not in bound
            )
        return older

    def set_claims(self, name: str, claims: Claims) -> Claims:
        """Make a node's reservations the claims of its Lease; returns those of living pods."""
        living = {uid: claim for uid, claim in claims.items() if uid not in self._gone}
        if name not in self.nodes and not living:
            return living
        cached = self.cached(name)
        reservations = {
            uid: PodReservation(
                claim.allocations,
                claim.groups,
                pod=claim.pod,
                since=claim.confirmed_at,
                is_held=claim.is_held,
                priority=claim.priority,
                units=claim.units,
            )
            for uid, claim in living.items()
        }
        if cached.reservations != reservations:
            before = cached.reservations
            ended = before.keys() - reservations.keys()
            for uid in ended:
                self._unlist(uid, name)
            for uid in reservations:
                self._reserved.setdefault(uid, set()).add(name)
            cached.reservations = reservations
            cached.change()
            for reservation in (*(before[uid] for uid in ended), *reservations.values()):
                self._count(reservation.pod)
            if ended:
                self._on_change(name)
        return living

    def reserved_on(self, uid: str) -> AbstractSet[str]:
        """The names of the nodes with a reservation of the pod."""
        return self._reserved.get(uid, _NOWHERE)

    def reserved(self) -> int:
        """Number of reservations."""
        return sum(map(len, self._reserved.values()))

    def end_kept_free(self) -> None:
        """Report the nodes on which something is free that was kept free for a time.

        No event shows that. Only views that were asked for are looked at: nobody waits for others.
        """
        now = self._clock()
        for cached in list(self.nodes.values()):
            if cached.take_ended(now):
                self._changed(cached)

    # ------------------------------------------------------------ parts

    def _recount(self, namespace: str) -> None:
        """Count the pods of a namespace whose quota has changed."""
        self.quotas.forget(namespace)
        if self.quotas.quota(namespace):
            refs = {pod.ref for pod in self.pods.values() if pod.ref.namespace == namespace}
            for cached in self.nodes.values():
                refs |= {ref for ref in _pods(cached.reservations) if ref.namespace == namespace}
            for ref in refs:
                self._count(ref)
        self.quotas.relieve(namespace)

    def _recount_node(self, cached: CachedNode, before: Node | None) -> None:
        """Count the pods of a node again if its GPUs have another size or model now."""
        known = self._devices.get(cached.name)
        if before is not None and (
            known is None
            or (known[1], node_model(before)) == (self._devices_of(cached), node_model(cached.node))
        ):
            return
        for ref in (*(pod.ref for pod in cached.pods.values()), *_pods(cached.reservations)):
            self._count(ref)

    def _count(self, ref: PodRef) -> None:
        """Count a pod as it is known now."""
        if self.quotas.quota(ref.namespace):
            self.quotas.count(ref, self._usage(ref))

    def _usage(self, ref: PodRef) -> PodUsage | None:
        """What a pod counts that is bound or has a reservation; None of another."""
        pod = self.pods.get(pod_key(ref.namespace, ref.name))
        if pod is not None and pod.ref.uid != ref.uid:
            pod = None
        if pod is not None and pod.node:
            return self._usage_of_bound(pod) if holds_devices(pod) else None
        for name in sorted(self._reserved.get(ref.uid, ())):
            cached = self.nodes[name]
            reservation = cached.reservations[ref.uid]
            if not reservation.is_held:
                units = dict(reservation.units)
                return self.usage_on(name, units, reservation.allocations)
        return None

    def _usage_of_bound(self, pod: Pod) -> PodUsage | None:
        """By the pod's annotations, at least what it requests, each GPU once, known or not."""
        units = pod.requested_units()
        cached = self.nodes.get(pod.node)
        node = cached.node if cached else None
        own = cached.scheme if cached else None
        model, devices = node_model(node), self._devices_of(cached)
        unnamed = None
        for scheme in self._schemes:
            here = devices if scheme is own else _NO_DEVICES
            advertised = None if node is None else node.advertised
            counted = counted_claim(pod, scheme.codec, here, advertised)
            if node is not None and is_of_other_plugin(scheme, pod, node, counted):
                continue
            if counted.basis is Basis.NAMED:
                return counted_usage(pod, scheme.codec, counted, here, model)
            if counted.claim is not None and scheme is own:
                unnamed = counted_usage(pod, scheme.codec, counted, here, model)
        if unnamed is not None:
            return unnamed
        # Of a system that is observed only, such as a MIG instance's pod, or of none.
        return PodUsage({model: units}) if units else None

    def _devices_of(self, cached: CachedNode | None) -> Mapping[str, Device]:
        """The GPUs of a node under every name that a share may have; none if unreadable."""
        if cached is None or cached.node is None or isinstance(cached.scheme, PlacementReason):
            return {}
        known = self._devices.get(cached.name)
        if known is None or known[0] is not cached.node:
            try:
                devices = cached.scheme.codec.devices(cached.node)
            except ClaimError:
                devices = ()
            by_name = {name: device for device in devices for name in device.names}
            known = self._devices[cached.name] = cached.node, by_name
        return known[1]

    def _unhealthy_text(self, cached: CachedNode) -> str:
        """The text of the ConfigMap that lists the node's unhealthy GPUs; "" if there is none."""
        scheme = cached.scheme
        unhealthy = None if isinstance(scheme, PlacementReason) else scheme.row.unhealthy_map
        return self._unhealthy.get(unhealthy.name(cached.name), "") if unhealthy else ""

    def _changed(self, cached: CachedNode) -> None:
        cached.change()
        self._on_change(cached.name)
        if cached.is_empty():
            del self.nodes[cached.name]
            self._devices.pop(cached.name, None)

    def _forget(self, key: str, pod: Pod) -> None:
        cached = self.nodes.get(pod.node)
        if cached is not None and key in cached.pods:
            self._priorities[cached.pods.pop(key).priority] -= 1
            self._changed(cached)
        self._end_foreign_reservation(key)

    def _remember(self, key: str, pod: Pod) -> None:
        uid = pod.ref.uid
        if not holds_devices(pod):
            self.bury(uid)
        elif pod.node:
            cached = self.cached(pod.node)
            cached.add_pod(key, pod)
            self._note_seen(pod)
            self._priorities[pod.priority] += 1
            cached.change()
            self.settle(uid)
        elif uid not in self._reserved:
            foreign = foreign_reservation(pod, self._schemes)
            if foreign is not None:
                self._foreign_nodes[key] = foreign.node
                cached = self.cached(foreign.node)
                cached.foreign_reservations[key] = foreign
                cached.change()

    def _note_seen(self, pod: Pod) -> None:
        now = self._clock()
        if all(time is None or time > now for time in (pod.scheduled_at, pod.started_at)):
            self._seen.setdefault(pod.ref.uid, now)

    def _end_foreign_reservation(self, key: str) -> None:
        cached = self.nodes.get(self._foreign_nodes.pop(key, ""))
        if cached is not None:
            cached.foreign_reservations.pop(key, None)
            self._changed(cached)

    def _unlist(self, uid: str, name: str) -> bool:
        """Remove a node from those with a reservation of the pod; returns whether it was one."""
        names = self._reserved.get(uid, set())
        if name not in names:
            return False
        names.discard(name)
        if not names:
            del self._reserved[uid]
        return True


def _pods(reservations: Mapping[str, PodReservation]) -> list[PodRef]:
    return [reservation.pod for reservation in reservations.values()]
