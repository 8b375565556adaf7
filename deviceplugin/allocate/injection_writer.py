"""Writes the files that a container is created with, and finds lost ones."""

import errno
import os
from collections.abc import Iterable
from pathlib import Path

from deviceplugin.allocate.allocation_state import AllocationState
from deviceplugin.allocate.binder_ports import BinderEventHandler
from deviceplugin.allocate.binding import injection
from deviceplugin.allocate.context import AllocateContext
from deviceplugin.failpoints import Step
from deviceplugin.model import AdmittedPod, Binding, ContainerDevices
from deviceplugin.reasons import BindRefusal, BindRefused
from vgpu.model.objects import Pod
from vgpu.model.plugin_messages import CROSSED
from vgpu.model.units import exact_size, percentage


class InjectionWriter:
    """Used by the binder's thread alone."""

    def __init__(self, context: AllocateContext, events: BinderEventHandler) -> None:
        self._context = context
        self._events = events

    def write(
        self, allocation_state: AllocationState, assignment: ContainerDevices, pod: Pod
    ) -> Binding:
        """Write the container's files; returns its binding. Raises BindRefused.

        An answer that was guessed for another container is refused as CROSSED.
        """
        injector, adapter = self._context.injector, self._context.adapter
        tenant = allocation_state.tenants[assignment.pod_uid]
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
            self._prepare(tenant, binding.container)
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
        tenant = allocation_state.tenants.get(assignment.pod_uid)
        if tenant is None:
            return True  # this container has no files
        folders = self._context.adapter.folders(tenant.pod, assignment.container)
        try:
            if not all(Path(folder.path).is_dir() for folder in folders):
                self._prepare(tenant, assignment.container)
        except OSError:
            return False  # the next try reports the reason
        return self._context.injector.is_whole(assignment.name)

    def _prepare(self, tenant: AdmittedPod, container: str) -> None:
        """Create a container's folders, and prepare what else it needs. Raises OSError."""
        for folder in self._context.adapter.folders(tenant.pod, container):
            _create(folder.path, folder.mode)
        self._events.prepare(tenant)


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
