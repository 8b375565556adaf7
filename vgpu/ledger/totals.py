"""The sum of the holdings of one device, and whether the device has that much."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter

import msgspec

from vgpu.ledger.device_ids import most_at_once
from vgpu.ledger.entries import Holding, HoldingSum, ResourceClaimShare
from vgpu.model.allocation import Device, Share, effective
from vgpu.model.names import ContainerKind
from vgpu.model.resource_claims import ResourceClaimDevice
from vgpu.model.units import exact_size, percentage

Amount = Callable[[Holding], int]

AMOUNTS: tuple[Amount, ...] = (
    lambda holding: holding.share.memory_bytes or 0,
    lambda holding: holding.share.cores_milli or 0,
    lambda holding: holding.slots,
)
"""The amounts, in the order of :class:`~vgpu.ledger.entries.HoldingSum`."""


def held(holdings: Sequence[Holding]) -> HoldingSum:
    """The sum of the holdings, each pod's at its peak.

    What a ResourceClaim has counts once, and each device ID of a pod.
    """
    if len(holdings) == 1 and not holdings[0].reused_ids:
        return HoldingSum(*[amount(holdings[0]) for amount in AMOUNTS])
    if any(holding.resource_claim_shares for holding in holdings):
        holdings = _each_resource_claim_once(holdings)
    if not any(holding.kind is ContainerKind.INIT or holding.reused_ids for holding in holdings):
        return HoldingSum(*(sum(map(amount, holdings)) for amount in AMOUNTS))
    pods: dict[str, list[Holding]] = {}
    for holding in sorted(holdings, key=attrgetter("order")):
        pods.setdefault(holding.pod.uid, []).append(holding)
    return HoldingSum(*(sum(_peak(pod, amount) for pod in pods.values()) for amount in AMOUNTS))


def _peak(pod: Sequence[Holding], amount: Amount) -> int:
    """The most of one pod: by the order of its containers where it is known, else by their IDs."""
    if any(holding.kind is ContainerKind.INIT for holding in pod):
        return effective((holding.kind, amount(holding)) for holding in pod)
    return most_at_once([(amount(holding), holding.reused_ids) for holding in pod])


def _each_resource_claim_once(holdings: Iterable[Holding]) -> list[Holding]:
    """The holdings; a device of a ResourceClaim counts only once."""
    counted: set[ResourceClaimDevice] = set()
    all_holdings = []
    for holding in holdings:
        repeated = [
            part for part in holding.resource_claim_shares if part.resource_claim_device in counted
        ]
        counted.update(part.resource_claim_device for part in holding.resource_claim_shares)
        all_holdings.append(_without(holding, repeated) if repeated else holding)
    return all_holdings


def _without(holding: Holding, parts: Sequence[ResourceClaimShare]) -> Holding:
    share = holding.share
    memory = (share.memory_bytes or 0) - sum(part.memory_bytes or 0 for part in parts)
    cores = (share.cores_milli or 0) - sum(part.cores_milli or 0 for part in parts)
    return msgspec.structs.replace(
        holding,
        share=Share(share.device, max(0, memory), max(0, cores)),
        slots=max(0, holding.slots - len(parts)),
    )


def exceeded(total: HoldingSum, device: Device) -> tuple[Amount, ...]:
    """The amounts that exceed the device."""
    capacities = (device.memory_bytes, device.cores_milli, device.slots)
    used = (total.memory_bytes, total.cores_milli, total.slots)
    return tuple(
        amount
        for amount, capacity, sum_ in zip(AMOUNTS, capacities, used, strict=True)
        if capacity is not None and sum_ > capacity
    )


def excesses(total: HoldingSum, device: Device) -> Iterator[str]:
    """The exceeded amounts as text; an amount that the device does not report has no bound."""
    amounts: tuple[tuple[str, Callable[[int], str], int, int | None], ...] = (
        ("memory", exact_size, total.memory_bytes, device.memory_bytes),
        ("cores", percentage, total.cores_milli, device.cores_milli),
        ("shares", str, total.slots, device.slots),
    )
    for what, text, used, capacity in amounts:
        if capacity is not None and used > capacity:
            yield f"{text(used)} of {text(capacity)} {what}"
