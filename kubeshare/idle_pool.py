"""Which idle virtual GPUs a node keeps, by their number and by the time since their last use."""

import math
from collections.abc import Sequence

from kubeshare.model import VirtualGpuName


class IdlePool:
    """The idle virtual GPUs of all nodes. For one thread."""

    def __init__(self, number: int, seconds: float) -> None:
        """Each node keeps ``number``, for so many seconds at most; 0 seconds is no limit."""
        self._number = number
        self._seconds = seconds
        self._since: dict[VirtualGpuName, float] = {}

    def seconds_left(
        self, name: VirtualGpuName, idle: Sequence[VirtualGpuName], now: float
    ) -> float:
        """For how long a virtual GPU stays although nobody uses it; 0 if it does not.

        ``idle`` are the idle ones of its node.
        """
        if name not in idle:
            self._since.pop(name, None)
            return 0.0
        since = self._since.setdefault(name, now)
        if name not in idle[: self._number]:
            return 0.0
        return max(0.0, since + self._seconds - now) if self._seconds else math.inf
