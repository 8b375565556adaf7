"""The lock of a node by which an original device plugin knows the pod that it allocates GPUs to.

HAMi's plugin, and Volcano's where its scheduler locks nodes, serve one pod of a node at a time: the
scheduler locks the node before it binds, and the plugin releases the lock when it has answered
Allocate. Our plugin needs no lock, so that locks are taken with ``--original-plugin`` only.

A lock is taken over only from a pod that the plugin cannot be serving any more. It is released here
only if the API server has surely not bound the pod.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from scheduler.reasons import BindError, BindFailure
from vgpu.apiserver.connection import CONFLICT, NOT_FOUND, ClusterError
from vgpu.model.names import PodRef
from vgpu.model.objects import Node, Pod
from vgpu.model.reasons import SourceError
from vgpu.placement.dialects import SchedulerScheme
from vgpu.schemes.codec import NodeLock

log = logging.getLogger(__name__)

EXPIRY_SECONDS: Final = 300.0
"""Age at which a lock that does not name its pod is void, in seconds; the originals' own."""

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

    def __init__(self, api: NodeLockApi, clock: Callable[[], float]) -> None:
        """``clock`` returns unix seconds."""
        self._api = api
        self._clock = clock

    def take(self, scheme: SchedulerScheme, pod: PodRef, node: str) -> str:
        """Lock the node for the pod; returns the text of a new lock.

        That is "" if the system has no locks, or if the pod has the lock already: an earlier
        binding may be on its way. Raises BindError if the node is locked for another pod.
        """
        row = scheme.dialect_row
        if not row.lock:
            return ""
        try:
            for _ in range(_TRIES):
                locked = self._api.node(node)
                lock = _of(scheme, locked)
                if lock is not None and lock.owner == (pod.namespace, pod.name):
                    return ""
                if lock is not None and not self._is_void(lock, node):
                    raise BindError(BindFailure.NODE_LOCKED, BindFailure.NODE_LOCKED.explanation)
                text = row.lock_text(self._clock(), pod)
                if self._patch(locked, row.lock, text):
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
                lock = _of(scheme, locked)
                if lock is None or lock.text != text or self._patch(locked, lock.key, None):
                    return
        except (ClusterError, SourceError) as error:
            log.warning("the lock of node %s is not released: %s", node, error)

    def _is_void(self, lock: NodeLock, node: str) -> bool:
        """Whether the plugin cannot be serving the lock's pod any more."""
        if lock.owner is None:
            return lock.since is not None and lock.since <= self._clock() - EXPIRY_SECONDS
        try:
            owner = self._api.pod(*lock.owner)
        except ClusterError as error:
            if error.status == NOT_FOUND:
                return True
            raise
        if not owner.node:  # no binding is on its way after so long
            return lock.since is not None and lock.since <= self._clock() - EXPIRY_SECONDS
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


def _of(scheme: SchedulerScheme, node: Node) -> NodeLock | None:
    """The lock that the scheduler writes; an older key of the same system counts, too."""
    return next(iter(scheme.codec.locks(node)), None)
