"""The result of the binder's last look, as a value."""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from deviceplugin.allocate.allocation_state import AllocationState
from deviceplugin.model import ContainerDevices
from deviceplugin.reasons import BindRefusal, BindRefused

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
