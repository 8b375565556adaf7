"""Whether a container may start: PreStartContainer's answer, from what the binder last found."""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from deviceplugin.allocate.allocation_state import AllocationState
from deviceplugin.model import ContainerDevices
from deviceplugin.reasons import BindRefusal, BindRefused

Key = tuple[str, str]
"""UID and container."""

Assignments = Mapping[frozenset[str], tuple[ContainerDevices, ...]]
"""The kubelet's, by their device IDs."""


UNREAD: Final = float("-inf")
"""When a checkpoint was read that never was."""


class BinderState(msgspec.Struct, frozen=True):
    """What the binder last found.

    Attributes:
        allocation state: who holds what.
        assignments: see :data:`Assignments`.
        refusals: why a container is not bound.
        ready: names under which all is written that a container is made with.
        read_at: when it was known last that these are the kubelet's newest assignments, of a
            clock that never goes back.
    """

    allocation_state: AllocationState
    assignments: Assignments = {}
    refusals: Mapping[Key, BindRefused] = {}
    ready: frozenset[str] = frozenset()
    read_at: float = UNREAD

    @property
    def waits_for_room(self) -> bool:
        """Whether a container waits for what others hold."""
        return any(refused.why is BindRefusal.NO_ROOM for refused in self.refusals.values())

    @property
    def assigned_pods(self) -> frozenset[str] | None:
        """UIDs of the pods in the kubelet's checkpoint; None if it has never been read."""
        if self.read_at == UNREAD:
            return None
        return frozenset(one.pod_uid for one in self.all_assignments())

    def all_assignments(self) -> tuple[ContainerDevices, ...]:
        """In no order."""
        return tuple(one for several in self.assignments.values() for one in several)

    def is_ready(self, assignment: ContainerDevices) -> bool:
        """Whether its container can be made. An answer that is not ours was complete as given."""
        if not assignment.name:
            return True
        bound = self.allocation_state.binding_of(assignment) is not None
        return bound and assignment.name in self.ready


def by_ids(found: Iterable[ContainerDevices]) -> Assignments:
    """The same, to be found by what PreStartContainer tells."""
    told: dict[frozenset[str], tuple[ContainerDevices, ...]] = {}
    for one in found:
        told[one.ids] = (*told.get(one.ids, ()), one)
    return told


def prestart_check(
    state: BinderState | None, ids: frozenset[str], asked_at: float = UNREAD
) -> BindRefused | None:
    """Why the container with these IDs may not start; None if it may.

    An init container and the one after it have the same IDs: both have to be bound. The kubelet
    has written whose the IDs are before it asked, at ``asked_at``: what was read earlier may be of
    a pod that is gone.
    """
    if state is None:
        return BindRefused(BindRefusal.NOT_RECOVERED, BindRefusal.NOT_RECOVERED.explanation)
    if state.read_at < asked_at:
        return BindRefused(BindRefusal.NOT_SEEN, "the kubelet's checkpoint has not been read since")
    found = state.assignments.get(ids, ())
    if not found:
        return BindRefused(
            BindRefusal.NOT_SEEN, "the kubelet's checkpoint does not have these device IDs yet"
        )
    for one in found:
        refused = state.refusals.get((one.pod_uid, one.container))
        if refused:
            return refused
        if not state.is_ready(one):
            return BindRefused(BindRefusal.NOT_SEEN, "the container is about to be bound")
    return None
