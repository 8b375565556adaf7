"""What the ledger's holdings come to, as the families and the status page show it. Pure."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

import msgspec

from vgpu.ledger import ConflictKind, Holding, Ledger
from vgpu.ledger.totals import held
from vgpu.model import Device, Source

_NOTHING_GIVEN = (Source.PROCESS,)


class Allocated(msgspec.Struct, frozen=True):
    """What is allocated of one device, whether it is used or not.

    ``memory_bytes`` is None where a part of the sum is unknown.
    """

    device: Device
    memory_bytes: int | None
    cores_milli: int
    shares: int


class AllocationTotals(msgspec.Struct, frozen=True):
    """One sample's ledger, and what it comes to.

    ``devices`` has every device; ``holdings`` is the allocation of each container on each device.
    """

    ledger: Ledger
    devices: tuple[Allocated, ...] = ()
    holdings: tuple[Holding, ...] = ()


def allocation_totals(
    ledger: Ledger, finished: AbstractSet[tuple[str, str]] = frozenset()
) -> AllocationTotals:
    """Add the ledger up; init containers that are ``finished`` (pod UID, name) have nothing left.

    A device's sum has each pod at its peak: until all its init containers have succeeded, what the
    finished ones had is for the next ones to use.
    """
    return AllocationTotals(
        ledger,
        tuple(
            _sum(entry.device, [holding for holding in entry.holdings if is_allocation(holding)])
            for entry in ledger.devices
        ),
        tuple(
            holding
            for holding in ledger.holdings
            if is_allocation(holding)
            and (holding.alive or (holding.pod.uid, holding.container) not in finished)
        ),
    )


def is_allocation(holding: Holding) -> bool:
    """Whether it has an allocation; else it only has a process on the device."""
    return holding.sources != _NOTHING_GIVEN


def _sum(device: Device, holdings: list[Holding]) -> Allocated:
    total = held(holdings)
    unknown = any(holding.share.memory_bytes is None for holding in holdings)
    memory = None if unknown else total.memory_bytes
    return Allocated(device, memory, total.cores_milli, total.slots)


def conflict_counts(ledger: Ledger) -> Mapping[ConflictKind, int]:
    """How many there are of each kind, none included."""
    counts = dict.fromkeys(ConflictKind, 0)
    for conflict in ledger.conflicts:
        counts[conflict.kind] += 1
    return counts
