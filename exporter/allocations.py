"""The sums of the ledger's holdings, for the families and the status page. Pure."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

import msgspec

from vgpu.ledger import ConflictKind, Holding, Ledger
from vgpu.ledger.conflicts import OF_GPU_GROUPS, OF_RESOURCE_CLAIMS
from vgpu.ledger.totals import held
from vgpu.model.allocation import Device
from vgpu.model.names import Source

_PROCESS_ONLY = (Source.PROCESS,)


class Allocated(msgspec.Struct, frozen=True):
    """The allocation of one device, used or not.

    ``memory_bytes`` is None where a part of the sum is unknown.
    """

    device: Device
    memory_bytes: int | None
    cores_milli: int
    shares: int


class AllocationTotals(msgspec.Struct, frozen=True):
    """One sample's ledger, and its sums.

    ``devices`` has every device; ``holdings`` is the allocation of each container on each device;
    ``conflicts`` is the number of conflicts of each kind, 0 included; of ResourceClaims only where
    there are any.
    """

    ledger: Ledger
    devices: tuple[Allocated, ...] = ()
    holdings: tuple[Holding, ...] = ()
    conflicts: Mapping[ConflictKind, int] = {}


def allocation_totals(
    ledger: Ledger, finished: AbstractSet[tuple[str, str]] = frozenset()
) -> AllocationTotals:
    """Add the ledger up; init containers that are ``finished`` (pod UID, name) hold nothing.

    A device's sum has each pod at its peak: until all its init containers have succeeded, the next
    ones use the shares of the finished ones.
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
        _conflict_counts(ledger),
    )


def is_allocation(holding: Holding) -> bool:
    """Whether the holding is an allocation; else the container only has a process on the device."""
    return holding.sources != _PROCESS_ONLY


def _sum(device: Device, holdings: list[Holding]) -> Allocated:
    total = held(holdings)
    unknown = any(holding.share.memory_bytes is None for holding in holdings)
    memory = None if unknown else total.memory_bytes
    return Allocated(device, memory, total.cores_milli, total.slots)


def _conflict_counts(ledger: Ledger) -> Mapping[ConflictKind, int]:
    counts = dict.fromkeys(ConflictKind, 0)
    if Source.DRA_STATE not in ledger.read:
        counts = {kind: 0 for kind in counts if kind not in OF_RESOURCE_CLAIMS}
    if Source.RESERVATION_POD not in ledger.read:
        counts = {kind: 0 for kind in counts if kind not in OF_GPU_GROUPS}
    for conflict in ledger.conflicts:
        counts[conflict.kind] = counts.get(conflict.kind, 0) + 1
    return counts
