"""The answers to Allocate whose owner the kubelet has not shown yet."""

import threading
import time
from collections.abc import Callable, Collection
from typing import Final

PATIENCE_SECONDS: Final = 30.0
"""Maximum time that an answer waits for its owner, in seconds; after that the kubelet that asked
has died."""


class ExpectedAnswers:
    """The expected answers, for any thread. ``condition`` guards them; its owner notifies it."""

    def __init__(self, condition: threading.Condition) -> None:
        self._condition = condition
        self._asked_at: dict[str, float] = {}  # by name, in monotonic seconds

    def add(self, name: str) -> None:
        """The kubelet is about to get an answer under this name."""
        with self._condition:
            self._asked_at[name] = time.monotonic()

    def names(self) -> frozenset[str]:
        """The names of all expected answers."""
        with self._condition:
            return frozenset(self._asked_at)

    def seconds_since(self, name: str) -> float | None:
        """Seconds since Allocate asked for the answer of this name; None if it is not expected."""
        with self._condition:
            asked_at = self._asked_at.get(name)
        return None if asked_at is None else time.monotonic() - asked_at

    def settled(self, seconds: float, stopping: Callable[[], bool]) -> bool:
        """Wait until all answers have an owner, or ``stopping``; returns whether they have."""
        with self._condition:
            self._condition.wait_for(lambda: not self._asked_at or stopping(), seconds)
            return not self._asked_at

    def forget(self, assigned: Collection[str]) -> None:
        """Forget the answers that have an owner now, and those that waited too long."""
        oldest = time.monotonic() - PATIENCE_SECONDS
        with self._condition:
            self._asked_at = {
                name: asked_at
                for name, asked_at in self._asked_at.items()
                if name not in assigned and asked_at >= oldest
            }
