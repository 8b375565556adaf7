"""What the binder reports, and to whom: counters, events on pods, the scheme's services.

Conflicts of the allocation state and of the recovery are reported when they change.
"""

import logging
from collections.abc import Callable, Collection, Mapping

from deviceplugin.allocate.allocation_state import AllocationState
from deviceplugin.allocate.contradictions import of_allocations, of_now
from deviceplugin.apiserver.status_manager import StatusManager
from deviceplugin.apiserver.writes import EventReason
from deviceplugin.metrics import PluginMetrics, Wait
from deviceplugin.model import AdmittedPod, AllocationConflict, Binding
from deviceplugin.ports import SchemeServices
from deviceplugin.reasons import BindRefusal, BindRefused
from vgpu.model.objects import Pod, holds_devices

log = logging.getLogger(__name__)

Conflicts = tuple[AllocationConflict, ...]

Living = Callable[[], Collection[str] | None]
"""UIDs of all pods that may have containers here, admitted or not; None if they are not known."""

Repair = Callable[[], object]
"""Rewrites lost or damaged files that all containers get. Raises OSError."""


class BinderEvents:
    """Receives the binder's events. Used by the binder's thread alone."""

    def __init__(
        self,
        numbers: PluginMetrics,
        status_manager: StatusManager,
        services: SchemeServices | None,
        living: Living,
        *,
        repair: Repair = lambda: None,
    ) -> None:
        self._numbers = numbers
        self._status_manager = status_manager
        self._services = services
        self._living = living
        self._repair = repair

    def recovered(self, allocation_state: AllocationState) -> None:
        """The recovery is done: start the scheme's services for the recovered admitted pods."""
        if self._services is None:
            return
        living = self._living()
        try:
            if living is not None:
                self._services.prune({*allocation_state.admitted_pods, *living})
        except OSError as error:
            log.warning("files of ended pods cannot be removed", extra={"err": str(error)})
        for admitted_pod in allocation_state.admitted_pods.values():
            try:
                self._services.serve(admitted_pod)
            except OSError as error:
                log.warning("admitted pod cannot be served", extra=_of_pod(admitted_pod, error))

    def prepare(self, admitted_pod: AdmittedPod) -> None:
        """A container of the pod is about to be created: check its files.

        These are the files that all containers get, and the services' files. Raises OSError if the
        container has to wait.
        """
        self._repair()
        if self._services:
            self._services.bound(admitted_pod)

    def repair(self) -> None:
        """Repair the files; logs what cannot be repaired. No new container is made meanwhile."""
        try:
            self._repair()
        except OSError as error:
            log.warning(
                "files that all containers need cannot be repaired", extra={"err": str(error)}
            )

    def bound(self, admitted_pod: AdmittedPod, binding: Binding, seconds: float | None) -> None:  # noqa: ARG002  # the log has it
        """A container is bound, ``seconds`` after Allocate; None if the time is not known."""
        if seconds is not None:
            self._numbers.waited(Wait.BIND, seconds)

    def refused(self, error: BindRefused) -> None:
        """A container cannot be bound, for a reason that was not reported for it before.

        A pod that is not seen yet gets no event.
        """
        self._numbers.refused("bind", error.why)
        if error.pod is not None and error.why is not BindRefusal.NOT_SEEN:
            self._status_manager.record_event(
                error.pod, EventReason.REFUSED, f"{error} ({error.why.explanation})"
            )

    def pod_left(self, admitted_pod: AdmittedPod) -> None:
        """The pod's containers are gone."""
        if self._services is None:
            return
        try:
            self._services.stop_serving(admitted_pod.pod.uid)
        except OSError as error:
            log.warning(
                "files of an ended pod cannot be removed", extra=_of_pod(admitted_pod, error)
            )

    def unsaved(self) -> None:
        """Our checkpoint could not be written."""
        self._numbers.checkpoint_failed()

    def conflicts(
        self, found: tuple[AllocationConflict, ...], remarks: tuple[AllocationConflict, ...]
    ) -> None:
        """Publish all current conflicts; remarks go to the log only."""
        self._numbers.conflicts(len(found), len(remarks))
        for conflict in found:
            if conflict.pod is not None and conflict.pod.name:
                self._status_manager.record_event(
                    conflict.pod, EventReason.CONFLICT, conflict.detail
                )

    def changed(self) -> None:
        """The allocation state or the refusals have changed."""
        self._status_manager.wake()


class ConflictReporter:
    """Reports conflicts and remarks once. Used by the binder's thread alone."""

    def __init__(self, events: BinderEvents) -> None:
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
            there = holding | allocation_state.admitted_pods.keys()
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
                log.warning("allocation conflict found", extra=_fields(conflict))
        for remark in now[1]:
            if remark not in remarks_before:
                log.info("allocation remark found", extra=_fields(remark))
        self._reported = now
        self._events.conflicts(*now)


def _of_pod(admitted_pod: AdmittedPod, error: OSError) -> dict[str, str]:
    pod = admitted_pod.pod
    return {"namespace": pod.namespace, "pod": pod.name, "uid": pod.uid, "err": str(error)}


def _fields(conflict: AllocationConflict) -> dict[str, str]:
    pod = conflict.pod
    return {"pod": f"{pod.namespace}/{pod.name}" if pod else "", "detail": conflict.detail}
