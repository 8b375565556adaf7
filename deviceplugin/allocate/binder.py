"""Makes the bindings: follows the kubelet's checkpoint and keeps the allocation state, on one
thread.

Right after Allocate the kubelet writes for whom the answer was. From there to a container that can
be made it is one way, of which each step can be repeated: decide, write our own checkpoint, write
what the container is made with. Others are told afterwards
(:mod:`deviceplugin.apiserver.status_manager`). What a crash cut off the next look goes on with,
since it asks nothing but files and the API server. What is lost later is rewritten, at the
latest before its container is made.
"""

import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Final, Protocol

from msgspec.structs import replace

from deviceplugin.allocate.allocation_state import AllocationState
from deviceplugin.allocate.binding import Round, bind_all, injection
from deviceplugin.allocate.contradictions import of_desk, of_now
from deviceplugin.allocate.prestart import BinderState, by_ids, prestart_check
from deviceplugin.apiserver.pods import Pods
from deviceplugin.failpoints import Failpoint, Step
from deviceplugin.model import AdmittedPod, AllocationConflict, Binding, ContainerDevices
from deviceplugin.ports import CheckpointStore, Injector
from deviceplugin.reasons import BindRefusal, BindRefused
from deviceplugin.recovery.recover import Recovered
from deviceplugin.scheme_adapter import SchemeAdapter
from vgpu.kube.objects import Pod, holds_devices
from vgpu.model import Device
from vgpu.plugin_messages import CROSSED
from vgpu.reasons import Reason, SourceError
from vgpu.sources.own_checkpoint import booted_at
from vgpu.units import percentage, size

log = logging.getLogger(__name__)

EXPECTING_SECONDS: Final = 0.002
"""Between two glances while an answer waits for its owner: the kubelet writes in milliseconds."""

IDLE_SECONDS: Final = 2.0
"""Between two looks otherwise: what was refused may have healed."""

LEAVING_SECONDS: Final = 10.0
"""Between two looks at who has left."""

CHECKING_SECONDS: Final = 60.0
"""Between two looks at whether all is still there that was written."""

MAKING_ROOM_SECONDS: Final = 0.5
"""Between two looks at who has left, while somebody waits for what others may have left."""

PATIENCE_SECONDS: Final = 30.0
"""So long an answer may wait for its owner; then the kubelet that asked has died."""


class KubeletDevices(Protocol):
    """The kubelet's checkpoint."""

    def stamp(self) -> object:
        """Changes whenever the file does."""
        ...

    def read(self) -> tuple[ContainerDevices, ...]:
        """Its entries of the binding resource. Raises SourceError."""
        ...


class BinderEventHandler(Protocol):
    """Who is told what the binder does."""

    def recovered(self, allocation_state: AllocationState) -> None:
        """This is the allocation state to begin with."""
        ...

    def prepare(self, tenant: AdmittedPod) -> None:
        """A container of it is about to be made. Raises OSError if it must not be yet."""
        ...

    def mend(self) -> None:
        """Containers are about to be made, or it is time to look: what all are given is there."""
        ...

    def bound(self, tenant: AdmittedPod, binding: Binding, seconds: float | None) -> None:
        """A container is bound, so long after Allocate, where that is known."""
        ...

    def refused(self, error: BindRefused) -> None:
        """A container cannot be bound, for a reason that was not told of it before."""
        ...

    def left(self, tenant: AdmittedPod) -> None:
        """A tenant is gone."""
        ...

    def unsaved(self) -> None:
        """Our checkpoint could not be written."""
        ...

    def conflicts(
        self, found: tuple[AllocationConflict, ...], remarks: tuple[AllocationConflict, ...]
    ) -> None:
        """These are all that there are now, and what is only claimed."""
        ...

    def changed(self) -> None:
        """The allocation state, or who is refused, is another."""
        ...


Told = tuple[tuple[AllocationConflict, ...], tuple[AllocationConflict, ...]]
"""Conflicts, and remarks."""

Recover = Callable[[Iterable[AdmittedPod]], Recovered]
"""Finds out who holds what, given the tenants that are known by now."""

Gone = Callable[[BinderState, Mapping[str, Pod] | None, Collection[str]], Iterable[str]]
"""The UIDs of tenants that have left, by what the kubelet and the API server know.

The last are those of tenants that the API server has shown at any time.
"""


class Binder:
    """See the module. Safe to be asked from any thread."""

    def __init__(
        self,
        table: KubeletDevices,
        pods: Pods,
        injector: Injector,
        store: CheckpointStore,
        watcher: BinderEventHandler,
        *,
        adapter: SchemeAdapter,
        node: str,
        gone: Gone,
        at: Failpoint,
    ) -> None:
        self._table = table
        self._pods = pods
        self._injector = injector
        self._store = store
        self._watcher = watcher
        self._adapter = adapter
        self._node = node
        self._recover: Recover | None = None
        self._gone = gone
        self._at = at
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._condition = threading.Condition()
        # Below is changed under the condition, the state by the binder's thread alone.
        self._state: BinderState | None = None
        self._expected: dict[str, float] = {}
        self._starting: list[frozenset[str]] = []  # IDs of containers that are about to be made
        self._devices: tuple[Device, ...] | None = None
        # Below is the binder's thread's own.
        self._recovering = True  # until it is known who holds what; others ask whether it is so
        self._settled = False
        self._stamp: object = None
        self._kept: Mapping[str, AdmittedPod] | None = None  # what our checkpoint says
        self._unread = ""  # why the kubelet's checkpoint could not be read
        self._swept_at = float("-inf")
        self._checked_at = float("-inf")
        self._shown: frozenset[str] = frozenset()
        self._found: Told = (), ()  # what sources said at the start, as far as it is so now
        self._judged: tuple[AllocationState | None, tuple[AllocationConflict, ...]] = None, ()
        self._conflicts: Told | None = None  # as last told
        self._thread = threading.Thread(target=self._work, name="binder", daemon=True)

    # ------------------------------------------------------------ anybody's side

    def start(self, recover: Recover) -> None:
        """Recover, then follow."""
        self._recover = recover
        self._thread.start()

    def stop(self) -> None:
        """Follow no longer; what is under way is finished, but for a recovery: it only reads."""
        self._stopping.set()
        self._wake.set()
        with self._condition:
            self._condition.notify_all()  # nobody who waits for an answer keeps the process
        if not self._recovering:
            self._thread.join(PATIENCE_SECONDS)

    def look(self) -> None:
        """Look again now: something that matters has changed."""
        self._wake.set()

    def offer(self, devices: tuple[Device, ...]) -> None:
        """The node's devices are these now, or have another health."""
        with self._condition:
            self._devices = devices
        self._wake.set()

    def recovered(self, seconds: float) -> bool:
        """Wait until who holds what is known; whether it is."""
        with self._condition:
            self._condition.wait_for(lambda: self._state or self._stopping.is_set(), seconds)
            return self._state is not None

    def state(self) -> BinderState:
        """What was last found. Raises BindRefused NOT_RECOVERED."""
        if self._state is None:
            raise BindRefused(BindRefusal.NOT_RECOVERED, BindRefusal.NOT_RECOVERED.explanation)
        return self._state

    def expecting(self) -> int:
        """How many answers wait for their owner."""
        with self._condition:
            return len(self._expected)

    def expect(self, name: str) -> None:
        """The kubelet is about to have an answer under this name."""
        with self._condition:
            self._expected[name] = time.monotonic()
        self._wake.set()

    def settled(self, seconds: float) -> bool:
        """Wait until all answers that were expected have an owner; whether they have."""
        with self._condition:
            self._condition.wait_for(lambda: not self._expected or self._stopping.is_set(), seconds)
            return not self._expected

    def started(self, ids: frozenset[str], seconds: float) -> None:
        """Wait until the container with these IDs may start. Raises Refused."""
        with self._condition:
            self._starting.append(ids)  # first: the look that is believed has checked them
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
                log.exception("binding failed on a defect")
                self._stopping.wait(IDLE_SECONDS)
            self._doze()

    def _begin(self) -> None:
        """The allocation state to begin with; again, if the API server had more to tell and was not
        heard.
        """
        if self._recover is None:
            return
        heard = self._pods.known() is not None
        known = self._state.allocation_state.tenants.values() if self._state else ()
        # Said before it is asked whether to stop, while stop() does it the other way round: so
        # either that waits for all that follows, or nothing does.
        self._recovering = True
        try:
            found = None if self._stopping.is_set() else self._recover(known)
        finally:
            self._recovering = False
        if found is None or self._stopping.is_set():
            return  # nobody waits for it any more
        settled = heard or not found.unsettled
        # What is not known for certain is not written over what was.
        self._kept = None if settled else found.allocation_state.tenants
        self._keep(found.allocation_state)
        self._watcher.recovered(found.allocation_state)
        self._found = found.conflicts, found.remarks
        self._tell_conflicts(found.allocation_state)
        self._publish(
            self._with_devices(BinderState(found.allocation_state, ready=self._injector.written()))
        )
        self._stamp = None
        self._settled = settled  # last: what fails before is tried again
        if self._settled:
            self._recover = None  # and what it has seen

    def _doze(self) -> None:
        """Until there is something to look at."""
        short = self._state is not None and self._state.waits_for_room
        until = time.monotonic() + (MAKING_ROOM_SECONDS if short else IDLE_SECONDS)
        while time.monotonic() < until:
            if self._wake.wait(EXPECTING_SECONDS if self.expecting() else IDLE_SECONDS):
                self._wake.clear()
                return
            if self._table.stamp() != self._stamp:
                return

    def _look(self, before: BinderState) -> None:
        """One look at devices, at who has left, and at what is assigned."""
        state = self._swept(self._with_assignments(self._with_devices(before)))
        state = self._checked(state)
        with self._condition:
            recent = frozenset(self._expected)
        found = bind_all(
            self._adapter, self._node, state, self._find, recent=recent, now=time.time()
        )
        state = self._carried_out(state, found)
        with self._condition:  # who waits for all to have owners is to see who they are
            self._forget({one.name for one in state.all_assignments()})
            self._publish(state)
        self._tell_conflicts(state.allocation_state)
        if (
            state.allocation_state is not before.allocation_state
            or state.refusals.keys() != before.refusals.keys()
        ):
            self._watcher.changed()

    def _with_devices(self, state: BinderState) -> BinderState:
        """Over those that were offered last, which a recovery may have been too early for.

        They are kept: what is found here is lost if the look that it belongs to fails.
        """
        devices = self._devices
        if devices is None or devices == state.allocation_state.devices:
            return state
        return replace(state, allocation_state=state.allocation_state.with_devices(devices)[0])

    def _with_assignments(self, state: BinderState) -> BinderState:
        now = time.monotonic()
        stamp = self._table.stamp()
        if stamp is not None and stamp == self._stamp and not self._unread:
            return replace(state, read_at=now)
        self._stamp = stamp
        try:
            found = self._table.read()
        except SourceError as error:  # the kubelet will write it anew, and whole
            if str(error) != self._unread:
                # A kubelet that has allocated nothing yet has no file.
                usual = error.reason is Reason.ABSENT and state.assigned_pods is None
                level = logging.INFO if usual else logging.WARNING
                log.log(level, "the kubelet's checkpoint cannot be read: %s", error)
            self._unread = str(error)
            return state
        self._unread = ""
        return replace(state, assignments=by_ids(found), read_at=now)

    def _swept(self, state: BinderState) -> BinderState:
        """Without tenants that have left and what they were given, and without what init
        containers held that have succeeded.
        """
        known = self._pods.known()
        self._shown = (self._shown | frozenset(known or ())) & state.allocation_state.tenants.keys()
        pause = MAKING_ROOM_SECONDS if state.waits_for_room else LEAVING_SECONDS
        if time.monotonic() - self._swept_at < pause:
            return state
        self._swept_at = time.monotonic()
        allocation_state = state.allocation_state
        leaving = [allocation_state.tenants[uid] for uid in self._gone(state, known, self._shown)]
        for tenant in leaving:
            allocation_state = allocation_state.left(tenant.pod.uid)
        allocation_state = allocation_state.seen((known or {}).values(), booted_at())
        if not self._keep(allocation_state):
            return state
        for tenant in leaving:
            log.info("a tenant has left", extra=_who(tenant))
            self._watcher.left(tenant)
        if known is None or not self._settled:  # who else has been given something is not known
            return replace(state, allocation_state=allocation_state)
        kept = {one.name for tenant in allocation_state.tenants.values() for one in tenant.bindings}
        with self._condition:
            kept |= self._expected.keys()
        kept |= {
            one.name for one in state.all_assignments() if one.pod_uid in allocation_state.tenants
        }
        try:
            self._injector.prune(kept)
        except OSError as error:
            log.warning("files of a released share cannot be removed: %s", error)
        return replace(state, allocation_state=allocation_state, ready=state.ready & kept)

    def _keep(self, allocation_state: AllocationState) -> bool:
        """Write our checkpoint, unless it says this already; whether it does now."""
        if allocation_state.tenants == self._kept:
            return True
        try:
            self._save(allocation_state)
        except OSError as error:
            self._watcher.unsaved()
            log.warning("our checkpoint cannot be written: %s", error)
            return False
        return True

    def _save(self, allocation_state: AllocationState) -> None:
        """Raises OSError."""
        self._store.save(allocation_state.tenants.values())
        self._kept = allocation_state.tenants

    def _checked(self, state: BinderState) -> BinderState:
        """Without the names under which something is lost: it is rewritten.

        Now and then all are looked at, and those of containers that are about to be made each time.
        """
        if time.monotonic() - self._checked_at >= CHECKING_SECONDS:
            self._checked_at = time.monotonic()
            if self._settled and not self._store.is_whole():
                self._kept = None  # it is rewritten with the next look at who has left
            asked = state.all_assignments()
        else:
            with self._condition:
                starting = tuple(self._starting)
            asked = tuple(one for ids in starting for one in state.assignments.get(ids, ()))
        if asked:
            self._watcher.mend()
        ready = (one for one in asked if one.name in state.ready)
        lost = {one.name for one in ready if not self._is_whole(state.allocation_state, one)}
        if not lost:
            return state
        told = {"shares": ",".join(sorted(lost))}
        log.warning("files of allocated shares are lost or damaged", extra=told)
        return replace(state, ready=state.ready - lost)

    def _is_whole(self, allocation_state: AllocationState, assignment: ContainerDevices) -> bool:
        """Whether all is there that a container is made with; folders are made again."""
        tenant = allocation_state.tenants.get(assignment.pod_uid)
        if tenant is None:
            return True  # nothing is written for it
        folders = self._adapter.folders(tenant.pod, assignment.container)
        try:
            if not all(Path(folder.path).is_dir() for folder in folders):
                self._prepare(tenant, assignment.container)
        except OSError:
            return False  # the next try says why
        return self._injector.is_whole(assignment.name)

    def _carried_out(self, state: BinderState, found: Round) -> BinderState:
        """What is decided made durable, then what the containers are made with."""
        refusals = dict(found.refusals)
        allocation_state, bound = found.allocation_state, found.bound
        if allocation_state is not state.allocation_state:
            self._at(Step.BINDING_DECIDED)
            try:
                self._save(allocation_state)
                self._at(Step.CHECKPOINT_WRITTEN)
            except OSError as error:
                self._watcher.unsaved()
                detail = f"our checkpoint cannot be written: {error}"
                for one, pod in bound:
                    refused = BindRefused(BindRefusal.NOT_WRITTEN, detail, pod.ref, one.container)
                    refusals[one.pod_uid, one.container] = refused
                allocation_state, bound = state.allocation_state, ()
        ready = set(state.ready)
        for one, pod in bound:
            if one.name in ready:
                continue  # it was given its things by the plugin before us
            try:
                self._hand_out(allocation_state, one, pod)
                ready.add(one.name)
            except BindRefused as error:
                refusals[one.pod_uid, one.container] = error
        for key, refused in refusals.items():
            self._tell(refused, state.refusals.get(key))
        return replace(
            state, allocation_state=allocation_state, refusals=refusals, ready=frozenset(ready)
        )

    def _hand_out(
        self, allocation_state: AllocationState, assignment: ContainerDevices, pod: Pod
    ) -> None:
        """Write what the container is made with. Raises Refused."""
        tenant = allocation_state.tenants[assignment.pod_uid]
        binding = allocation_state.binding_of(assignment)
        if binding is None:
            raise BindRefused(
                BindRefusal.INTERNAL,
                BindRefusal.INTERNAL.explanation,
                pod.ref,
                assignment.container,
            )
        given = injection(self._adapter, allocation_state, pod, binding)
        early = self._injector.response(binding.name, given.edits, given.late_env)
        if self._injector.guesses and early != assignment.answer:
            detail = f"{CROSSED}; this one has {_in_words(binding)}"
            raise BindRefused(BindRefusal.CROSSED, detail, pod.ref, binding.container)
        try:
            self._prepare(tenant, binding.container)
            self._injector.write(binding.name, given.edits, given.late_env)
        except OSError as error:
            raise BindRefused(
                BindRefusal.NOT_WRITTEN, str(error), pod.ref, binding.container
            ) from error
        self._at(Step.FILES_WRITTEN)
        with self._condition:
            asked_at = self._expected.get(binding.name)
        seconds = None if asked_at is None else time.monotonic() - asked_at
        told = {"container": binding.container, "shares": _shares(binding), "share": binding.name}
        counted = {"ids": len(assignment.ids), "seconds": seconds}
        log.info("bound", extra={**_who(tenant), **told, **counted})
        self._watcher.bound(tenant, binding, seconds)

    def _prepare(self, tenant: AdmittedPod, container: str) -> None:
        """Make a container's folders, and have ready what else it needs. Raises OSError."""
        for folder in self._adapter.folders(tenant.pod, container):
            _make(folder.path, folder.mode)
        self._watcher.prepare(tenant)

    def _tell_conflicts(self, allocation_state: AllocationState) -> None:
        """Those of now, if they are others than before.

        While the API server is not heard nobody is taken for gone.
        """
        known = self._pods.known()
        if known is not None and any(self._found):
            holding = {uid for uid, pod in known.items() if holds_devices(pod)}
            there = holding | allocation_state.tenants.keys()
            self._found = of_now(self._found[0], there), of_now(self._found[1], there)
        if allocation_state is not self._judged[0]:
            self._judged = allocation_state, of_desk(allocation_state)
        told = (*self._judged[1], *self._found[0]), self._found[1]
        if told == self._conflicts:
            return
        found, claimed = self._conflicts or ((), ())
        for one in told[0]:
            if one not in found:
                log.warning("conflict", extra=_words(one))
        for one in told[1]:
            if one not in claimed:
                log.info("remark", extra=_words(one))
        self._conflicts = told
        self._watcher.conflicts(*told)

    def _tell(self, error: BindRefused, before: BindRefused | None) -> None:
        """Say a refusal once. What nobody knows is the kubelet's memory of pods that are gone."""
        same = before is not None and (before.why, before.detail) == (error.why, error.detail)
        if error.pod is not None and not same:
            log.warning("not bound", extra={"reason": error.why.value, "detail": str(error)})
            self._watcher.refused(error)

    def _find(self, assignment: ContainerDevices) -> Pod | None:
        """The pod; the API server is asked only about answers that were given just now.

        Before it is known who was there, nobody new is served.
        """
        if not self._settled and assignment.pod_uid not in self.state().allocation_state.tenants:
            return None
        pod = self._pods.find(assignment.pod_uid)
        with self._condition:
            expected = assignment.name in self._expected
        if pod is None and expected:
            pod = (self._pods.ask() or {}).get(assignment.pod_uid)
        return pod

    def _forget(self, assigned: set[str]) -> None:
        """Answers that have found their owner, or never will."""
        oldest = time.monotonic() - PATIENCE_SECONDS
        with self._condition:
            expected = self._expected.items()
            kept = {name: at for name, at in expected if name not in assigned and at >= oldest}
            self._expected = kept

    def _publish(self, state: BinderState) -> None:
        with self._condition:
            self._state = state
            self._condition.notify_all()


def _make(path: str, mode: int) -> None:
    """A folder of ours; its mode is set whatever the umask. Raises OSError, also for a link."""
    Path(path).mkdir(parents=True, exist_ok=True)
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(folder).st_uid != os.geteuid():
            raise OSError(errno.EPERM, "another user owns the folder", path)
        os.fchmod(folder, mode)
    finally:
        os.close(folder)


def _words(conflict: AllocationConflict) -> dict[str, str]:
    pod = conflict.pod
    return {"pod": f"{pod.namespace}/{pod.name}" if pod else "", "detail": conflict.detail}


def _who(tenant: AdmittedPod) -> dict[str, object]:
    return {"namespace": tenant.pod.namespace, "pod": tenant.pod.name, "uid": tenant.pod.uid}


def _in_words(binding: Binding) -> str:
    """Of a container, for people."""
    return "; ".join(
        f"{'all memory' if share.memory_bytes is None else size(share.memory_bytes)},"
        f" {percentage(share.cores_milli or 0)} of cores of {share.device}"
        for share in binding.shares
    )


def _shares(binding: Binding) -> str:
    """Of a container, exact, for the log."""
    return "; ".join(
        f"{share.device} {share.memory_bytes} bytes, {share.cores_milli} thousandths of cores"
        for share in binding.shares
    )
