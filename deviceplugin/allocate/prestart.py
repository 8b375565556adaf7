"""Whether a container may start: the answer to PreStartContainer, from the binder's state."""

from deviceplugin.allocate.binder_state import UNREAD, BinderState
from deviceplugin.reasons import BindRefusal, BindRefused


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
