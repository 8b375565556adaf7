"""The result of the binder's last look as a value, and what follows from it. Pure.

From the state follow the answer to PreStartContainer (:func:`prestart_check`) and the desired state
of the API server's objects (:func:`desired_state_of`).
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

import msgspec

from deviceplugin.allocate.allocation_state import AllocationState
from deviceplugin.apiserver.desired_state import DesiredState
from deviceplugin.model import AdmittedPod, AllocationConflict, ContainerDevices
from deviceplugin.reasons import BindRefusal, BindRefused
from vgpu.model.objects import ContainerState, Node, Pod

Key = tuple[str, str]
"""A container: UID of its pod, and its name."""

Assignments = Mapping[frozenset[str], tuple[ContainerDevices, ...]]
"""The kubelet's assignments by their device IDs."""

UNREAD: Final = float("-inf")
"""The time of reading of a checkpoint that has never been read."""


class BinderState(msgspec.Struct, frozen=True):
    """The result of the binder's last look.

    Attributes:
        allocation_state: who holds what.
        assignments: see :data:`Assignments`.
        refusals: why a container is not bound.
        ready: names for which all files are written that a container is created with.
        read_at: when these were last known to be the kubelet's newest assignments, in monotonic
            seconds.
    """

    allocation_state: AllocationState
    assignments: Assignments = {}
    refusals: Mapping[Key, BindRefused] = {}
    ready: frozenset[str] = frozenset()
    read_at: float = UNREAD

    @property
    def waits_for_room(self) -> bool:
        """Whether a container waits for shares that others hold."""
        return any(refused.why is BindRefusal.NO_ROOM for refused in self.refusals.values())

    @property
    def assigned_pods(self) -> frozenset[str] | None:
        """UIDs of the pods in the kubelet's checkpoint; None if it has never been read."""
        if self.read_at == UNREAD:
            return None
        return frozenset(assignment.pod_uid for assignment in self.all_assignments())

    def all_assignments(self) -> tuple[ContainerDevices, ...]:
        """All assignments, in no order."""
        return tuple(
            assignment for assignments in self.assignments.values() for assignment in assignments
        )

    def is_ready(self, assignment: ContainerDevices) -> bool:
        """Whether the assignment's container can be created; an answer of others is complete."""
        if not assignment.name:
            return True
        bound = self.allocation_state.binding_of(assignment) is not None
        return bound and assignment.name in self.ready


def by_ids(assignments: Iterable[ContainerDevices]) -> Assignments:
    """The assignments by their device IDs, which PreStartContainer names."""
    grouped: dict[frozenset[str], tuple[ContainerDevices, ...]] = {}
    for assignment in assignments:
        grouped[assignment.ids] = (*grouped.get(assignment.ids, ()), assignment)
    return grouped


def prestart_check(
    state: BinderState | None, ids: frozenset[str], asked_at: float = UNREAD
) -> BindRefused | None:
    """Why the container with these IDs may not start; None if it may.

    An init container and the one after it have the same IDs: both have to be bound. The kubelet
    writes the owner of the IDs before it asks, at ``asked_at``: an earlier reading may be of a pod
    that is gone.
    """
    if state is None:
        return BindRefused(BindRefusal.NOT_RECOVERED, BindRefusal.NOT_RECOVERED.explanation)
    if state.read_at < asked_at:
        return BindRefused(BindRefusal.NOT_SEEN, "the kubelet's checkpoint has not been read since")
    assignments = state.assignments.get(ids, ())
    if not assignments:
        return BindRefused(
            BindRefusal.NOT_SEEN, "the kubelet's checkpoint does not have these device IDs yet"
        )
    for assignment in assignments:
        refused = state.refusals.get((assignment.pod_uid, assignment.container))
        if refused:
            return refused
        if not state.is_ready(assignment):
            return BindRefused(BindRefusal.NOT_SEEN, "the container is about to be bound")
    return None


def desired_state_of(
    resource: str, state: BinderState, pods: Mapping[str, Pod], node: Node | None
) -> DesiredState:
    """The desired state; ``resource`` is the binding one, ``pods`` and ``node`` as they are now."""
    refused = frozenset(uid for (uid, _), error in state.refusals.items() if error.final)
    allocation_state = state.allocation_state
    answered = _answered(state)
    requesting = {uid for uid, _ in answered} | allocation_state.admitted_pods.keys()
    served = frozenset(
        uid
        for uid in requesting & pods.keys()
        if _serves(resource, pods[uid], allocation_state, answered)
    )
    return DesiredState(
        devices=allocation_state.devices,
        named=allocation_state.named,
        admitted_pods=allocation_state.admitted_pods,
        pods=pods,
        node=node,
        served=served | refused,
        refused=refused,
    )


def _answered(state: BinderState) -> frozenset[Key]:
    """Containers that the kubelet has an answer for and that are not bound by us.

    They are refused, perhaps only for now, or another plugin has answered. A refused container
    whose pod the API server does not show yet is not included.
    """
    refused = (key for key, error in state.refusals.items() if error.pod is not None)
    others = (
        (assignment.pod_uid, assignment.container)
        for assignment in state.all_assignments()
        if not assignment.name
    )
    return frozenset((*refused, *others))


def _serves(
    resource: str, pod: Pod, allocation_state: AllocationState, answered: Collection[Key]
) -> bool:
    """Whether the kubelet has an answer for every container, and so will not ask again."""
    uid = pod.kubelet_uid
    admitted_pod = allocation_state.admitted_pods.get(uid)
    return all(
        (uid, container.name) in answered
        or (admitted_pod is not None and admitted_pod.binding(container.name) is not None)
        or _has_run(pod, container.name)
        for container in pod.containers
        if container.limits.get(resource, 0)
    )


def _has_run(pod: Pod, container: str) -> bool:
    return any(
        status.name == container and status.state is not ContainerState.WAITING
        for status in pod.statuses
    )


class Recovered(msgspec.Struct, frozen=True):
    """The result of the recovery.

    Attributes:
        allocation_state: of all who hold something on a known device.
        conflicts: disagreements of sources; the allocation state itself shows its own conflicts.
        unsettled: UIDs of pods that may hold something that is not in the allocation state: no
            source shows on which device, or whether the pod lives. While the API server does not
            answer, wait for it and recover again: without it nothing new can be bound either.
        remarks: claims of tenants that no source confirms.
    """

    allocation_state: AllocationState
    conflicts: tuple[AllocationConflict, ...] = ()
    unsettled: frozenset[str] = frozenset()
    remarks: tuple[AllocationConflict, ...] = ()


Recover = Callable[[Iterable[AdmittedPod]], Recovered]
"""Finds out who holds what; the argument is the admitted pods that are known by now."""

Gone = Callable[[BinderState, Mapping[str, Pod] | None, Collection[str]], Iterable[str]]
"""The UIDs of admitted pods that have left, by what the kubelet and the API server show.

The last argument is the UIDs of admitted pods that the API server has shown at any time.
"""
