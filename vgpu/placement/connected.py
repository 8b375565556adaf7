"""Which of several GPUs are connected best, by scores of their pairs. Pure.

This is the rule of HAMi's policy ``topology-aware``: several GPUs are those whose pairs have the
highest sum; a single one is the GPU that the others miss least.
"""

from collections.abc import Sequence
from itertools import combinations
from math import comb
from typing import Final

from vgpu.placement.candidate import GpuLinks

MOST_COMBINATIONS: Final = 2000
"""Maximum number of combinations that are compared: all of eight GPUs of 15 are more."""


MOST_GPUS: Final = 64
"""Maximum number of GPUs that are compared: a node that registers more is hardly one."""


def best_connected(gpus: Sequence[str], count: int, links: GpuLinks) -> tuple[int, ...]:
    """The positions of ``count`` of these GPUs, of equal ones the first; ``gpus`` are UUIDs.

    Where there are too many combinations, the GPUs are taken one after another: first the best
    pair, then each time the one that adds most. Of too many GPUs the first ones are compared.
    """
    if count > MOST_GPUS:
        return tuple(range(min(count, len(gpus))))
    gpus = gpus[:MOST_GPUS]
    scores = [[links.get(one, {}).get(other, 0) for other in gpus] for one in gpus]
    positions = range(len(gpus))
    if count >= len(gpus):
        return tuple(positions)
    if count == 1:
        alone = min(positions, key=lambda one: sum(scores[one]) - scores[one][one])
        return (alone,)

    def total(chosen: tuple[int, ...]) -> int:
        return sum(scores[one][other] for one, other in combinations(chosen, 2))

    if comb(len(gpus), count) <= MOST_COMBINATIONS:
        return max(combinations(positions, count), key=total)
    chosen: tuple[int, ...] = max(combinations(positions, 2), key=total)
    while len(chosen) < count:
        left = (position for position in positions if position not in chosen)
        chosen += (max(left, key=lambda one: sum(scores[one][other] for other in chosen)),)
    return tuple(sorted(chosen))
