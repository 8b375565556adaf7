"""The answers to Allocate whose owner the kubelet has not shown yet."""

import threading
import time
from collections.abc import Callable, Collection
from typing import Final

PATIENCE_SECONDS: Final = 30.0
"""Maximum time that an answer waits for its owner, in seconds; then the kubelet that asked has
died."""


class ExpectedAnswers:
    """Safe to be used from any thread; ``condition`` guards it, and is notified by its owner."""

    def __init__(self, condition: threading.Condition) -> None:
        self._condition = condition
        self._asked_at: dict[str, float] = {}  # by name, in monotonic seconds

    def add(self, name: str) -> None:
        """The kubelet is about to have an answer under this name."""
        with self._condition:
            self._asked_at[name] = time.monotonic()

    def names(self) -> frozenset[str]:
        """Of all of them."""
        with self._condition:
            return frozenset(self._asked_at)

    def seconds_since(self, name: str) -> float | None:
        """Since the answer under this name was asked for; None if it is not expected."""
        with self._condition:
            asked_at = self._asked_at.get(name)
        return None if asked_at is None else time.monotonic() - asked_at

    def settled(self, seconds: float, stopping: Callable[[], bool]) -> bool:
        """Wait until all have an owner; whether they have. Ends early if ``stopping``."""
        with self._condition:
            self._condition.wait_for(lambda: not self._asked_at or stopping(), seconds)
            return not self._asked_at

    def forget(self, assigned: Collection[str]) -> None:
        """Those that have an owner now, or never will."""
        oldest = time.monotonic() - PATIENCE_SECONDS
        with self._condition:
            self._asked_at = {
                name: asked_at
                for name, asked_at in self._asked_at.items()
                if name not in assigned and asked_at >= oldest
            }
