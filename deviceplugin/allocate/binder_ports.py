"""What the binder needs: the kubelet's entries, the recovery, and a handler of its events."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol

import msgspec

from deviceplugin.allocate.allocation_state import AllocationState
from deviceplugin.allocate.binder_state import BinderState
from deviceplugin.model import AdmittedPod, AllocationConflict, Binding, ContainerDevices
from deviceplugin.reasons import BindRefused
from vgpu.kube.objects import Pod


class KubeletDevices(Protocol):
    """The kubelet's checkpoint."""

    def stamp(self) -> object:
        """A value that changes whenever the file does."""
        ...

    def read(self) -> tuple[ContainerDevices, ...]:
        """Its entries of the binding resource. Raises SourceError."""
        ...


class BinderEventHandler(Protocol):
    """Hears of what the binder does."""

    def recovered(self, allocation_state: AllocationState) -> None:
        """This is the allocation state to begin with."""
        ...

    def prepare(self, tenant: AdmittedPod) -> None:
        """A container of the pod is about to be created. Raises OSError if it must not be yet."""
        ...

    def mend(self) -> None:
        """Check, and restore, what all containers are given."""
        ...

    def bound(self, tenant: AdmittedPod, binding: Binding, seconds: float | None) -> None:
        """A container is bound, so many seconds after Allocate; None where that is not known."""
        ...

    def refused(self, error: BindRefused) -> None:
        """A container cannot be bound, for a reason that was not reported of it before."""
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
        """These are all conflicts that there are now, and what is only claimed."""
        ...

    def changed(self) -> None:
        """The allocation state, or who is refused, has changed."""
        ...


class Recovered(msgspec.Struct, frozen=True):
    """What the recovery has found.

    Attributes:
        allocation_state: of all who hold something on a known device.
        conflicts: what sources report differently; what the allocation state cannot bear is seen on
            it.
        unsettled: UIDs of pods that may hold something that is not in the allocation state: no
            source shows on which device, or whether the pod lives. While the API server is not
            heard, wait for it and recover again: without it nothing new can be bound either.
        remarks: what tenants claim, and no source that could know confirms.
    """

    allocation_state: AllocationState
    conflicts: tuple[AllocationConflict, ...] = ()
    unsettled: frozenset[str] = frozenset()
    remarks: tuple[AllocationConflict, ...] = ()


Recover = Callable[[Iterable[AdmittedPod]], Recovered]
"""Finds out who holds what, given the admitted pods that are known by now."""

Gone = Callable[[BinderState, Mapping[str, Pod] | None, Collection[str]], Iterable[str]]
"""The UIDs of admitted pods that have left, by what the kubelet and the API server show.

The last are those of admitted pods that the API server has shown at any time.
"""
