"""Money is divided without loss: sums of the parts equal the whole. Pure.

sum(divided(amount, weights)) = amount          whenever the sum of the weights is not 0
|divided(amount, weights)[i] - amount * weights[i] / sum(weights)| < 1
"""

from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction

from vgpucli.bill.model import HOUR, SECOND


def divided(amount: int, weights: Sequence[int]) -> list[int]:
    """``amount`` in proportion to the weights, by largest remainder.

    Of equal remainders the first gets one more, so equal input has equal output. Weights are not
    negative. With a sum of 0 every part is 0, as is the amount.
    """
    total = sum(weights)
    if not total:
        return [0] * len(weights)
    parts = [amount * weight // total for weight in weights]
    remainders = [amount * weight % total for weight in weights]
    left = amount - sum(parts)
    for index in sorted(range(len(parts)), key=lambda index: -remainders[index])[:left]:
        parts[index] += 1
    return parts


def amount_of(gpu_microseconds: int, per_gpu_hour: Decimal) -> int:
    """The price of a GPU's time in micro-units, rounded once, half to even."""
    return round(Fraction(gpu_microseconds, HOUR) * Fraction(per_gpu_hour) * SECOND)


def shown(values: Sequence[int], step: int, total: int | None = None) -> list[int]:
    """The values in units of ``step`` for display, from their total downwards.

    sum(shown(values)) = ``total``, by default their sum rounded half to even; each differs from its
    own value by less than one, if the total does.
    """
    floors = [value // step for value in values]
    if total is None:
        total = round(Fraction(sum(values), step))
    left = total - sum(floors)
    order = sorted(range(len(values)), key=lambda index: -(values[index] % step))
    for index in order[:left]:
        floors[index] += 1
    return floors
