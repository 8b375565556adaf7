"""A node's allocation records: who holds how much of which device, never more than its capacity.

The records are a value: holding and releasing return new records, and a refusal changes nothing.
Sums are of integers, so that twenty times a twentieth is a whole. Health does not count: shares on
a device that fails stay held; placement keeps new shares off it.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from enum import StrEnum
from typing import Final, Self

import msgspec

from vgpu.model.allocation import Device, Share
from vgpu.model.units import exact_size, percentage

_AMBIGUOUS = ""  # the meaning of a name that several devices have


class CapacityRefusal(StrEnum):
    """Why the allocation records refuse shares."""

    MEMORY = "not enough free memory"
    CORES = "not enough free cores"
    SLOTS = "no slot is free"
    NEGATIVE = "negative amount"
    UNKNOWN_DEVICE = "there is no such device"
    AMBIGUOUS_DEVICE = "the name is ambiguous"
    HELD_OTHERWISE = "the holder has other shares already"


_TEXT: Final[Mapping[CapacityRefusal, Callable[[int], str]]] = {
    CapacityRefusal.MEMORY: exact_size,
    CapacityRefusal.CORES: percentage,
}
"""Amounts for people; others are numbers."""


class CapacityError(Exception):
    """The allocation records refuse.

    Attributes:
        reason: why.
        device: on which device, as the share names it.
        asked, free: bytes, thousandths of cores, or slots; None for a refusal without amounts, or
            if the device's memory is unknown.
    """

    def __init__(
        self,
        reason: CapacityRefusal,
        device: str,
        asked: int | None = None,
        free: int | None = None,
    ) -> None:
        text = _TEXT.get(reason, str)
        known = "unknown" if free is None else text(free)
        amounts = "" if asked is None else f": asked {text(asked)}, free {known}"
        super().__init__(f"device {device}: {reason}{amounts}")
        self.reason = reason
        self.device = device
        self.asked = asked
        self.free = free


class Free(msgspec.Struct, frozen=True, gc=False):
    """The free amounts of a device; unknown memory and unlimited slots are None."""

    memory_bytes: int | None
    cores_milli: int
    slots: int | None


class NodeCapacity(msgspec.Struct, frozen=True):
    """The allocation records of one node. Made by :meth:`of`.

    Attributes:
        held: holder -> shares.
        free_by_device: a device's name -> what is free of it.
        capacities: a device's name -> all that it has.
        names: every name that a share may have for a device -> the device's name.
    """

    held: Mapping[Hashable, tuple[Share, ...]]
    free_by_device: Mapping[str, Free]
    capacities: Mapping[str, Free]
    names: Mapping[str, str]

    @classmethod
    def of(cls, devices: Iterable[Device]) -> Self:
        """Allocation records in which nothing is held.

        Raises CapacityError AMBIGUOUS_DEVICE where two devices have the same UUID, or the same
        index and no UUID. Any further name that two devices share is refused when it is used.
        """
        names: dict[str, str] = {}
        free: dict[str, Free] = {}
        for device in devices:
            if not device.name or device.name in free:
                raise CapacityError(CapacityRefusal.AMBIGUOUS_DEVICE, device.name)
            for name in set(device.names):
                names[name] = _AMBIGUOUS if name in names else device.name
            free[device.name] = Free(device.memory_bytes, device.cores_milli, device.slots)
        return cls({}, free, free, names)

    def free(self, device: str) -> Free:
        """The free amounts of a device, by any of its names. Raises CapacityError."""
        return self.free_by_device[self._name(device)]

    def hold(self, holder: Hashable, shares: tuple[Share, ...]) -> Self:
        """The allocation records with these shares held, all or none.

        A share without memory is of all the device's memory, so it is refused where any memory is
        held; one without cores has no reserved cores. Unknown memory can only be held as a whole.
        Holding the same shares again changes nothing. Raises CapacityError.
        """
        if holder in self.held:
            if self.held[holder] == shares:
                return self
            raise CapacityError(CapacityRefusal.HELD_OTHERWISE, ", ".join(s.device for s in shares))
        free = dict(self.free_by_device)
        for share in shares:
            name = self._name(share.device)
            free[name] = _take(free[name], self.capacities[name], share)
        return self._with({**self.held, holder: shares}, free)

    def release(self, holder: Hashable) -> Self:
        """The allocation records without the holder; the same if it holds nothing."""
        if holder not in self.held:
            return self
        held = dict(self.held)
        free = dict(self.free_by_device)
        for share in held.pop(holder):
            name = self._name(share.device)
            free[name] = _give_back(free[name], self.capacities[name], share)
        return self._with(held, free)

    def _with(self, held: Mapping[Hashable, tuple[Share, ...]], free: Mapping[str, Free]) -> Self:
        return msgspec.structs.replace(self, held=held, free_by_device=free)

    def _name(self, device: str) -> str:
        name = self.names.get(device)
        if name is None:
            raise CapacityError(CapacityRefusal.UNKNOWN_DEVICE, device)
        if name == _AMBIGUOUS:
            raise CapacityError(CapacityRefusal.AMBIGUOUS_DEVICE, device)
        return name


def _take(free: Free, capacity: Free, share: Share) -> Free:
    cores = share.cores_milli or 0
    if cores < 0 or (share.memory_bytes or 0) < 0:
        asked = min(cores, share.memory_bytes or 0)
        raise CapacityError(CapacityRefusal.NEGATIVE, share.device, asked)
    if free.slots is not None and free.slots < 1:
        raise CapacityError(CapacityRefusal.SLOTS, share.device, 1, free.slots)
    if cores > free.cores_milli:
        raise CapacityError(CapacityRefusal.CORES, share.device, cores, free.cores_milli)
    return Free(
        _memory_left(free, capacity, share),
        free.cores_milli - cores,
        None if free.slots is None else free.slots - 1,
    )


def _memory_left(free: Free, capacity: Free, share: Share) -> int | None:
    left, asked = free.memory_bytes, share.memory_bytes
    if asked is None:
        if left != capacity.memory_bytes:
            raise CapacityError(CapacityRefusal.MEMORY, share.device, capacity.memory_bytes, left)
        return 0
    if asked and (left is None or asked > left):
        raise CapacityError(CapacityRefusal.MEMORY, share.device, asked, left)
    return None if left is None else left - asked


def _give_back(free: Free, capacity: Free, share: Share) -> Free:
    memory = free.memory_bytes
    if share.memory_bytes is None:
        memory = capacity.memory_bytes
    elif memory is not None:
        memory += share.memory_bytes
    return Free(
        memory,
        free.cores_milli + (share.cores_milli or 0),
        None if free.slots is None else free.slots + 1,
    )
