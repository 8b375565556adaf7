"""A token bucket: the web config file's ``rate_limit``."""

import threading
import time
from collections.abc import Callable


class RateLimiter:
    """Allows ``burst`` requests at once and then one per ``interval`` seconds."""

    def __init__(
        self, interval: float, burst: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.interval = interval
        self.burst = burst
        self._clock = clock
        self._tokens = float(burst)
        self._filled_at = clock()
        self._lock = threading.Lock()

    def allow(self) -> bool:
        """Take a token; False when there is none."""
        with self._lock:
            now = self._clock()
            refill = (now - self._filled_at) / self.interval
            self._tokens = min(float(self.burst), self._tokens + refill)
            self._filled_at = now
            if self._tokens < 1:
                return False
            self._tokens -= 1
            return True
