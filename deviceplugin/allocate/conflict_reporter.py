"""Reports the conflicts of the allocation state, and of the recovery, when they change."""

import logging
from collections.abc import Mapping

from deviceplugin.allocate.allocation_state import AllocationState
from deviceplugin.allocate.binder_ports import BinderEventHandler
from deviceplugin.allocate.contradictions import of_allocations, of_now
from deviceplugin.model import AllocationConflict
from vgpu.model.objects import Pod, holds_devices

log = logging.getLogger(__name__)

Conflicts = tuple[AllocationConflict, ...]


class ConflictReporter:
    """Used by the binder's thread alone."""

    def __init__(self, events: BinderEventHandler) -> None:
        self._events = events
        # The conflicts of sources at the start, without those that are over.
        self._conflicts: Conflicts = ()
        self._remarks: Conflicts = ()
        self._judged: tuple[AllocationState | None, Conflicts] = None, ()
        self._reported: tuple[Conflicts, Conflicts] | None = None

    def begin(self, conflicts: Conflicts, remarks: Conflicts) -> None:
        """Start with these conflicts of the recovery."""
        self._conflicts, self._remarks = conflicts, remarks

    def report(self, allocation_state: AllocationState, pods: Mapping[str, Pod] | None) -> None:
        """Report all current conflicts if they have changed.

        ``pods`` are the node's; while they are None no pod counts as gone.
        """
        if pods is not None and (self._conflicts or self._remarks):
            holding = {uid for uid, pod in pods.items() if holds_devices(pod)}
            there = holding | allocation_state.tenants.keys()
            self._conflicts = of_now(self._conflicts, there)
            self._remarks = of_now(self._remarks, there)
        if allocation_state is not self._judged[0]:
            self._judged = allocation_state, of_allocations(allocation_state)
        now = (*self._judged[1], *self._conflicts), self._remarks
        if now == self._reported:
            return
        conflicts_before, remarks_before = self._reported or ((), ())
        for conflict in now[0]:
            if conflict not in conflicts_before:
                log.warning("conflict", extra=_fields(conflict))
        for remark in now[1]:
            if remark not in remarks_before:
                log.info("remark", extra=_fields(remark))
        self._reported = now
        self._events.conflicts(*now)


def _fields(conflict: AllocationConflict) -> dict[str, str]:
    pod = conflict.pod
    return {"pod": f"{pod.namespace}/{pod.name}" if pod else "", "detail": conflict.detail}
