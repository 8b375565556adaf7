"""The binder's interfaces: the kubelet's entries, the recovery, and a handler of its events."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol

import msgspec

from deviceplugin.allocate.allocation_state import AllocationState
from deviceplugin.allocate.binder_state import BinderState
from deviceplugin.model import AdmittedPod, AllocationConflict, Binding, ContainerDevices
from deviceplugin.reasons import BindRefused
from vgpu.model.objects import Pod


class KubeletDevices(Protocol):
    """The kubelet's checkpoint."""

    def stamp(self) -> object:
        """A value that changes whenever the file does."""
        ...

    def read(self) -> tuple[ContainerDevices, ...]:
        """Its entries of the binding resource. Raises SourceError."""
        ...


class BinderEventHandler(Protocol):
    """Receives the binder's events."""

    def recovered(self, allocation_state: AllocationState) -> None:
        """The recovery has found this allocation state."""
        ...

    def prepare(self, tenant: AdmittedPod) -> None:
        """A container of the pod is about to be created. Raises OSError if it has to wait."""
        ...

    def repair(self) -> None:
        """Check and restore the files that all containers get."""
        ...

    def bound(self, tenant: AdmittedPod, binding: Binding, seconds: float | None) -> None:
        """A container is bound, ``seconds`` after Allocate; None if the time is not known."""
        ...

    def refused(self, error: BindRefused) -> None:
        """A container cannot be bound, for a reason that was not reported for it before."""
        ...

    def left(self, tenant: AdmittedPod) -> None:
        """The pod's containers are gone."""
        ...

    def unsaved(self) -> None:
        """Our checkpoint could not be written."""
        ...

    def conflicts(
        self, found: tuple[AllocationConflict, ...], remarks: tuple[AllocationConflict, ...]
    ) -> None:
        """These are all current conflicts and remarks."""
        ...

    def changed(self) -> None:
        """The allocation state or the refusals have changed."""
        ...


class Recovered(msgspec.Struct, frozen=True):
    """The result of the recovery.

    Attributes:
        allocation_state: of all who hold something on a known device.
        conflicts: disagreements of sources; the allocation state itself shows its own conflicts.
        unsettled: UIDs of pods that may hold something that is not in the allocation state: no
            source shows on which device, or whether the pod lives. While the API server does not
            answer, wait for it and recover again: without it nothing new can be bound either.
        remarks: claims of tenants that no source confirms.
    """

    allocation_state: AllocationState
    conflicts: tuple[AllocationConflict, ...] = ()
    unsettled: frozenset[str] = frozenset()
    remarks: tuple[AllocationConflict, ...] = ()


Recover = Callable[[Iterable[AdmittedPod]], Recovered]
"""Finds out who holds what; the argument is the admitted pods that are known by now."""

Gone = Callable[[BinderState, Mapping[str, Pod] | None, Collection[str]], Iterable[str]]
"""The UIDs of admitted pods that have left, by what the kubelet and the API server show.

The last argument is the UIDs of admitted pods that the API server has shown at any time.
"""
