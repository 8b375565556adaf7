"""When what failed is tried again: each subject for itself, later each time. Pure but for luck."""

import random
from collections.abc import Callable, Collection, Hashable

import msgspec

from vgpu.kube.informer import pause_seconds


class _Trouble(msgspec.Struct, frozen=True):
    """How often it has failed in a row, of which version last, until when it is skipped."""

    failures: int
    version: str
    until: float
    moved_on: bool


class ItemBackoff:
    """Of many subjects. Times are seconds that never go back."""

    def __init__(self, jitter: Callable[[], float] = random.random) -> None:
        """``luck`` is uniform in 0..1."""
        self._jitter = jitter
        self._of: dict[Hashable, _Trouble] = {}

    def __len__(self) -> int:
        """How many subjects are in trouble."""
        return len(self._of)

    def failures(self, subject: Hashable) -> int:
        """How often it has failed in a row."""
        trouble = self._of.get(subject)
        return trouble.failures if trouble else 0

    def until(self, subject: Hashable, version: str) -> float:
        """From when on it may be tried, as it now is; 0 if there is no trouble with it.

        What was too old to be written is tried as soon as a newer version is there.
        """
        trouble = self._of.get(subject)
        if trouble is None or (trouble.moved_on and trouble.version != version):
            return 0.0
        return trouble.until

    def add(self, subject: Hashable, version: str, now: float, *, moved_on: bool = False) -> None:
        """It has failed; ``moved_on`` if only since it was not of that version any more."""
        failures = self.failures(subject) + 1
        until = now + pause_seconds(failures, self._jitter())
        self._of[subject] = _Trouble(failures, version, until, moved_on)

    def end(self, subject: Hashable) -> None:
        """It went well, or there was nothing to be done."""
        self._of.pop(subject, None)

    def prune(self, subjects: Collection[Hashable]) -> None:
        """The others are gone."""
        for subject in self._of.keys() - subjects:
            del self._of[subject]
