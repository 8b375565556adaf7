"""Makes bindings durable: first our own checkpoint, then the files of each container.

A file that is lost later is found here, too. An answer to Allocate waits for its owner here until
the kubelet has written it down.
"""

import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from deviceplugin.allocate.allocation_state import AllocationState
from deviceplugin.allocate.binder_events import BinderEvents
from deviceplugin.allocate.binder_state import BinderState
from deviceplugin.allocate.binding import BindingDecisions, injection
from deviceplugin.allocate.checkpoint import CheckpointWriter
from deviceplugin.apiserver.pods import Pods
from deviceplugin.failpoints import Failpoint, Step
from deviceplugin.model import AdmittedPod, Binding, ContainerDevices
from deviceplugin.ports import Injector
from deviceplugin.reasons import BindRefusal, BindRefused
from deviceplugin.scheme_adapter import SchemeAdapter
from vgpu.model.objects import Pod
from vgpu.model.plugin_messages import CROSSED
from vgpu.model.units import exact_size, percentage

log = logging.getLogger(__name__)

PATIENCE_SECONDS: Final = 30.0
"""Maximum time that an answer waits for its owner, in seconds; after that the kubelet that asked
has died."""


class AllocateContext(msgspec.Struct, frozen=True):
    """The node and the scheme that containers are bound for.

    Attributes:
        adapter: the scheme's.
        node: the node's name.
        pods: the node's.
        injector: how a container gets its share.
        failpoint: called at every step.
    """

    adapter: SchemeAdapter
    node: str
    pods: Pods
    injector: Injector
    failpoint: Failpoint


class ExpectedAnswers:
    """The answers to Allocate whose owner the kubelet has not shown yet, for any thread.

    ``condition`` guards them; its owner notifies it.
    """

    def __init__(self, condition: threading.Condition) -> None:
        self._condition = condition
        self._asked_at: dict[str, float] = {}  # by name, in monotonic seconds

    def add(self, name: str) -> None:
        """The kubelet is about to get an answer under this name."""
        with self._condition:
            self._asked_at[name] = time.monotonic()

    def names(self) -> frozenset[str]:
        """The names of all expected answers."""
        with self._condition:
            return frozenset(self._asked_at)

    def seconds_since(self, name: str) -> float | None:
        """Seconds since Allocate asked for the answer of this name; None if it is not expected."""
        with self._condition:
            asked_at = self._asked_at.get(name)
        return None if asked_at is None else time.monotonic() - asked_at

    def settled(self, seconds: float, stopping: Callable[[], bool]) -> bool:
        """Wait until all answers have an owner, or ``stopping``; returns whether they have."""
        with self._condition:
            self._condition.wait_for(lambda: not self._asked_at or stopping(), seconds)
            return not self._asked_at

    def forget(self, assigned: Collection[str]) -> None:
        """Forget the answers that have an owner now, and those that waited too long."""
        oldest = time.monotonic() - PATIENCE_SECONDS
        with self._condition:
            self._asked_at = {
                name: asked_at
                for name, asked_at in self._asked_at.items()
                if name not in assigned and asked_at >= oldest
            }


class InjectionWriter:
    """Writes the files of containers, and finds lost ones. Used by the binder's thread alone."""

    def __init__(self, context: AllocateContext, events: BinderEvents) -> None:
        self._context = context
        self._events = events

    def write(
        self, allocation_state: AllocationState, assignment: ContainerDevices, pod: Pod
    ) -> Binding:
        """Write the container's files; returns its binding. Raises BindRefused.

        An answer that was guessed for another container is refused as CROSSED.
        """
        injector, adapter = self._context.injector, self._context.adapter
        admitted_pod = allocation_state.admitted_pods[assignment.pod_uid]
        binding = allocation_state.binding_of(assignment)
        if binding is None:
            detail = BindRefusal.INTERNAL.explanation
            raise BindRefused(BindRefusal.INTERNAL, detail, pod.ref, assignment.container)
        content = injection(adapter, allocation_state, pod, binding)
        response = injector.response(binding.name, content.edits, content.late_env)
        if injector.guesses and response != assignment.answer:
            detail = f"{CROSSED}; this one has {_for_people(binding)}"
            raise BindRefused(BindRefusal.CROSSED, detail, pod.ref, binding.container)
        try:
            self._prepare(admitted_pod, binding.container)
            injector.write(binding.name, content.edits, content.late_env)
        except OSError as error:
            raise BindRefused(
                BindRefusal.NOT_WRITTEN, str(error), pod.ref, binding.container
            ) from error
        self._context.failpoint(Step.FILES_WRITTEN)
        return binding

    def lost(
        self, allocation_state: AllocationState, assignments: Iterable[ContainerDevices]
    ) -> frozenset[str]:
        """The names with missing or damaged files; creates missing folders again."""
        return frozenset(
            assignment.name
            for assignment in assignments
            if not self._is_whole(allocation_state, assignment)
        )

    def _is_whole(self, allocation_state: AllocationState, assignment: ContainerDevices) -> bool:
        admitted_pod = allocation_state.admitted_pods.get(assignment.pod_uid)
        if admitted_pod is None:
            return True  # this container has no files
        folders = self._context.adapter.folders(admitted_pod.pod, assignment.container)
        try:
            if not all(Path(folder.path).is_dir() for folder in folders):
                self._prepare(admitted_pod, assignment.container)
        except OSError:
            return False  # the next try reports the reason
        return self._context.injector.is_whole(assignment.name)

    def _prepare(self, admitted_pod: AdmittedPod, container: str) -> None:
        """Create a container's folders, and prepare what else it needs. Raises OSError."""
        for folder in self._context.adapter.folders(admitted_pod.pod, container):
            _create(folder.path, folder.mode)
        self._events.prepare(admitted_pod)


def _create(path: str, mode: int) -> None:
    """Create a folder with this mode, whatever the umask. Raises OSError, also for a link."""
    Path(path).mkdir(parents=True, exist_ok=True)
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(folder).st_uid != os.geteuid():
            raise OSError(errno.EPERM, "another user owns the folder", path)
        os.fchmod(folder, mode)
    finally:
        os.close(folder)


def _for_people(binding: Binding) -> str:
    return "; ".join(
        f"{'all memory' if share.memory_bytes is None else exact_size(share.memory_bytes)},"
        f" {percentage(share.cores_milli or 0)} of cores of {share.device}"
        for share in binding.shares
    )


class BindingWriter:
    """Writes what one look has decided. Used by the binder's thread alone."""

    def __init__(
        self,
        context: AllocateContext,
        checkpoint: CheckpointWriter,
        injection: InjectionWriter,
        expected: ExpectedAnswers,
        events: BinderEvents,
    ) -> None:
        self._context = context
        self._checkpoint = checkpoint
        self._injection = injection
        self._expected = expected
        self._events = events

    def carry_out(self, state: BinderState, decided: BindingDecisions) -> BinderState:
        """The state after the bindings are written; a binding that cannot be written is refused."""
        refusals = dict(decided.refusals)
        allocation_state, bound = decided.allocation_state, decided.bound
        if allocation_state is not state.allocation_state:
            self._context.failpoint(Step.BINDING_DECIDED)
            try:
                self._checkpoint.save(allocation_state)
                self._context.failpoint(Step.CHECKPOINT_WRITTEN)
            except OSError as error:
                detail = f"our checkpoint cannot be written: {error}"
                for assignment, pod in bound:
                    key = assignment.pod_uid, assignment.container
                    refusals[key] = BindRefused(
                        BindRefusal.NOT_WRITTEN, detail, pod.ref, assignment.container
                    )
                allocation_state, bound = state.allocation_state, ()
        ready = set(state.ready)
        for assignment, pod in bound:
            if assignment.name in ready:
                continue  # an earlier process of the plugin has written its files
            try:
                binding = self._injection.write(allocation_state, assignment, pod)
            except BindRefused as error:
                refusals[assignment.pod_uid, assignment.container] = error
            else:
                self._report_bound(
                    allocation_state.admitted_pods[assignment.pod_uid], binding, assignment
                )
                ready.add(assignment.name)
        for key, refused in refusals.items():
            self._report_refused(refused, state.refusals.get(key))
        return replace(
            state, allocation_state=allocation_state, refusals=refusals, ready=frozenset(ready)
        )

    def _report_bound(
        self, admitted_pod: AdmittedPod, binding: Binding, assignment: ContainerDevices
    ) -> None:
        seconds = self._expected.seconds_since(binding.name)
        pod = admitted_pod.pod
        fields = {
            "namespace": pod.namespace,
            "pod": pod.name,
            "uid": pod.uid,
            "container": binding.container,
            "shares": _shares(binding),
            "share": binding.name,
            "ids": len(assignment.ids),
            "seconds": seconds,
        }
        log.info("container bound", extra=fields)
        self._events.bound(admitted_pod, binding, seconds)

    def _report_refused(self, error: BindRefused, before: BindRefused | None) -> None:
        """Report a refusal once; none of an unknown pod, which only the kubelet remembers."""
        same = before is not None and (before.why, before.detail) == (error.why, error.detail)
        if error.pod is not None and not same:
            fields = {"namespace": error.pod.namespace, "pod": error.pod.name, "uid": error.pod.uid}
            why = {"reason": error.why.value, "detail": str(error)}
            log.warning(
                "container not bound", extra={**fields, "container": error.container, **why}
            )
            self._events.refused(error)


def _shares(binding: Binding) -> str:
    """The container's shares, for the log."""
    return "; ".join(
        f"{share.device} {exact_size(share.memory_bytes or 0)},"
        f" {percentage(share.cores_milli or 0)} of cores"
        for share in binding.shares
    )
