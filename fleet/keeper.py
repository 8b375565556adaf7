"""Keeps the newest snapshot: a thread reads again and again, and nobody's look makes it read.

While a read fails, or does not end, the last snapshot stays, and the page shows since when it is
out of date. Whatever a read raises, the next one is made.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final, Self

import msgspec

from fleet.snapshot import FleetSnapshot
from vgpucli.doctor.answer import error_place

LATE: Final = 3
"""Number of intervals after which a page without a new read is out of date."""

UNEXPECTED: Final = "unexpected error of vgpu itself"
"""What is shown with the type and place of an error that no read is expected to raise."""

log = logging.getLogger(__name__)


class Kept(msgspec.Struct, frozen=True):
    """What is shown: the newest snapshot, and why it is not newer.

    Attributes:
        snapshot: the newest; None before the first.
        number: how many snapshots there were.
        failure: why the last read failed; "" if it did not.
    """

    snapshot: FleetSnapshot | None = None
    number: int = 0
    failure: str = ""


class Keeper:
    """Makes snapshots until it is closed. A context manager."""

    def __init__(
        self,
        make: Callable[[], FleetSnapshot],
        every: float,
        failures: tuple[type[Exception], ...],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``every`` is in seconds, 0 for a dump that is read once.

        ``failures`` have messages for people; of any other error its type and place are shown.
        """
        self._make = make
        self._every = every
        self._failures = failures
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fleet-keeper", daemon=True)
        self._use: Callable[[FleetSnapshot], None] = lambda _: None
        self._kept = Kept()
        self._clock = clock
        self._read_at = clock()

    @property
    def kept(self) -> Kept:
        """What is kept now, and why it is not newer."""
        kept = self._kept
        if kept.failure or not self._every or self._clock() - self._read_at <= LATE * self._every:
            return kept
        failure = f"no read has ended for more than {LATE} intervals of {self._every:g} s"
        return msgspec.structs.replace(kept, failure=failure)

    def read(self, use: Callable[[FleetSnapshot], None]) -> None:
        """Make the first snapshot; ``use`` gets this and each later one.

        Raises what the read raises.
        """
        self._use = use
        self._keep()

    def __enter__(self) -> Self:
        if self._every:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def _keep(self) -> None:
        snapshot = self._make()
        self._read_at = self._clock()
        self._kept = Kept(snapshot, self._kept.number + 1)
        self._use(snapshot)

    def _run(self) -> None:
        while not self._ended.wait(self._every):
            try:
                self._keep()
            except self._failures as error:
                self._fail(str(error) or type(error).__name__)
            except Exception as error:  # noqa: BLE001 - whatever it is, the next read is made
                self._fail(f"{UNEXPECTED}: {error_place(error)}")

    def _fail(self, failure: str) -> None:
        if failure != self._kept.failure:
            log.warning("the cluster was not read", extra={"reason": failure})
        self._kept = msgspec.structs.replace(self._kept, failure=failure)
