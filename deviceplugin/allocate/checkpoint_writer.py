"""Our own checkpoint, written whenever the admitted pods are others than it says."""

import logging
from collections.abc import Mapping

from deviceplugin.allocate.allocation_state import AllocationState
from deviceplugin.allocate.binder_ports import BinderEventHandler
from deviceplugin.model import AdmittedPod
from deviceplugin.ports import CheckpointStore

log = logging.getLogger(__name__)


class CheckpointWriter:
    """Used by the binder's thread alone."""

    def __init__(self, store: CheckpointStore, events: BinderEventHandler) -> None:
        self._store = store
        self._events = events
        self._saved: Mapping[str, AdmittedPod] | None = None

    def assume(self, tenants: Mapping[str, AdmittedPod] | None) -> None:
        """Take the checkpoint to say this; None is not known, so that it is written next time."""
        self._saved = tenants

    def check(self) -> None:
        """Have it written next time if it is damaged."""
        if not self._store.is_whole():
            self._saved = None

    def keep(self, allocation_state: AllocationState) -> bool:
        """Write it, unless it says this already; whether it does now."""
        if allocation_state.tenants == self._saved:
            return True
        try:
            self.save(allocation_state)
        except OSError as error:
            log.warning("our checkpoint cannot be written: %s", error)
            return False
        return True

    def save(self, allocation_state: AllocationState) -> None:
        """Write it. Raises OSError."""
        try:
            self._store.save(allocation_state.tenants.values())
        except OSError:
            self._events.unsaved()
            raise
        self._saved = allocation_state.tenants
