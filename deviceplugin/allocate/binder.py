"""Makes the bindings: one thread follows the kubelet's checkpoint and changes the state.

Right after Allocate the kubelet writes which container the answer was for. All steps from there to
a container that can be created are repeatable: decide, write our own checkpoint, write the files
that the container is created with. The annotations are written afterwards
(:mod:`deviceplugin.apiserver.status_manager`). After a crash the next look continues, since it
reads nothing but files and the API server. The plugin rewrites a lost file at the latest before its
container is created. The thread also removes admitted pods that have left, and their files.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from deviceplugin.allocate.binder_events import BinderEvents, ConflictReporter
from deviceplugin.allocate.binder_state import (
    BinderState,
    Gone,
    Recover,
    by_ids,
    prestart_check,
)
from deviceplugin.allocate.binding import bind_all
from deviceplugin.allocate.binding_writer import (
    AllocateContext,
    BindingWriter,
    ExpectedAnswers,
    InjectionWriter,
)
from deviceplugin.allocate.checkpoint import CheckpointFile, CheckpointWriter
from deviceplugin.kubelet.container_devices import KubeletTable
from deviceplugin.model import ContainerDevices
from deviceplugin.reasons import BindRefusal, BindRefused
from vgpu.model.allocation import Device
from vgpu.model.objects import Pod
from vgpu.model.reasons import Reason, SourceError
from vgpu.sources.own_checkpoint import booted_at

log = logging.getLogger(__name__)

EXPECTING_SECONDS: Final = 0.002
"""Interval between two reads of the checkpoint's stamp while an answer waits for its owner, in
seconds: the kubelet writes within milliseconds."""

IDLE_SECONDS: Final = 2.0
"""Interval between two looks otherwise, in seconds: the reason of a refusal may be gone."""

CHECKING_SECONDS: Final = 60.0
"""Interval between two checks that all written files are still there, in seconds."""

LEAVING_SECONDS: Final = 10.0
"""Interval between two looks for pods that have left, in seconds."""

MAKING_ROOM_SECONDS: Final = 0.5
"""Interval between two looks for pods that have left while a container waits for room, in
seconds."""

STOP_SECONDS: Final = 30.0
"""Maximum time to wait for the thread at the end, in seconds."""


class Binder:
    """The binder. Any thread may call its public methods."""

    def __init__(
        self,
        context: AllocateContext,
        table: KubeletTable,
        store: CheckpointFile,
        events: BinderEvents,
        gone: Gone,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """``monotonic`` returns seconds that never go back; rare looks are due by it."""
        self._context = context
        self._pods = context.pods
        self._events = events
        self._recover: Recover | None = None
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._condition = threading.Condition()
        # The attributes below change under the condition, the state on the binder's thread alone.
        self._state: BinderState | None = None
        self._expected = ExpectedAnswers(self._condition)
        self._starting: list[frozenset[str]] = []  # IDs of containers that are about to be created
        self._devices: tuple[Device, ...] | None = None
        # Only the binder's thread uses the attributes below.
        self._reader = AssignmentReader(table)
        self._checkpoint = CheckpointWriter(store, events)
        self._injection = InjectionWriter(context, events)
        self._writer = BindingWriter(
            context, self._checkpoint, self._injection, self._expected, events
        )
        self._collector = GarbageCollector(
            context, self._checkpoint, self._expected, events, gone, monotonic=monotonic
        )
        self._reporter = ConflictReporter(events)
        self._recovering = True  # until it is known who holds what; others ask whether it is so
        self._settled = False
        self._monotonic = monotonic
        self._checked_at = float("-inf")
        self._thread = threading.Thread(target=self._work, name="binder", daemon=True)

    # ------------------------------------------------------------ any thread's side

    def start(self, recover: Recover) -> None:
        """Recover, then follow."""
        self._recover = recover
        self._thread.start()

    def stop(self) -> None:
        """Stop following. A look under way ends first; a recovery does not: it only reads."""
        self._stopping.set()
        self._wake.set()
        with self._condition:
            self._condition.notify_all()  # a waiting call does not keep the process alive
        if not self._recovering:
            self._thread.join(STOP_SECONDS)

    def wake(self) -> None:
        """Look again now: one of the sources has changed."""
        self._wake.set()

    def offer(self, devices: tuple[Device, ...]) -> None:
        """These are the node's devices now, with their health."""
        with self._condition:
            self._devices = devices
        self._wake.set()

    def recovered(self, seconds: float) -> bool:
        """Wait for the recovery; returns whether it is done."""
        with self._condition:
            self._condition.wait_for(lambda: self._state or self._stopping.is_set(), seconds)
            return self._state is not None

    def state(self) -> BinderState:
        """The state of the last look. Raises BindRefused NOT_RECOVERED."""
        if self._state is None:
            raise BindRefused(BindRefusal.NOT_RECOVERED, BindRefusal.NOT_RECOVERED.explanation)
        return self._state

    def expecting(self) -> int:
        """Number of answers that wait for their owner."""
        return len(self._expected.names())

    def expect(self, name: str) -> None:
        """The kubelet is about to get an answer under this name."""
        self._expected.add(name)
        self._wake.set()

    def settled(self, seconds: float) -> bool:
        """Wait until all expected answers have an owner; returns whether they have."""
        return self._expected.settled(seconds, self._stopping.is_set)

    def started(self, ids: frozenset[str], seconds: float) -> None:
        """Wait until the container with these IDs may start. Raises BindRefused."""
        with self._condition:
            self._starting.append(ids)  # first: the look that is trusted has checked them
            asked_at = time.monotonic()
            until = asked_at + seconds
            self._wake.set()
            try:
                while (refused := prestart_check(self._state, ids, asked_at)) is not None:
                    rest = until - time.monotonic()
                    if refused.final or rest <= 0 or self._stopping.is_set():
                        raise refused
                    self._condition.wait(rest)  # until the next look is published
            finally:
                self._starting.remove(ids)

    # ------------------------------------------------------------ the thread's side

    def _work(self) -> None:
        while not self._stopping.is_set():
            try:
                if not self._settled and (self._state is None or self._pods.known() is not None):
                    self._begin()
                if not self._stopping.is_set():
                    self._look(self.state())
            except Exception:
                log.exception("unexpected error while binding containers")
                self._stopping.wait(IDLE_SECONDS)
            self._wait_until_due()

    def _begin(self) -> None:
        """Recover the allocation state; recover again once the API server answers."""
        if self._recover is None:
            return
        heard = self._pods.known() is not None
        known = self._state.allocation_state.admitted_pods.values() if self._state else ()
        # This is set before the check for the end, and stop() does both in the other order. So
        # either stop() waits for all that follows, or nothing follows.
        self._recovering = True
        try:
            recovered = None if self._stopping.is_set() else self._recover(known)
        finally:
            self._recovering = False
        if recovered is None or self._stopping.is_set():
            return  # no call waits for the recovery any more
        settled = heard or not recovered.unsettled
        allocation_state = recovered.allocation_state
        # An uncertain result does not overwrite the checkpoint.
        self._checkpoint.assume(None if settled else allocation_state.admitted_pods)
        self._checkpoint.keep(allocation_state)
        self._events.recovered(allocation_state)
        self._reporter.begin(recovered.conflicts, recovered.remarks)
        self._reporter.report(allocation_state, self._pods.known())
        ready = self._context.injector.written()
        self._publish(self._with_devices(BinderState(allocation_state, ready=ready)))
        self._reader.forget()
        self._settled = settled  # last: after a failure above the recovery is tried again
        if self._settled:
            self._recover = None  # frees the observation that it holds

    def _wait_until_due(self) -> None:
        """Wait until the next look is due."""
        short = self._state is not None and self._state.waits_for_room
        until = time.monotonic() + (MAKING_ROOM_SECONDS if short else IDLE_SECONDS)
        while time.monotonic() < until:
            if self._wake.wait(EXPECTING_SECONDS if self.expecting() else IDLE_SECONDS):
                self._wake.clear()
                return
            if self._reader.has_changed():
                return

    def _look(self, before: BinderState) -> None:
        """One look at the devices, the pods that have left, and the assignments."""
        state = self._reader.read(self._with_devices(before))
        state = self._collector.collect(state, settled=self._settled)
        state = self._checked(state)
        recent = self._expected.names()
        context = self._context
        decided = bind_all(
            context.adapter, context.node, state, self._find, recent=recent, now=time.time()
        )
        state = self._writer.carry_out(state, decided)
        with self._condition:  # a call that waits for all owners has to see these owners
            self._expected.forget({assignment.name for assignment in state.all_assignments()})
            self._publish(state)
        self._reporter.report(state.allocation_state, self._pods.known())
        if (
            state.allocation_state is not before.allocation_state
            or state.refusals.keys() != before.refusals.keys()
        ):
            self._events.changed()

    def _with_devices(self, state: BinderState) -> BinderState:
        """The state with the devices that were offered last; a recovery may have older ones.

        The offered devices are kept: if this look fails, its change of the state is lost.
        """
        devices = self._devices
        if devices is None or devices == state.allocation_state.devices:
            return state
        return replace(state, allocation_state=state.allocation_state.with_devices(devices)[0])

    def _checked(self, state: BinderState) -> BinderState:
        """The state without the names whose files are lost: those are rewritten.

        Checks all names every CHECKING_SECONDS, and those of containers about to be created each
        time.
        """
        if self._monotonic() - self._checked_at >= CHECKING_SECONDS:
            self._checked_at = self._monotonic()
            if self._settled:
                self._checkpoint.check()  # rewritten with the next look at pods that have left
            checked = state.all_assignments()
        else:
            with self._condition:
                starting = tuple(self._starting)
            checked = tuple(
                assignment for ids in starting for assignment in state.assignments.get(ids, ())
            )
        if checked:
            self._events.repair()
        ready = (assignment for assignment in checked if assignment.name in state.ready)
        lost = self._injection.lost(state.allocation_state, ready)
        if not lost:
            return state
        fields = {"shares": ",".join(sorted(lost))}
        log.warning("files of allocated shares are lost or damaged", extra=fields)
        return replace(state, ready=state.ready - lost)

    def _find(self, assignment: ContainerDevices) -> Pod | None:
        """The assignment's pod; asks the API server only about answers of this moment.

        No new pod is served before the recovery.
        """
        if (
            not self._settled
            and assignment.pod_uid not in self.state().allocation_state.admitted_pods
        ):
            return None
        pod = self._pods.find(assignment.pod_uid)
        expected = assignment.name in self._expected.names()
        if pod is None and expected:
            pod = (self._pods.ask() or {}).get(assignment.pod_uid)
        return pod

    def _publish(self, state: BinderState) -> None:
        with self._condition:
            self._state = state
            self._condition.notify_all()


class AssignmentReader:
    """Reads the kubelet's assignments again when its checkpoint has changed.

    Used by the binder's thread alone.
    """

    def __init__(self, table: KubeletTable) -> None:
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


class GarbageCollector:
    """Removes admitted pods that have left, and their files. Used by the binder's thread alone."""

    def __init__(
        self,
        context: AllocateContext,
        checkpoint: CheckpointWriter,
        expected: ExpectedAnswers,
        events: BinderEvents,
        gone: Gone,
        *,
        monotonic: Callable[[], float],
    ) -> None:
        self._context = context
        self._checkpoint = checkpoint
        self._expected = expected
        self._events = events
        self._gone = gone
        self._monotonic = monotonic
        self._collected_at = float("-inf")
        self._shown: frozenset[str] = frozenset()

    def collect(self, state: BinderState, *, settled: bool) -> BinderState:
        """The state without pods that have left, and without the shares of init containers that
        have succeeded; unchanged if it is too early to look again.

        Removes written files only if the recovery has ``settled`` who holds what.
        """
        pods = self._context.pods.known()
        self._shown = (
            self._shown | frozenset(pods or ())
        ) & state.allocation_state.admitted_pods.keys()
        pause = MAKING_ROOM_SECONDS if state.waits_for_room else LEAVING_SECONDS
        if self._monotonic() - self._collected_at < pause:
            return state
        self._collected_at = self._monotonic()
        allocation_state = state.allocation_state
        leaving = [
            allocation_state.admitted_pods[uid] for uid in self._gone(state, pods, self._shown)
        ]
        for admitted_pod in leaving:
            allocation_state = allocation_state.without(admitted_pod.pod.uid)
        allocation_state = allocation_state.seen((pods or {}).values(), booted_at())
        if not self._checkpoint.keep(allocation_state):
            return state
        for admitted_pod in leaving:
            pod = admitted_pod.pod
            fields = {"namespace": pod.namespace, "pod": pod.name, "uid": pod.uid}
            log.info("admitted pod has left", extra=fields)
            self._events.pod_left(admitted_pod)
        if pods is None or not settled:  # other pods may hold shares that are not known
            return replace(state, allocation_state=allocation_state)
        admitted_pods = allocation_state.admitted_pods
        kept = {
            binding.name
            for admitted_pod in admitted_pods.values()
            for binding in admitted_pod.bindings
        }
        kept |= self._expected.names()
        kept |= {
            assignment.name
            for assignment in state.all_assignments()
            if assignment.pod_uid in admitted_pods
        }
        try:
            self._context.injector.prune(kept)
        except OSError as error:
            log.warning("files of a released share cannot be removed", extra={"err": str(error)})
        return replace(state, allocation_state=allocation_state, ready=state.ready & kept)
