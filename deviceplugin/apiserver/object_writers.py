"""Writes one object each: a pod's annotations, the node, the ConfigMap of unhealthy GPUs.

Of the node these are annotations, labels, capacity, and the release of its lock.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from deviceplugin.apiserver import desired_state
from deviceplugin.apiserver.desired_state import DesiredState
from deviceplugin.apiserver.writes import (
    DroppedError,
    DueTime,
    OwnWrites,
    WriteKey,
    WriteTarget,
    as_text,
)
from deviceplugin.failpoints import Failpoint, Step
from deviceplugin.model import AdmittedPod
from deviceplugin.scheme_adapter import AnnotationPatch, NodePatch, SchemeAdapter
from vgpu.apiserver.client import ApiClient
from vgpu.apiserver.connection import ClusterError
from vgpu.kube.documents import Keep
from vgpu.model.allocation import Device
from vgpu.model.objects import Node, Pod, holds_devices
from vgpu.model.reasons import SourceError
from vgpu.schemes.codec import NodeLock
from vgpu.schemes.registry import registry

log = logging.getLogger(__name__)

NODE_SECONDS: Final = 30.0
"""Minimum interval between two writes of the node, in seconds, unless its devices change: others
may write the same annotations."""

_NODE: Final = WriteKey(WriteTarget.NODE)

FORBIDDEN_SECONDS: Final = 3600.0
"""Interval between two tries of a write that was forbidden, in seconds: the right may have been
granted."""

_FORBIDDEN: Final = 403

_Inputs = tuple[str, AdmittedPod | None, bool]
"""All that the annotations of a pod depend on."""


class WriteContext(msgspec.Struct, frozen=True):
    """The API server, and what is to be written to it.

    Attributes:
        cluster: the API server.
        adapter: the scheme's.
        read_state: returns the desired state, None while it is not known.
        failpoint: called after each write.
        clock: returns unix seconds.
        monotonic: returns seconds that never go back.
        own_writes: objects that the watch does not show yet.
        due: when a write may be due again.
    """

    cluster: ApiClient
    adapter: SchemeAdapter
    read_state: Callable[[], DesiredState | None]
    failpoint: Failpoint
    clock: Callable[[], float]
    monotonic: Callable[[], float]
    own_writes: OwnWrites
    due: DueTime

    def desired(self) -> DesiredState | None:
        """The desired state over the objects as our own writes have left them."""
        state = self.read_state()
        return None if state is None else self.own_writes.over(state)

    def desired_of_node(self) -> tuple[DesiredState, Node] | None:
        """The desired state with the node's object; None while either is not known."""
        state = self.desired()
        return None if state is None or state.node is None else (state, state.node)


class PodWriter:
    """Writes the annotations of the node's pods.

    Used by the status manager's thread alone.
    """

    def __init__(self, context: WriteContext) -> None:
        self._context = context
        self._up_to_date: dict[str, _Inputs] = {}  # inputs of pods that needed no write

    def pending(self, desired: DesiredState) -> list[str]:
        """UIDs of the pods that may have to be written."""
        self._up_to_date = {
            uid: inputs for uid, inputs in self._up_to_date.items() if uid in desired.pods
        }
        return [
            uid
            for uid in desired.pods
            if (uid in desired.admitted_pods or uid in desired.refused)
            and self._up_to_date.get(uid) != _inputs(desired, uid)
        ]

    def write(self, desired: DesiredState, uid: str) -> bool:
        """Write a pod's annotations; returns whether there were any to write.

        Raises ClusterError, SourceError, DroppedError.
        """
        context, pod = self._context, desired.pods[uid]
        patch = desired_state.of_pod(context.adapter, desired, uid, context.clock())
        if not patch:
            self._up_to_date[uid] = _inputs(desired, uid)
            return False
        written = context.cluster.patch_pod(pod.ref, pod.resource_version, patch)
        context.own_writes.add(WriteKey(WriteTarget.POD, uid), pod, written)
        after = replace(desired, pods={uid: written})
        if lost := desired_state.of_pod(context.adapter, after, uid, context.clock()):
            raise DroppedError(", ".join(lost))
        fields = {"namespace": pod.ref.namespace, "pod": pod.ref.name, "uid": uid}
        log.info("pod updated", extra={**fields, "annotations": as_text(patch)})
        context.failpoint(Step.POD_ANNOTATED)
        return True


def _inputs(desired: DesiredState, uid: str) -> _Inputs:
    return (
        desired.pods[uid].resource_version,
        desired.admitted_pods.get(uid),
        uid in desired.refused,
    )


OWNER_SECONDS: Final = 5.0
"""Maximum time to wait for an unknown owner to be bound, in seconds; then the API server is asked
for it."""

AGAIN_SECONDS: Final = 30.0
"""Interval between two questions about one lock, in seconds."""

NEVER: Final = float("inf")


class LockOwners:
    """Finds locks that no pod needs. Used by one thread.

    The plugin's own watch shows the pods of its node, among them each owner that the kubelet may
    still ask for, or that is served or refused. The plugin asks the API server for any other owner
    by name, after it has seen the lock. That owner may be a pod that is about to be bound, since
    its scheduler takes the lock first; or the successor, of the same name, of a pod that is over.
    If the API server knows no such pod, or one that can no longer come here, then no pod needs the
    lock as it was seen.

    The plugin ignores a lock that names no owner or cannot be read.

    Attributes:
        due: when the answer may change, in the seconds of ``monotonic``.
    """

    def __init__(
        self,
        cluster: ApiClient,
        locks: Callable[[Node], tuple[NodeLock, ...]],
        monotonic: Callable[[], float],
    ) -> None:
        """``monotonic`` returns seconds that never go back."""
        self._cluster = cluster
        self._locks = locks
        self._monotonic = monotonic
        self._asking = ""  # the text of the lock that is in doubt
        self.due = NEVER

    def needless(self, desired: DesiredState, node: Node) -> str | None:
        """The key of a lock, as it is on ``node``, whose owner is over, gone or elsewhere.

        None if there is no such lock, or it is not known now. Raises ClusterError, SourceError.
        """
        lock, shown = self._in_doubt(desired, node)
        if lock is None or lock.owner is None:
            self._asking, self.due = "", NEVER
            return None
        now = self._monotonic()
        if lock.text != self._asking:
            self._asking, self.due = lock.text, now + (0.0 if shown else OWNER_SECONDS)
        if now < self.due:
            return None
        if not self._can_come(*lock.owner, node.name):
            return lock.key
        self.due = now + AGAIN_SECONDS
        return None

    def _in_doubt(self, desired: DesiredState, node: Node) -> tuple[NodeLock | None, bool]:
        """A lock whose owner holds nothing on the node, and whether the watch shows it as over."""
        for lock in self._locks(node):
            if lock.owner is None or lock.since is None:
                continue
            named = [pod for pod in desired.pods.values() if _name(pod) == lock.owner]
            if not any(map(holds_devices, named)):
                return lock, bool(named)
        return None, False

    def _can_come(self, namespace: str, name: str, node: str) -> bool:
        """Whether there is such a pod that has, or may have, devices of the node.

        An unreadable pod may have.
        """
        pages = self._cluster.pods(
            keep=Keep.ALL, namespace=namespace, field_selector=f"metadata.name={name}"
        )
        return any(
            any(pod.node in ("", node) and holds_devices(pod) for pod in page.objects)
            or any(unread.may_be_on(node) for unread in page.malformed)
            for page in pages
        )


def _name(pod: Pod) -> tuple[str, str]:
    return pod.ref.namespace, pod.ref.name


class NodeWriter:
    """Writes annotations, labels and capacity of the node, and releases its lock.

    Used by the status manager's thread alone. Writing raises ClusterError, SourceError.
    """

    def __init__(self, context: WriteContext) -> None:
        self._context = context
        self._owners = LockOwners(context.cluster, context.adapter.codec.locks, context.monotonic)
        self._paced: dict[WriteTarget, tuple[tuple[Device, ...], float]] = {}
        self._patch: tuple[tuple[object, ...], NodePatch] | None = None
        self._labelled = ""  # the UID of the node that has these labels from us
        self._labels: AnnotationPatch = {}
        self._spent: frozenset[str] = frozenset()  # UIDs of pods whose lock was released

    def release_lock(self) -> bool:
        """Release the node's lock if no pod needs it; returns whether it was released."""
        known = self._context.desired_of_node()
        if known is None:
            return False
        context, (desired, node) = self._context, known
        self._spent &= desired.pods.keys()
        key = desired_state.lock_of(context.adapter, desired, self._spent, context.clock())
        if key is None:
            key = self._owners.needless(desired, node)
            context.due.no_later_than(max(self._owners.due, context.monotonic()))
        if key is None:
            return False
        written = context.cluster.patch_node(node.name, node.resource_version, {key: None})
        self._spent |= desired.served & desired.pods.keys()
        context.own_writes.add(_NODE, node, written)
        log.info("node lock released", extra={"lock": key, "text": node.annotations.get(key)})
        context.failpoint(Step.LOCK_RELEASED)
        return True

    def write_annotations(self) -> bool:
        """Write the node's annotations and labels; returns whether there were any to write."""
        known = self._context.desired_of_node()
        if known is None:
            return False
        context, (desired, node) = self._context, known
        patch = self.patch(desired)
        # Our Node objects keep only labels that a scheme reads; the operator's may be others.
        kept = self._labels if self._labelled == node.uid else {}
        labels = {
            key: text
            for key, text in patch.labels.items()
            if key in node.labels or kept.get(key) != text
        }
        if not (patch.annotations or labels) or self._is_early(WriteTarget.NODE, desired):
            return False
        written = context.cluster.patch_node(
            node.name, node.resource_version, patch.annotations, labels=labels
        )
        self._labelled, self._labels = node.uid, {**kept, **labels}
        context.own_writes.add(_NODE, node, written)
        self._pace(WriteTarget.NODE, desired)
        fields = {"annotations": as_text(patch.annotations), "labels": as_text(labels)}
        log.info("node updated", extra=fields)
        return True

    def write_capacity(self) -> bool:
        """Write the capacity in the node's status; returns whether there was any to write."""
        known = self._context.desired_of_node()
        if known is None:
            return False
        context, (desired, node) = self._context, known
        capacity = self.patch(desired).capacity
        if not capacity or self._is_early(WriteTarget.CAPACITY, desired):
            return False
        patch = desired_state.capacity_patch(node, capacity)
        written = context.cluster.patch_node_status(node.name, patch)
        context.own_writes.add(_NODE, node, written)
        self._pace(WriteTarget.CAPACITY, desired)
        log.info("node updated", extra={"capacity": as_text(capacity)})
        return True

    def patch(self, desired: DesiredState) -> NodePatch:
        """What is to be written of the node now; computed once for all its writers."""
        now = self._context.clock()
        inputs = desired.node, desired.devices, int(now)
        if self._patch is None or self._patch[0] != inputs:
            self._patch = inputs, desired_state.of_node(self._context.adapter, desired, now)
        return self._patch[1]

    def _is_early(self, target: WriteTarget, desired: DesiredState) -> bool:
        """Whether the target was written just now, for the same devices."""
        devices, written = self._paced.get(target, ((), 0.0))
        until = written + NODE_SECONDS
        if devices != desired.devices or until <= self._context.monotonic():
            return False
        self._context.due.no_later_than(until)
        return True

    def _pace(self, target: WriteTarget, desired: DesiredState) -> None:
        self._paced[target] = desired.devices, self._context.monotonic()


class UnhealthyWriter:
    """Writes the ConfigMap of unhealthy GPUs that gpushare's scheduler reads.

    Used by the status manager's thread alone.
    """

    def __init__(self, context: WriteContext, node: NodeWriter) -> None:
        self._context = context
        self._node = node
        self._last: tuple[Mapping[str, str], str] | None = None  # data and version
        self._forbidden_until = 0.0  # 0 unless a write was forbidden after the last success

    def write(self) -> bool:
        """Write the ConfigMap if it differs; returns whether it did. Raises ClusterError,
        SourceError.
        """
        known = self._context.desired_of_node()
        if known is None:
            return False
        cluster, (desired, node) = self._context.cluster, known
        wanted = self._node.patch(desired).unhealthy
        row = registry().of(self._context.adapter.scheme)
        place = row.unhealthy_map if row else None
        if wanted is None or place is None or self._context.monotonic() < self._forbidden_until:
            return False
        where = place.namespace, place.name(node.name)
        try:
            if self._last is None:
                self._last = cluster.versioned_config_map(*where) or ({}, "")
            data, version = self._last
            if data.get(place.key) == wanted.get(place.key):
                return False
            others = {key: text for key, text in data.items() if key != place.key}
            data = {**others, **wanted}
            self._last = data, cluster.write_config_map(*where, data, version)
        except (ClusterError, SourceError) as error:
            self._last = None  # the ConfigMap may have changed: it is read again
            if not isinstance(error, ClusterError) or error.status != _FORBIDDEN:
                raise
            self._forbidden(error)
            return False
        self._forbidden_until = 0.0
        log.info("unhealthy GPUs written", extra={"unhealthy": wanted.get(place.key, "")})
        return True

    def _forbidden(self, error: ClusterError) -> None:
        """The operator grants the right to the ConfigMap: a missing right is logged once."""
        if not self._forbidden_until:
            log.info("unhealthy GPUs are not written: no permission", extra={"reason": str(error)})
        self._forbidden_until = self._context.monotonic() + FORBIDDEN_SECONDS
