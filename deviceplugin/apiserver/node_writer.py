"""Writes the node: annotations, labels, capacity, and the release of its lock."""

import logging
from typing import Final

from deviceplugin.apiserver import desired_state
from deviceplugin.apiserver.desired_state import DesiredState
from deviceplugin.apiserver.lock_owners import LockOwners
from deviceplugin.apiserver.write_context import WriteContext
from deviceplugin.apiserver.writes import WriteKey, WriteTarget, as_text
from deviceplugin.failpoints import Step
from deviceplugin.scheme_adapter import AnnotationPatch, NodePatch
from vgpu.model.allocation import Device

log = logging.getLogger(__name__)

NODE_SECONDS: Final = 30.0
"""Minimum interval between two writes of the node, in seconds, unless its devices change: others
may write the same annotations."""

_NODE: Final = WriteKey(WriteTarget.NODE)


class NodeWriter:
    """Used by the status manager's thread alone. Writing raises ClusterError, SourceError."""

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
            context.due.by(max(self._owners.due, context.monotonic()))
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
        devices, at = self._paced.get(target, ((), 0.0))
        until = at + NODE_SECONDS
        if devices != desired.devices or until <= self._context.monotonic():
            return False
        self._context.due.by(until)
        return True

    def _pace(self, target: WriteTarget, desired: DesiredState) -> None:
        self._paced[target] = desired.devices, self._context.monotonic()
