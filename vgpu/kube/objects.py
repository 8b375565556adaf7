"""Pods, nodes and the few other objects of the API server, cut down to what sharing GPUs needs.

Frozen values, compact enough for every GPU pod of a large cluster to be kept: of annotations and
labels only those that a scheme reads are here. :mod:`vgpu.kube.documents` makes them from the API
server's JSON.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec

from vgpu.model import ContainerKind, PodRef

MIRROR = "kubernetes.io/config.mirror"
"""A static pod's mirror: the value is the UID that the kubelet itself uses for the pod."""

SHARE_POD = "vgpu.dev/share-pod"
"""Marks a KubeShare SharePod in the shape of a pod: the UID of the pod that was made for it, "" if
there is none yet. Only :mod:`vgpu.kube.documents` writes this and the next two annotations."""

BOUND_DEVICE = "vgpu.dev/bound-device"
"""The UUID of the GPU that KubeShare bound a SharePod to (status.BoundDeviceID)."""

MANAGER_PORT = "vgpu.dev/manager-port"
"""The port of a SharePod's pod manager (status.PodManagerPort)."""

_MADE_BY_API_SERVER: Final = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""A UID that the API server gives. A kubelet's are hashes without dashes."""

TERMINAL_PHASES = frozenset({"Succeeded", "Failed"})


COMPLETED: Final = "Completed"
"""The kubelet's reason for a container that has ended with exit status 0."""


class ContainerState(StrEnum):
    """What the kubelet last said of a container."""

    WAITING = "waiting"
    RUNNING = "running"
    TERMINATED = "terminated"


class Container(msgspec.Struct, frozen=True, gc=False):
    """A container of a pod's spec; ``limits`` holds the extended resources it asks for, in units.

    Extended resources cannot be overcommitted: requests, where given, equal limits. A quantity
    that is not a whole number is kept as its text in ``broken``. ``env`` holds the variables that
    a scheme reads, as far as the spec itself gives their value.
    """

    name: str
    limits: Mapping[str, int] = {}
    kind: ContainerKind = ContainerKind.APP
    broken: Mapping[str, str] = {}
    env: Mapping[str, str] = {}


class Status(msgspec.Struct, frozen=True, gc=False):
    """A container's status; times are unix seconds.

    ``id`` has no ``<runtime>://`` in front. ``finished_at`` is None while it runs, ``reason`` and
    ``message`` are those of the state it is in. ``last_…`` are those of its end before that, the
    message only where the runtime wrote it.
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

    @property
    def has_succeeded(self) -> bool:
        """Whether it has ended with exit status 0."""
        return self.state is ContainerState.TERMINATED and self.reason == COMPLETED


class OwnerReference(msgspec.Struct, frozen=True, gc=False):
    """The controller that made the pod."""

    kind: str
    name: str
    uid: str
    api_version: str = ""


class Pod(msgspec.Struct, frozen=True, gc=False):
    """A pod. Times are unix seconds, None if not set.

    Attributes:
        ref: who it is, under the UID that the API server knows.
        resource_version: for preconditions.
        node: where it is bound, "" if nowhere.
        annotations, labels: those that a scheme or this product reads, no others.
        containers: app containers, init containers and sidecars that the spec names, in the
            kubelet's order of the annotation indices: app containers first, as in the spec.
        statuses: as far as the kubelet has told.
        deleted_at: when it is or was to be gone (deletionTimestamp).
        scheduled_at: when the condition PodScheduled became what it is.
        unschedulable: the scheduler's own words for why it is not bound; "" if it is.
        priority: higher is more important.
        started_at: when the kubelet had taken it in (status.startTime).
        status_at: when the kubelet last wrote the status, as metadata.managedFields tell; if the
            kubelet never did, when anybody did. Told of Pending and Failed pods only, and of no
            SharePod.
        gated: whether a scheduling gate still keeps every scheduler from it.
        restart_policy: Always, OnFailure or Never.
        tracked: whether a Job has still to count it, as its finalizer says.
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
    restart_policy: str = "Always"
    tracked: bool = False

    @property
    def kubelet_uid(self) -> str:
        """The UID on the node's own disk and cgroups: a static pod's is not the API server's.

        Anybody may write that annotation on a pod: it is never believed to be another pod's UID.
        """
        static = self.annotations.get(MIRROR)
        if static is None or _MADE_BY_API_SERVER.fullmatch(static):
            return self.ref.uid
        return static

    @property
    def apps(self) -> tuple[str, ...]:
        """The names of the app containers, in the spec's order: annotations count these."""
        return tuple(one.name for one in self.containers if one.kind is ContainerKind.APP)

    def initialized(self, since: float = 0.0) -> bool:
        """Whether every init container that runs to its end has succeeded, the last of the spec at
        or after ``since`` (unix seconds): an older status is of a boot of the node before this one.

        False where there is none, or where the kubelet has not said so of each. After a boot they
        run again one by one, and those to come still have their old status meanwhile.
        """
        ends = {one.name: one for one in self.statuses if one.has_succeeded}
        plain = [one.name for one in self.containers if one.kind is ContainerKind.INIT]
        if not plain or not ends.keys() >= set(plain):
            return False
        return (ends[plain[-1]].finished_at or 0.0) >= int(since)

    @property
    def terminal(self) -> bool:
        """Whether it has ended for good."""
        return self.phase in TERMINAL_PHASES


class Node(msgspec.Struct, frozen=True, gc=False):
    """A node: extended resources in units; annotations and labels that a scheme reads."""

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


POD_KIND, SHARE_POD_KIND, NODE_KIND = "Pod", "SharePod", "Node"
"""As Kubernetes and KubeShare name them."""


class MalformedObject(msgspec.Struct, frozen=True, gc=False):
    """An object that exists and cannot be read, with what can be read of it all the same.

    Attributes:
        kind: ``Pod``, ``SharePod``, ``Node`` or ``ConfigMap``.
        ref: who it is; what cannot be read of that is "".
        detail: what is wrong with it.
        node: where it is bound, "" if nowhere, None if that cannot be read.
        annotations: those that a scheme or this product reads; None if they cannot be read.
    """

    kind: str
    ref: PodRef
    detail: str
    node: str | None = None
    annotations: Mapping[str, str] | None = None

    @property
    def name(self) -> str:
        """Of the object, as nodes have it."""
        return self.ref.name

    def may_be_on(self, node: str) -> bool:
        """Whether it is bound to the node, or may be, or may yet be bound to it."""
        return self.node in (None, "", node)

    @property
    def title(self) -> str:
        """What it is called, for people."""
        named = "/".join(part for part in (self.ref.namespace, self.ref.name) if part)
        return f"{self.kind} {named or 'without a name'}"

    def __str__(self) -> str:
        """For people: what it is and what is wrong with it."""
        return f"{self.title}: {self.detail}"


class Lease(msgspec.Struct, frozen=True, gc=False):
    """A claim to be the only one who does something (coordination.k8s.io/v1).

    Attributes:
        resource_version: of the state that was read; "" if there is none yet.
        holder: who has it; "" if nobody.
        duration_seconds: so long after ``renewed_at`` nobody else may take it.
        acquired_at, renewed_at: unix seconds, exact to a microsecond; None if not set.
        transitions: how often it has changed hands.
    """

    namespace: str
    name: str
    resource_version: str = ""
    holder: str = ""
    duration_seconds: int = 0
    acquired_at: float | None = None
    renewed_at: float | None = None
    transitions: int = 0


class NoteType(StrEnum):
    """How serious an event is; Kubernetes has no others."""

    NORMAL = "Normal"
    WARNING = "Warning"


class EventNote(msgspec.Struct, frozen=True, gc=False):
    """Something to be said of an object as a Kubernetes Event.

    Attributes:
        kind, api_version, namespace, name, uid: the object; its namespace is "" if it has none.
        reason: one word in CamelCase, for programs.
        message: for people; no more than 1,024 bytes of it are written.
        at: when it happened, in unix seconds.
        component: who says it.
    """

    kind: str
    api_version: str
    namespace: str
    name: str
    uid: str
    reason: str
    message: str
    at: float
    type: NoteType = NoteType.NORMAL
    component: str = "vgpu-reconciler"


def holds_devices(pod: Pod) -> bool:
    """Whether the pod may still have devices: the one answer for every part of the product.

    A terminal pod has none, whatever its annotations say. A pod that is being deleted keeps them
    until the kubelet says of every container that it has ended: one that was waiting may have
    been started since. One that was never bound to a node has no containers. Where the kubelet
    has told nothing yet, a bound pod keeps them: missing data is not evidence.
    """
    if pod.terminal:
        return False
    if pod.deleted_at is None:
        return True
    if not pod.node:
        return False
    gone = {one.name for one in pod.statuses if one.state is ContainerState.TERMINATED}
    known = {one.name for one in pod.containers} | {one.name for one in pod.statuses}
    return not pod.statuses or not known <= gone
