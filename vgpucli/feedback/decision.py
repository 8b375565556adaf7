"""Which containers wait for a higher priority, and whose core limit is lifted. Pure.

These are the rules of HAMi's monitor (``Observe`` of v2.10). A lower number is a higher priority. A
container is active if it has launched a kernel since the last round but one. It waits while a
container of a higher priority is active on one of its devices. Its core limit is lifted while no
container of a higher priority, and no other one of the same priority, is active on any of them.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

from vgpu.schemes.volcano.hami_core import FeedbackWords

BLOCKED: Final = -1
"""``recent_kernel`` of a container that has to wait."""

RELEASED: Final = 0
"""``recent_kernel`` of a container that waited, until it launches a kernel."""

LAUNCHED: Final = 2
"""``recent_kernel`` as the library writes it with each launch; each round takes one away."""

LIMITED: Final = 1
"""``utilization_switch`` as the library creates it: the core limit holds."""

LIFTED: Final = 0
"""``utilization_switch`` while the core limit is lifted."""


class Contender(msgspec.Struct, frozen=True, gc=False):
    """A container at the start of a round.

    Attributes:
        devices: UUIDs of its devices, without those that the node has not confirmed.
        priority: a lower number is a higher priority.
        words: both words as they were read.
    """

    devices: frozenset[str]
    priority: int
    words: FeedbackWords


def decide(contenders: Sequence[Contender]) -> list[FeedbackWords]:
    """The words of each container after this round, in the same order.

    A container without a device, or with a priority below 0, is released and its core limit holds:
    it has no influence on others.
    """
    recent = [_decayed(contender.words.recent_kernel) for contender in contenders]
    active: Counter[tuple[str, int]] = Counter()
    highest: dict[str, int] = {}
    for contender, launches in zip(contenders, recent, strict=True):
        if launches > 0 and takes_part(contender):
            for device in contender.devices:
                active[device, contender.priority] += 1
                highest[device] = min(contender.priority, highest.get(device, contender.priority))
    return [
        _words(contender, launches, active, highest)
        for contender, launches in zip(contenders, recent, strict=True)
    ]


def released(words: FeedbackWords) -> FeedbackWords:
    """The words of a container that nobody holds back, as if there had never been a feedback."""
    return FeedbackWords(max(words.recent_kernel, RELEASED), LIMITED)


def takes_part(contender: Contender) -> bool:
    """Whether it has a device that the node has confirmed, and a priority that exists."""
    return bool(contender.devices) and contender.priority >= 0


def _decayed(recent_kernel: int) -> int:
    """One round later. A number that the library never writes counts as one launch."""
    return min(recent_kernel, LAUNCHED) - 1 if recent_kernel > 0 else recent_kernel


def _words(
    contender: Contender,
    launches: int,
    active: Counter[tuple[str, int]],
    highest: dict[str, int],
) -> FeedbackWords:
    if not takes_part(contender):
        return released(contender.words)
    priority = contender.priority
    waits = any(highest.get(device, priority) < priority for device in contender.devices)
    shares = any(active[device, priority] > 1 for device in contender.devices)
    return FeedbackWords(
        BLOCKED if waits else max(launches, RELEASED),
        LIMITED if waits or shares else LIFTED,
    )


def recent_kernel_to_write(read: int, decided: int, current: int) -> int | None:
    """What to write over ``current``, the word just before the write; None to leave it.

    ``read`` is the word that the decision was made from. A launch since then stays noted: only a
    container that has to wait loses it.
    """
    if decided == BLOCKED:
        return BLOCKED if current >= 0 else None
    if current < 0:
        return decided
    return decided if current == read and current != decided else None
