"""The receivers of the binder's events: counters, events on pods, the scheme's services."""

import logging
from collections.abc import Callable, Collection

from deviceplugin.allocate.allocation_state import AllocationState
from deviceplugin.apiserver.events import EventReason
from deviceplugin.apiserver.status_manager import StatusManager
from deviceplugin.metrics import PluginMetrics, Wait
from deviceplugin.model import AdmittedPod, AllocationConflict, Binding
from deviceplugin.ports import SchemeServices
from deviceplugin.reasons import BindRefusal, BindRefused

log = logging.getLogger(__name__)

Living = Callable[[], Collection[str] | None]
"""UIDs of all pods that may have containers here, tenants or not; None if they are not known."""

Repair = Callable[[], object]
"""Rewrites lost or damaged files that all containers get. Raises OSError."""


class BinderEvents:
    """A :class:`deviceplugin.allocate.binder.BinderEventHandler`."""

    def __init__(
        self,
        numbers: PluginMetrics,
        status_manager: StatusManager,
        keeper: SchemeServices | None,
        living: Living,
        *,
        repair: Repair = lambda: None,
    ) -> None:
        self._numbers = numbers
        self._status_manager = status_manager
        self._services = keeper
        self._living = living
        self._repair = repair

    def recovered(self, allocation_state: AllocationState) -> None:
        """Start the scheme's services for the recovered tenants."""
        if self._services is None:
            return
        living = self._living()
        try:
            if living is not None:
                self._services.prune({*allocation_state.tenants, *living})
        except OSError as error:
            log.warning("what pods have left behind cannot be removed: %s", error)
        for tenant in allocation_state.tenants.values():
            try:
                self._services.seat(tenant)
            except OSError as error:
                log.warning("%s: %s", tenant.pod.name or tenant.pod.uid, error)

    def prepare(self, tenant: AdmittedPod) -> None:
        """Check the files that all containers get and the services' files. Raises OSError."""
        self._repair()
        if self._services:
            self._services.bound(tenant)

    def repair(self) -> None:
        """Repair the files; logs what cannot be repaired. No new container is made meanwhile."""
        try:
            self._repair()
        except OSError as error:
            log.warning("files that all containers need cannot be repaired: %s", error)

    def bound(self, tenant: AdmittedPod, binding: Binding, seconds: float | None) -> None:  # noqa: ARG002  # the log has it
        """A container is bound."""
        if seconds is not None:
            self._numbers.waited(Wait.BIND, seconds)

    def refused(self, error: BindRefused) -> None:
        """A container cannot be bound. A pod that is not seen yet is not reported."""
        self._numbers.refused("bind", error.why)
        if error.pod is not None and error.why is not BindRefusal.NOT_SEEN:
            self._status_manager.record_event(
                error.pod, EventReason.REFUSED, f"{error} ({error.why.explanation})"
            )

    def left(self, tenant: AdmittedPod) -> None:
        """A tenant is gone."""
        if self._services is None:
            return
        try:
            self._services.left(tenant.pod.uid)
        except OSError as error:
            log.warning("what %s has left behind cannot be removed: %s", tenant.pod.name, error)

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
