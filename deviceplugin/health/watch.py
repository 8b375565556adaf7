"""Watches the driver: one thread samples it, one waits for events, and neither waits for the other.

Promises: an event counts at once, even while a sample hangs; a driver that hangs delays nothing,
not even the end of the program; a driver that is not there yet is tried ever more rarely, and
logged as missing once; a device that was there once stays known.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from deviceplugin.health.device_health import UNKNOWN_DEVICE, Health, changes, heard, missed, seen
from deviceplugin.health.incident import UnhealthyReason
from deviceplugin.health.rules import HealthRules
from vgpu.model.facts import GpuSample, GpuSource, XidCount
from vgpu.sources.collector import Collector
from vgpu.sources.samples import CollectorRow

log = logging.getLogger(__name__)

DEADLINE_SECONDS: Final = 10.0
"""Maximum time of a sample, in seconds; a longer one is a miss. The driver starts in seconds."""

LONGEST_PAUSE_SECONDS: Final = 60.0
"""Maximum interval between two tries of a driver that has never answered, in seconds."""

_LEVELS: Final = {True: (logging.INFO, "healthy"), False: (logging.WARNING, "unhealthy")}

EVENT_WAIT_SECONDS: Final = 5.0
CLOSING_SECONDS: Final = 3.0


Links = Mapping[tuple[str, str], int]
"""An ``nvmlGpuTopologyLevel_t`` by two UUIDs."""


class TopologyDriver(GpuSource, Protocol):
    """A driver that also reports how near its GPUs are to one another."""

    def links(self) -> Links:
        """See :data:`Links`; called by the sampling thread. Raises SourceError."""
        ...


class HealthWatch:
    """Keeps the node's :class:`~deviceplugin.health.device_health.Health`; safe to be asked from
    any thread.
    """

    def __init__(
        self,
        source: GpuSource,
        rules: HealthRules,
        interval: float,
        changed: Callable[[Health], None],
        *,
        deadline: float = DEADLINE_SECONDS,
        links: Callable[[], Links] | None = None,
    ) -> None:
        """Make a watch that samples every ``interval`` seconds.

        ``changed`` is called from the watch's threads, one call at a time, with the first
        inventory and whenever a device is new, better, worse or has another size.
        ``links`` asks the driver how near GPUs are; it is asked once, with the first inventory.
        """
        self._source = source
        self._rules = rules
        self._interval = interval
        self._deadline = deadline
        self._changed = changed
        self._collector: Collector[GpuSample] = Collector("nvml", self._ask)
        self._ask_links = links
        self._links: Links = {}
        self._lock = threading.Lock()  # held while the health changes and is reported
        self._health = Health.at_start(source.xids())
        self._first = threading.Event()
        self._stopping = threading.Event()
        self._sampling = threading.Thread(target=self._sample, name="health", daemon=True)
        self._on_fatal: Callable[[], None] = lambda: None

    # ------------------------------------------------------------ health and links

    @property
    def health(self) -> Health:
        """Everything that is known, at one moment."""
        return self._health

    def collector(self) -> CollectorRow:
        """The state of sampling."""
        return self._collector.health()

    @property
    def links(self) -> Links:
        """The links of the first inventory; empty if ``links`` is None."""
        return self._links

    @property
    def fatal(self) -> str | None:
        """Why only a new process can go on: the driver was replaced; None if it can."""
        return str(self._collector.fatal) if self._collector.fatal else None

    # ------------------------------------------------------------ start and stop

    def start(self, on_fatal: Callable[[], None]) -> None:
        """Start; ``on_fatal`` is called once :attr:`fatal` is set, and then sampling ends."""
        self._on_fatal = on_fatal
        self._sampling.start()

    def wait_first(self, timeout: float | None = None) -> bool:
        """Wait for the first inventory; returns whether it is there."""
        return self._first.wait(timeout)

    def stop(self, grace: float = 2.0) -> bool:
        """Stop; returns False if a thread is stuck in the driver and was left there."""
        self._stopping.set()
        if self._sampling.is_alive():
            self._sampling.join(grace)
        if self._sampling.is_alive() or self._collector.busy_seconds:
            return False
        closing = threading.Thread(target=self._source.close, name="closing", daemon=True)
        closing.start()  # the driver may have stopped answering since the last sample
        closing.join(CLOSING_SECONDS)
        return not closing.is_alive()

    # ------------------------------------------------------------ the threads

    def _sample(self) -> None:
        pause = self._interval
        while not self._stopping.is_set():
            try:
                self._sample_once()
            except Exception:
                log.exception("unexpected error while judging the health of devices")
            if self._collector.fatal:
                self._on_fatal()
                return
            self._stopping.wait(pause)
            pause = next_pause(pause, self._interval, found=self._first.is_set())

    def _ask(self, now: float) -> GpuSample:
        """One sample of the driver. Raises SourceError."""
        sample = self._source.sample(now)
        if self._ask_links is not None and not self._first.is_set():
            self._links = self._ask_links()
        return sample

    def _sample_once(self) -> None:
        now, rules = time.monotonic(), self._rules
        self._collector.begin(time.time())
        self._collector.finish(now + self._deadline)
        sample = self._collector.data(now)
        if sample is None:
            detail = self._collector.health().last_error
            self._update(lambda health: missed(health, detail, now, rules))
            return
        self._update(lambda health: seen(health, sample, now, rules))
        if not self._first.is_set():
            # First: without a thread for it, the next sample is the first one again.
            threading.Thread(target=self._listen, name="events", daemon=True).start()
            self._first.set()

    def _listen(self) -> None:
        known: tuple[XidCount, ...] = ()
        while not self._stopping.is_set():
            try:
                self._source.wait_xids(EVENT_WAIT_SECONDS)
                xids = self._source.xids()
                if xids != known:
                    self._hear(xids)
                    known = xids
            except Exception:
                log.exception("unexpected error while waiting for events of the driver")
                self._stopping.wait(EVENT_WAIT_SECONDS)

    def _hear(self, xids: tuple[XidCount, ...]) -> None:
        before, now, rules = self._health, time.monotonic(), self._rules
        after = self._update(lambda health: heard(health, xids, now, rules))
        blamed_on_none = UNKNOWN_DEVICE, UnhealthyReason.XID
        if after.events.get(blamed_on_none, 0) > before.events.get(blamed_on_none, 0):
            log.warning("a critical XID names no device: all devices keep their health")

    def _update(self, judged: Callable[[Health], Health]) -> Health:
        """Change the health by ``judged``, and report changes to the users of devices."""
        with self._lock:
            before = self._health
            after = self._health = judged(before)
            news = changes(before, after)
            for change in news:
                level, state = _LEVELS[change.healthy]
                fields = {"device": change.uuid, "state": state, "detail": change.detail}
                log.log(level, "device health changed", extra=fields)
            if news:
                try:
                    self._changed(after)
                except Exception:
                    log.exception("unexpected error while reporting the health of devices")
            return after


def next_pause(pause: float, interval: float, *, found: bool) -> float:
    """Seconds until the next sample, after ``pause``: ever longer until the driver is found."""
    return interval if found else max(interval, min(2 * pause, LONGEST_PAUSE_SECONDS))
