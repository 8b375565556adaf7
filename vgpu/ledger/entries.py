"""What comes out: who holds what on which device, and how we know."""

from collections.abc import Iterator

import msgspec

from vgpu.ledger.bounds import UNREGISTERED, Bounds
from vgpu.ledger.conflicts import Conflict
from vgpu.ledger.statements import Malformed, Statement, Wanted
from vgpu.model import ContainerKind, Device, Phase, PodRef, Scheme, Share, Source


class Holding(msgspec.Struct, frozen=True, gc=False):
    """One container on one device.

    Attributes:
        pod: by the UID that the node knows it by.
        container: "" where only the pod is known.
        share: the device by its name in the ledger, and all that the container has of it; of a
            holding that is on no known device, the name that was told, "" if none was.
        scheme: in whose language.
        phase: assigned as soon as one source reports it.
        source: whose word decided that it is here.
        sources: all that do not speak against it, the most trusted first.
        since: when the phase began, unix seconds; None if no source reports.
        slots: how many shares of the device these are.
        alive: its container runs at this moment, and the kernel reports it.
        kind: when the container runs.
        order: of an init container or sidecar: its place among these, from 0, as they start.
        sized_by: whose word the share's memory is; None if no source reports it of this very
            device.
    """

    pod: PodRef
    container: str
    share: Share
    scheme: Scheme
    phase: Phase
    source: Source
    sources: tuple[Source, ...]
    since: float | None = None
    slots: int = 1
    alive: bool = False
    kind: ContainerKind = ContainerKind.APP
    order: int = 0
    sized_by: Source | None = None


class HoldingSum(msgspec.Struct, frozen=True, gc=False):
    """The sum of a device's holdings; what no source reports counts as nothing."""

    memory_bytes: int = 0
    cores_milli: int = 0
    slots: int = 0


class DeviceEntry(msgspec.Struct, frozen=True, gc=False):
    """One device.

    Attributes:
        device: what there is to share.
        holdings: who has of it, by pod and container.
        held: their sum, of each pod at its peak (:func:`vgpu.effective.effective`).
        disputed: statements that place a container here which better ones place elsewhere.
        lost: it was there and no longer answers.
    """

    device: Device
    holdings: tuple[Holding, ...] = ()
    held: HoldingSum = HoldingSum()
    disputed: tuple[Statement, ...] = ()
    lost: bool = False

    @property
    def free_memory_bytes(self) -> int | None:
        """What is left, never below 0; None if the device's memory is unknown."""
        if self.device.memory_bytes is None:
            return None
        return max(0, self.device.memory_bytes - self.held.memory_bytes)

    @property
    def free_cores_milli(self) -> int:
        """What is left, never below 0."""
        return max(0, self.device.cores_milli - self.held.cores_milli)


class Ledger(msgspec.Struct, frozen=True, gc=False):
    """All that is known of one node, however the sources disagree.

    Attributes:
        node: its name.
        devices: by index, then by name.
        unplaced: holdings whose device is unknown or not on the node.
        waiting: what containers ask for that hold nothing.
        unproven: statements about pods of which nothing shows whether they are alive.
        leftovers: statements about pods that are no more, those that are normal included, and about
            init containers that have succeeded.
        conflicts: by kind, device and pod.
        malformed: what could not be read; each is a conflict too.
        read: the sources that this was made from.
        bounds: how much memory of a device a container can have.
    """

    node: str
    devices: tuple[DeviceEntry, ...]
    unplaced: tuple[Holding, ...] = ()
    waiting: tuple[Wanted, ...] = ()
    unproven: tuple[Statement, ...] = ()
    leftovers: tuple[Statement, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    malformed: tuple[Malformed, ...] = ()
    read: frozenset[Source] = frozenset()
    bounds: Bounds = UNREGISTERED

    @property
    def holdings(self) -> Iterator[Holding]:
        """All of them, device by device, then those on no device."""
        for entry in self.devices:
            yield from entry.holdings
        yield from self.unplaced

    def of_pod(self, uid: str) -> tuple[Holding, ...]:
        """What a pod holds."""
        return tuple(holding for holding in self.holdings if holding.pod.uid == uid)
