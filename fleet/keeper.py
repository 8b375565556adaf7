"""Keeps the newest snapshot: a thread reads again and again, and nobody's look makes it read.

While a read fails, the last snapshot stays, and the page shows since when it is out of date.
"""

import logging
import threading
from collections.abc import Callable
from typing import Self

import msgspec

from fleet.snapshot import FleetSnapshot

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
    ) -> None:
        """``every`` is in seconds, 0 for a dump that is read once; ``failures`` are of the read."""
        self._make = make
        self._every = every
        self._failures = failures
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fleet-keeper", daemon=True)
        self._use: Callable[[FleetSnapshot], None] = lambda _: None
        self._kept = Kept()

    @property
    def kept(self) -> Kept:
        """What is kept now."""
        return self._kept

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
        self._kept = Kept(snapshot, self._kept.number + 1)
        self._use(snapshot)

    def _run(self) -> None:
        while not self._ended.wait(self._every):
            try:
                self._keep()
            except self._failures as error:
                failure = str(error) or type(error).__name__
                if failure != self._kept.failure:
                    log.warning("the cluster was not read", extra={"reason": failure})
                self._kept = msgspec.structs.replace(self._kept, failure=failure)
