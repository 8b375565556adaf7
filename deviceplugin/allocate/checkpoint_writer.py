"""Writes our own checkpoint whenever the admitted pods differ from it."""

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
        """The checkpoint has these tenants; None is unknown, so that it is written next time."""
        self._saved = tenants

    def check(self) -> None:
        """If the checkpoint is damaged, it is written next time."""
        if not self._store.is_whole():
            self._saved = None

    def keep(self, allocation_state: AllocationState) -> bool:
        """Write the checkpoint if it differs; returns whether it is up to date now."""
        if allocation_state.tenants == self._saved:
            return True
        try:
            self.save(allocation_state)
        except OSError as error:
            log.warning("our checkpoint cannot be written: %s", error)
            return False
        return True

    def save(self, allocation_state: AllocationState) -> None:
        """Write the checkpoint. Raises OSError."""
        try:
            self._store.save(allocation_state.tenants.values())
        except OSError:
            self._events.unsaved()
            raise
        self._saved = allocation_state.tenants
