"""What a bind writes for the originals' device plugins and tools: locks of nodes, labels of pods.

By the lock of a node an original device plugin knows the pod that it allocates GPUs to. HAMi's
plugin, and Volcano's where its scheduler locks nodes, serve one pod of a node at a time: the
scheduler locks the node before it binds, and the plugin releases the lock when it has answered
Allocate. Our plugin needs no lock, so that locks are taken with ``--original-plugin`` only.

A bind waits for the lock of another pod until the plugin releases it, which an event of the node
shows: a bind that fails costs its pod a back-off of kube-scheduler.

A lock is taken over only from a pod that the plugin cannot be serving any more. It is released here
only if the API server has surely not bound the pod.

HAMi's label of a bound pod is the name of its node, for HAMi's own tools.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from scheduler.bind.lock_queue import LockQueue, Patience
from scheduler.reasons import BindError, BindFailure
from vgpu.apiserver.connection import CONFLICT, NOT_FOUND, ClusterError
from vgpu.model.names import PodRef
from vgpu.model.objects import Node, Pod, holds_devices
from vgpu.model.reasons import SourceError
from vgpu.placement.dialects import SchedulerScheme
from vgpu.schemes.codec import NodeLock

log = logging.getLogger(__name__)

LONGEST_VALUE: Final = 63
"""Maximum length of a label's value, in characters; names of nodes may be longer."""

RECENT_SECONDS: Final = 3600.0
"""Maximum age of a binding whose missing label is written at the start, in seconds: a replica that
was killed may have written it. HAMi's older versions write no label."""

RUNNING: Final = "Running"
"""The phase of a pod whose containers have their devices."""

_TRIES: Final = 5
"""Maximum number of writes of one lock: others write the node, too."""


class NodeLockApi(Protocol):
    """The API server. All methods raise ClusterError and SourceError."""

    def node(self, name: str) -> Node:
        """One node."""
        ...

    def pod(self, namespace: str, name: str) -> Pod:
        """One pod."""
        ...

    def patch_node(
        self, name: str, resource_version: str, annotations: Mapping[str, str | None]
    ) -> Node:
        """Set annotations of a node in exactly this state, None to remove one."""
        ...


class NodeLocker:
    """Takes and releases locks. Any thread may call every method."""

    def __init__(
        self, api: NodeLockApi, clock: Callable[[], float], queue: LockQueue | None = None
    ) -> None:
        """``clock`` returns unix seconds; without a queue no bind waits."""
        self._api = api
        self._clock = clock
        self.queue = queue or LockQueue(0.0)

    def take(
        self,
        scheme: SchedulerScheme,
        pod: PodRef,
        node: str,
        patience: Patience,
    ) -> str:
        """Lock the node for the pod, and wait for that; returns the text of a new lock.

        That is "" if the system has no locks, or if the pod has the lock already: an earlier
        binding may be on its way. Raises BindError if the node stays locked for another pod.
        """
        if not scheme.dialect_row.lock:
            return ""
        with self.queue.turn(node, patience) as turn:
            after = turn.locked_after if turn is not None else None
            while turn is not None:
                if after is not None and not turn.wait_for_event(after):
                    break
                after = turn.seen
                text = self._try(scheme, pod, node, turn.take_free())
                if text is not None:
                    turn.note_locked(after)
                    return text
        raise BindError(BindFailure.NODE_LOCKED, BindFailure.NODE_LOCKED.explanation)

    def _try(
        self, scheme: SchedulerScheme, pod: PodRef, node: str, known: Node | None
    ) -> str | None:
        """As :meth:`take`, without waiting; None if the node is locked for another pod.

        ``known`` is the node without a lock, if an event has shown it so: if it has changed since,
        nothing is written, and the node is read.
        """
        row = scheme.dialect_row
        try:
            for _ in range(_TRIES):
                locked = known or self._api.node(node)
                known = None
                lock = _lock_of(scheme, locked)
                if lock is not None and lock.owner == (pod.namespace, pod.name):
                    return ""
                if lock is not None and not self._is_void(lock, node):
                    return None
                text = row.lock_text(self._clock(), pod)
                if self._patch(locked, row.lock, text):
                    log.info("node locked", extra={"node": node, "pod": pod.key})
                    return text
        except (ClusterError, SourceError) as error:
            text = f"node {node} cannot be locked: {error}"
            raise BindError(BindFailure.UNREACHABLE, text) from error
        raise BindError(BindFailure.CONFLICT, f"node {node} changes all the time")

    def release(self, scheme: SchedulerScheme, node: str, text: str) -> None:
        """Remove the lock if it is still this one."""
        try:
            for _ in range(_TRIES if text else 0):
                locked = self._api.node(node)
                lock = _lock_of(scheme, locked)
                if lock is None or lock.text != text:
                    return
                if self._patch(locked, lock.key, None):
                    log.info("node lock released", extra={"node": node})
                    return
        except (ClusterError, SourceError) as error:
            log.warning("node lock not released", extra={"node": node, "err": error})

    def _is_void(self, lock: NodeLock, node: str) -> bool:
        """Whether the plugin cannot be serving the lock's pod any more."""
        if lock.owner is None:
            return lock.is_expired(self._clock())
        try:
            owner = self._api.pod(*lock.owner)
        except ClusterError as error:
            if error.status == NOT_FOUND:
                return True
            raise
        if not owner.node:  # no binding is on its way after so long
            return lock.is_expired(self._clock())
        return owner.node != node or owner.terminal or owner.phase == RUNNING

    def _patch(self, node: Node, key: str, text: str | None) -> bool:
        """Whether it was written; False if the node has changed."""
        try:
            self._api.patch_node(node.name, node.resource_version, {key: text})
        except ClusterError as error:
            if error.status != CONFLICT:
                raise
            return False
        return True


def _lock_of(scheme: SchedulerScheme, node: Node) -> NodeLock | None:
    """The lock that the scheduler writes; an older key of the same system counts, too."""
    return next(iter(scheme.codec.locks(node)), None)


class NodeLabel(msgspec.Struct, frozen=True):
    """A label that a bound pod gets; its value is the name of the node."""

    pod: PodRef
    key: str
    node: str


class LabelApi(Protocol):
    """The API server."""

    def label_pod(self, pod: PodRef, labels: Mapping[str, str]) -> None:
        """Set labels of exactly this pod. Raises ClusterError and SourceError."""
        ...


def missing_label(pod: Pod, schemes: Sequence[SchedulerScheme]) -> NodeLabel | None:
    """The label that a bound pod lacks; None if it has the label, or needs none.

    A pod with a reservation has an annotation of the same key and value.
    """
    for key in {scheme.dialect_row.label for scheme in schemes} - {""}:
        if pod.node and pod.annotations.get(key) == pod.node != pod.labels.get(key):
            return NodeLabel(pod.ref, key, pod.node)
    return None


def recent_missing_labels(
    pods: Iterable[Pod], schemes: Sequence[SchedulerScheme], now: float
) -> Iterator[NodeLabel]:
    """The labels that pods lack that were bound a short time ago; ``now`` is in unix seconds."""
    for pod in pods:
        label = missing_label(pod, schemes)
        is_recent = now - (pod.scheduled_at or 0.0) <= RECENT_SECONDS
        if label is not None and is_recent and holds_devices(pod):
            yield label


def write_label(api: LabelApi, label: NodeLabel) -> bool:
    """Set the label by one patch; returns whether nothing is left to do.

    The patch names the pod's UID alone: the label is right whatever else of the pod has changed.
    """
    if len(label.node) > LONGEST_VALUE:
        return True
    fields: dict[str, object] = {"pod": label.pod.key, "label": label.key}
    try:
        api.label_pod(label.pod, {label.key: label.node})
    except ClusterError as error:
        log.info("label not set", extra=fields | {"err": error})
        return 400 <= error.status < 500  # the pod is gone, or a right is missing
    except SourceError as error:
        log.info("unexpected response to the label patch", extra=fields | {"err": error})
        return False
    return True
