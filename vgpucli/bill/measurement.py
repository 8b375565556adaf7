"""The part of a GPU that a container holds, and what of it is used. Pure.

A container that holds memory m and cores c of a GPU, each as a part of the device, has the part

    p = w * m + (1 - w) * c         (rule sum), or max(m, c)         (rule max)

with m alone where cores are not limited, c alone where no amount of memory is held, and k/n with k
of n replicas. If the parts of a GPU have a sum above 1, each is divided by it, so that

    sum of the parts of a GPU <= 1,        0 <= used <= held  of each share

Of each dimension min(amount held, the driver's use) is used.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple, TypeVar

import msgspec


class PartRule(StrEnum):
    """How memory and cores make one part."""

    SUM = "sum"
    MAX = "max"


class Method(msgspec.Struct, frozen=True):
    """The rule, and with the rule ``sum`` the weight w of memory, from 0 to 1."""

    rule: PartRule = PartRule.SUM
    memory_weight: float = 0.5

    def joined(self, memory: float, cores: float) -> float:
        """Both dimensions as one part."""
        if self.rule is PartRule.MAX:
            return max(memory, cores)
        return self.memory_weight * memory + (1 - self.memory_weight) * cores


class MeasuredShare(NamedTuple):
    """What is known of a share at a moment, as parts of its device; None where it is unknown.

    ``replica`` is the part of a share without amounts.
    """

    memory: float | None = None
    cores: float | None = None
    replica: float | None = None
    memory_use: float | None = None
    core_use: float | None = None

    @property
    def is_unsized(self) -> bool:
        """The size of the share is unknown: it counts as 0."""
        return self.memory is None and self.cores is None and self.replica is None


class Slice(NamedTuple):
    """A share's part at a moment: held, used of it, and used above it, which is in no bill.

    ``known`` is False where the use of a dimension is unknown; then ``used`` is 0.
    """

    held: float
    used: float
    above: float
    known: bool


class ShareMoment(NamedTuple):
    """All shares of a device at a moment; ``crowded``: their parts were divided by their sum."""

    slices: tuple[Slice, ...]
    crowded: bool
    over_committed: bool


K = TypeVar("K")


def _part(share: MeasuredShare, method: Method) -> Slice:
    memory, cores = share.memory, share.cores
    if memory is None and cores is None:
        memory = cores = min(1.0, share.replica or 0.0)
    held = (
        method.joined(memory, cores)
        if memory is not None and cores is not None
        else memory or cores or 0.0
    )
    uses = [
        (amount, use)
        for amount, use in ((memory, share.memory_use), (cores, share.core_use))
        if amount is not None
    ]
    if any(use is None for _, use in uses):
        return Slice(held, 0.0, 0.0, known=False)
    inside = [min(amount, max(0.0, use or 0.0)) for amount, use in uses]
    beyond = [max(0.0, (use or 0.0) - amount) for amount, use in uses]
    used, above = (
        method.joined(*each) if len(each) == 2 else sum(each)  # dimensions
        for each in (inside, beyond)
    )
    return Slice(held, min(used, held), above, known=True)


def moment(shares: Mapping[K, MeasuredShare], method: Method) -> ShareMoment:
    """The parts of all shares of one device, in the order of ``shares``."""
    slices = [_part(share, method) for share in shares.values()]
    total = sum(each.held for each in slices)
    over = any(
        sum(amount or 0.0 for amount in amounts) > 1 + _SLACK
        for amounts in (
            [share.memory for share in shares.values()],
            [share.cores for share in shares.values()],
        )
    )
    crowded = total > 1 + _SLACK
    if crowded:
        slices = [each._replace(held=each.held / total, used=each.used / total) for each in slices]
    return ShareMoment((*slices,), crowded, over)


_SLACK: Final = 1e-9
"""Twenty shares of 0.05 have a sum of 1 and a little more."""
