"""Removes admitted pods that have left, and their files."""

import logging
import time
from typing import Final

from msgspec.structs import replace

from deviceplugin.allocate.binder_ports import BinderEventHandler, Gone
from deviceplugin.allocate.binder_state import BinderState
from deviceplugin.allocate.checkpoint_writer import CheckpointWriter
from deviceplugin.allocate.context import AllocateContext
from deviceplugin.allocate.expected_answers import ExpectedAnswers
from vgpu.sources.own_checkpoint import booted_at

log = logging.getLogger(__name__)

LEAVING_SECONDS: Final = 10.0
"""Interval between two looks for pods that have left, in seconds."""

MAKING_ROOM_SECONDS: Final = 0.5
"""Interval between two looks for pods that have left while a container waits for room, in
seconds."""


class GarbageCollector:
    """Used by the binder's thread alone."""

    def __init__(
        self,
        context: AllocateContext,
        checkpoint: CheckpointWriter,
        expected: ExpectedAnswers,
        events: BinderEventHandler,
        gone: Gone,
    ) -> None:
        self._context = context
        self._checkpoint = checkpoint
        self._expected = expected
        self._events = events
        self._gone = gone
        self._collected_at = float("-inf")
        self._shown: frozenset[str] = frozenset()

    def collect(self, state: BinderState, *, settled: bool) -> BinderState:
        """The state without pods that have left, and without the shares of init containers that
        have succeeded; unchanged if it is too early to look again.

        Removes written files only if the recovery has ``settled`` who holds what.
        """
        pods = self._context.pods.known()
        self._shown = (self._shown | frozenset(pods or ())) & state.allocation_state.tenants.keys()
        pause = MAKING_ROOM_SECONDS if state.waits_for_room else LEAVING_SECONDS
        if time.monotonic() - self._collected_at < pause:
            return state
        self._collected_at = time.monotonic()
        allocation_state = state.allocation_state
        leaving = [allocation_state.tenants[uid] for uid in self._gone(state, pods, self._shown)]
        for tenant in leaving:
            allocation_state = allocation_state.left(tenant.pod.uid)
        allocation_state = allocation_state.seen((pods or {}).values(), booted_at())
        if not self._checkpoint.keep(allocation_state):
            return state
        for tenant in leaving:
            pod = tenant.pod
            fields = {"namespace": pod.namespace, "pod": pod.name, "uid": pod.uid}
            log.info("a tenant has left", extra=fields)
            self._events.left(tenant)
        if pods is None or not settled:  # other pods may hold shares that are not known
            return replace(state, allocation_state=allocation_state)
        tenants = allocation_state.tenants
        kept = {binding.name for tenant in tenants.values() for binding in tenant.bindings}
        kept |= self._expected.names()
        kept |= {
            assignment.name
            for assignment in state.all_assignments()
            if assignment.pod_uid in tenants
        }
        try:
            self._context.injector.prune(kept)
        except OSError as error:
            log.warning("files of a released share cannot be removed: %s", error)
        return replace(state, allocation_state=allocation_state, ready=state.ready & kept)
