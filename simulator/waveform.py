"""Values that change with time, each with its exact integral: no clock, no randomness.

Load that drives a counter (power drives energy) is described by waves, because a counter that is
the exact integral of its gauge can be checked: it never falls, and its rate is the gauge.
"""

import math
from collections.abc import Callable
from enum import StrEnum

import msgspec


class Shape(StrEnum):
    """The shape of a wave between its low and its high; x counts periods."""

    SINE = "sine"  # low at x = 0, high at x = 1/2
    SAW = "saw"  # climbs from low to high, then falls at once
    BURST = "burst"  # high in the first half of a period, low in the second


def _fraction(x: float) -> float:
    return x - math.floor(x)


# Per shape: the unit wave (0-1), and its antiderivative.
_UNIT: dict[Shape, tuple[Callable[[float], float], Callable[[float], float]]] = {
    Shape.SINE: (
        lambda x: (1 - math.cos(math.tau * x)) / 2,
        lambda x: x / 2 - math.sin(math.tau * x) / (2 * math.tau),
    ),
    Shape.SAW: (_fraction, lambda x: (math.floor(x) + _fraction(x) ** 2) / 2),
    Shape.BURST: (
        lambda x: 1.0 if _fraction(x) < 0.5 else 0.0,
        lambda x: math.floor(x) / 2 + min(_fraction(x), 0.5),
    ),
}


class Waveform(msgspec.Struct, frozen=True, gc=False):
    """A periodic value between ``low`` and ``high``; ``period`` and ``phase`` in seconds."""

    low: float
    high: float
    period: float = 60.0
    phase: float = 0.0
    shape: Shape = Shape.SINE

    def value(self, t: float) -> float:
        """The value at ``t`` seconds."""
        if self.low == self.high:
            return self.low
        unit, _ = _UNIT[self.shape]
        return self.low + (self.high - self.low) * unit((t + self.phase) / self.period)

    def integral(self, since: float, until: float) -> float:
        """The exact integral over ``since`` … ``until`` seconds."""
        flat = self.low * (until - since)
        if self.low == self.high:
            return flat
        _, area = _UNIT[self.shape]
        periods = area((until + self.phase) / self.period) - area(
            (since + self.phase) / self.period
        )
        return flat + (self.high - self.low) * self.period * periods

    def last_active(self, t: float) -> float | None:
        """The latest moment up to ``t`` at which the value was above 0; None if it never is."""
        if self.high <= 0:
            return None
        if self.shape is not Shape.BURST or self.value(t) > 0:
            return t
        x = (t + self.phase) / self.period
        return (math.floor(x) + 0.5) * self.period - self.phase


def constant(value: float) -> Waveform:
    """A wave that does not move."""
    return Waveform(low=value, high=value)
