"""The kubelet's assignments, read again when its checkpoint has changed."""

import logging
import time

from msgspec.structs import replace

from deviceplugin.allocate.binder_ports import KubeletDevices
from deviceplugin.allocate.binder_state import BinderState, by_ids
from vgpu.model.reasons import Reason, SourceError

log = logging.getLogger(__name__)


class AssignmentReader:
    """Used by the binder's thread alone."""

    def __init__(self, table: KubeletDevices) -> None:
        self._table = table
        self._stamp: object = None
        self._unread = ""  # why the checkpoint could not be read

    def has_changed(self) -> bool:
        """Whether the checkpoint has changed since it was read last."""
        return self._table.stamp() != self._stamp

    def forget(self) -> None:
        """Read the checkpoint next time even if it has not changed."""
        self._stamp = None

    def read(self, state: BinderState) -> BinderState:
        """The state with the kubelet's newest assignments; unchanged if they are unreadable.

        Logs an error once.
        """
        now = time.monotonic()
        stamp = self._table.stamp()
        if stamp is not None and stamp == self._stamp and not self._unread:
            return replace(state, read_at=now)
        self._stamp = stamp
        try:
            assignments = self._table.read()
        except SourceError as error:  # the kubelet will write the whole file again
            if str(error) != self._unread:
                # A kubelet that has allocated nothing yet has no file.
                usual = error.reason is Reason.ABSENT and state.assigned_pods is None
                level = logging.INFO if usual else logging.WARNING
                log.log(level, "the kubelet's checkpoint cannot be read: %s", error)
            self._unread = str(error)
            return state
        self._unread = ""
        return replace(state, assignments=by_ids(assignments), read_at=now)
