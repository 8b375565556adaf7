"""Pods, nodes and the few other objects of the API server, reduced to what sharing GPUs needs.

The values are frozen, and compact enough to keep every GPU pod of a large cluster: they have only
the annotations and labels that a scheme reads. :mod:`vgpu.kube.kinds` has the rows that make them
from the API server's JSON.
"""

import re
from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Final

import msgspec

from vgpu.model.allocation import effective
from vgpu.model.names import ContainerKind, PodRef
from vgpu.model.taints import Taint, Toleration

MIRROR = "kubernetes.io/config.mirror"
"""A static pod's mirror: the value is the UID that the kubelet itself uses for the pod."""

SHARE_POD = "vgpu.dev/share-pod"
"""Marks a KubeShare SharePod in the shape of a pod: the UID of the pod that was made for it, "" if
there is none yet. Only :mod:`vgpu.kube.pod_projection` writes this and the next three
annotations."""

BOUND_DEVICE = "vgpu.dev/bound-device"
"""The UUID of the GPU that KubeShare bound a SharePod to (status.BoundDeviceID)."""

MANAGER_PORT = "vgpu.dev/manager-port"
"""The port of a SharePod's pod manager (status.PodManagerPort)."""

BOUND_REASON = "vgpu.dev/bound-reason"
"""The reason of a SharePod's condition ``Bound``, which our own controllers write; KubeShare's
device manager drops it when it writes the SharePod."""

_MADE_BY_API_SERVER: Final = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""The form of an API server's UID. A kubelet's UIDs are hashes without dashes."""

TERMINAL_PHASES = frozenset({"Succeeded", "Failed"})


COMPLETED: Final = "Completed"
"""The kubelet's reason for a container that has ended with exit status 0."""


class ContainerState(StrEnum):
    """A container's state, as the kubelet last reported it."""

    WAITING = "waiting"
    RUNNING = "running"
    TERMINATED = "terminated"


class Container(msgspec.Struct, frozen=True, gc=False):
    """A container of a pod's spec; ``limits`` has the extended resources it requests, in units.

    Extended resources cannot be overcommitted: requests, if present, equal limits. A quantity that
    is not a whole number is kept as its text in ``broken``. ``env`` has the variables that a scheme
    reads, if the spec itself has their value. ``others`` has the extended resources that are of no
    sharing system by their names, in units.
    """

    name: str
    limits: Mapping[str, int] = {}
    kind: ContainerKind = ContainerKind.APP
    broken: Mapping[str, str] = {}
    env: Mapping[str, str] = {}
    others: Mapping[str, int] = {}


class Status(msgspec.Struct, frozen=True, gc=False):
    """A container's status; times are unix seconds.

    ``id`` has no ``<runtime>://`` in front. ``started_at`` is set while it runs, ``finished_at``
    once it has ended; ``reason`` and ``message`` are those of the current state. ``last_…`` are
    those of the previous end, with the message only if the runtime wrote it.
    """

    name: str
    state: ContainerState
    id: str = ""
    kind: ContainerKind = ContainerKind.APP
    reason: str = ""
    message: str = ""
    finished_at: float | None = None
    restarts: int = 0
    last_reason: str = ""
    last_message: str = ""
    last_finished_at: float | None = None
    started_at: float | None = None

    @property
    def has_succeeded(self) -> bool:
        """Whether it has ended with exit status 0."""
        return self.state is ContainerState.TERMINATED and self.reason == COMPLETED


class OwnerReference(msgspec.Struct, frozen=True, gc=False):
    """The controller that owns the pod."""

    kind: str
    name: str
    uid: str
    api_version: str = ""


class UsedClaim(msgspec.Struct, frozen=True, gc=False):
    """A ResourceClaim that a pod uses.

    Attributes:
        entry: its entry in the pod's spec; "" of the one that supplies extended resources.
        name: its name; "" if none has been made from its template.
        template: the name of its ResourceClaimTemplate; "" if it has none.
    """

    entry: str
    name: str = ""
    template: str = ""


class Pod(msgspec.Struct, frozen=True, gc=False):
    """A pod. Times are unix seconds, None if not set.

    Attributes:
        ref: the pod's identity, with the API server's UID.
        resource_version: for preconditions.
        node: the node that it is bound to, "" if none.
        annotations, labels: only those that a scheme or this product reads.
        containers: app containers, init containers and sidecars that the spec names, in the
            kubelet's order of the annotation indices: app containers first, as in the spec.
        statuses: the containers' statuses that the kubelet has reported.
        deleted_at: when its deletion is or was due (deletionTimestamp).
        scheduled_at: when the condition PodScheduled last changed.
        unschedulable: the scheduler's message why it is not bound; "" if it is.
        priority: higher is more important.
        started_at: when the kubelet accepted it (status.startTime).
        status_at: when the kubelet last wrote the status, by metadata.managedFields; if the kubelet
            never did, when any manager did. Known only for Pending and Failed pods, and for no
            SharePod.
        unready_at: when the pod became not ready (the condition ContainersReady, or Ready); None
            while it is ready.
        grace_seconds: time that its deletion leaves its containers (deletionGracePeriodSeconds).
        gated: whether a scheduling gate still keeps every scheduler from it.
        gates: the names of these gates.
        restart_policy: Always, OnFailure or Never.
        tracked: whether a Job has still to count it, by its finalizer.
        nominated_node: the node on which kube-scheduler has preempted pods for it; "" if none.
        preempts: whether kube-scheduler may preempt pods for it (preemptionPolicy).
        uses_resource_claims: whether it uses ResourceClaims.
        used_claims: these ResourceClaims.
        tolerations: taints that it tolerates, of a pod that is bound to no node.
        scheduler: the name of the scheduler that it is for (spec.schedulerName); "" if unknown.
        finalizers: those that are left, of a pod that is being deleted.
        group_gpus: the UUIDs of the GPUs of its groups (KAI Scheduler), which other objects name;
            empty until all of them are known. Only :mod:`vgpu.schemes.kai.groups` sets it.
    """

    ref: PodRef
    resource_version: str = ""
    node: str = ""
    annotations: Mapping[str, str] = {}
    labels: Mapping[str, str] = {}
    containers: tuple[Container, ...] = ()
    phase: str = ""
    reason: str = ""
    message: str = ""
    statuses: tuple[Status, ...] = ()
    created_at: float | None = None
    deleted_at: float | None = None
    scheduled_at: float | None = None
    unschedulable: str = ""
    owner: OwnerReference | None = None
    priority: int = 0
    started_at: float | None = None
    status_at: float | None = None
    gated: bool = False
    unready_at: float | None = None
    grace_seconds: int = 0
    restart_policy: str = "Always"
    tracked: bool = False
    nominated_node: str = ""
    preempts: bool = True
    uses_resource_claims: bool = False
    used_claims: tuple[UsedClaim, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    scheduler: str = ""
    gates: tuple[str, ...] = ()
    finalizers: tuple[str, ...] = ()
    group_gpus: tuple[str, ...] = ()

    @property
    def kubelet_uid(self) -> str:
        """The UID on the node's own disk and cgroups: a static pod's is not the API server's.

        Any user may write that annotation on a pod, so it never counts as another pod's UID.
        """
        static = self.annotations.get(MIRROR)
        if static is None or _MADE_BY_API_SERVER.fullmatch(static):
            return self.ref.uid
        return static

    def requesting(self, resources: Collection[str]) -> tuple[tuple[str, str], ...]:
        """The containers that request one of the resources, each with its resource."""
        return tuple(
            (container.name, name)
            for container in self.containers
            for amounts in (container.others, container.limits)
            for name, amount in amounts.items()
            if amount and name in resources
        )

    @property
    def apps(self) -> tuple[str, ...]:
        """The names of the app containers, in the spec's order: annotations count these."""
        return tuple(
            container.name for container in self.containers if container.kind is ContainerKind.APP
        )

    def initialized(self, since: float = 0.0) -> bool:
        """Whether every init container that runs to its end has succeeded, the last of the spec at
        or after ``since`` (unix seconds): an older status is from an earlier boot of the node.

        False if there is none, or if the kubelet has not reported all of them. After a boot they
        run again one by one, and later ones have their old status meanwhile.
        """
        ends = {status.name: status for status in self.statuses if status.has_succeeded}
        plain = [
            container.name for container in self.containers if container.kind is ContainerKind.INIT
        ]
        if not plain or not ends.keys() >= set(plain):
            return False
        return (ends[plain[-1]].finished_at or 0.0) >= int(since)

    def has_run(self, container: str = "") -> bool:
        """Whether the container runs or has run; "" is any container of the pod."""
        return any(
            status.state is not ContainerState.WAITING or status.restarts > 0
            for status in self.statuses
            if container in ("", status.name)
        )

    def requested_units(self) -> dict[str, int]:
        """Units of each extended resource, as Kubernetes counts a pod for a ResourceQuota."""
        asking = [each for each in self.containers if each.limits]
        if len(asking) == 1:  # the usual case
            return {name: amount for name, amount in asking[0].limits.items() if amount}
        ordered = sorted(asking, key=lambda each: each.kind is ContainerKind.APP)
        units = {}
        for name in dict.fromkeys(name for container in ordered for name in container.limits):
            amount = effective((each.kind, each.limits.get(name, 0)) for each in ordered)
            if amount:
                units[name] = amount
        return units

    @property
    def terminal(self) -> bool:
        """Whether the pod has ended and cannot run again."""
        return self.phase in TERMINAL_PHASES


class Node(msgspec.Struct, frozen=True, gc=False):
    """A node: extended resources in units; annotations and labels that a scheme reads.

    ``others`` are the names of the extended resources that are of no sharing system by their names.
    """

    name: str
    resource_version: str = ""
    annotations: Mapping[str, str] = {}
    labels: Mapping[str, str] = {}
    capacity: Mapping[str, int] = {}
    allocatable: Mapping[str, int] = {}
    address: str = ""
    ready: bool = False
    unschedulable: bool = False
    uid: str = ""
    taints: tuple[Taint, ...] = ()
    others: frozenset[str] = frozenset()

    @property
    def advertised(self) -> frozenset[str]:
        """The extended resources that the node has, also those of which none is left."""
        return self.others.union(self.capacity, self.allocatable)


class Namespace(msgspec.Struct, frozen=True, gc=False):
    """A Namespace with all its labels, and the annotations that this product reads."""

    name: str
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    uid: str = ""
    resource_version: str = ""


class ResourceQuota(msgspec.Struct, frozen=True, gc=False):
    """The entries of a ResourceQuota that are about shared GPUs, as they are written.

    Attributes:
        namespace, name: its identity.
        hard: the declared maximum of each entry (spec.hard), such as ``requests.tencent.com/…``.
        used: what Kubernetes counts (status.used), of the entries that it counts.
        scoped: whether it is about some of the pods only (spec.scopes, spec.scopeSelector).
        annotations: those that are kept of every object.
    """

    namespace: str
    name: str
    hard: Mapping[str, str] = {}
    used: Mapping[str, str] = {}
    scoped: bool = False
    annotations: Mapping[str, str] = {}


POD_KIND, SHARE_POD_KIND, NODE_KIND = "Pod", "SharePod", "Node"
"""The names of the kinds in Kubernetes and KubeShare."""


class MalformedObject(msgspec.Struct, frozen=True, gc=False):
    """An object that exists and cannot be read as a whole, with its readable parts.

    Attributes:
        kind: ``Pod``, ``SharePod``, ``Node`` or ``ConfigMap``.
        ref: its identity; unreadable parts are "".
        detail: what is wrong with it.
        node: the node that it is bound to, "" if none, None if that is unreadable.
        annotations: those that a scheme or this product reads; None if they are unreadable.
    """

    kind: str
    ref: PodRef
    detail: str
    node: str | None = None
    annotations: Mapping[str, str] | None = None

    @property
    def name(self) -> str:
        """The name of the object."""
        return self.ref.name

    def may_be_on(self, node: str) -> bool:
        """Whether it is or may be bound to the node, now or later."""
        return self.node in (None, "", node)

    @property
    def title(self) -> str:
        """Kind, namespace and name, for people."""
        named = "/".join(part for part in (self.ref.namespace, self.ref.name) if part)
        return f"{self.kind} {named or 'without a name'}"

    def __str__(self) -> str:
        """The title and what is wrong, for people."""
        return f"{self.title}: {self.detail}"


class RawObject(msgspec.Struct, frozen=True):
    """An object as the server sent it, for a program that copies it or a part of it.

    Attributes:
        ref: its identity; the namespace is "" if it has none.
        resource_version: for preconditions.
        content: the whole object, as JSON.
    """

    ref: PodRef
    resource_version: str
    content: msgspec.Raw


class Lease(msgspec.Struct, frozen=True, gc=False):
    """A lock that one process holds at a time (coordination.k8s.io/v1).

    Attributes:
        resource_version: the version that was read; "" if there is none yet.
        holder: the identity of the holder; "" if there is none.
        duration_seconds: minimum time after ``renewed_at`` before others may take it, in seconds.
        acquired_at, renewed_at: unix seconds, exact to a microsecond; None if not set.
        transitions: number of times that the holder changed.
    """

    namespace: str
    name: str
    resource_version: str = ""
    holder: str = ""
    duration_seconds: int = 0
    acquired_at: float | None = None
    renewed_at: float | None = None
    transitions: int = 0


def holds_devices(pod: Pod) -> bool:
    """Whether the pod may still have devices; every part of the product uses this function.

    A terminal pod has none, whatever its annotations are. A pod that is being deleted keeps them
    until the kubelet reports the end of every container: a waiting container may have been started
    since. A pod that was never bound to a node has no containers. If the kubelet has reported
    nothing yet, a bound pod keeps its devices: missing data is no evidence.
    """
    if pod.terminal:
        return False
    if pod.deleted_at is None:
        return True
    if not pod.node:
        return False
    ended = {status.name for status in pod.statuses if status.state is ContainerState.TERMINATED}
    containers = {container.name for container in pod.containers}
    containers |= {status.name for status in pod.statuses}
    return not pod.statuses or not containers <= ended
